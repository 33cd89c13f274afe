// The gathers, scatters and index walks behind tile.h.
#include <algorithm>
#include <numeric>

#include "tile.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace maca::MACA_ISA {
namespace {

template <class To, class From> inline To convert(From value) {
  if constexpr (std::is_same_v<To, bool>)
    return value != From{};
  else if constexpr (std::is_same_v<From, To>)
    return value;
  else if constexpr (std::is_same_v<To, c64> || std::is_same_v<To, c128>) {
    using R = typename To::value_type;
    if constexpr (std::is_same_v<From, c64> || std::is_same_v<From, c128>)
      return To(static_cast<R>(value.real()), static_cast<R>(value.imag()));
    else
      return To(static_cast<R>(value), R(0));
  } else if constexpr (std::is_same_v<To, bf16> || std::is_same_v<To, f16>)
    return To(static_cast<float>(value));  // by way of float, as PyTorch rounds doubles
  else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>)
    return static_cast<To>(static_cast<int64_t>(value));
  else
    return static_cast<To>(value);
}

template <class From, class To> void load(const void* from_, int64_t stride, void* to_, int64_t n) {
  const From* from = static_cast<const From*>(from_);
  To* to = static_cast<To*>(to_);
  if (stride == 1) {
    int64_t i = 0;
#if defined(__F16C__)  // GCC 12 does not vectorize these conversions by itself
    if constexpr (std::is_same_v<From, f16> && std::is_same_v<To, float>)
      for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
    for (; i < n; ++i) to[i] = convert<To>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = convert<To>(from[i * stride]);
  }
}

template <class From, class To> void store(const void* from_, void* to_, int64_t stride, int64_t n) {
  const From* from = static_cast<const From*>(from_);
  To* to = static_cast<To*>(to_);
  if (stride == 1) {
    int64_t i = 0;
#if defined(__F16C__)
    if constexpr (std::is_same_v<To, f16> && std::is_same_v<From, float>)
      for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
#endif
    for (; i < n; ++i) to[i] = convert<To>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = convert<To>(from[i]);
  }
}

template <class F> bool with_real(Dtype d, F&& f) {
  if (d == Dtype::Bool) {
    f(bool{});
    return true;
  }
  return with_floating(d, f) || with_integral(d, f);
}

}  // namespace

Dtype compute_dtype(Dtype d) {
  if (is_integral(d)) return Dtype::I64;
  if (d == Dtype::F16 || d == Dtype::BF16) return Dtype::F32;
  return d;
}

Dtype wider_compute(Dtype a, Dtype b) {
  const auto rank = [](Dtype d) { return d == Dtype::I64 ? 0 : d == Dtype::F32 ? 1 : d == Dtype::F64 ? 2 : 3; };
  if (is_complex(a) || is_complex(b))
    return a == Dtype::C128 || b == Dtype::C128 || a == Dtype::F64 || b == Dtype::F64 ? Dtype::C128 : Dtype::C64;
  return rank(a) >= rank(b) ? a : b;
}

LoadRun load_run(Dtype from, Dtype compute) {
  LoadRun run = nullptr;
  with_compute(compute, [&](auto to) {
    using To = decltype(to);
    if constexpr (std::is_same_v<To, int64_t>) {
      with_integral(from, [&](auto f) { run = load<decltype(f), To>; });
      if (from == Dtype::Bool) run = load<bool, To>;
    } else {
      with_real(from, [&](auto f) { run = load<decltype(f), To>; });
      if constexpr (!std::is_floating_point_v<To>) with_complex(from, [&](auto f) { run = load<decltype(f), To>; });
    }
  });
  if (!run) throw Declined(std::string("cannot read ") + dtype_name(from) + " as " + dtype_name(compute));
  return run;
}

StoreRun store_run(Dtype compute, Dtype to) {
  StoreRun run = nullptr;
  with_compute(compute, [&](auto from) {
    using From = decltype(from);
    if constexpr (std::is_same_v<From, c64> || std::is_same_v<From, c128>)
      with_complex(to, [&](auto t) { run = store<From, decltype(t)>; });
    else
      with_real(to, [&](auto t) { run = store<From, decltype(t)>; });
  });
  if (!run) throw Declined(std::string("cannot write ") + dtype_name(compute) + " as " + dtype_name(to));
  return run;
}

Walk make_walk(std::span<const Operand* const> operands, Dtype compute, Order order) {
  const Operand& first = *operands[0];
  Walk walk;
  walk.numel = first.numel();
  walk.compute_item = item_size(compute);

  // broadcast strides, aligned at the last dimension
  const size_t rank = first.sizes.size();
  std::vector<std::vector<int64_t>> strides;
  for (const Operand* o : operands) {
    auto& s = strides.emplace_back(rank, 0);
    if (!o->present()) continue;
    if (o->scalar()) throw Declined("an operand in host memory");
    if (o->sizes.size() > rank) throw Invalid("an operand has more dimensions than the first");
    const size_t shift = rank - o->sizes.size();
    for (size_t d = 0; d < o->sizes.size(); ++d) {
      if (o->sizes[d] == first.sizes[shift + d])
        s[shift + d] = o->sizes[d] == 1 ? 0 : o->strides[d];
      else if (o->sizes[d] != 1)
        throw Invalid("the sizes of the operands do not broadcast");
    }
  }

  std::vector<size_t> dims;
  for (size_t d = 0; d < rank; ++d)
    if (first.sizes[d] != 1) dims.push_back(d);
  if (order == Order::Memory)
    std::stable_sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return strides[0][a] > strides[0][b]; });

  std::vector<std::vector<int64_t>> merged(operands.size());
  for (const size_t d : dims) {
    bool joins = !walk.sizes.empty();
    for (size_t p = 0; joins && p < operands.size(); ++p) joins = merged[p].back() == strides[p][d] * first.sizes[d];
    if (joins)
      walk.sizes.back() *= first.sizes[d];
    else
      walk.sizes.push_back(first.sizes[d]);
    for (size_t p = 0; p < operands.size(); ++p) {
      if (joins)
        merged[p].back() = strides[p][d];
      else
        merged[p].push_back(strides[p][d]);
    }
  }
  if (walk.sizes.empty()) {
    walk.sizes.push_back(1);
    for (auto& m : merged) m.push_back(1);
  }

  walk.all_direct = true;
  for (size_t p = 0; p < operands.size(); ++p) {
    const Operand& o = *operands[p];
    Port& port = walk.ports.emplace_back();
    if (!o.present()) continue;
    port.slot = o.slot;
    port.item = item_size(o.dtype);
    port.strides = merged[p];
    int64_t expected = 1;
    bool dense = true;
    for (size_t d = walk.sizes.size(); d-- > 0; expected *= walk.sizes[d]) dense &= port.strides[d] == expected;
    port.direct = dense && o.dtype == compute;
    walk.all_direct &= port.direct;
    if (!port.direct) {
      // The first operand may only be read, or only written, and its dtype then goes one way; the others are all read.
      try {
        port.load = load_run(o.dtype, compute);
      } catch (const Declined&) {
        if (p > 0) throw;
      }
      try {
        port.store = store_run(compute, o.dtype);
      } catch (const Declined&) {
        if (!port.load) throw;
      }
    }
  }
  return walk;
}

namespace {
// f(element offset, stride, first index in the buffer, count) for the innermost runs of [begin, begin + n).
template <class F> void runs(const Walk& walk, const Port& port, int64_t begin, int64_t n, F&& f) {
  const size_t last = walk.sizes.size() - 1;
  int64_t index[64];  // PyTorch's own limit of dimensions
  int64_t offset = 0, rest = begin;
  for (size_t d = walk.sizes.size(); d-- > 0;) {
    index[d] = rest % walk.sizes[d];
    rest /= walk.sizes[d];
    offset += index[d] * port.strides[d];
  }
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min(walk.sizes[last] - index[last], n - done);
    f(offset, port.strides[last], done, count);
    done += count;
    index[last] += count;
    offset += count * port.strides[last];
    for (size_t d = last; d > 0 && index[d] == walk.sizes[d]; --d) {
      offset += port.strides[d - 1] - index[d] * port.strides[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}
}  // namespace

void* Walk::fetch(int p, void* base, int64_t begin, int64_t n, void* buffer) const {
  const Port& port = ports[static_cast<size_t>(p)];
  if (port.direct) return static_cast<char*>(base) + begin * port.item;
  runs(*this, port, begin, n, [&](int64_t offset, int64_t stride, int64_t done, int64_t count) {
    port.load(static_cast<char*>(base) + offset * port.item, stride, static_cast<char*>(buffer) + done * compute_item,
              count);
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
  runs(*this, port, begin, n, [&](int64_t offset, int64_t stride, int64_t done, int64_t count) {
    port.store(static_cast<const char*>(buffer) + done * compute_item, static_cast<char*>(base) + offset * port.item,
               stride, count);
  });
}

void WalkList::add(Walk walk) {
  ends.push_back(numel() + walk.numel);
  walks.push_back(std::move(walk));
}

}  // namespace maca::MACA_ISA
