// The weight's gradient of a convolution of signals: the results' gradient times the windows, whose columns lie as the
// weight's do, image by image.
#include "finite_members.h"
#include "signals.h"

namespace maca::MACA_ISA {
namespace {

using convolution::Signals;

constexpr int64_t kSlice = Panels::kDepth;  // of the places of a signal, which are the product's depth

class SignalGradient final : public convolution::StencilGradient {
 public:
  explicit SignalGradient(const Signals& s)
      : s_(s),
        columns_(s.read_channels * s.taps),
        blocks_(Panels::row_blocks(s.result_channels)),
        rows_(s.result_channels * kSlice + kLanes),
        scratch_((rows_ + 2 * kSlice * kColumns) * int64_t{sizeof(float)}) {}

  uint64_t workspace_bytes() const override { return scratch_.workspace(); }

  bool run(const float* image, const float* gradient, float* weight_gradient, void* workspace) const override {
    const int64_t panels = (columns_ + kColumns - 1) / kColumns;
    const int64_t multiplications = s_.groups * s_.batch * s_.result * s_.result_channels * columns_;
    return finite_on_members(multiplications, panels * blocks_, scratch_, workspace,
                             [&](const Member& member, float* scratch) {
                               const Part part = member.part(blocks_, panels);
                               bool finite = true;
                               for (int64_t g = 0; g < s_.groups; ++g)
                                 finite &= compute(part, image + g * s_.read_channels * s_.read_channel,
                                                   gradient + g * s_.result_channels * s_.result_channel,
                                                   weight_gradient + g * s_.weight_group, scratch);
                               return finite;
                             });
  }

 private:
  bool compute(const Part& part, const float* image, const float* gradient, float* weight, float* scratch) const {
    float *left = scratch, *panel = scratch + rows_, *edges = panel + kSlice * kColumns;
    for (int64_t n = 0; n < s_.batch; ++n)
      for (int64_t first = 0; first < s_.result; first += kSlice) {
        const int64_t depth = std::min(kSlice, s_.result - first);
        each_block(part, [&](int64_t row, int64_t rows) {
          pack_left_rows(depth, rows, gradient + n * s_.result_batch + row * s_.result_channel + first,
                         s_.result_channel, left + row * depth);
        });
        for (int64_t p = part.column; p < part.column_end; ++p) {
          const int64_t column = p * kColumns, width = std::min(kColumns, columns_ - column);
          lay_out(image + n * s_.read_batch, first, depth, column, width, edges, panel);
          each_block(part, [&](int64_t row, int64_t rows) {
            Panels::multiply_few_rows(
                rows, depth, PackedLeft{left + row * depth}, panel, width,
                {weight + row * s_.weight_result + column, s_.weight_result, n + first > 0, kChain});
          });
        }
      }
    Finite finite;
    const int64_t begin = part.column * kColumns, end = std::min(columns_, part.column_end * kColumns);
    each_block(part, [&](int64_t row, int64_t rows) {
      for (int64_t i = row; i < row + rows; ++i)
        winograd::each_lane(end - begin, [&](auto zero, int64_t c) {
          finite.see(read<decltype(zero)>(weight + i * s_.weight_result + begin + c));
        });
    });
    return static_cast<bool>(finite);
  }

  // The places that the results [first, first + depth) read for the columns (channel, tap), as a panel.
  void lay_out(const float* image, int64_t first, int64_t depth, int64_t column, int64_t width, float* edges,
               float* panel) const {
    const Panels one{depth, width, depth};
    one.pack_transposed(0, 1, panel, [&](int64_t j) -> const float* {
      const int64_t at = first * s_.stride + s_.first + (column + j) % s_.taps * s_.step;
      const auto [begin, end] = s_.inside(at, depth);
      const float* from = image + (column + j) / s_.taps * s_.read_channel + at;
      if (s_.stride == 1 && end - begin == depth) return from;
      float* to = edges + j * kSlice;
      std::fill(to, to + begin, 0.0f);
      for (int64_t q = begin; q < end; ++q) to[q] = from[q * s_.stride];
      std::fill(to + end, to + depth, 0.0f);
      return to;
    });
  }

  template <class F> void each_block(const Part& part, F&& f) const {
    Panels::each_row_block(s_.result_channels, part.row, part.row_end, std::forward<F>(f));
  }

  Signals s_;
  int64_t columns_, blocks_, rows_;  // rows_: of the left factor, in floats
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<convolution::StencilGradient> gradient_of_signals(const Signals& s) {
  return std::make_unique<SignalGradient>(s);
}

}  // namespace maca::MACA_ISA
