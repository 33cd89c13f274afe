// The walks behind tile.h.
#include "tile.h"

#include <numeric>

namespace maca::MACA_ISA {
namespace {

// Which dtypes a loop over `c` reads, and which it writes: nothing may lose its imaginary part or its fraction, and
// none of PyTorch's lists of tensors is in a dtype that it has no arithmetic for.
bool has_arithmetic(Dtype d) {
  const bool unsigned_alone = type_code(d) == MACA_UINT && item_size(d) > 1;
  return d != Dtype::None && d != Dtype::C32 && !unsigned_alone;
}
bool reads(Compute c, Dtype d) {
  return has_arithmetic(d) && (c == Compute::I64 ? is_integral(d) : is_complex(dtype_of(c)) || !is_complex(d));
}
bool writes(Compute c, Dtype d) { return has_arithmetic(d) && is_complex(dtype_of(c)) == is_complex(d); }

}  // namespace

Walk make_walk(std::span<const Operand* const> operands, Compute compute, Order order) {
  const Operand& first = *operands[0];
  Walk walk;
  walk.numel = first.numel();
  walk.compute_item = item_size(compute);
  walk.all_direct = true;
  std::vector<size_t> dims(first.sizes.size());
  std::iota(dims.begin(), dims.end(), size_t{0});
  if (order == Order::Memory)
    std::stable_sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return first.strides[a] > first.strides[b]; });

  for (size_t p = 0; p < operands.size(); ++p) {
    const Operand& o = *operands[p];
    Port& port = walk.ports.emplace_back();
    if (!o.present()) continue;
    if (o.scalar()) throw Declined("an operand in host memory");
    const Dims strides = broadcast_strides(o, first.sizes);
    for (const size_t d : dims) port.nest.add(first.sizes[d], {strides[d]});
    port.slot = o.slot;
    port.item = item_size(o.dtype);
    port.direct = port.dense() && is_native(compute, o.dtype);
    walk.all_direct &= port.direct;
    if (port.direct) continue;
    // The first operand may only be read, or only written, and its dtype then goes one way; the others are all read.
    if (reads(compute, o.dtype)) port.load = loader(o.dtype, compute);
    if (writes(compute, o.dtype)) port.store = storer(compute, o.dtype);
    if (!port.load && (p > 0 || !port.store))
      throw Declined(std::string("cannot read ") + dtype_name(o.dtype) + " as " + dtype_name(dtype_of(compute)));
  }
  return walk;
}

void* Walk::fetch(int p, void* base, int64_t begin, int64_t n, void* buffer) const {
  const Port& port = ports[static_cast<size_t>(p)];
  if (port.direct) return static_cast<char*>(base) + begin * port.item;
  char* to = static_cast<char*>(buffer);
  const int64_t step = port.nest.inner().stride[0] * port.item;
  port.nest.runs(begin, begin + n, [&](const auto& o, int64_t count) {
    port.load(static_cast<const char*>(base) + o[0] * port.item, 0, step, to, 1, count);
    to += count * compute_item;
  });
  return buffer;
}

void* Walk::place(int p, void* base, int64_t begin, void* buffer) const {
  const Port& port = ports[static_cast<size_t>(p)];
  return port.direct ? static_cast<char*>(base) + begin * port.item : buffer;
}

void Walk::flush(int p, void* base, int64_t begin, int64_t n, const void* buffer) const {
  const Port& port = ports[static_cast<size_t>(p)];
  if (port.direct) return;
  const char* from = static_cast<const char*>(buffer);
  const int64_t step = port.nest.inner().stride[0] * port.item;
  port.nest.runs(begin, begin + n, [&](const auto& o, int64_t count) {
    port.store(from, static_cast<char*>(base) + o[0] * port.item, 0, step, 1, count);
    from += count * compute_item;
  });
}

void WalkList::add(Walk walk) {
  ends.push_back(numel() + walk.numel);
  walks.push_back(std::move(walk));
}

}  // namespace maca::MACA_ISA
