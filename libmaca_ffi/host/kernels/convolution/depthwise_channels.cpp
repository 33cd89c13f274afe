// Depthwise convolutions of channels-last images, in vectors of channels: of whole groups, where those have several.
#include "depthwise_strips.h"

namespace maca::MACA_ISA {
namespace depthwise {
namespace {

// Where all taps of a phase are inside, [begin, end), in steps of the phase.
struct Interior {
  int64_t begin = 0, end = 0;
  Interior() = default;
  Interior(const Axis& axis, const Axis::Phase& phase) : end(phase.count) {
    for (const auto& tap : phase.taps) {
      if (tap.base < 0) begin = std::max(begin, (-tap.base + axis.read_step - 1) / axis.read_step);
      const int64_t room = axis.read - 1 - tap.base;
      end = std::min(end, room < 0 ? 0 : room / axis.read_step + 1);
    }
    begin = std::min(begin, phase.count);
    end = std::max(begin, end);
  }
};

// For each channel of a vector of groups of kWidth, what the group's channel `other` has. Called in loops that are
// unrolled: one shuffle then.
template <int64_t kWidth> [[gnu::always_inline]] inline Lanes of_group(const Lanes& x, int64_t other) {
  constexpr int width = static_cast<int>(kWidth);
  if constexpr (width == 1) return x;
  if (other == 0) return __builtin_shuffle(x, Shuffle<Lanes>::of([](int k) { return k - k % width; }));
  if (other == 1) return __builtin_shuffle(x, Shuffle<Lanes>::of([](int k) { return k - k % width + 1; }));
  if (other == 2) return __builtin_shuffle(x, Shuffle<Lanes>::of([](int k) { return k - k % width + 2; }));
  return __builtin_shuffle(x, Shuffle<Lanes>::of([](int k) { return k - k % width + 3; }));
}

template <int64_t kWidth> class ChannelProduct final : public Pass {
 public:
  explicit ChannelProduct(Depthwise p) : Pass(std::move(p)) {
    for (const auto& phase : p_.axes[1].phases) interiors_.emplace_back(p_.axes[1], phase);
  }
  uint64_t workspace_bytes() const override {
    return static_cast<uint64_t>(taps() * kWidth * p_.channels) * sizeof(float);
  }

  bool run(const float* read_from, float* weight, const float* bias, float* result, void* workspace) const override {
    auto* filters = static_cast<float*>(workspace);  // [taps][kWidth][channels]
    lay_out(weight, filters);
    const int64_t height = p_.axes[0].result, row_cost = cost() * p_.channels / height + 1;
    parallel_for(p_.batch * height, std::max<int64_t>(1, kGrain / row_cost), [&](int64_t begin, int64_t end) {
      Row made;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / height, y = i % height;
        const float* image = read_from + n * p_.read_strides[0];
        float* to = result + n * p_.result_strides[0] + y * p_.result_strides[2];
        if constexpr (kWidth == 1)
          if (strips_) {
            strips_.row(p_, y, image, filters, bias, to);
            continue;
          }
        make_row(y, made);
        row(made, image, filters, bias, to);
      }
    });
    return true;
  }

 private:
  static constexpr int64_t kVectors = 2;       // of channels, at once
  static constexpr int64_t kLaidOut = 64;      // channels whose filters stay in the first-level cache meanwhile
  static constexpr int64_t kNear = 24 * 1024;  // bytes that leave the first-level cache room for filters and results

  void lay_out(float* weight, float* filters) const {
    const int64_t blocks = (p_.channels + kLaidOut - 1) / kLaidOut, numbers = taps() * kWidth;
    parallel_for(blocks, kGrain / (numbers * kLaidOut) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * kLaidOut; first < std::min(end * kLaidOut, p_.channels); first += kLaidOut) {
        const int64_t groups = std::min(kLaidOut, p_.channels - first) / kWidth, next = kWidth * p_.weight_strides[0];
        for (int64_t i = 0; i < kWidth * kWidth; ++i) {
          const int64_t other = i / kWidth, own = i % kWidth;  // the same channel of each group
          const float* const from = filter_of(weight, first + own, other);
          for (int64_t t = 0; t < taps(); ++t) {
            float* to = filters + (t * kWidth + other) * p_.channels + first + own;
            const float* number = &this->number(from, t);
            for (int64_t k = 0; k < groups; ++k) to[k * kWidth] = number[k * next];
          }
        }
      }
    });
  }

  // Channels whose image's part that a piece reads takes no more.
  int64_t block_of_channels() const {
    const int64_t width = kTogether * p_.axes[1].read_step + p_.kernel[1];
    const int64_t each = p_.kernel[0] * width * static_cast<int64_t>(sizeof(float)), step = kVectors * kLanes;
    return std::max<int64_t>(1, kNear / each / step) * step;
  }

  // What a result is made of: a filter's number and where that meets the image, from the result's first row and place.
  struct Term {
    int64_t filter, offset;
  };
  // Results of a row that are made of the same terms: kTogether of them, or one.
  struct Piece {
    bool together;
    int64_t read, result;  // where they begin
    size_t begin, end;     // of the terms
  };
  struct Row {
    std::vector<Term> terms;
    std::vector<Piece> pieces;
  };

  void make_row(int64_t y, Row& made) const {
    const Axis& axis = p_.axes[1];
    made.terms.clear();
    made.pieces.clear();
    size_t begin = 0;
    const auto collect = [&](const Axis::Phase& phase, auto&& is) {
      begin = made.terms.size();
      p_.axes[0].each_place(y, [&](int64_t row, int64_t place) {
        for (const auto& tap : phase.taps)
          if (is(tap))
            made.terms.push_back({(row * p_.kernel[1] + tap.index) * kWidth * p_.channels,
                                  place * p_.read_strides[2] + tap.base * p_.read_strides[3]});
      });
    };
    for (size_t i = 0; i < axis.phases.size(); ++i) {
      const auto& phase = axis.phases[i];
      const auto add = [&](int64_t q, bool together) {
        made.pieces.push_back({together, q * axis.read_step * p_.read_strides[3],
                               (phase.first + axis.step * q) * p_.result_strides[3], begin, made.terms.size()});
      };
      const auto at_edge = [&](int64_t q) {
        collect(phase, [&](const auto& tap) { return axis.inside(tap.base + axis.read_step * q); });
        add(q, false);
      };
      const auto [first, end] = interiors_[i];
      for (int64_t q = 0; q < first; ++q) at_edge(q);
      collect(phase, [](const auto&) { return true; });
      int64_t q = first;
      for (; q + kTogether <= end; q += kTogether) add(q, true);
      if (q < end && first + kTogether <= end)  // again those before: all at once take little longer than one
        add(end - kTogether, true);
      else
        for (; q < end; ++q) add(q, false);
      for (q = end; q < phase.count; ++q) at_edge(q);
    }
  }

  // By blocks of channels, of which what a piece reads stays in the first-level cache for the next piece.
  void row(const Row& made, const float* image, const float* filters, const float* bias, float* to) const {
    for (int64_t first = 0; first < p_.channels; first += block_) {
      const int64_t end = std::min(first + block_, p_.channels);
      for (const Piece& piece : made.pieces) {
        const std::span<const Term> terms(made.terms.data() + piece.begin, piece.end - piece.begin);
        const auto vectors = [&]<int64_t N, int64_t V>(int64_t c) {
          results<N, V>(terms, image + piece.read + c, filters + c, bias ? bias + c : nullptr, to + piece.result + c);
        };
        const auto all = [&]<int64_t N, int64_t V>() {
          int64_t c = first;
          for (; c + V * kLanes <= end; c += V * kLanes) vectors.template operator()<N, V>(c);
          for (; c + kLanes <= end; c += kLanes) vectors.template operator()<N, 1>(c);
          if (c < end) vectors.template operator()<N, 1>(p_.channels - kLanes);  // some again
        };
        if (piece.together)
          all.template operator()<kTogether, kVectors>();
        else
          all.template operator()<1, kTogether>();
      }
    }
  }

  // N results of V vectors of channels.
  template <int64_t N, int64_t V>
  void results(std::span<const Term> terms, const float* image, const float* filters, const float* bias,
               float* to) const {
    const Axis& axis = p_.axes[1];
    const int64_t next = axis.read_step * p_.read_strides[3], to_next = axis.step * p_.result_strides[3];
    Lanes sum[V * N] = {};
    for (const Term& term : terms) {
      const float *filter = filters + term.filter, *at = image + term.offset;
#pragma GCC unroll 8
      for (int64_t v = 0; v < V; ++v)
#pragma GCC unroll 4
        for (int64_t i = 0; i < kWidth; ++i) {
          const Lanes factor = read<Lanes>(filter + i * p_.channels + v * kLanes);
#pragma GCC unroll 8
          for (int64_t j = 0; j < N; ++j)
            sum[v * N + j] += factor * of_group<kWidth>(read<Lanes>(at + j * next + v * kLanes), i);
        }
    }
#pragma GCC unroll 8
    for (int64_t v = 0; v < V; ++v)
#pragma GCC unroll 8
      for (int64_t j = 0; j < N; ++j) {
        if (bias) sum[v * N + j] += read<Lanes>(bias + v * kLanes);
        write(to + j * to_next + v * kLanes, sum[v * N + j]);
      }
  }

  std::vector<Interior> interiors_;
  int64_t block_ = block_of_channels();
  Strips strips_{kWidth == 1 ? Strips(p_) : Strips()};
};

// Sums of bands of rows, which are added in order: the same for any number of threads.
class ChannelGradient final : public Pass {
 public:
  explicit ChannelGradient(Depthwise p) : Pass(std::move(p)), bands_((p_.axes[0].result + kBand - 1) / kBand) {
    const Axis& axis = p_.axes[1];
    const auto& taps = axis.phases[0].taps;
    for (const auto& tap : taps) interiors_.emplace_back(axis, Axis::Phase{0, axis.result, {tap}});
    if (taps.size() < 2 || taps[1].base != taps[0].base + 1) return;
    choose<3, 1, 4>();
    choose<3, 2, 4>();
    choose<5, 1, 4>();
    choose<5, 2, 4>();
    choose<7, 1, 2>();
    choose<7, 2, 2>();
  }
  uint64_t workspace_bytes() const override {
    return static_cast<uint64_t>(p_.batch * bands_ * taps() * p_.channels) * sizeof(float);
  }

  bool run(const float* image, float* weight, const float*, float* gradient, void* workspace) const override {
    auto* sums = static_cast<float*>(workspace);  // [batch, bands][taps][channels]
    const int64_t each = taps() * p_.channels, pieces = p_.batch * bands_;
    parallel_for(pieces, std::max<int64_t>(1, kGrain / (cost() * p_.channels / bands_ + 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     float* sum = sums + i * each;
                     std::fill_n(sum, each, 0.0f);
                     const int64_t n = i / bands_, first = i % bands_ * kBand;
                     for (int64_t y = first; y < std::min(first + kBand, p_.axes[0].result); ++y)
                       p_.axes[0].each_place(y, [&](int64_t row, int64_t place) {
                         add_row(image + n * p_.read_strides[0] + place * p_.read_strides[2],
                                 gradient + n * p_.result_strides[0] + y * p_.result_strides[2],
                                 sum + row * p_.kernel[1] * p_.channels);
                       });
                   }
                 });
    for (int64_t t = 0; t < taps(); ++t)
      for (int64_t first = 0; first < p_.channels; first += kChain) {
        const int64_t some = std::min(kChain, p_.channels - first);
        double total[kChain] = {};
        for (int64_t i = 0; i < pieces; ++i)
          for (int64_t c = 0; c < some; ++c)
            total[c] += static_cast<double>(sums[i * each + t * p_.channels + first + c]);
        for (int64_t c = 0; c < some; ++c) number(filter_of(weight, first + c), t) = static_cast<float>(total[c]);
      }
    return true;
  }

 private:
  static constexpr int64_t kBand = 16;

  void add_row(const float* image, const float* gradient, float* sums) const {
    const Axis& axis = p_.axes[1];
    const auto& taps = axis.phases[0].taps;
    const auto read_at = [&](const Axis::Tap& tap, int64_t q) {
      return image + (tap.base + axis.read_step * q) * p_.read_strides[3];
    };
    const auto by_chains = [&](int64_t begin, int64_t end, auto&& add) {
      for (int64_t q = begin; q < end; q += kChain)
        add(q, std::min(kChain, end - q), gradient + q * p_.result_strides[3]);
    };
    for (const auto& tap : taps) {
      const Interior& there = interiors_[static_cast<size_t>(tap.index)];
      const auto alone = [&](int64_t q, int64_t count, const float* dy) {
        add_tap(count, read_at(tap, q), dy, sums + tap.index * p_.channels);
      };
      by_chains(there.begin, std::min(there.end, of_all_.begin), alone);
      by_chains(std::max(there.begin, of_all_.end), there.end, alone);
    }
    by_chains(of_all_.begin, of_all_.end, [&](int64_t q, int64_t count, const float* dy) {
      (this->*add_all_)(count, read_at(taps.front(), q), dy, sums);
    });
  }

  // add<N>(c, channels): to the last `channels` of the last of N vectors from `c` on, V of them or one.
  template <int64_t V, class F> void by_vectors(F&& add) const {
    int64_t c = 0;
    for (; c + V * kLanes <= p_.channels; c += V * kLanes) add.template operator()<V>(c, kLanes);
    for (; c + kLanes <= p_.channels; c += kLanes) add.template operator()<1>(c, kLanes);
    if (c < p_.channels) add.template operator()<1>(p_.channels - kLanes, p_.channels - c);
  }

  void add_tap(int64_t count, const float* x, const float* dy, float* sums) const {
    by_vectors<kTogether>(
        [&]<int64_t N>(int64_t c, int64_t channels) { add_vectors<N>(count, x + c, dy + c, sums + c, channels); });
  }

  // To the sums of V vectors, of the last one's last `channels`.
  template <int64_t V>
  void add_vectors(int64_t count, const float* x, const float* dy, float* sums, int64_t channels) const {
    const int64_t x_step = p_.axes[1].read_step * p_.read_strides[3], dy_step = p_.result_strides[3];
    Lanes sum[V] = {};
    for (int64_t i = 0; i < count; ++i)
#pragma GCC unroll 4
      for (int64_t v = 0; v < V; ++v)
        sum[v] += read<Lanes>(x + i * x_step + v * kLanes) * read<Lanes>(dy + i * dy_step + v * kLanes);
#pragma GCC unroll 4
    for (int64_t v = 0; v < V; ++v) add_to(sums + v * kLanes, sum[v], channels);
  }

  static void add_to(float* sums, const Lanes& sum, int64_t channels) {
    if (channels == kLanes) return write(sums, read<Lanes>(sums) + sum);
    float numbers[kLanes];  // by a variable index the sums themselves would leave their registers
    write(numbers, sum);
    for (int64_t i = kLanes - channels; i < kLanes; ++i) sums[i] += numbers[i];
  }

  // All taps side by side: what is read serves several of them.
  template <int64_t kTaps, int64_t kStep, int64_t V>
  void add_taps(int64_t count, const float* x, const float* dy, float* sums) const {
    by_vectors<V>([&]<int64_t N>(int64_t c, int64_t channels) {
      add_vectors_of_taps<kTaps, kStep, N>(count, x + c, dy + c, sums + c, channels);
    });
  }

  template <int64_t kTaps, int64_t kStep, int64_t V>
  void add_vectors_of_taps(int64_t count, const float* x, const float* dy, float* sums, int64_t channels) const {
    const int64_t next = p_.read_strides[3], next_dy = p_.result_strides[3];
    Lanes sum[V * kTaps] = {};
    const auto add = [&]<int64_t N>() [[gnu::always_inline]] {
#pragma GCC unroll 4
      for (int64_t v = 0; v < V; ++v) {
        Lanes slope[N];
#pragma GCC unroll 4
        for (int64_t j = 0; j < N; ++j) slope[j] = read<Lanes>(dy + j * next_dy + v * kLanes);
#pragma GCC unroll 16
        for (int64_t place = 0; place < (N - 1) * kStep + kTaps; ++place) {
          const Lanes number = read<Lanes>(x + place * next + v * kLanes);
#pragma GCC unroll 4
          for (int64_t j = 0; j < N; ++j)
            if (place >= j * kStep && place < j * kStep + kTaps)
              sum[v * kTaps + place - j * kStep] += number * slope[j];
        }
      }
      x += N * kStep * next, dy += N * next_dy, count -= N;
    };
    while (count >= kTogether) add.template operator()<kTogether>();
    while (count > 0) add.template operator()<1>();
#pragma GCC unroll 8
    for (int64_t t = 0; t < kTaps; ++t)
#pragma GCC unroll 4
      for (int64_t v = 0; v < V; ++v) add_to(sums + t * p_.channels + v * kLanes, sum[v * kTaps + t], channels);
  }

  // V: as many vectors as keep sums in AVX-512's registers.
  template <int64_t kTaps, int64_t kStep, int64_t V> void choose() {
    if (p_.kernel[1] != kTaps || p_.axes[1].read_step != kStep) return;
    of_all_ = Interior(p_.axes[1], p_.axes[1].phases[0]);
    add_all_ = &ChannelGradient::add_taps<kTaps, kStep, (kLanes > 8 ? V : V / 2)>;
  }

  int64_t bands_;
  std::vector<Interior> interiors_;  // of each tap
  Interior of_all_;                  // where taps side by side are added at once, by:
  void (ChannelGradient::*add_all_)(int64_t count, const float* x, const float* dy, float* sums) const = nullptr;
};

// Of groups of 8 oneDNN's kernels take 0.9 to 1.2 of the time, of 4 1.0 to 2.2, of 2 3.4 with AVX-512; with AVX2 its
// gemm for groups of 4 takes 6.4 of it.
template <int64_t... kWidths> std::unique_ptr<convolution::DepthwisePass> product(Depthwise p) {
  std::unique_ptr<convolution::DepthwisePass> made;
  const auto make = [&]<int64_t kWidth>() {
    if constexpr (kLanes % kWidth == 0)
      if (p.width == kWidth) made = std::make_unique<ChannelProduct<kWidth>>(std::move(p));
  };
  (make.template operator()<kWidths>(), ...);
  return made;
}

}  // namespace
}  // namespace depthwise

std::unique_ptr<convolution::DepthwisePass> depthwise_of_channels(convolution::Depthwise p) {
  using Kind = convolution::Depthwise::Kind;
  if (p.channels < kLanes) return nullptr;
  if (p.kind == Kind::WeightGradient)
    return p.width == 1 ? std::make_unique<depthwise::ChannelGradient>(std::move(p)) : nullptr;
  return depthwise::product<1, 2, 4>(std::move(p));
}

}  // namespace maca::MACA_ISA
