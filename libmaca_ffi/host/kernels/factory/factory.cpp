// Tensors made from numbers: arange, linspace, logspace, eye, the indices of triangles.
#include <cmath>

#include "kernels/indexing/index.h"
#include "conversion.h"

namespace maca::MACA_ISA {
namespace {

// Where a number of the schema comes from: a launch scalar, a 0-dim tensor, or a default.
struct Number {
  int slot = -1;
  Operand tensor;
  maca_scalar otherwise{};

  Number(const Request& r, const std::string& name, int argument, int64_t value) {
    otherwise.tag = MACA_SCALAR_INT;
    otherwise.value.integer = value;
    if (r.has(name + ".scalar"))
      slot = static_cast<int>(r.integer(name + ".scalar"));
    else if (argument >= 0 && argument < r.inputs()) {
      tensor = r.in(argument);
      if (tensor.scalar())
        slot = tensor.scalar_slot;
      else if (tensor.numel() != 1)
        throw Invalid(name + " is one number");
    }
  }
  maca_scalar get(const Launch& launch) const {
    if (slot >= 0) return launch.scalars[slot];
    if (!tensor.present()) return otherwise;
    maca_scalar s{};
    if (is_complex(tensor.dtype)) {
      c128 value;
      load_tile(Compute::C128, &value, tensor.dtype, launch.data(tensor), 1, 1);
      s.tag = MACA_SCALAR_COMPLEX;
      s.value.real = value.real();
      s.imaginary = value.imag();
    } else if (is_floating(tensor.dtype)) {
      s.tag = MACA_SCALAR_FLOAT;
      load_tile(Compute::F64, &s.value.real, tensor.dtype, launch.data(tensor), 1, 1);
    } else {
      load_tile(Compute::I64, &s.value.integer, tensor.dtype, launch.data(tensor), 1, 1);
    }
    return s;
  }
};

// Fills a vector by f(i) of type W, converted to the result's dtype: short loops, one instance a kind of number.
template <class W, class F> void fill_by(const Launch& launch, const Operand& out, const F& f) {
  const int64_t step = out.rank() ? out.strides[0] : 1;
  parallel_for(out.numel(), kGrain / 4, [&](int64_t begin, int64_t end) {
    W chunk[256];
    for (int64_t i = begin; i < end; i += 256) {
      const int64_t n = std::min<int64_t>(256, end - i);
      for (int64_t k = 0; k < n; ++k) chunk[k] = f(i + k);
      store_tile(compute_for<W>, chunk, out.dtype, at(launch.data(out), out.dtype, i * step), step, n);
    }
  });
}

const Operand& out_of_numbers(const Request& r) {
  if (r.out().dtype == Dtype::C32) throw Declined("numbers of complex32");
  return r.out();
}

const Operand& vector_out(const Request& r) {
  if (r.out().rank() > 1) throw Invalid("the result is a vector");
  return out_of_numbers(r);
}

std::unique_ptr<Plan> arange(const Request& r) {
  const Operand out = vector_out(r);
  const Number start(r, "start", -1, 0), step(r, "step", -1, 1);
  return make_plan(static_cast<uint64_t>(out.numel()), [=](const Launch& launch) {
    const maca_scalar first = start.get(launch), by = step.get(launch);
    if (is_floating(out.dtype)) {
      const double a = scalar_to_double(first), b = scalar_to_double(by);
      fill_by<double>(launch, out, [=](int64_t i) { return a + b * static_cast<double>(i); });
    } else {
      const auto a = static_cast<uint64_t>(scalar_to_int(first)), b = static_cast<uint64_t>(scalar_to_int(by));
      fill_by<int64_t>(launch, out, [=](int64_t i) { return static_cast<int64_t>(a + b * static_cast<uint64_t>(i)); });
    }
  });
}

// Element i of `steps` from start to end; the second half is counted from the end, so both ends are exact.
template <class W> W spaced(W start, W end, W step, int64_t i, int64_t steps) {
  const auto times = [&](int64_t n) { return step * static_cast<double>(n); };
  return i < steps / 2 ? start + times(i) : end - times(steps - 1 - i);
}

std::unique_ptr<Plan> spaced_plan(const Request& r, double base) {
  const Operand out = vector_out(r);
  // start and end may each be a tensor argument; the first one there is argument 0
  const Number start(r, "start", 0, 0), end(r, "end", r.has("start.scalar") ? 0 : 1, 0);
  const int64_t steps = out.numel();
  return make_plan(static_cast<uint64_t>(steps) * (base == 0 ? 1 : 20), [=](const Launch& launch) {
    const maca_scalar first = start.get(launch), last = end.get(launch);
    const double intervals = static_cast<double>(std::max<int64_t>(steps - 1, 1));
    if (is_complex(out.dtype)) {
      const c128 a = scalar_to_complex(first), b = steps == 1 ? a : scalar_to_complex(last),
                 step = steps == 1 ? c128(0) : (b - a) / intervals;
      fill_by<c128>(launch, out, [=](int64_t i) {
        const c128 x = spaced(a, b, step, i, steps);
        return base == 0 ? x : std::pow(c128(base), x);
      });
      return;
    }
    double a = scalar_to_double(first), b = scalar_to_double(last);
    // as the result's dtype has them: -1 is 255
    const auto whole = [&](double x) { return std::trunc(x) + (out.dtype == Dtype::U8 && x <= -1 ? 256 : 0); };
    if (is_integral(out.dtype) && steps != 1) a = whole(a), b = whole(b);
    if (steps == 1) b = a;
    const double step = steps == 1 ? 0 : (b - a) / intervals;  // an infinite start stays one
    fill_by<double>(launch, out, [=](int64_t i) {
      const double x = spaced(a, b, step, i, steps);
      return base == 0 ? x : std::pow(base, x);
    });
  });
}
std::unique_ptr<Plan> linspace(const Request& r) { return spaced_plan(r, 0); }
std::unique_ptr<Plan> logspace(const Request& r) {
  const double base = r.number("base", 10.0);
  if (base == 0) throw Declined("base 0");
  return spaced_plan(r, base);
}

std::unique_ptr<Plan> eye(const Request& r) {
  const Operand out = out_of_numbers(r);
  if (out.rank() != 2) throw Invalid("eye() makes a matrix");
  const Nest<1> all(out.sizes, {out.strides});
  const int64_t n = std::min(out.sizes[0], out.sizes[1]), step = out.strides[0] + out.strides[1];
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(out.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(all.numel()), [=](const Launch& launch) {
      maca_scalar number{};
      number.value.integer = 1;
      ScalarBox box;
      store_scalar(out.dtype, number, box.bytes);
      T one;
      std::memcpy(&one, box.bytes, sizeof one);
      T* to = launch.data<T>(out);
      fill_nest(all, to, T{});
      for (int64_t i = 0; i < n; ++i) to[i * step] = one;
    });
  });
  return plan;
}

// The coordinates of the elements at and below (above) a diagonal, in row-major order: [2, n].
std::unique_ptr<Plan> triangle_indices(const Request& r, bool lower) {
  const Operand out = r.out();
  const int64_t rows = r.integer("row"), columns = r.integer("col"), offset = r.integer("offset", 0);
  if (out.rank() != 2 || out.sizes[0] != 2) throw Invalid("indices are two rows");
  if (out.dtype != Dtype::I64 && out.dtype != Dtype::I32) throw Declined("indices are int64 or int32");
  // Rows may be 2^63 that hold nothing: the first one that holds an element comes first, and the last element ends it.
  const int64_t first = lower && offset < 0 ? -std::max(offset, -rows) : 0;
  return make_plan(static_cast<uint64_t>(out.numel()) * 2, [=](const Launch& launch) {
    const auto run = [&](auto* to) {
      using T = std::remove_pointer_t<decltype(to)>;
      int64_t at = 0;
      for (int64_t row = first; row < rows && at < out.sizes[1]; ++row) {
        int64_t split = 0;
        if (__builtin_add_overflow(row + (lower ? 1 : 0), offset, &split)) split = columns;
        split = std::clamp<int64_t>(split, 0, columns);
        const int64_t end = lower ? split : columns;
        for (int64_t column = lower ? 0 : split; column < end && at < out.sizes[1]; ++column, ++at) {
          to[at * out.strides[1]] = static_cast<T>(row);
          to[at * out.strides[1] + out.strides[0]] = static_cast<T>(column);
        }
      }
    };
    if (out.dtype == Dtype::I64)
      run(launch.data<int64_t>(out));
    else
      run(launch.data<int32_t>(out));
  });
}

MACA_KERNEL("arange", arange);
MACA_KERNEL("linspace", linspace);
MACA_KERNEL("logspace", logspace);
MACA_KERNEL("eye", eye);
MACA_KERNEL("tril_indices", +[](const Request& r) { return triangle_indices(r, true); });
MACA_KERNEL("triu_indices", +[](const Request& r) { return triangle_indices(r, false); });

}  // namespace
}  // namespace maca::MACA_ISA
