// Matrix products of a few rows with a factor given by its columns, as of a vector. bfloat16 and float16 are read as
// they are stored: a library that computes in float32 would write and read the whole weight once more.
#include "dot_products.h"
#include "onednn/engine.h"

namespace maca::MACA_ISA {
namespace {

using matmul::is_one;
using matmul::Matrix;
using matmul::Problem;
using onednn::Workspace;

template <class T> class RowsPlan final : public Plan {
 public:
  explicit RowsPlan(const Problem& p) : p_(p), a_(p.a), product_(p.out) {
    Workspace space;
    if constexpr (!kNative) {
      a_ = p.a.compact(Dtype::F32);
      product_ = p.out.compact(Dtype::F32);
      a_offset_ = space.take(static_cast<uint64_t>(a_.numel()) * sizeof(float));
      product_offset_ = space.take(static_cast<uint64_t>(product_.numel()) * sizeof(float));
    }
    workspace_bytes = space.bytes();
    work = p.work();
    implementation = "dot products";
  }

  void run(const Launch& launch) const override {
    const auto* left = launch.data<const float>(p_.a.slot);
    auto* product = launch.data<float>(p_.out.slot);
    if constexpr (!kNative) {
      auto* widened = reinterpret_cast<float*>(onednn::at(launch.workspace, a_offset_));
      matmul::copy(p_.a, launch.data(p_.a.slot), a_, widened);
      left = widened;
      product = reinterpret_cast<float*>(onednn::at(launch.workspace, product_offset_));
    }
    const auto* right = launch.data<const T>(p_.b.slot);
    const int64_t work = std::max<int64_t>(1, p_.k() * ((p_.m() + 1) / 2)), step = p_.b.leading();
    parallel_for(p_.n(), std::max<int64_t>(1, 65536 / work), [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j)
        DotProducts<T>::column(p_.m(), p_.k(), left, a_.row_stride, right + j * step,
                               product + j * product_.column_stride, product_.row_stride);
    });
    const bool ones = is_one(launch, p_.alpha_slot) && (!p_.self || is_one(launch, p_.beta_slot));
    if (!kNative || p_.self || !ones || p_.activation != matmul::Activation::None)
      matmul::combine(p_, launch, product_, product, launch.data(p_.out.slot));
  }

 private:
  static constexpr bool kNative = std::is_same_v<T, float>;
  Problem p_;
  Matrix a_, product_;  // what is read and written
  uint64_t a_offset_ = Workspace::kNone, product_offset_ = Workspace::kNone;
};

}  // namespace

std::unique_ptr<Plan> product_of_rows(const Problem& p) {
  switch (p.out.dtype) {
    case Dtype::F32: return std::make_unique<RowsPlan<float>>(p);
    case Dtype::BF16: return std::make_unique<RowsPlan<bf16>>(p);
    case Dtype::F16: return std::make_unique<RowsPlan<f16>>(p);
    default: return nullptr;
  }
}

}  // namespace maca::MACA_ISA
