// Joins, and results of which a part is written: the *_scatter operators, the gradients of views, diag_embed. Each is
// some copies into parts of the result.
#include "copy.h"
#include "reduction.h"

namespace maca_cuda {
namespace {

constexpr const char* kHow = "a copy for each part";

std::unique_ptr<Plan> cat(const Request& r) {
  const Operand& out = r.out();
  // the "empty tensor" of old, whatever the rank of the others; such alone may be joined along any dimension
  const auto is_old_empty = [](const Operand& o) { return o.rank() == 1 && o.sizes[0] == 0; };
  std::vector<std::unique_ptr<Plan>> copies;
  const auto& list = r.in_list(0);
  if (is_old_empty(out) && std::all_of(list.begin(), list.end(), is_old_empty)) return in_turn({}, kHow);
  const auto dim = static_cast<size_t>(dim_of(r, out));
  int64_t position = 0;
  for (const Operand& from : list) {
    if (is_old_empty(from)) continue;
    if (from.rank() != out.rank()) throw Invalid("tensors differ in rank");
    Operand part = out;
    part.sizes[dim] = from.sizes[dim];
    if (part.sizes != from.sizes) throw Invalid("sizes differ outside of the joined dimension");
    part.offset = position * out.strides[dim];
    position += from.sizes[dim];
    if (position > out.sizes[dim]) throw Invalid("the result is too small");
    if (from.numel() > 0) copies.push_back(make_copy(from, part));
  }
  if (out.numel() > 0 && position != out.sizes[dim]) throw Invalid("the inputs do not fill the result");
  return in_turn(std::move(copies), kHow);
}
MACA_KERNEL("cat", cat);

void erase(Operand& o, size_t dim) {
  o.sizes.erase(o.sizes.begin() + static_cast<int64_t>(dim));
  o.strides.erase(o.strides.begin() + static_cast<int64_t>(dim));
}

std::unique_ptr<Plan> stack(const Request& r) {
  const Operand& out = r.out();
  const auto dim = static_cast<size_t>(dim_of(r, out));
  const auto& list = r.in_list(0);
  if (out.rank() == 0 || static_cast<int64_t>(list.size()) != out.sizes[dim])
    throw Invalid("the inputs do not fill the result");
  std::vector<std::unique_ptr<Plan>> copies;
  for (size_t i = 0; i < list.size(); ++i) {
    Operand part = out;
    part.offset = static_cast<int64_t>(i) * out.strides[dim];
    erase(part, dim);
    if (list[i].sizes != part.sizes) throw Invalid("tensors differ in size");
    if (list[i].numel() > 0) copies.push_back(make_copy(list[i], part));
  }
  return in_turn(std::move(copies), kHow);
}
MACA_KERNEL("stack", stack);

// --- the part that a view takes of an operand
size_t named_dim(const Request& r, const Operand& o, const char* name, int64_t otherwise) {
  const int64_t given = r.integer(name, otherwise), dim = given < 0 ? given + o.rank() : given;
  if (dim < 0 || dim >= o.rank()) throw Invalid("a dimension that the operand has not");
  return static_cast<size_t>(dim);
}

Operand select(const Request& r, const Operand& o) {
  const size_t dim = named_dim(r, o, "dim", 0);
  int64_t index = r.integer("index");
  if (index < 0) index += o.sizes[dim];
  if (index < 0 || index >= o.sizes[dim]) throw Invalid("the index is out of range");
  Operand part = o;
  part.offset = index * o.strides[dim];
  erase(part, dim);
  return part;
}
Operand slice(const Request& r, const Operand& o) {
  const size_t dim = named_dim(r, o, "dim", 0);
  const int64_t n = o.sizes[dim], step = r.integer("step", 1);
  if (step <= 0) throw Invalid("the step is positive");
  const auto clip = [n](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  const int64_t begin = clip(r.integer("start", 0)), end = std::max(begin, clip(r.integer("end", n)));
  Operand part = o;
  part.offset = begin * o.strides[dim];
  part.sizes[dim] = (end - begin + step - 1) / step;
  part.strides[dim] *= step;
  return part;
}
Operand diagonal(const Request& r, const Operand& o, int64_t otherwise1, int64_t otherwise2) {
  const size_t d1 = named_dim(r, o, "dim1", otherwise1), d2 = named_dim(r, o, "dim2", otherwise2);
  const int64_t shift = r.integer("offset", 0);
  if (d1 == d2) throw Invalid("the dimensions are equal");
  Operand part = o;
  const int64_t n1 = o.sizes[d1] - std::max<int64_t>(0, -shift), n2 = o.sizes[d2] - std::max<int64_t>(0, shift);
  const int64_t length = std::max<int64_t>(0, std::min(n1, n2));
  if (length > 0) part.offset = shift >= 0 ? shift * o.strides[d2] : -shift * o.strides[d1];
  erase(part, std::max(d1, d2)), erase(part, std::min(d1, d2));
  part.sizes.push_back(length), part.strides.push_back(o.strides[d1] + o.strides[d2]);
  return part;
}

// The result is `self`, or zero, and its part `source`. In place `self` is the result's memory.
std::unique_ptr<Plan> write_part(const Operand& out, const Operand* self, const Operand& part, const Operand& source) {
  if (!source.present()) throw Invalid("the source is missing");
  std::vector<std::unique_ptr<Plan>> copies;
  if (self && (self->dtype != out.dtype || self->sizes != out.sizes)) throw Invalid("the result is not as the tensor");
  copies.push_back(self ? make_copy(*self, out) : make_zero(out));
  copies.push_back(make_copy(source, part));
  return in_turn(std::move(copies), kHow);
}
MACA_KERNEL("select_scatter",
            [](const Request& r) { return write_part(r.out(), &r.memory(0), select(r, r.out()), r.in(1)); });
MACA_KERNEL("slice_scatter",
            [](const Request& r) { return write_part(r.out(), &r.memory(0), slice(r, r.out()), r.in(1)); });
MACA_KERNEL("diagonal_scatter",
            [](const Request& r) { return write_part(r.out(), &r.memory(0), diagonal(r, r.out(), 0, 1), r.in(1)); });
MACA_KERNEL("select_backward",
            [](const Request& r) { return write_part(r.out(), nullptr, select(r, r.out()), r.in(0)); });
MACA_KERNEL("slice_backward",
            [](const Request& r) { return write_part(r.out(), nullptr, slice(r, r.out()), r.in(0)); });
MACA_KERNEL("diagonal_backward",
            [](const Request& r) { return write_part(r.out(), nullptr, diagonal(r, r.out(), 0, 1), r.in(0)); });
MACA_KERNEL("diag_embed",
            [](const Request& r) { return write_part(r.out(), nullptr, diagonal(r, r.out(), -2, -1), r.in(0)); });

}  // namespace
}  // namespace maca_cuda
