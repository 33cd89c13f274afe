// Products of int8 or uint8 and int8 in int32, exactly: numbers become int16.
#include "int16_pairs.h"
#include "kernels/matmul/matmul.h"
#include "onednn/engine.h"
#include "scratch.h"

namespace maca::MACA_ISA {
namespace {

using matmul::Matrix;

constexpr int64_t kLanes = kPairLanes;
constexpr int64_t kColumns = 2 * kLanes;
#if defined(__AVX512F__)
constexpr int64_t kRows = 12;
#else
constexpr int64_t kRows = 6;
#endif
constexpr int64_t kPairs = 256;  // of the depth at once: 16 KiB of a panel, with vectors of 256 bits
constexpr int64_t kRowsAtOnce = 96;
constexpr int64_t kPanelsAtOnce = 64;
constexpr int64_t kFewRows = 8;

// sums [rows][kColumns] of the packed factors: left [pair][R], right [pair][kColumns].
template <int64_t R>
void multiply_rows(int64_t pairs, const int32_t* left, const int32_t* right, int32_t* to, int64_t step, bool add) {
  Pairs sum[R][2] = {};
#pragma GCC unroll 2
  for (int64_t i = 0; i < pairs; ++i, left += R, right += kColumns) {
    const Pairs first = read<Pairs>(right), second = read<Pairs>(right + kLanes);
#pragma GCC unroll 12
    for (int64_t r = 0; r < R; ++r) {
      const Pairs factor = Pairs{} + left[r];
      sum[r][0] += products(factor, first);
      sum[r][1] += products(factor, second);
    }
  }
  for (int64_t r = 0; r < R; ++r, to += step)
    for (int64_t v = 0; v < 2; ++v) {
      int32_t* const at = to + v * kLanes;
      write(at, add ? read<Pairs>(at) + sum[r][v] : sum[r][v]);
    }
}
template <int64_t R = kRows>
void multiply_block(int64_t rows, int64_t pairs, const int32_t* left, const int32_t* right, int32_t* to, int64_t step,
                    bool add) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_rows<R>(pairs, left, right, to, step, add);
    multiply_block<R - 1>(rows, pairs, left, right, to, step, add);
  }
}

// Two numbers next to each other along the depth, of which the second may lie beyond its end.
template <class T> int32_t pair_at(const T* p, int64_t step, bool both) { return pair_of(p[0], both ? p[step] : T(0)); }

template <class A> class IntProduct final : public Plan {
 public:
  IntProduct(const Matrix& a, const Matrix& b, const Matrix& out) : a_(a), b_(b), out_(out) {
    const int64_t pairs = half(a.columns);
    few_ = a.rows <= kFewRows && b.row_stride == 1;
    onednn::Workspace space;
    const auto words = [&](int64_t count) { return space.take(static_cast<uint64_t>(count) * 4); };
    if (few_) {
      left_ = words(a.rows * (pairs + kLanes));
    } else {
      right_ = words(std::min(panels(), kPanelsAtOnce) * pairs * kColumns);
      scratch_ = Scratch(kRowsAtOnce * kPairs * 4);
      left_ = space.take(scratch_.workspace());
    }
    sums_ = out;
    if (!out.row_major()) {
      sums_ = out.compact(Dtype::I32);
      sums_offset_ = words(sums_.numel());
    }
    workspace_bytes = space.bytes();
    work = static_cast<uint64_t>(out.numel()) * static_cast<uint64_t>(a.columns + 7) / 8;
    implementation = few_ ? "dot products of int8" : "panels of int8";
  }

  void run(const Launch& launch) const override {
    if (out_.numel() == 0) return;
    auto* out = launch.data<int32_t>(out_.slot);
    auto* sums = sums_offset_ == onednn::Workspace::kNone
                     ? out
                     : reinterpret_cast<int32_t*>(onednn::at(launch.workspace, sums_offset_));
    if (a_.columns == 0)
      for (int64_t i = 0; i < a_.rows; ++i) std::fill_n(sums + i * sums_.row_stride, b_.columns, 0);
    else if (few_)
      few(launch, sums);
    else
      in_panels(launch, sums);
    if (sums != out) matmul::copy(sums_, sums, out_, out);
  }

 private:
  static int64_t half(int64_t n) { return (n + 1) / 2; }
  int64_t panels() const { return (b_.columns + kColumns - 1) / kColumns; }
  int64_t pairs() const { return half(a_.columns); }

  // ---- rows of one factor and columns of the other that both lie along the depth
  void few(const Launch& launch, int32_t* sums) const {
    const A* a = launch.data<const A>(a_.slot);
    const auto* b = launch.data<const int8_t>(b_.slot);
    auto* left = reinterpret_cast<int32_t*>(onednn::at(launch.workspace, left_));
    const int64_t k = a_.columns, row = pairs() + kLanes;
    for (int64_t i = 0; i < a_.rows; ++i)
      for (int64_t j = 0; j < pairs(); ++j)
        left[i * row + j] = pair_at(a + i * a_.row_stride + 2 * j * a_.column_stride, a_.column_stride, 2 * j + 1 < k);
    parallel_for(b_.columns, std::max<int64_t>(1, 131072 / k), [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j)
        for (int64_t i = 0; i < a_.rows; ++i)
          sums[i * sums_.row_stride + j] = dot(k, left + i * row, b + j * b_.column_stride);
    });
  }
  static int32_t dot(int64_t k, const int32_t* x, const int8_t* y) {
    Pairs sum[4] = {};
    int64_t i = 0;
    for (; i + 8 * kLanes <= k; i += 8 * kLanes)
      for (int64_t v = 0; v < 4; ++v)
        sum[v] += products(read<Pairs>(x + i / 2 + v * kLanes), neighbours(y + i + v * 2 * kLanes));
    for (; i + 2 * kLanes <= k; i += 2 * kLanes) sum[0] += products(read<Pairs>(x + i / 2), neighbours(y + i));
    auto total = static_cast<uint32_t>(sum_of((sum[0] + sum[1]) + (sum[2] + sum[3])));
    for (; i < k; i += 2) {
      const auto low = static_cast<int16_t>(x[i / 2] & 0xffff), high = static_cast<int16_t>(x[i / 2] >> 16);
      total += static_cast<uint32_t>(low * y[i] + (i + 1 < k ? high * y[i + 1] : 0));
    }
    return static_cast<int32_t>(total);
  }

  // ---- packed factors
  void in_panels(const Launch& launch, int32_t* sums) const {
    auto* right = reinterpret_cast<int32_t*>(onednn::at(launch.workspace, right_));
    const int64_t threads = ThreadPool::instance().threads();
    for (int64_t first = 0; first < panels(); first += kPanelsAtOnce) {
      const int64_t count = std::min(kPanelsAtOnce, panels() - first);
      parallel_for(count, std::max<int64_t>(1, 32768 / (a_.columns * kColumns)), [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) pack_right(launch, first + j, j, count, right);
      });
      const int64_t blocks = (a_.rows + kRows - 1) / kRows;
      const int64_t pieces = std::clamp<int64_t>(a_.rows * count * kColumns * pairs() / ThreadPool::grain(1 << 18), 1,
                                                 std::min(threads, blocks * count));
      const matmul::Grid grid = matmul::grid_of(pieces, blocks, count);
      parallel_for(grid.high * grid.wide, 1, [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece) {
          const int64_t r = piece / grid.wide, c = piece % grid.wide;
          multiply(launch, blocks * r / grid.high * kRows, std::min(blocks * (r + 1) / grid.high * kRows, a_.rows),
                   count * c / grid.wide, count * (c + 1) / grid.wide, first, count, right, sums);
        }
      });
    }
  }

  // Rows [row, row_end) times panels [begin, end) of those that are packed, `first` being the first of them.
  void multiply(const Launch& launch, int64_t row, int64_t row_end, int64_t begin, int64_t end, int64_t first,
                int64_t count, const int32_t* right, int32_t* sums) const {
    std::unique_ptr<char[]> heap;
    auto* left = reinterpret_cast<int32_t*>(scratch_.of_thread(onednn::at(launch.workspace, left_), heap));
    for (int64_t at = row; at < row_end; at += kRowsAtOnce) {
      const int64_t rows = std::min(kRowsAtOnce, row_end - at);
      for (int64_t deep = 0; deep < pairs(); deep += kPairs) {
        const int64_t depth = std::min(kPairs, pairs() - deep);
        for (int64_t i = 0; i < rows; i += kRows)
          pack_left(launch, at + i, std::min(kRows, rows - i), deep, depth, left + i * depth);
        const int32_t* slice = right + deep * count * kColumns;
        for (int64_t j = begin; j < end; ++j) {
          const int64_t column = (first + j) * kColumns, width = std::min(kColumns, b_.columns - column);
          for (int64_t i = 0; i < rows; i += kRows) {
            const int64_t n = std::min(kRows, rows - i), step = sums_.row_stride;
            int32_t* to = sums + (at + i) * step + column;
            if (width == kColumns) {
              multiply_block(n, depth, left + i * depth, slice + j * depth * kColumns, to, step, deep > 0);
              continue;
            }
            int32_t tile[kRows * kColumns];
            multiply_block(n, depth, left + i * depth, slice + j * depth * kColumns, tile, kColumns, false);
            for (int64_t r = 0; r < n; ++r)
              for (int64_t l = 0; l < width; ++l) {
                int32_t& sum = to[r * step + l];
                const auto more = static_cast<uint32_t>(tile[r * kColumns + l]);
                sum = static_cast<int32_t>(more + (deep > 0 ? static_cast<uint32_t>(sum) : 0));
              }
          }
        }
      }
    }
  }

  // [pair][rows] of `rows` rows.
  void pack_left(const Launch& launch, int64_t row, int64_t rows, int64_t deep, int64_t depth, int32_t* to) const {
    for (int64_t r = 0; r < rows; ++r) {
      const A* from = launch.data<const A>(a_.slot) + (row + r) * a_.row_stride + 2 * deep * a_.column_stride;
      const int64_t last = a_.columns - 2 * deep;  // numbers there are
      int64_t i = 0;
      if (a_.column_stride == 1)
        for (; i + kLanes <= depth && 2 * (i + kLanes) <= last; i += kLanes) {
          const Pairs pairs = neighbours(from + 2 * i);
          for (int64_t l = 0; l < kLanes; ++l) to[(i + l) * rows + r] = pairs[l];
        }
      for (; i < depth; ++i)
        to[i * rows + r] = pair_at(from + 2 * i * a_.column_stride, a_.column_stride, 2 * i + 1 < last);
    }
  }

  // Panel `panel`, the `j`th of `count`, as [slice of the depth][panel][pair][kColumns], with zeros beyond the columns.
  void pack_right(const Launch& launch, int64_t panel, int64_t j, int64_t count, int32_t* to) const {
    const int64_t column = panel * kColumns, width = std::min(kColumns, b_.columns - column);
    const int8_t* from = launch.data<const int8_t>(b_.slot) + column * b_.column_stride;
    for (int64_t deep = 0; deep < pairs(); deep += kPairs) {
      const int64_t depth = std::min(kPairs, pairs() - deep);
      int32_t* at = to + deep * count * kColumns + j * depth * kColumns;
      const int8_t* slice = from + 2 * deep * b_.row_stride;
      const int64_t last = b_.rows - 2 * deep;
      int64_t i = 0;
      if (width == kColumns && b_.row_stride == 1)
        for (; i + kLanes <= depth && 2 * (i + kLanes) <= last; i += kLanes)
          transpose_columns(slice + 2 * i, at + i * kColumns);
      else if (width == kColumns && b_.column_stride == 1)
        for (; i < depth && 2 * i + 1 < last; ++i)
          interleave(slice + 2 * i * b_.row_stride, slice + (2 * i + 1) * b_.row_stride, at + i * kColumns);
      for (; i < depth; ++i)
        for (int64_t l = 0; l < kColumns; ++l)
          at[i * kColumns + l] =
              l < width ? pair_at(slice + 2 * i * b_.row_stride + l * b_.column_stride, b_.row_stride, 2 * i + 1 < last)
                        : 0;
    }
  }

  // kColumns columns of the depth that lie each by itself.
  void transpose_columns(const int8_t* from, int32_t* to) const {
    for (int64_t half = 0; half < kColumns; half += kLanes) {
      Pairs square[kLanes];
      for (int64_t l = 0; l < kLanes; ++l) square[l] = neighbours(from + (half + l) * b_.column_stride);
      transpose(square);
      for (int64_t l = 0; l < kLanes; ++l) write(to + l * kColumns + half, square[l]);
    }
  }
  // Two rows of kColumns.
  static void interleave(const int8_t* low, const int8_t* high, int32_t* to) {
#if defined(__AVX2__)
    for (int64_t l = 0; l < kColumns; l += 16) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low + l)),
                    y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high + l));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + l), _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + l + 8), _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y)));
    }
#else
    for (int64_t l = 0; l < kColumns; ++l) to[l] = pair_of(low[l], high[l]);
#endif
  }

  Matrix a_, b_, out_, sums_;
  bool few_;
  Scratch scratch_;
  uint64_t right_ = 0, left_ = 0, sums_offset_ = onednn::Workspace::kNone;
};

Matrix matrix(const Operand& o) {
  if (o.rank() != 2) throw Invalid("_int_mm got an operand of rank " + std::to_string(o.rank()));
  return {o.dtype, o.slot, 1, o.sizes[0], o.sizes[1], 0, o.strides[0], o.strides[1]};
}

std::unique_ptr<Plan> make_int_mm(const Request& r) {
  const Matrix a = matrix(r.in(0)), b = matrix(r.in(1)), out = matrix(r.out());
  if (a.columns != b.rows || out.rows != a.rows || out.columns != b.columns)
    throw Invalid("the extents of _int_mm do not match");
  if (b.dtype != Dtype::I8 || out.dtype != Dtype::I32) throw Declined("_int_mm of other dtypes than int8");
  if (auto plan = matmul::onednn_int8_plan(a, b, out)) return plan;
  if (a.dtype == Dtype::I8) return std::make_unique<IntProduct<int8_t>>(a, b, out);
  if (a.dtype == Dtype::U8) return std::make_unique<IntProduct<uint8_t>>(a, b, out);
  throw Declined(std::string("_int_mm of ") + dtype_name(a.dtype));
}
MACA_KERNEL("_int_mm", make_int_mm);

}  // namespace
}  // namespace maca::MACA_ISA
