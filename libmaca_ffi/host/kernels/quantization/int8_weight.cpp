// Products of floats with a weight of int8, each row of which has a scale.
#include "kernels/matmul/dot_products.h"
#include "weight_product.h"

namespace maca::MACA_ISA {
namespace {

template <class S> class Int8Product final : public WeightProduct {
 public:
  explicit Int8Product(const Request& r) : WeightProduct(r, r.in(1).sizes[0], 1, r.in(1).numel()), scale_(r.in(2)) {
    if (r.in(1).sizes[1] != k() || scale_.rank() != 1 || scale_.sizes[0] != n())
      throw Invalid("the extents of a product with a weight of int8 do not match");
    implementation = "weight of int8";
    choose(true);
  }

 private:
  const int8_t* row(const Launch& launch, int64_t j) const {
    return reinterpret_cast<const int8_t*>(weight(launch)) + j * k();
  }
  float scale(const Launch& launch, int64_t j) const {
    return static_cast<float>(launch.data<const S>(scale_.slot)[j * scale_.strides[0]]);
  }

  void few(const Launch& launch, const float* left, float* sums) const override {
    parallel_for(n(), std::max<int64_t>(1, 65536 / (k() * ((m() + 1) / 2))), [&](int64_t begin, int64_t end) {
      DotProducts<int8_t>::columns(end - begin, m(), k(), left, left_step(), row(launch, begin), k(), sums + begin, 1,
                                   sums_step());
      for (int64_t j = begin; j < end; ++j) {
        const float by = scale(launch, j);
        for (int64_t i = 0; i < m(); ++i) sums[i * sums_step() + j] *= by;
      }
    });
  }

  void unpack(const Launch& launch, int64_t j, int64_t rows, int64_t first, int64_t depth, float* to) const override {
    for (const int64_t end = j + rows; j < end; ++j, to += depth) {
      const int8_t* from = row(launch, j) + first;
      const Lanes by = Lanes{} + scale(launch, j);
      int64_t i = 0;
      for (; i + kLanes <= depth; i += kLanes) write(to + i, widened(from + i) * by);
      for (; i < depth; ++i) to[i] = static_cast<float>(from[i]) * by[0];
    }
  }

  Operand scale_;
};

std::unique_ptr<Plan> make_int8_product(const Request& r) {
  const Operand& weight = r.in(1);
  if (weight.dtype != Dtype::I8 || weight.rank() != 2) throw Declined("a weight that is no matrix of int8");
  if (r.in(2).scalar()) throw Declined("a scale that is a number");
  std::unique_ptr<Plan> plan;
  with_scales(r.in(2).dtype, [&](auto t) { plan = std::make_unique<Int8Product<decltype(t)>>(r); });
  return plan;
}
MACA_KERNEL("_weight_int8pack_mm", make_int8_product);

}  // namespace
}  // namespace maca::MACA_ISA
