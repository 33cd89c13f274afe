// Products of float32 matrices of middle size from a packed right factor, which is kept where it is a weight.
//
// BLAS packs both factors at every call: a tenth of the time of 256 x 256 x 256, a twentieth of twice the size. Here
// the left one is read where it lies, and a right one that is met again unchanged was packed before. It is packed the
// same way where it was not, so a result has the same bits either way and for any number of threads.
#include "library_matmul.h"
#include "panel_product.h"
#include "tensor_float.h"

namespace maca::MACA_ISA {
namespace {

using matmul::Matrix;
using matmul::Problem;

// Rows that are multiplied by all panels of a block of the depth: 192 x 256 floats stay in the second-level cache.
constexpr int64_t kBlockRows = 192;

class PanelPlan final : public Plan {
 public:
  explicit PanelPlan(const Problem& p)
      : p_(p), panels_{p.k(), p.n()}, scaled_(p.self ? matmul::blas_plan(p, true) : nullptr) {
    packed_operand = p.b.slot;
    packed_bytes = static_cast<uint64_t>(panels_.size()) * sizeof(float);
    workspace_bytes = std::max(packed_bytes, scaled_ ? scaled_->workspace_bytes : 0);
    work = p.work();
    implementation = "panels";
  }

  void pack(const void* operand, void* packed) const override {
    share([&](int64_t begin, int64_t end) {
      pack_panels(begin, end, static_cast<const float*>(operand), static_cast<float*>(packed));
    });
  }

  void run(const Launch& launch) const override {
    if (!matmul::is_one(launch, p_.alpha_slot) || !matmul::is_one(launch, p_.beta_slot)) return scaled_->run(launch);
    const Matrix &a = p_.a, &out = p_.out;
    const auto* factors = launch.data<float>(a.slot);
    auto* sums = launch.data<float>(out.slot);
    const float* bias = p_.self ? launch.data<float>(p_.self->slot) : nullptr;
    const auto* packed = static_cast<const float*>(launch.packed ? launch.packed : launch.workspace);
    // Each thread has columns of its own: it packs what it multiplies, and no other core's cache holds that.
    share([&](int64_t begin, int64_t end) {
      if (!launch.packed) pack_panels(begin, end, launch.data<float>(p_.b.slot), static_cast<float*>(launch.workspace));
      const int64_t blocks = (out.rows + kBlockRows - 1) / kBlockRows;
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t row = out.rows * i / blocks, rows = out.rows * (i + 1) / blocks - row;
        panels_.multiply(rows, {factors + row * a.row_stride, a.row_stride, a.column_stride}, packed, begin, end,
                         {sums + row * out.leading(), out.leading(), false}, bias);
      }
    });
  }

 private:
  template <class F> void share(F&& f) const { parallel_for(panels_.count(), 4, f); }

  void pack_panels(int64_t begin, int64_t end, const float* from, float* packed) const {
    const Matrix& b = p_.b;
    if (b.row_major())
      panels_.pack(begin, end, packed, [&](int64_t k) { return from + k * b.row_stride; });
    else
      panels_.pack_transposed(begin, end, packed, [&](int64_t j) { return from + j * b.column_stride; });
  }

  Problem p_;
  Panels panels_;
  std::unique_ptr<Plan> scaled_;  // alpha and beta are known at launch
};

std::unique_ptr<Plan> panel_plan(const Problem& p) { return std::make_unique<PanelPlan>(p); }

std::unique_ptr<Plan> product(const Request& r) { return matmul::product(r, panel_plan); }
std::unique_ptr<Plan> make_mm(const Request& r) { return tensor_float::rounded(r, {0, 1}, product); }
std::unique_ptr<Plan> make_addmm(const Request& r) { return tensor_float::rounded(r, {1, 2}, product); }
MACA_KERNEL("mm", make_mm);
MACA_KERNEL("addmm", make_addmm);

}  // namespace
}  // namespace maca::MACA_ISA
