// Products of floats with a weight of 4 bits, of which groups of neighbours along a row share a scale and a zero:
// (number - 8) * scale + zero.
//
// The weight lies in blocks of rows, [k][half of the rows] bytes each: a byte holds a number of two rows, of which the
// second is half a block further on, or in the rows that fill no block the next. So a vector of bytes becomes two
// vectors of rows, that meet one number of the left factor, and nothing is added across lanes.
#include "kernels/matmul/register_product.h"
#include "weight_product.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace maca::MACA_ISA {
namespace {

using Words = Vector<uint32_t>;

[[gnu::always_inline]] inline Words words_of(const uint8_t* p) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  Words words;
  for (int64_t l = 0; l < kLanes; ++l) words[l] = p[l];
  return words;
#endif
}

// The number less 8 that is in the low four bits of each word, exactly, whatever is in the others.
[[gnu::always_inline]] inline Lanes numbers_of(Words words) {
#if defined(__AVX512F__)
  constexpr Lanes kNumbers = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
  return (Lanes)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)words, (__m512)kNumbers);
#else
  constexpr uint32_t kTwo23 = 0x4b000000;  // the bits of 2^23, and with a number those of both together
  return (Lanes)((words & 15) | kTwo23) - 8388616.0f;
#endif
}

// Rows of a weight from `first` on, with `bytes` of them for each k.
struct Block {
  int64_t first, rows, bytes;
  bool by_halves;
  int64_t low(int64_t byte) const { return by_halves ? byte : 2 * byte; }  // the row in its low bits
  int64_t high(int64_t byte) const { return by_halves ? byte + bytes : 2 * byte + 1; }
};

constexpr int64_t kMostRows = 64;  // of a block

template <class S> class Int4Product final : public WeightProduct {
 public:
  Int4Product(const Request& r, int64_t rows, int64_t block, bool by_halves)
      : WeightProduct(r, rows, block, rows * r.in(0).sizes[1] / 2),
        block_(block),
        by_halves_(by_halves),
        group_(r.integer("qGroupSize")),
        pairs_(r.in(2)) {
    if (k() % group_ || rows % 2 || pairs_.rank() != 3 || pairs_.sizes[0] != k() / group_ || pairs_.sizes[1] != n() ||
        pairs_.sizes[2] != 2)
      throw Invalid("the extents of a product with a weight of 4 bits do not match");
    if (!pairs_.contiguous()) throw Declined("scales and zeros that are not dense");
    implementation = "weight of 4 bits";
    if (is_few()) {
      group_sums_ = workspace_bytes;
      workspace_bytes += static_cast<uint64_t>(m() * groups()) * sizeof(float);
    }
    choose(false);
  }

 private:
  int64_t groups() const { return k() / group_; }

  Block block(int64_t unit) const {
    const int64_t first = unit * block_, rows = std::min(block_, n() - first);
    return {first, rows, rows / 2, by_halves_ && rows == block_};
  }
  const uint8_t* bytes(const Launch& launch, const Block& b) const {
    return reinterpret_cast<const uint8_t*>(weight(launch)) + b.first * k() / 2;
  }

  // Scales and zeros of a group, in the order of the vectors: low bits of the block's bytes, then high ones. Beyond the
  // last byte they are 0.
  struct Grid {
    float scale[2][kMostRows / 2 + kLanes], zero[2][kMostRows / 2 + kLanes];
  };
  void read_grid(const Launch& launch, const Block& b, int64_t group, Grid& grid) const {
    const S* pairs = launch.data<const S>(pairs_.slot) + 2 * (group * n() + b.first);
    const auto read = [&](auto row_step, int64_t high) {  // a step that is known is read in vectors
      for (int64_t half = 0; half < 2; ++half) {
        const S* at = pairs + 2 * half * high;
        for (int64_t i = 0; i < b.bytes; ++i) {
          grid.scale[half][i] = static_cast<float>(at[2 * i * row_step]);
          grid.zero[half][i] = static_cast<float>(at[2 * i * row_step + 1]);
        }
      }
    };
    if (b.by_halves)
      read(std::integral_constant<int64_t, 1>{}, b.bytes);
    else
      read(std::integral_constant<int64_t, 2>{}, 1);
  }

  void few(const Launch& launch, const float* left, float* sums) const override {
    auto* group_sums = reinterpret_cast<float*>(onednn::at(launch.workspace, group_sums_));
    for (int64_t i = 0; i < m(); ++i)
      for (int64_t g = 0; g < groups(); ++g)
        group_sums[i * groups() + g] = sum(left + i * left_step() + g * group_, group_);
    parallel_for(units(), std::max<int64_t>(1, 65536 / (block_ * k() * ((m() + 1) / 2))),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t unit = begin; unit < end; ++unit) multiply(launch, block(unit), left, group_sums, sums);
                 });
  }

  static float sum(const float* p, int64_t n) {
    Lanes lanes = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) lanes += read<Lanes>(p + i);
    float total = 0;
    for (; i < n; ++i) total += p[i];
    for (int64_t width = kLanes / 2; width > 0; width /= 2)
      for (int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    return total + lanes[0];
  }

  // Sums of all groups so far: [row of the left factor][low or high][byte].
  using Totals = float[kFew][2][kMostRows / 2 + kLanes];

  void multiply(const Launch& launch, const Block& b, const float* left, const float* group_sums, float* sums) const {
    Totals totals = {};
    Grid grid = {};
    const uint8_t* from = bytes(launch, b);
    for (int64_t g = 0; g < groups(); ++g, from += group_ * b.bytes) {
      for (int64_t byte = 0; byte < group_ * b.bytes; byte += 64) __builtin_prefetch(from + kReadAhead + byte);
      read_grid(launch, b, g, grid);
      const float* x = left + g * group_;
      int64_t byte = 0;
      for (; byte + 2 * kLanes <= b.bytes; byte += 2 * kLanes)
        add_rows<2>(b.bytes, x, group_sums + g, from + byte, byte, grid, totals);
      for (; byte + kLanes <= b.bytes; byte += kLanes)
        add_rows<1>(b.bytes, x, group_sums + g, from + byte, byte, grid, totals);
      if (byte < b.bytes) {
        uint8_t tail[kMostGroup * kLanes] = {};
        for (int64_t i = 0; i < group_; ++i) std::copy_n(from + i * b.bytes + byte, b.bytes - byte, tail + i * kLanes);
        add_rows<1>(kLanes, x, group_sums + g, tail, byte, grid, totals);
      }
    }
    for (int64_t i = 0; i < m(); ++i) {
      float* to = sums + i * sums_step() + b.first;
      for (int64_t j = 0; j < b.bytes; ++j) {
        to[b.low(j)] = totals[i][0][j];
        to[b.high(j)] = totals[i][1][j];
      }
    }
  }

  // V vectors of bytes, two rows of the left factor at a time: their sums and the numbers fill 16 registers.
  template <int64_t V>
  void add_rows(int64_t step, const float* x, const float* group_sums, const uint8_t* from, int64_t byte,
                const Grid& grid, Totals& totals) const {
    const auto add = [&]<int64_t R>(int64_t i) {
      add_group<R, V>(x + i * left_step(), group_sums + i * groups(), from, step, byte, grid, totals + i);
    };
    int64_t i = 0;
    for (; i + 2 <= m(); i += 2) add.template operator()<2>(i);
    if (i < m()) add.template operator()<1>(i);
  }

  // `group_sums`: of the numbers of each row of the left factor.
  template <int64_t R, int64_t V>
  void add_group(const float* x, const float* group_sums, const uint8_t* from, int64_t step, int64_t byte,
                 const Grid& grid, float (*totals)[2][kMostRows / 2 + kLanes]) const {
    constexpr int64_t kTurns = R * V == 1 ? 2 : 1;  // sums enough that none waits for itself
    Lanes sum[kTurns][R][2][V] = {};
    const float* rows[R];
    for (int64_t r = 0; r < R; ++r) rows[r] = x + r * left_step();
    for (int64_t i = 0; i < group_; i += 2)
#pragma GCC unroll 2
      for (int64_t k = 0; k < 2; ++k, from += step)
#pragma GCC unroll 2
        for (int64_t v = 0; v < V; ++v) {
          const Words words = words_of(from + v * kLanes);
          const Lanes low = numbers_of(words), high = numbers_of(words >> 4);
#pragma GCC unroll 2
          for (int64_t r = 0; r < R; ++r) {
            const Lanes factor = rows[r][i + k] - Lanes{};
            sum[k % kTurns][r][0][v] += factor * low;
            sum[k % kTurns][r][1][v] += factor * high;
          }
        }
    if constexpr (kTurns == 2)
      for (int64_t half = 0; half < 2; ++half) sum[0][0][half][0] += sum[1][0][half][0];
    for (int64_t r = 0; r < R; ++r) {
      const float of_zero = group_sums[r * groups()];
      for (int64_t half = 0; half < 2; ++half)
        for (int64_t v = 0; v < V; ++v) {
          const int64_t at = byte + v * kLanes;
          float* const total = totals[r][half] + at;
          const Lanes more =
              sum[0][r][half][v] * read<Lanes>(grid.scale[half] + at) + of_zero * read<Lanes>(grid.zero[half] + at);
          write(total, read<Lanes>(total) + more);
        }
    }
  }

  void unpack(const Launch& launch, int64_t row, int64_t rows, int64_t first, int64_t depth, float* to) const override {
    for (const int64_t end = row + rows; row < end; row += block_, to += block_)
      unpack(launch, block(row / block_), first, depth, to, rows);
  }
  // The block's numbers of one k side by side, those of the next `step` from there.
  void unpack(const Launch& launch, const Block& b, int64_t first, int64_t depth, float* to, int64_t step) const {
    const uint8_t* from = bytes(launch, b) + first * b.bytes;
    Grid grid = {};
    for (int64_t i = first; i < first + depth; ++i, from += b.bytes, to += step) {
      if (i == first || i % group_ == 0) read_grid(launch, b, i / group_, grid);
      int64_t j = 0;
      if (b.by_halves)
        for (; j + kLanes <= b.bytes; j += kLanes) {
          const Words words = words_of(from + j);
          write(to + j, numbers_of(words) * read<Lanes>(grid.scale[0] + j) + read<Lanes>(grid.zero[0] + j));
          write(to + b.bytes + j,
                numbers_of(words >> 4) * read<Lanes>(grid.scale[1] + j) + read<Lanes>(grid.zero[1] + j));
        }
      for (; j < b.bytes; ++j) {
        to[b.low(j)] = static_cast<float>((from[j] & 15) - 8) * grid.scale[0][j] + grid.zero[0][j];
        to[b.high(j)] = static_cast<float>((from[j] >> 4) - 8) * grid.scale[1][j] + grid.zero[1][j];
      }
    }
  }

  static constexpr int64_t kMostGroup = 256;
  int64_t block_;
  bool by_halves_;
  int64_t group_;
  Operand pairs_;
  uint64_t group_sums_ = 0;
};

std::unique_ptr<Plan> product(const Request& r, int64_t rows, int64_t block, bool by_halves) {
  if (r.in(0).rank() != 2) throw Invalid("a product with a weight of 4 bits got an operand of another rank");
  const int64_t group = r.integer("qGroupSize");
  if (group != 32 && group != 64 && group != 128 && group != 256) throw Declined("groups of so many numbers");
  if (block < 2 || block > kMostRows || block % 2) throw Declined("blocks of so many rows");
  if (r.in(2).scalar()) throw Declined("a scale that is a number");
  std::unique_ptr<Plan> plan;
  with_scales(r.in(2).dtype,
              [&](auto t) { plan = std::make_unique<Int4Product<decltype(t)>>(r, rows, block, by_halves); });
  return plan;
}

// The order is that of the CPU on which PyTorch runs, which says so.
std::unique_ptr<Plan> make_product_as_cpu(const Request& r) {
  const Operand& weight = r.in(1);
  if (weight.dtype != Dtype::U8 || weight.rank() != 2) throw Declined("a weight that is no matrix of uint8");
  return product(r, weight.sizes[0], r.integer("block_rows"), r.boolean("by_halves"));
}

// maca's own order: blocks of 32 rows by halves.
std::unique_ptr<Plan> make_product(const Request& r) {
  const Operand& weight = r.in(1);
  if (weight.dtype != Dtype::I32 || weight.rank() != 4) throw Declined("a weight that is no int32 of 4 dimensions");
  return product(r, 8 * weight.sizes[0], 32, true);
}
MACA_KERNEL("_weight_int4pack_mm_for_cpu", make_product_as_cpu);
MACA_KERNEL("_weight_int4pack_mm", make_product);

}  // namespace
}  // namespace maca::MACA_ISA
