// Padding: by a constant, by reflection, by replication; the backward of the last two.
#include "kernels/indexing/map.h"
#include "kernels/indexing/window.h"

namespace maca::MACA_ISA {
namespace {

std::unique_ptr<Plan> constant_pad(const Request& r) {
  const Operand in = r.in(0), out = r.out();
  expect_dtype(in, out.dtype, "the input");
  const Dims pad = r.integers("pad");
  if (pad.size() % 2 != 0 || pad.size() / 2 > in.sizes.size())
    throw Invalid("pad has two numbers a dimension, from the last");
  const int slot = r.has("value.scalar") ? static_cast<int>(r.integer("value.scalar")) : -1;
  Dims sizes = in.sizes;
  int64_t from_offset = 0, to_offset = 0;
  bool grows = false;
  for (size_t k = 0; k < pad.size() / 2; ++k) {
    const size_t d = in.sizes.size() - 1 - k;
    const int64_t before = pad[2 * k], after = pad[2 * k + 1];
    if (out.sizes[d] != in.sizes[d] + before + after) throw Invalid("the result's size is not the padded one");
    grows = grows || before > 0 || after > 0;
    from_offset += std::max<int64_t>(0, -before) * in.strides[d];
    to_offset += std::max<int64_t>(0, before) * out.strides[d];
    sizes[d] = std::max<int64_t>(0, in.sizes[d] + std::min<int64_t>(0, before) + std::min<int64_t>(0, after));
  }
  const Nest<2> inside(sizes, {out.strides, in.strides});
  const Nest<1> all(out.sizes, {out.strides});
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(out.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(all.numel()) * 2, [=](const Launch& launch) {
      T* to = launch.data<T>(out);
      if (grows) {
        ScalarBox box{};
        if (slot >= 0) store_scalar(out.dtype, launch.scalars[slot], box.bytes);
        T value;
        std::memcpy(&value, box.bytes, sizeof value);
        fill_nest(all, to, value);
      }
      if (inside.numel() > 0) copy_nest(inside, to + to_offset, launch.data<const T>(in) + from_offset);
    });
  });
  return plan;
}

// Coordinates of the input for each coordinate of spatial dimension d of the result.
Dims coordinates(const Request& r, const Operand& in, int spatial, int d, bool reflect) {
  const Dims pad = r.integers("padding");
  if (pad.size() != 2 * static_cast<size_t>(spatial)) throw Invalid("padding has two numbers a spatial dimension");
  const size_t k = 2 * static_cast<size_t>(spatial - 1 - d);
  return padded_coordinates(in.sizes[static_cast<size_t>(in.rank() - spatial + d)], pad[k], pad[k + 1], reflect);
}

std::unique_ptr<Plan> pad(const Request& r, int spatial, bool reflect) {
  const Operand in = r.in(0);
  if (in.rank() < spatial) throw Invalid("the input has too few dimensions");
  MapOffsets tables = identity_offsets(in);
  for (int d = 0; d < spatial; ++d) {
    const size_t dim = static_cast<size_t>(in.rank() - spatial + d);
    tables[dim] = scaled(coordinates(r, in, spatial, d, reflect), in.strides[dim]);
  }
  return mapped_copy(r.out(), in, std::move(tables));
}

std::unique_ptr<Plan> pad_backward(const Request& r, int spatial, bool reflect) {
  const Volume result(r.out(), spatial);
  const TapSet taps = taps_by_dimension([&](size_t d) {
    const int dimension = static_cast<int>(d) - (3 - spatial);
    if (dimension < 0) return Taps::identity(1);
    Taps forward;
    for (const int64_t at : coordinates(r, r.out(), spatial, dimension, reflect)) {
      forward.add(at, 1);
      forward.close();
    }
    return forward.transposed(result.sizes[d + 2]);
  });
  return weighted_sum(r.out(), r.in(0), spatial, taps);
}

MACA_KERNEL("constant_pad_nd", constant_pad);
#define MACA_PAD(NAME, SPATIAL, REFLECT)                                         \
  MACA_KERNEL(NAME, +[](const Request& r) { return pad(r, SPATIAL, REFLECT); }); \
  MACA_KERNEL(NAME "_backward", +[](const Request& r) { return pad_backward(r, SPATIAL, REFLECT); })
MACA_PAD("reflection_pad1d", 1, true);
MACA_PAD("reflection_pad2d", 2, true);
MACA_PAD("reflection_pad3d", 3, true);
MACA_PAD("replication_pad1d", 1, false);
MACA_PAD("replication_pad2d", 2, false);
MACA_PAD("replication_pad3d", 3, false);

}  // namespace
}  // namespace maca::MACA_ISA
