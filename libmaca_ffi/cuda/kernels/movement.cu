// What moves elements and computes nothing: flip, roll, repeat, constant_pad_nd. Each is a copy between views, of which
// a flipped one has negative strides.
#include "copy.h"
#include "reduction.h"

namespace maca_cuda {
namespace {

constexpr const char* kHow = "a copy for each part";

size_t dim_at(const Operand& o, int64_t given) {
  const int64_t rank = std::max(o.rank(), 1), dim = given < 0 ? given + rank : given;
  if (dim < 0 || dim >= rank) throw Invalid("a dimension that the operand has not");
  return static_cast<size_t>(dim);
}
void refuse_other_sizes(const Operand& in, const Operand& out) {
  if (in.sizes != out.sizes) throw Invalid("the result has other sizes");
}

MACA_KERNEL("flip", [](const Request& r) {
  Operand in = r.memory(0);
  const Operand& out = r.out();
  refuse_other_sizes(in, out);
  for (const int64_t given : r.integers("dims")) {
    const size_t d = dim_at(in, given);
    if (in.rank() == 0 || in.sizes[d] == 0) continue;
    in.offset += (in.sizes[d] - 1) * in.strides[d];
    in.strides[d] = -in.strides[d];
  }
  return make_copy(in, out);
});

// Each part of the input that stays whole goes where it belongs: two for each dimension that rolls.
void roll_parts(const Operand& in, const Operand& out, const Dims& shifts, const Dims& dims, size_t next,
                std::vector<std::unique_ptr<Plan>>& copies) {
  if (next == dims.size()) {
    if (out.numel() > 0) copies.push_back(make_copy(in, out));
    return;
  }
  const size_t d = dim_at(in, dims[next]);
  const int64_t n = in.sizes[d], shift = n ? (shifts[next] % n + n) % n : 0;
  for (const bool is_end : {false, true}) {
    Operand from = in, to = out;
    from.sizes[d] = to.sizes[d] = is_end ? shift : n - shift;
    (is_end ? from : to).offset += (is_end ? n - shift : shift) * (is_end ? in : out).strides[d];
    roll_parts(from, to, shifts, dims, next + 1, copies);
  }
}
MACA_KERNEL("roll", [](const Request& r) {
  const Operand &in = r.memory(0), &out = r.out();
  refuse_other_sizes(in, out);
  const Dims shifts = r.integers("shifts"), dims = r.integers("dims", Dims());
  if (dims.empty()) throw Declined("a roll of the flattened tensor");
  if (shifts.size() != dims.size()) throw Invalid("a shift for each dimension");
  for (size_t i = 0; i < dims.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (dim_at(in, dims[i]) == dim_at(in, dims[k])) throw Declined("a dimension that rolls twice");
  std::vector<std::unique_ptr<Plan>> copies;
  if (in.rank() == 0)
    copies.push_back(make_copy(in, out));
  else
    roll_parts(in, out, shifts, dims, 0, copies);
  return in_turn(std::move(copies), kHow);
});

// Each dimension is two: how often, and what.
MACA_KERNEL("repeat", [](const Request& r) {
  const Operand &in = r.memory(0), &out = r.out();
  const Dims repeats = r.integers("repeats");
  if (repeats.size() != out.sizes.size() || in.sizes.size() > repeats.size())
    throw Invalid("a number for each dimension");
  const size_t shift = repeats.size() - in.sizes.size();
  Operand from = in, to = out;
  from.sizes.clear(), from.strides.clear(), to.sizes.clear(), to.strides.clear();
  for (size_t d = 0; d < repeats.size(); ++d) {
    const int64_t size = d < shift ? 1 : in.sizes[d - shift], stride = d < shift ? 0 : in.strides[d - shift];
    if (repeats[d] < 0 || out.sizes[d] != repeats[d] * size) throw Invalid("the result has other sizes");
    for (Operand* o : {&from, &to}) o->sizes.push_back(repeats[d]), o->sizes.push_back(size);
    from.strides.push_back(0), from.strides.push_back(stride);
    to.strides.push_back(size * out.strides[d]), to.strides.push_back(out.strides[d]);
  }
  return make_copy(from, to);
});

// Numbers before and behind each dimension, the last first; negative ones cut off.
MACA_KERNEL("constant_pad_nd", [](const Request& r) {
  const Operand &in = r.memory(0), &out = r.out();
  const Dims pad = r.integers("pad");
  const size_t rank = in.sizes.size();
  if (pad.size() % 2 || pad.size() / 2 > rank || out.sizes.size() != rank) throw Invalid("two numbers for a dimension");
  Operand from = in, to = out;
  for (size_t d = 0; d < rank; ++d) {
    const size_t at = 2 * (rank - 1 - d);
    const int64_t before = at < pad.size() ? pad[at] : 0, behind = at < pad.size() ? pad[at + 1] : 0;
    if (out.sizes[d] != in.sizes[d] + before + behind) throw Invalid("the result has other sizes");
    const int64_t size = in.sizes[d] + std::min<int64_t>(before, 0) + std::min<int64_t>(behind, 0);
    if (size < 0) throw Invalid("more is cut off than there is");
    from.sizes[d] = to.sizes[d] = size;
    from.offset += std::max<int64_t>(-before, 0) * in.strides[d];
    to.offset += std::max<int64_t>(before, 0) * out.strides[d];
  }
  std::vector<std::unique_ptr<Plan>> copies;
  copies.push_back(make_fill(r.scalar("value"), out));
  copies.push_back(make_copy(from, to));
  return in_turn(std::move(copies), kHow);
});

}  // namespace
}  // namespace maca_cuda
