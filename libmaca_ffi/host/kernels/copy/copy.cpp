// Copies between any dtypes and layouts, and fills.
#include <algorithm>
#include <limits>

#include "conversion.h"
#include "kernels/indexing/index.h"
#include "kernels/pointwise/pointwise.h"
#include "lane_shuffle.h"

namespace maca::MACA_ISA::pointwise {

namespace {

constexpr int64_t kBytesPerPiece = 128 * 1024;  // about 20 us of copying

// Where the bytes stay as they are.
class MovePlan final : public Plan {
 public:
  MovePlan(const Operand& from, const Operand& to)
      : from_(from.slot),
        to_(to.slot),
        item_(item_size(to.dtype)),
        nest_(to.sizes, {to.strides, broadcast_strides(from, to.sizes)}) {
    work = static_cast<uint64_t>(nest_.numel()) * static_cast<uint64_t>(item_) / 4;
    const auto& dims = nest_.dims();
    size_t across = dims.size();
    if (nest_.inner().stride[0] == 1 && nest_.inner().stride[1] != 1)
      for (size_t d = 0; d + 1 < dims.size(); ++d)
        if (dims[d].stride[1] == 1) across = d;
    for (size_t d = 0; d + 1 < dims.size(); ++d)
      if (d == across)
        across_ = dims[d];
      else
        outer_.add(dims[d].size, dims[d].stride);
  }

  void run(const Launch& launch) const override {
    if (nest_.numel() == 0) return;
    const char* from = launch.data<char>(from_);
    char* to = launch.data<char>(to_);
    const auto is_in_place = [](const auto& d) { return d.stride[0] == d.stride[1]; };
    if (from == to && std::all_of(nest_.dims().begin(), nest_.dims().end(), is_in_place)) return;
    if (nest_.rank() == 0 || (nest_.rank() == 1 && nest_.inner().stride == Nest<2>::Strides{1, 1})) {
      const int64_t bytes = nest_.numel() * item_;
      if (bytes <= kBytesPerPiece) return void(std::memcpy(to, from, static_cast<size_t>(bytes)));
      return parallel_for(bytes, kBytesPerPiece, [&](int64_t begin, int64_t end) {
        std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
      });
    }
    with_item_size(item_, [&](auto zero) {
      using T = decltype(zero);
      if (across_.size > 0)
        transpose(reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to));
      else
        rows(reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to));
    });
  }

 private:
  template <class T> void rows(const T* from, T* to) const {
    const int64_t n = nest_.inner().size;
    const auto [to_step, from_step] = nest_.inner().stride;
    const auto part = [ts = to_step, fs = from_step](const T* f, T* t, int64_t m) { copy_row(t, ts, f, fs, m); };
    if (outer_.numel() == 1) {
      return parallel_for(n, kBytesPerPiece / item_, [&, ts = to_step, fs = from_step](int64_t begin, int64_t end) {
        part(from + begin * fs, to + begin * ts, end - begin);
      });
    }
    const auto [to_row, from_row] = outer_.inner().stride;
    outer_.parallel(
        [&, tr = to_row, fr = from_row](const auto& o, int64_t count) {
          for (int64_t i = 0; i < count; ++i) part(from + o[1] + i * fr, to + o[0] + i * tr, n);
        },
        std::max<int64_t>(kBytesPerPiece / (n * item_), 1));
  }

  // The result is dense along its rows, the source across them: strips as wide as a cache line are exchanged in
  // squares, so that every line is read once and written once.
  template <class T> void transpose(const T* from, T* to) const {
    constexpr int64_t side = kSquare<T>;
    const int64_t n = nest_.inner().size, m = across_.size;
    const int64_t from_step = nest_.inner().stride[1], to_step = across_.stride[0];
    const int64_t blocks = (m + side - 1) / side, count = outer_.numel() * blocks;
    parallel_for(count, std::max<int64_t>(kBytesPerPiece / (n * side * item_), 1), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const auto o = outer_.offset(b / blocks);
        const int64_t j0 = b % blocks * side, height = std::min(side, m - j0);
        exchange(from + o[1] + j0, from_step, n, height, to + o[0] + j0 * to_step, to_step);
      }
    });
  }

  int from_, to_;
  int64_t item_;
  Nest<2> nest_;                // the result, the source
  Nest<2> outer_;               // without the innermost dimension and without
  Nest<2>::Dim across_{0, {}};  // the one along which the source is dense, where the result's innermost is another
};

std::unique_ptr<Plan> copy_plan(const Operand& from, const Operand& to) {
  if (from.scalar() || from.dtype != to.dtype) {
    if (from.scalar()) throw Declined("the source is a number");
    return make_cast(from, to, between(from.dtype, to.dtype));
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
    case Dtype::Bool: put(Truth(v.integer != 0 || v.real != 0 || v.imaginary != 0)); break;
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
      : to_(to.slot), dtype_(to.dtype), value_(value), nest_(to.sizes, {to.strides}) {
    work = static_cast<uint64_t>(nest_.numel()) * static_cast<uint64_t>(item_size(dtype_)) / 8;
  }
  void run(const Launch& launch) const override {
    if (nest_.numel() == 0) return;
    if (value_.checked) check_fits(launch.scalars[value_.scalar_slot], dtype_);
    const Element e = element(value_.read(launch), dtype_);
    const int64_t bytes = nest_.rank() <= 1 ? 2 * kBytesPerPiece : kBytesPerPiece;
    with_item_size(item_size(dtype_), [&](auto zero) {
      using T = decltype(zero);
      T value;
      std::memcpy(&value, e.bytes, sizeof value);
      fill_nest(nest_, launch.data<T>(to_), value, bytes / static_cast<int64_t>(sizeof(T)));
    });
  }

 private:
  int to_;
  Dtype dtype_;
  FillValue value_;
  Nest<1> nest_;
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
