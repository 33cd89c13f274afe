// Writing a tensor into a view of the result: the *_scatter operators, the backward of views, diag_embed.
#include "index.h"
#include "conversion.h"

namespace maca::MACA_ISA {
namespace {

// The view: same dtype as the target, `offset` elements behind its beginning.
struct Region {
  Dims sizes, strides;
  int64_t offset = 0;
};

// target = self (or zeros), then target.view = source.
std::unique_ptr<Plan> write_region(const Operand& target, const Operand* self, const Region& region,
                                   const Operand& source) {
  // a copy into a view converts, as copy_ does
  const bool converts = !source.scalar() && source.dtype != target.dtype;
  const auto convert = converts ? std::make_shared<RowConverter>(source.dtype, target.dtype) : nullptr;
  if (self) expect_dtype(*self, target.dtype, "the tensor");
  Operand view;
  view.sizes = region.sizes;
  view.strides = region.strides;
  const int64_t reach = span_of(view);
  if (reach > 0 && (region.offset < 0 || region.offset + reach > span_of(target)))
    throw Invalid("the view reaches outside of the tensor");
  const Nest<2> inner(region.sizes, {region.strides, broadcast_strides(source, region.sizes)});
  const Nest<1> zeros(target.sizes, {target.strides});
  const Nest<2> base = self ? pair_nest(target, *self) : Nest<2>();
  const Operand from = self ? *self : Operand{};
  const bool starts_zero = self == nullptr;
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(target.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(
        static_cast<uint64_t>(zeros.numel() + inner.numel()), [=, offset = region.offset](const Launch& launch) {
          T* to = launch.data<T>(target);
          if (starts_zero)
            fill_nest(zeros, to, T{});
          else if (launch.data(from) != launch.data(target))
            copy_nest(base, to, launch.data<const T>(from));
          if (converts) {
            const auto [to_step, from_step] = inner.inner().stride;
            const char* bytes = launch.data<const char>(source);
            inner.parallel([&, to_step = to_step, from_step = from_step](const auto& o, int64_t n) {
              (*convert)(bytes + o[1] * item_size(source.dtype), from_step, to + offset + o[0], to_step, n);
            });
            return;
          }
          ScalarBox box;
          copy_nest(inner, to + offset, data_or_scalar<T>(launch, source, target.dtype, box));
        });
  });
  return plan;
}

// The dimension that a view takes apart.
size_t dimension(const Operand& o, int64_t dim) { return static_cast<size_t>(wrap_dim(dim, o.rank())); }

Region select(const Request& r, const Operand& o) {
  const size_t dim = dimension(o, r.integer("dim"));
  int64_t index = r.integer("index");
  if (index < 0) index += o.sizes[dim];
  if (index < 0 || index >= o.sizes[dim]) throw Invalid("select(): index out of range");
  Region region{o.sizes, o.strides, index * o.strides[dim]};
  region.sizes.erase(region.sizes.begin() + static_cast<int64_t>(dim));
  region.strides.erase(region.strides.begin() + static_cast<int64_t>(dim));
  return region;
}

Region slice(const Request& r, const Operand& o) {
  const size_t dim = dimension(o, r.integer("dim", 0));
  const int64_t n = o.sizes[dim], step = r.integer("step", 1);
  if (step <= 0) throw Invalid("slice(): the step is positive");
  const auto clip = [n](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  const int64_t start = clip(r.integer("start", 0)), end = std::max(start, clip(r.integer("end", n)));
  Region region{o.sizes, o.strides, start * o.strides[dim]};
  region.sizes[dim] = (end - start + step - 1) / step;
  region.strides[dim] *= step;
  return region;
}

Region diagonal(const Request& r, const Operand& o, int64_t otherwise1, int64_t otherwise2) {
  const size_t d1 = dimension(o, r.integer("dim1", otherwise1));
  const size_t d2 = dimension(o, r.integer("dim2", otherwise2));
  const int64_t shift = r.integer("offset", 0);
  if (d1 == d2) throw Invalid("diagonal(): the dimensions are equal");
  Region region{{}, {}, 0};
  for (size_t d = 0; d < o.sizes.size(); ++d) {
    if (d == d1 || d == d2) continue;
    region.sizes.push_back(o.sizes[d]);
    region.strides.push_back(o.strides[d]);
  }
  const int64_t n1 = o.sizes[d1] - std::max<int64_t>(0, -shift), n2 = o.sizes[d2] - std::max<int64_t>(0, shift);
  const int64_t length = std::max<int64_t>(0, std::min(n1, n2));
  if (length > 0) region.offset = shift >= 0 ? shift * o.strides[d2] : -shift * o.strides[d1];
  region.sizes.push_back(length);
  region.strides.push_back(o.strides[d1] + o.strides[d2]);
  return region;
}

std::unique_ptr<Plan> select_scatter(const Request& r) {
  return write_region(r.out(), &r.in(0), select(r, r.out()), r.in(1));
}
std::unique_ptr<Plan> slice_scatter(const Request& r) {
  return write_region(r.out(), &r.in(0), slice(r, r.out()), r.in(1));
}
std::unique_ptr<Plan> diagonal_scatter(const Request& r) {
  return write_region(r.out(), &r.in(0), diagonal(r, r.out(), 0, 1), r.in(1));
}
std::unique_ptr<Plan> select_backward(const Request& r) {
  return write_region(r.out(), nullptr, select(r, r.out()), r.in(0));
}
std::unique_ptr<Plan> slice_backward(const Request& r) {
  return write_region(r.out(), nullptr, slice(r, r.out()), r.in(0));
}
std::unique_ptr<Plan> diagonal_backward(const Request& r) {
  return write_region(r.out(), nullptr, diagonal(r, r.out(), 0, 1), r.in(0));
}
std::unique_ptr<Plan> diag_embed(const Request& r) {
  return write_region(r.out(), nullptr, diagonal(r, r.out(), -2, -1), r.in(0));
}

MACA_KERNEL("select_scatter", select_scatter);
MACA_KERNEL("slice_scatter", slice_scatter);
MACA_KERNEL("diagonal_scatter", diagonal_scatter);
MACA_KERNEL("select_backward", select_backward);
MACA_KERNEL("slice_backward", slice_backward);
MACA_KERNEL("diagonal_backward", diagonal_backward);
MACA_KERNEL("diag_embed", diag_embed);

}  // namespace
}  // namespace maca::MACA_ISA
