// Matrix products with a factor given by its columns: of a few rows as of a vector, and of more where its numbers are
// widened. bfloat16 and float16 are read as they are stored: a library that computes in float32 would write and read
// the whole weight once more.
#include "dot_products.h"
#include "onednn/engine.h"
#include "unpacked_panels.h"

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
    implementation = "dot products";
    if (p.m() > matmul::kDotRows) {
      panels_.emplace(p.m(), p.n(), p.k(), 1, true);
      packed_ = space.take(panels_->workspace_bytes());
      implementation = "panels, widened";
    }
    workspace_bytes = space.bytes();
    work = p.work();
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
    if (panels_)
      in_panels(left, right, product, onednn::at(launch.workspace, packed_));
    else
      by_columns(left, right, product);
    const bool ones = is_one(launch, p_.alpha_slot) && (!p_.self || is_one(launch, p_.beta_slot));
    if (!kNative || p_.self || !ones || p_.activation != matmul::Activation::None)
      matmul::combine(p_, launch, product_, product, launch.data(p_.out.slot));
  }

 private:
  void by_columns(const float* left, const T* right, float* product) const {
    const int64_t work = std::max<int64_t>(1, p_.k() * ((p_.m() + 1) / 2)), step = p_.b.leading();
    parallel_for(p_.n(), std::max<int64_t>(1, 65536 / work), [&](int64_t begin, int64_t end) {
      DotProducts<T>::columns(end - begin, p_.m(), p_.k(), left, a_.row_stride, right + begin * step, step,
                              product + begin * product_.column_stride, product_.column_stride, product_.row_stride);
    });
  }

  void in_panels(const float* left, const T* right, float* product, void* workspace) const {
    panels_->run(left, a_.row_stride, product, product_.row_stride, workspace,
                 [&](int64_t column, int64_t columns, int64_t first, int64_t depth, float* to) {
                   const T* from = right + column * p_.b.leading() + first;
                   for (int64_t j = 0; j < columns; ++j, from += p_.b.leading(), to += depth) {
                     int64_t i = 0;
                     for (; i + kLanes <= depth; i += kLanes) write(to + i, widened(from + i));
                     for (; i < depth; ++i) to[i] = static_cast<float>(from[i]);
                   }
                 });
  }

  static constexpr bool kNative = std::is_same_v<T, float>;
  Problem p_;
  Matrix a_, product_;                    // what is read and written
  std::optional<UnpackedPanels> panels_;  // of many rows
  uint64_t a_offset_ = Workspace::kNone, product_offset_ = Workspace::kNone, packed_ = 0;
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
