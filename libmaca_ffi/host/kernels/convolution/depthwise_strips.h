// Results side by side in a row, of filters 3, 5 or 7 wide: what they read is read once for all of them, as are the
// numbers of a row of the filter. They may leap over every other place; 3 wide ones that do wait for memory, and take
// 1.1 of their time in shorter strips of more channels (8 x 96 x 56 x 56, an EPYC with AVX-512, family 26).
#pragma once
#include "depthwise_pass.h"

namespace maca::MACA_ISA::depthwise {

class Strips {
 public:
  Strips() = default;
  // Of images in channels-last; false where results are not of that kind, or too few for a strip.
  explicit Strips(const Depthwise& p) {
    const Axis& axis = p.axes[1];
    if (axis.phases.size() != 1 || axis.phases[0].taps.empty()) return;
    const auto& taps = axis.phases[0].taps;
    turn_ = taps.back().base < taps.front().base ? -1 : 1;
    for (size_t t = 1; t < taps.size(); ++t)
      if (taps[t].base - taps[t - 1].base != turn_) return;
    nearest_ = turn_ > 0 ? taps.front() : taps.back();
    choose<3, 1>(axis);
    choose<5, 1>(axis);
    choose<5, 2>(axis);
    choose<7, 1>(axis);
    choose<7, 2>(axis);
  }
  explicit operator bool() const { return length_ > 0; }

  // Row `y` of an image, `to` where it begins; `filters` are [taps][channels].
  void row(const Depthwise& p, int64_t y, const float* image, const float* filters, const float* bias,
           float* to) const {
    const Axis& axis = p.axes[1];
    std::vector<Line> lines;
    p.axes[0].each_place(y, [&](int64_t row, int64_t place) {
      lines.push_back({filters + (row * p.kernel[1] + nearest_.index) * p.channels, image + place * p.read_strides[2]});
    });
    Window window{lines, turn_ * p.channels, p.read_strides[3], p.result_strides[3]};
    for (int64_t q = 0; q < axis.result; q += length_) {
      q = std::min(q, axis.result - length_);  // some again
      const int64_t place = nearest_.base + axis.read_step * q;
      window.offset = place * p.read_strides[3];
      window.begin = std::max<int64_t>(0, -place), window.end = std::min(width_, axis.read - place);
      const Make make = window.begin > 0 || window.end < width_ ? at_edge_ : inside_;
      for (int64_t c = 0; c < p.channels; c += kLanes) {
        c = std::min(c, p.channels - kLanes);
        make(window, c, bias, to + q * p.result_strides[3]);
      }
    }
  }

 private:
  struct Line {
    const float *filter, *image;  // the filter's number for the smallest place, and where the row begins
  };
  // What the results of a strip read of each line.
  struct Window {
    std::span<const Line> lines;
    int64_t next_factor, next_place, next_result;
    int64_t offset = 0, begin = 0, end = 0;  // where it begins, and its places that are inside
  };
  using Make = void (*)(const Window&, int64_t c, const float* bias, float* to);

  // N results of a vector of channels from `c` on.
  template <int64_t kTaps, int64_t kStep, int64_t N, bool kAtEdge>
  static void make(const Window& window, int64_t c, const float* bias, float* to) {
    Lanes sum[N] = {};
    for (const Line& line : window.lines) {
      Lanes factor[kTaps];
#pragma GCC unroll 8
      for (int64_t t = 0; t < kTaps; ++t) factor[t] = read<Lanes>(line.filter + t * window.next_factor + c);
      const float* at = line.image + window.offset + c;
#pragma GCC unroll 64
      for (int64_t place = 0; place < (N - 1) * kStep + kTaps; ++place) {
        if (kAtEdge && (place < window.begin || place >= window.end)) continue;
        const Lanes x = read<Lanes>(at + place * window.next_place);
#pragma GCC unroll 16
        for (int64_t j = 0; j < N; ++j)
          if (place >= j * kStep && place < j * kStep + kTaps) sum[j] += factor[place - j * kStep] * x;
      }
    }
#pragma GCC unroll 16
    for (int64_t j = 0; j < N; ++j) {
      if (bias) sum[j] += read<Lanes>(bias + c);
      write(to + j * window.next_result + c, sum[j]);
    }
  }

  // The length of which least is made again: sums and factors stay in registers.
  template <int64_t kTaps, int64_t kStep> void choose(const Axis& axis) {
    if (std::ssize(axis.phases[0].taps) != kTaps || axis.read_step != kStep) return;
    int64_t least = 0;
    const auto consider = [&]<int64_t N>() {
      const int64_t work = (axis.result + N - 1) / N * std::max<int64_t>(N, 8);  // fewer take as long as eight
      if (axis.result < N || (least > 0 && work >= least)) return;
      least = work, length_ = N, width_ = (N - 1) * kStep + kTaps;
      inside_ = make<kTaps, kStep, N, false>, at_edge_ = make<kTaps, kStep, N, true>;
    };
    if constexpr (kLanes > 8) {
      consider.template operator()<16>();
      consider.template operator()<14>();
    }
    consider.template operator()<8>();
    consider.template operator()<7>();
  }

  Axis::Tap nearest_{};             // the one that reads the smallest place
  int64_t turn_ = 1;                // 1 where taps read one place after the other, -1 where one before the other
  int64_t length_ = 0, width_ = 0;  // of a strip, of what it reads
  Make inside_ = nullptr, at_edge_ = nullptr;
};

}  // namespace maca::MACA_ISA::depthwise
