// Convolutions of signals: the weight, packed by rows, times the windows, a panel of them at a time. In channels-last,
// which the other ways compute in, two copies of every signal stand around the product.
#include "finite_members.h"
#include "signals.h"

namespace maca::MACA_ISA {
namespace {

using convolution::Signals;

// The window's places that one row of a panel holds: of all taps, where they are no further apart and channels are
// many.
constexpr int64_t kStep = kColumns + kLanes;
constexpr int64_t kFewest = 16;       // channels, whose products with one tap repay what their sums cost
constexpr int64_t kSlice = 128;       // rows of a panel at once: 24 KiB with AVX-512
constexpr int64_t kPanelsAtOnce = 4;  // that a slice of the weight, brought to the second-level cache, serves

class SignalProduct final : public convolution::StencilProduct {
 public:
  explicit SignalProduct(const Signals& s)
      : s_(s),
        together_(s.stride == 1 && s.read_channels >= kFewest && s.span() <= kLanes ? s.taps : 1),
        rows_(s.read_channels * s.taps / together_),
        lowest_(std::min<int64_t>(0, (together_ - 1) * s.step)),
        panels_((s.result + kColumns - 1) / kColumns),
        blocks_(Panels::row_blocks(s.result_channels)),
        scratch_(kSlice * kStep * int64_t{sizeof(float)}) {}

  // [group][slice][block of rows][tap][depth][rows]
  uint64_t packed_bytes() const override { return static_cast<uint64_t>(s_.groups * group()) * 4; }
  uint64_t workspace_bytes() const override { return scratch_.workspace(); }

  void pack(const float* weight, float* packed) const override {
    parallel_for(s_.groups * blocks_, std::max<int64_t>(1, 32768 * blocks_ / group()), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin / blocks_; g * blocks_ < end; ++g)
        Panels::each_row_block(s_.result_channels, begin - g * blocks_, end - g * blocks_,
                               [&](int64_t first, int64_t count) {
                                 pack_block(first, count, weight + g * s_.weight_group, packed + g * group());
                               });
    });
  }

  bool run(const float* image, const float* packed, const float* bias, float* result, void* workspace) const override {
    const int64_t columns = s_.groups * s_.batch * panels_;
    const int64_t multiplications = s_.groups * s_.batch * s_.result * s_.result_channels * s_.read_channels * s_.taps;
    return finite_on_members(multiplications, columns * blocks_, scratch_, workspace,
                             [&](const Member& member, float* scratch) {
                               return compute(member.part(blocks_, columns), image, packed, bias, result, scratch);
                             });
  }

 private:
  int64_t group() const { return s_.result_channels * s_.read_channels * s_.taps; }

  struct Panel {  // of windows, which make results side by side
    const float* image;
    float* result;
    int64_t first, width;
  };

  void pack_block(int64_t first, int64_t count, const float* weight, float* packed) const {
    for (int64_t row = 0; row < rows_; row += kSlice) {
      const int64_t depth = std::min(kSlice, rows_ - row);
      float* to = packed + (row * s_.result_channels + first * depth) * together_;
      const auto put = [&](int64_t i, int64_t k) {
        const auto [channel, tap] = place(row + k);
        const float* from = weight + (first + i) * s_.weight_result + channel * s_.weight_read + tap * s_.weight_tap;
        for (int64_t t = 0; t < together_; ++t) to[(t * depth + k) * count + i] = from[t * s_.weight_tap];
      };
      if (s_.weight_read < s_.weight_result) {  // in the order in which they lie
        for (int64_t i = 0; i < count; ++i)
          for (int64_t k = 0; k < depth; ++k) put(i, k);
      } else {
        for (int64_t k = 0; k < depth; ++k)
          for (int64_t i = 0; i < count; ++i) put(i, k);
      }
    }
  }

  // Of a row of a panel: its channel, and the tap that it begins with.
  std::pair<int64_t, int64_t> place(int64_t row) const {
    return together_ == s_.taps ? std::pair{row, int64_t{0}} : std::pair{row / s_.taps, row % s_.taps};
  }

  bool compute(const Part& part, const float* image, const float* packed, const float* bias, float* result,
               float* panel) const {
    Finite finite;
    for (int64_t column = part.column, count; column < part.column_end; column += count) {
      const int64_t each = s_.batch * panels_, g = column / each;
      count = std::min({kPanelsAtOnce, part.column_end - column, (g + 1) * each - column});
      Panel of[kPanelsAtOnce];
      for (int64_t p = 0; p < count; ++p) {
        const int64_t n = (column + p) % each / panels_, first = (column + p) % panels_ * kColumns;
        of[p] = {image + n * s_.read_batch + g * s_.read_channels * s_.read_channel,
                 result + n * s_.result_batch + g * s_.result_channels * s_.result_channel, first,
                 std::min(kColumns, s_.result - first)};
      }
      for (int64_t row = 0; row < rows_; row += kSlice) {
        const int64_t depth = std::min(kSlice, rows_ - row);
        const float* weight = packed + g * group() + row * s_.result_channels * together_;
        for (int64_t p = 0; p < count; ++p) {
          lay_out(of[p], row, depth, panel);
          multiply(part, of[p], row > 0, depth, weight, panel);
        }
      }
      for (int64_t p = 0; p < count; ++p) finish(part, of[p], bias ? bias + g * s_.result_channels : nullptr, finite);
    }
    return static_cast<bool>(finite);
  }

  // Rows [row, row + depth) of a panel, zeros where windows leave the signal.
  void lay_out(const Panel& p, int64_t row, int64_t depth, float* to) const {
    const int64_t count = p.width + (together_ - 1) * std::abs(s_.step);
    for (int64_t k = row; k < row + depth; ++k, to += kStep) {
      const auto [channel, tap] = place(k);
      const int64_t at = p.first * s_.stride + s_.first + tap * s_.step + lowest_;
      const auto [begin, end] = s_.inside(at, count);
      const float* from = p.image + channel * s_.read_channel + at;
      if (s_.stride == 1 && begin == 0 && at + kStep <= s_.read) {
        for (int64_t j = 0; j < kStep; j += kLanes) write(to + j, read<Lanes>(from + j));
        continue;
      }
      std::fill(to, to + begin, 0.0f);
      for (int64_t j = begin; j < end; ++j) to[j] = from[j * s_.stride];
      std::fill(to + end, to + kStep, 0.0f);
    }
  }

  template <class F> void each_block(const Part& part, F&& f) const {
    Panels::each_row_block(s_.result_channels, part.row, part.row_end, std::forward<F>(f));
  }

  void multiply(const Part& part, const Panel& p, bool add, int64_t depth, const float* weight,
                const float* panel) const {
    const int64_t chain = chain_of(rows_ * together_);
    each_block(part, [&](int64_t row, int64_t rows) {
      const float* left = weight + row * depth * together_;
      float* const to = p.result + row * s_.result_channel + p.first;
      for (int64_t t = 0; t < together_; ++t)
        for (int64_t k = 0; k < depth; k += chain) {
          const int64_t terms = std::min(chain, depth - k);
          Panels::multiply_few_rows<kStep>(rows, terms, PackedLeft{left}, panel + k * kStep + t * s_.step - lowest_,
                                           p.width, {to, s_.result_channel, add || t + k > 0, chain});
          left += terms * rows;
        }
    });
  }

  void finish(const Part& part, const Panel& p, const float* bias, Finite& finite) const {
    each_block(part, [&](int64_t row, int64_t rows) {
      for (int64_t i = row; i < row + rows; ++i) {
        float* to = p.result + i * s_.result_channel + p.first;
        const float own = bias ? bias[i] : 0.0f;
        winograd::each_lane(p.width, [&](auto zero, int64_t c) {
          using L = decltype(zero);
          const L sum = read<L>(to + c) + own;
          if (bias) write(to + c, sum);
          finite.see(sum);
        });
      }
    });
  }

  Signals s_;
  int64_t together_, rows_;  // taps that a row of a panel holds, and its rows
  int64_t lowest_;           // where the lowest of these taps reads, from the first one
  int64_t panels_, blocks_;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<convolution::StencilProduct> product_of_signals(const Signals& s) {
  return std::make_unique<SignalProduct>(s);
}

}  // namespace maca::MACA_ISA
