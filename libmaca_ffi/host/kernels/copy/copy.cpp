// Copies between any dtypes and layouts, and fills.
#include <algorithm>
#include <limits>

#include "lane_shuffle.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/pointwise/convert.h"

namespace maca::MACA_ISA::pointwise {

namespace {

constexpr int64_t kBytesPerPiece = 128 * 1024;  // about 20 us of copying

// Where the bytes stay as they are.
class MovePlan final : public Plan {
 public:
  MovePlan(const Operand& from, const Operand& to)
      : from_(from.slot), to_(to.slot), item_(item_size(to.dtype)), it_(make_iteration({&to, &from})) {
    work = static_cast<uint64_t>(it_.numel) * static_cast<uint64_t>(item_) / 4;
    if (it_.dims == 0) it_ = {.dims = 1, .sizes = {1}, .strides = {{item_}, {item_}}, .numel = it_.numel};
    inner_ = it_.dims - 1;
    if (it_.strides[0][inner_] != item_ || it_.strides[1][inner_] == item_) return;
    for (int d = 0; d < inner_; ++d)
      if (it_.strides[1][d] == item_) across_ = d;
  }

  void run(const Launch& launch) const override {
    if (it_.numel == 0) return;
    const char* from = launch.data<char>(from_);
    char* to = launch.data<char>(to_);
    if (from == to && std::equal(it_.strides[0], it_.strides[0] + it_.dims, it_.strides[1])) return;
    if (it_.dims == 1 && it_.strides[0][0] == item_ && it_.strides[1][0] == item_) {
      const int64_t bytes = it_.numel * item_;
      if (bytes <= kBytesPerPiece) return void(std::memcpy(to, from, static_cast<size_t>(bytes)));
      return parallel_for(bytes, kBytesPerPiece, [&](int64_t begin, int64_t end) {
        std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
      });
    }
    with_item_size(item_, [&](auto zero) {
      using T = decltype(zero);
      if (across_ >= 0)
        transpose<T>(from, to);
      else
        rows<T>(from, to);
    });
  }

 private:
  // The position of outer index `i`, counted over all dimensions but two, in both operands.
  void locate(int64_t i, int skip, const char*& from, char*& to) const {
    for (int d = inner_ - 1; d >= 0; --d) {
      if (d == skip) continue;
      const int64_t at = i % it_.sizes[d];
      i /= it_.sizes[d];
      to += at * it_.strides[0][d];
      from += at * it_.strides[1][d];
    }
  }

  template <class T> void rows(const char* from, char* to) const {
    const int64_t n = it_.sizes[inner_], to_step = it_.strides[0][inner_], from_step = it_.strides[1][inner_];
    const int64_t count = it_.numel / n;
    const auto part = [&](const char* f, char* t, int64_t m) {
      if (to_step == item_ && from_step == item_) {
        if (m * item_ >= 64) return void(std::memcpy(t, f, static_cast<size_t>(m * item_)));
        for (int64_t i = 0; i < m; ++i) reinterpret_cast<T*>(t)[i] = reinterpret_cast<const T*>(f)[i];
      } else if (to_step == item_ && from_step == 0) {
        std::fill_n(reinterpret_cast<T*>(t), m, *reinterpret_cast<const T*>(f));
      } else {
        for (int64_t i = 0; i < m; ++i, t += to_step, f += from_step)
          *reinterpret_cast<T*>(t) = *reinterpret_cast<const T*>(f);
      }
    };
    if (count == 1) {
      return parallel_for(n, kBytesPerPiece / item_, [&](int64_t begin, int64_t end) {
        part(from + begin * from_step, to + begin * to_step, end - begin);
      });
    }
    parallel_for(count, std::max<int64_t>(kBytesPerPiece / (n * item_), 1), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end;) {
        // runs along the dimension above the rows are located once
        const int64_t size = it_.sizes[inner_ - 1], first = row % size, last = std::min(size, first + end - row);
        const char* f = from;
        char* t = to;
        locate(row, -1, f, t);
        for (int64_t i = first; i < last; ++i, f += it_.strides[1][inner_ - 1], t += it_.strides[0][inner_ - 1])
          part(f, t, n);
        row += last - first;
      }
    });
  }

  // The result is dense along its rows, the source across them: strips as wide as a cache line are exchanged in
  // squares, so that every line is read once and written once.
  template <class T> void transpose(const char* from, char* to) const {
    constexpr int64_t side = kSquare<T>;
    const int64_t n = it_.sizes[inner_], m = it_.sizes[across_];
    const int64_t from_step = it_.strides[1][inner_] / item_, to_step = it_.strides[0][across_] / item_;
    const int64_t blocks = (m + side - 1) / side, count = it_.numel / (n * m) * blocks;
    parallel_for(count, std::max<int64_t>(kBytesPerPiece / (n * side * item_), 1), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const char* f = from;
        char* t = to;
        locate(b / blocks, across_, f, t);
        const int64_t j0 = b % blocks * side, height = std::min(side, m - j0);
        f += j0 * item_;
        t += j0 * to_step * item_;
        exchange(reinterpret_cast<const T*>(f), from_step, n, height, reinterpret_cast<T*>(t), to_step);
      }
    });
  }

  int from_, to_, inner_ = 0, across_ = -1;
  int64_t item_;
  Iteration it_;
};

bool native(Dtype d) { return dtype_of(compute_of(d)) == d; }

// The type a conversion goes through: one end's own where it is a compute type, so that one pass does it.
Compute through(Dtype from, Dtype to) {
  if (native(to)) return compute_of(to);
  if (is_complex(from) && !is_complex(to)) return from == Dtype::C128 ? Compute::F64 : Compute::F32;
  if (native(from)) return compute_of(from);
  if (is_complex(to)) return Compute::C64;
  return is_floating(from) || is_floating(to) ? Compute::F32 : Compute::I64;
}

std::unique_ptr<Plan> copy_plan(const Operand& from, const Operand& to) {
  if (from.scalar() || from.dtype != to.dtype) {
    if (from.scalar()) throw Declined("the source is a number");
    return make_cast(from, to, through(from.dtype, to.dtype));
  }
  return std::make_unique<MovePlan>(from, to);
}

// One element of any dtype, from a number.
struct Element {
  alignas(16) char bytes[16];
};
Element element(const Value& v, Dtype dtype) {
  Element e;
  const auto put = [&](auto x) { std::memcpy(e.bytes, &x, sizeof x); };
  switch (dtype) {
    case Dtype::Bool: put(Truth{static_cast<uint8_t>(v.integer != 0 || v.real != 0 || v.imaginary != 0)}); break;
    case Dtype::U8: put(static_cast<uint8_t>(v.integer)); break;
    case Dtype::I8: put(static_cast<int8_t>(v.integer)); break;
    case Dtype::I16:
    case Dtype::U16: put(static_cast<int16_t>(v.integer)); break;
    case Dtype::I32:
    case Dtype::U32: put(static_cast<int32_t>(v.integer)); break;
    case Dtype::I64:
    case Dtype::U64: put(v.integer); break;
    case Dtype::F16: put(convert<f16>(v.real)); break;
    case Dtype::BF16: put(convert<bf16>(v.real)); break;
    case Dtype::F32: put(static_cast<float>(v.real)); break;
    case Dtype::F64: put(v.real); break;
    case Dtype::C32: put(c32(convert<f16>(v.real), convert<f16>(v.imaginary))); break;
    case Dtype::C64: put(v.as<c64>()); break;
    case Dtype::C128: put(v.as<c128>()); break;
    case Dtype::None: break;
  }
  return e;
}

// PyTorch refuses to fill with a number that the dtype cannot hold; negative numbers wrap in unsigned dtypes.
template <class T> bool integer_overflows(const maca_scalar& s) {
  using Limits = std::numeric_limits<T>;
  if (s.tag == MACA_SCALAR_FLOAT || s.tag == MACA_SCALAR_COMPLEX) {
    const double x = s.value.real;
    return !(x >= static_cast<double>(Limits::lowest()) && x <= static_cast<double>(Limits::max()));
  }
  const int64_t n = s.value.integer;
  if (n > static_cast<int64_t>(Limits::max())) return true;
  return Limits::is_signed ? n < static_cast<int64_t>(Limits::lowest()) : n < -static_cast<int64_t>(Limits::max());
}

void check_fits(const maca_scalar& s, Dtype dtype) {
  const auto refuse = [](const char* type) {
    throw LaunchError(MACA_ERROR_VALUE, std::string("value cannot be converted to type ") + type + " without overflow");
  };
  const bool is_complex = dtype == Dtype::C32 || dtype == Dtype::C64 || dtype == Dtype::C128;
  const bool imaginary = s.tag == MACA_SCALAR_COMPLEX && s.imaginary != 0 && !is_complex && dtype != Dtype::Bool;
  switch (dtype) {
    case Dtype::U8:
      if (imaginary || integer_overflows<uint8_t>(s)) refuse("uint8_t");
      break;
    case Dtype::I8:
      if (imaginary || integer_overflows<int8_t>(s)) refuse("int8_t");
      break;
    case Dtype::I16:
      if (imaginary || integer_overflows<int16_t>(s)) refuse("int16_t");
      break;
    case Dtype::I32:
      if (imaginary || integer_overflows<int32_t>(s)) refuse("int");
      break;
    case Dtype::I64:
      if (imaginary || integer_overflows<int64_t>(s)) refuse("int64_t");
      break;
    case Dtype::F32: {
      const double x = s.tag == MACA_SCALAR_FLOAT ? s.value.real : 0;
      const bool finite = x - x == 0;
      if (imaginary || (finite && (x > std::numeric_limits<float>::max() || x < std::numeric_limits<float>::lowest())))
        refuse("float");
      break;
    }
    default:
      if (imaginary) refuse("a real number");
  }
}

// Where a fill's number comes from.
struct FillValue {
  int scalar_slot = -1;   // a launch scalar
  int pointer_slot = -1;  // one element of memory
  Load load = nullptr;
  bool integral = false;
  bool checked = false;  // the number must fit the dtype
  Value read(const Launch& launch) const {
    if (scalar_slot >= 0) return value_of(launch.scalars[scalar_slot]);
    if (pointer_slot < 0) return {};
    if (integral) {
      int64_t n;
      load(launch.data<char>(pointer_slot), 0, 0, &n, 1, 1);
      return {n, static_cast<double>(n), 0};
    }
    c128 x;
    load(launch.data<char>(pointer_slot), 0, 0, &x, 1, 1);
    return {static_cast<int64_t>(x.real()), x.real(), x.imag()};
  }
};

class FillPlan final : public Plan {
 public:
  FillPlan(const Operand& to, FillValue value)
      : to_(to.slot), dtype_(to.dtype), value_(value), it_(make_iteration({&to})) {
    work = static_cast<uint64_t>(it_.numel) * static_cast<uint64_t>(item_size(dtype_)) / 8;
  }
  void run(const Launch& launch) const override {
    if (it_.numel == 0) return;
    if (value_.checked) check_fits(launch.scalars[value_.scalar_slot], dtype_);
    const Element e = element(value_.read(launch), dtype_);
    char* to = launch.data<char>(to_);
    with_item_size(item_size(dtype_), [&](auto zero) {
      using T = decltype(zero);
      T value;
      std::memcpy(&value, e.bytes, sizeof value);
      const int inner = std::max(it_.dims, 1) - 1;
      const int64_t n = it_.dims == 0 ? 1 : it_.sizes[inner], step = it_.dims == 0 ? 0 : it_.strides[0][inner];
      const int64_t count = it_.numel / n;
      const auto part = [&](char* t, int64_t m) {
        if (step == static_cast<int64_t>(sizeof(T)))
          std::fill_n(reinterpret_cast<T*>(t), m, value);
        else
          for (int64_t i = 0; i < m; ++i, t += step) *reinterpret_cast<T*>(t) = value;
      };
      if (count == 1)
        return parallel_for(n, 2 * kBytesPerPiece / static_cast<int64_t>(sizeof(T)),
                            [&](int64_t begin, int64_t end) { part(to + begin * step, end - begin); });
      parallel_for(count, std::max<int64_t>(kBytesPerPiece / (n * static_cast<int64_t>(sizeof(T))), 1),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       char* t = to;
                       for (int64_t i = row, d = inner - 1; d >= 0; i /= it_.sizes[d], --d)
                         t += i % it_.sizes[d] * it_.strides[0][d];
                       part(t, n);
                     }
                   });
    });
  }

 private:
  int to_;
  Dtype dtype_;
  FillValue value_;
  Iteration it_;
};

std::unique_ptr<Plan> fill(const Request& r) {
  FillValue value;
  if (r.has("value.scalar")) {
    value.scalar_slot = static_cast<int>(r.integer("value.scalar"));
    value.checked = true;
  } else {
    const Operand& o = r.in(1);
    if (o.numel() != 1) throw Invalid("fill takes one element");
    value.integral = is_integral(o.dtype);
    value.load = loader(o.dtype, value.integral ? Compute::I64 : Compute::C128);
    if (o.scalar())
      value.scalar_slot = o.scalar_slot;
    else
      value.pointer_slot = o.slot;
  }
  return std::make_unique<FillPlan>(r.out(), value);
}

std::unique_ptr<Plan> zero(const Request& r) { return std::make_unique<FillPlan>(r.out(), FillValue{}); }

// copy(self, src): self gives the shape, which the result has already. A number as the source is a fill.
std::unique_ptr<Plan> copy(const Request& r) {
  const Operand& from = r.in(r.inputs() - 1);
  if (from.scalar()) return std::make_unique<FillPlan>(r.out(), FillValue{from.scalar_slot, -1, nullptr, false});
  return copy_plan(from, r.out());
}

std::unique_ptr<Plan> clone(const Request& r) { return copy(r); }

}  // namespace

MACA_KERNEL("copy", copy);
MACA_KERNEL("clone", clone);
MACA_KERNEL("_to_copy", clone);
MACA_KERNEL("fill", fill);
MACA_KERNEL("zero", zero);

}  // namespace maca::MACA_ISA::pointwise
