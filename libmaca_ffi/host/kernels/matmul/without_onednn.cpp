// What stands in for oneDNN's products where it is not there: panels of our own and BLAS, halves in float32.
#include "matmul.h"
#include "onednn/workspace.h"

namespace maca::matmul {
namespace {

using onednn::at;
using onednn::Workspace;

std::unique_ptr<Plan> float_plan(const Problem& p) {
  if (p.k() > 0)
    if (auto panels = panels_plan(p)) return panels;
  return blas_plan(p);
}

// Both factors as float32, their product, and what is added in the dtype of the result.
class WidenedPlan final : public Plan {
 public:
  explicit WidenedPlan(const Problem& p) : p_(p) {
    work = p.work();
    if (p.out.numel() == 0) return;
    Workspace space;
    const auto place = [&](const Matrix& m, int slot, uint64_t& offset) {
      Matrix wide = m.compact(Dtype::F32);
      wide.slot = slot;
      offset = space.take(static_cast<uint64_t>(wide.numel()) * sizeof(float));
      return wide;
    };
    Problem inner;
    inner.a = a_ = place(p.a, 0, a_offset_);
    inner.b = b_ = place(p.b, 1, b_offset_);
    inner.out = product_ = place(p.out, 2, product_offset_);
    plan_ = float_plan(inner);
    inner_offset_ = space.take(plan_->workspace_bytes);
    workspace_bytes = space.bytes();
    implementation = plan_->implementation + " in float32";
  }

  void run(const Launch& launch) const override {
    if (p_.out.numel() == 0) return;
    void *a = at(launch.workspace, a_offset_), *b = at(launch.workspace, b_offset_);
    void* product = at(launch.workspace, product_offset_);
    copy(p_.a, launch.data(p_.a.slot), a_, a);
    copy(p_.b, launch.data(p_.b.slot), b_, b);
    void* const pointers[] = {a, b, product};
    plan_->run({pointers, nullptr, at(launch.workspace, inner_offset_), nullptr, 0, 0});
    combine(p_, launch, product_, product, launch.data(p_.out.slot));
  }

 private:
  Problem p_;
  Matrix a_, b_, product_;  // what the inner plan sees
  std::unique_ptr<Plan> plan_;
  uint64_t a_offset_ = 0, b_offset_ = 0, product_offset_ = 0, inner_offset_ = 0;
};

}  // namespace

std::unique_ptr<Plan> onednn_plan(const Problem& p) {
  if (p.out.dtype == Dtype::F32) return float_plan(p);
  return std::make_unique<WidenedPlan>(p);
}

}  // namespace maca::matmul
