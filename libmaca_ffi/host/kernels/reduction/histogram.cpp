// Counts: "bincount_size" finds how long a result is, "bincount" counts numbers, "histc" elements in bins of equal
// width.
//
// Counts are whole numbers, so that tables of several threads add up to the same whatever their number.
#include <mutex>

#include "conversion.h"
#include "kernels/indexing/index.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kTile = 256;
constexpr int64_t kIntegers = 4 * kGrain;  // worth a second thread: 50 us of counting

// f(the operand's values as T, how many) a tile at a time, of elements [begin, end) of a vector.
template <class T = int64_t, class F>
void over_tiles(const Launch& launch, const Operand& in, int64_t begin, int64_t end, F&& f) {
  const char* from = launch.data<const char>(in);
  const int64_t step = in.strides[0];
  T buffer[kTile];
  for (int64_t at = begin; at < end; at += kTile) {
    const int64_t n = std::min(kTile, end - at);
    f(tile<T>(buffer, in.dtype, from, at * step, step, n), n);
  }
}

// Apart from the loop over tiles, whose variables might be among the values for all the compiler knows; in lanes, as
// there is no instruction for it below AVX-512, and what stands for it takes longer than the next one waits.
[[gnu::noinline]] uint64_t greatest_of(const int64_t* values, int64_t n) {
  constexpr int64_t kLanes = 16;
  uint64_t high[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      high[lane] = std::max(high[lane], static_cast<uint64_t>(values[i + lane]));
  for (; i < n; ++i) high[0] = std::max(high[0], static_cast<uint64_t>(values[i]));
  return *std::max_element(high, high + kLanes);
}

void check_integers(const Operand& in) {
  if (in.rank() != 1 || in.scalar()) throw Invalid("a vector of numbers is counted");
  if (is_floating(in.dtype) || is_complex(in.dtype)) throw Invalid("integers are counted");
}

// in: a vector of integers. out: one more than the greatest, or -1 where one of them is below 0.
std::unique_ptr<Plan> size(const Request& r) {
  const Operand in = r.in(0), out = r.out();
  check_integers(in);
  if (out.dtype != Dtype::I64 || out.numel() != 1) throw Invalid("a size is a number of int64");
  return make_plan(static_cast<uint64_t>(in.numel()), [=](const Launch& launch) {
    std::mutex mutex;
    uint64_t greatest = 0;  // as unsigned numbers those below 0 are the greatest
    parallel_for(in.numel(), kIntegers, [&](int64_t begin, int64_t end) {
      uint64_t high = 0;
      over_tiles(launch, in, begin, end,
                 [&](const int64_t* values, int64_t n) { high = std::max(high, greatest_of(values, n)); });
      const std::lock_guard lock(mutex);
      greatest = std::max(greatest, high);
    });
    const bool fits = greatest < static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    *launch.data<int64_t>(out) = in.numel() == 0 ? 0 : fits ? static_cast<int64_t>(greatest) + 1 : -1;
  });
}

// Counts in `places` of n elements: count(begin, end, table) adds to a table. A table a thread, as long as there are
// several elements for each place of it; `least` are worth a second thread.
template <class Count> void count_in_tables(int64_t n, int64_t least, int64_t places, int64_t* total, Count&& count) {
  const int64_t grain = std::max(least, 4 * places);
  std::mutex mutex;
  std::fill_n(total, places, int64_t{0});
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    if (begin == 0 && end == n) return count(begin, end, total);
    std::vector<int64_t> table(static_cast<size_t>(places));
    count(begin, end, table.data());
    const std::lock_guard lock(mutex);
    for (int64_t i = 0; i < places; ++i) total[i] += table[static_cast<size_t>(i)];
  });
}

// Apart as well: where its operands are would be read anew after each count.
[[gnu::noinline]] void count(const int64_t* values, int64_t n, int64_t* table, int64_t places) {
  for (int64_t i = 0; i < n; ++i) {
    // read once: others may write there between the look and the count
    const uint64_t place = static_cast<uint64_t>(__atomic_load_n(values + i, __ATOMIC_RELAXED));
    if (place >= static_cast<uint64_t>(places))
      throw LaunchError(MACA_ERROR_VALUE, "bincount: a number beyond the result");
    ++table[place];
  }
}

// in: a vector of integers, none below 0 or beyond the result. out: how often each place occurs.
std::unique_ptr<Plan> bincount(const Request& r) {
  const Operand in = r.in(0), out = r.out();
  check_integers(in);
  if (out.dtype != Dtype::I64 || !out.contiguous()) throw Invalid("counts are a vector of int64");
  const int64_t places = out.numel();
  return make_plan(static_cast<uint64_t>(in.numel() + places), [=](const Launch& launch) {
    count_in_tables(in.numel(), kIntegers, places, launch.data<int64_t>(out),
                    [&](int64_t begin, int64_t end, int64_t* table) {
                      over_tiles(launch, in, begin, end,
                                 [=](const int64_t* values, int64_t n) { count(values, n, table, places); });
                    });
  });
}

// in: a vector of floats. out: counts of its dtype in bins of equal width from "min" to "max", which belongs to the
// last.
std::unique_ptr<Plan> histc(const Request& r) {
  const Operand in = r.in(0), out = r.out();
  if (in.dtype != Dtype::F32 && in.dtype != Dtype::F64) throw Declined("bins of float32 and float64");
  if (in.rank() != 1 || in.scalar() || out.dtype != in.dtype || !out.contiguous() || out.numel() == 0)
    throw Invalid("histc: a vector, and counts of its dtype");
  const int64_t bins = out.numel();
  const double first = r.number("min"), last = r.number("max");
  std::unique_ptr<Plan> plan;
  with_real(in.dtype == Dtype::F32 ? Compute::F32 : Compute::F64, [&]<class T>(T) {
    const T low = static_cast<T>(first), high = static_cast<T>(last), width = high - low, count = static_cast<T>(bins);
    plan = make_plan(static_cast<uint64_t>(in.numel() * 4 + bins), [=](const Launch& launch) {
      std::vector<int64_t> counts(static_cast<size_t>(bins));
      count_in_tables(in.numel(), kGrain, bins, counts.data(), [&](int64_t begin, int64_t end, int64_t* table) {
        over_tiles<T>(launch, in, begin, end, [&](const T* x, int64_t n) {
          T place[kTile];
          // rounded each time and in this order, as PyTorch's: the rounding decides on the bin
          for (int64_t i = 0; i < n; ++i) place[i] = (x[i] - low) * count / width;
          for (int64_t i = 0; i < n; ++i)
            if (x[i] >= low && x[i] <= high)  // a place is no number where the width is 0 or overflows
              ++table[place[i] >= T(1) ? std::min(static_cast<int64_t>(std::min(place[i], count)), bins - 1) : 0];
        });
      });
      T* to = launch.data<T>(out);
      for (int64_t i = 0; i < bins; ++i) to[i] = static_cast<T>(counts[static_cast<size_t>(i)]);
    });
  });
  return plan;
}

MACA_KERNEL("bincount_size", size);
MACA_KERNEL("bincount", bincount);
MACA_KERNEL("histc", histc);

}  // namespace
}  // namespace maca::MACA_ISA
