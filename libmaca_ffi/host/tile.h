// Elementwise work on operands of any dtype and layout with one loop a compute type.
//
// A Walk visits a tensor in an order of its own, as one index from 0 to numel. A Port is one operand along it, with a
// nest of its own, since only the order is common: a port reads or writes alone. It is either memory that the loop may
// use as it is (`direct`: it has the compute type and lies densely in that order), or memory that is gathered into, and
// scattered from, a small buffer of the compute type that stays in the L1.
#pragma once
#include <algorithm>

#include "conversion.h"
#include "nest.h"

namespace maca::MACA_ISA {

constexpr int64_t kTile = 1024;  // elements a buffer holds: five of float are 20 KiB of the L1's 32

struct Port {
  int slot = -1;
  int item = 0;  // bytes of one element in memory
  bool direct = false;
  Nest<1> nest;  // in the walk's order, in elements
  Load load = nullptr;
  Store store = nullptr;
  bool dense() const { return nest.rank() == 0 || (nest.rank() == 1 && nest.inner().stride[0] == 1); }
};

enum class Order {
  Memory,  // the first operand's memory order: the fast one
  Logical  // row-major, whatever the strides: where the index itself has a meaning
};

struct Walk {
  int64_t numel = 0;
  int compute_item = 0;  // bytes of one element in a buffer
  std::vector<Port> ports;
  bool all_direct = false;

  // The elements [begin, begin + n) of a port: where they lie, or a copy in `buffer` (kTile elements).
  void* fetch(int port, void* base, int64_t begin, int64_t n, void* buffer) const;
  // Where a loop writes those elements, and the step that brings them home.
  void* place(int port, void* base, int64_t begin, void* buffer) const;
  void flush(int port, void* base, int64_t begin, int64_t n, const void* buffer) const;
};

// `operands` broadcast to the sizes of the first. Absent operands give a port with slot -1. Throws Declined where a
// loop could neither read nor write the first in `compute`, or not read another.
Walk make_walk(std::span<const Operand* const> operands, Compute compute, Order order = Order::Memory);

// Several walks as one index space, so that one launch serves a whole list of tensors.
struct WalkList {
  std::vector<Walk> walks;
  std::vector<int64_t> ends;  // running sum of numel
  void add(Walk walk);
  int64_t numel() const { return ends.empty() ? 0 : ends.back(); }

  // f(index of the walk, begin, n) for pieces of [begin, end); a piece of a walk that is not all direct has at
  // most kTile elements.
  template <class F> void for_pieces(int64_t begin, int64_t end, F&& f) const {
    size_t i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    for (; begin < end; ++i) {
      const int64_t start = i ? ends[i - 1] : 0, stop = std::min(end, ends[i]);
      const int64_t most = walks[i].all_direct ? stop - begin : kTile;
      for (; begin < stop; begin += most) f(i, begin - start, std::min(most, stop - begin));
      begin = stop;
    }
  }
};

// A number that is either a static attribute or, where the row says so, a launch scalar.
class Number {
 public:
  Number() = default;
  Number(const Request& request, const std::string& name, std::optional<double> otherwise = {})
      : slot_(static_cast<int>(request.integer(name + ".scalar", -1))),
        value_(slot_ < 0 ? request.number(name, otherwise) : 0.0) {}
  double operator()(const Launch& launch) const { return slot_ < 0 ? value_ : scalar_to_double(launch.scalars[slot_]); }
  int64_t integer(const Launch& launch) const {
    return slot_ < 0 ? static_cast<int64_t>(value_) : scalar_to_int(launch.scalars[slot_]);
  }

 private:
  int slot_ = -1;
  double value_ = 0.0;
};

// The value of a tensor of one element, at launch; `otherwise` when it is absent.
inline double one_value(const Operand& o, const Launch& launch, double otherwise = 0.0) {
  if (!o.present()) return otherwise;
  if (o.scalar()) return scalar_to_double(launch.scalars[o.scalar_slot]);
  double value;
  load_tile(Compute::F64, &value, o.dtype, launch.data(o), 1, 1);
  return value;
}

}  // namespace maca::MACA_ISA
