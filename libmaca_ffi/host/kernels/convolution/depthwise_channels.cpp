// Depthwise convolutions of channels-last images, in vectors of channels.
#include "depthwise_pass.h"

namespace maca::MACA_ISA {
namespace depthwise {
namespace {

// Where all taps of a phase are inside, [begin, end), in steps of the phase.
struct Interior {
  int64_t begin = 0, end = 0;
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

class ChannelPass : public Pass {
 public:
  using Pass::Pass;

 protected:
  // f(c) for vectors of channels, of which the last may begin before the end of the one before it.
  template <class F> void each_vector(F&& f) const {
    for (int64_t c = 0; c + kLanes <= p_.channels; c += kLanes) f(c);
    if (p_.channels % kLanes) f(p_.channels - kLanes);
  }
};

class ChannelProduct final : public ChannelPass {
 public:
  explicit ChannelProduct(Depthwise p) : ChannelPass(std::move(p)) {
    for (const auto& phase : p_.axes[1].phases) interiors_.emplace_back(p_.axes[1], phase);
  }
  uint64_t workspace_bytes() const override { return static_cast<uint64_t>(taps() * p_.channels) * sizeof(float); }

  bool run(const float* read_from, float* weight, const float* bias, float* result, void* workspace) const override {
    auto* filters = static_cast<float*>(workspace);  // [taps][channels]
    for (int64_t t = 0; t < taps(); ++t)
      for (int64_t c = 0; c < p_.channels; ++c) filters[t * p_.channels + c] = number(weight, c, t);
    const int64_t height = p_.axes[0].result, row_cost = cost() * p_.channels / height + 1;
    parallel_for(p_.batch * height, std::max<int64_t>(1, kGrain / row_cost), [&](int64_t begin, int64_t end) {
      Terms terms;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / height, y = i % height;
        row(read_from + n * p_.read_strides[0], filters, bias, y, terms,
            result + n * p_.result_strides[0] + y * p_.result_strides[2]);
      }
    });
    return true;
  }

 private:
  // What a result is made of: a filter's number and where that meets the image, from the result's first row and place.
  struct Term {
    int64_t filter, offset;
  };
  using Terms = std::vector<Term>;

  template <class F> void collect(int64_t y, const Axis::Phase& phase, Terms& terms, F&& is) const {
    terms.clear();
    p_.axes[0].each_place(y, [&](int64_t row, int64_t place) {
      for (const auto& tap : phase.taps)
        if (is(tap))
          terms.push_back({(row * p_.kernel[1] + tap.index) * p_.channels,
                           place * p_.read_strides[2] + tap.base * p_.read_strides[3]});
    });
  }

  void row(const float* image, const float* filters, const float* bias, int64_t y, Terms& terms, float* to) const {
    const Axis& axis = p_.axes[1];
    for (size_t i = 0; i < axis.phases.size(); ++i) {
      const auto& phase = axis.phases[i];
      const auto at_edge = [&](int64_t q) {
        collect(y, phase, terms, [&](const auto& tap) { return axis.inside(tap.base + axis.read_step * q); });
        pixels<1>(image, filters, bias, terms, phase.first, q, to);
      };
      for (int64_t q = 0; q < interiors_[i].begin; ++q) at_edge(q);
      for (int64_t q = interiors_[i].end; q < phase.count; ++q) at_edge(q);
      collect(y, phase, terms, [](const auto&) { return true; });
      const auto [begin, end] = interiors_[i];
      int64_t q = begin;
      for (; q + kTogether <= end; q += kTogether) pixels<kTogether>(image, filters, bias, terms, phase.first, q, to);
      if (q < end && begin + kTogether <= end)  // again those before: all at once take little longer than one
        pixels<kTogether>(image, filters, bias, terms, phase.first, end - kTogether, to);
      else
        for (; q < end; ++q) pixels<1>(image, filters, bias, terms, phase.first, q, to);
    }
  }

  // Results q to q + N of a phase, of all channels.
  template <int64_t N>
  void pixels(const float* image, const float* filters, const float* bias, std::span<const Term> terms, int64_t first,
              int64_t q, float* to) const {
    const Axis& axis = p_.axes[1];
    const int64_t next = axis.read_step * p_.read_strides[3], to_next = axis.step * p_.result_strides[3];
    const float* from = image + q * next;
    to += (first + axis.step * q) * p_.result_strides[3];
    each_vector([&](int64_t c) {
      Lanes sum[N] = {};
      for (const Term& term : terms) {
        const Lanes factor = read<Lanes>(filters + term.filter + c);
        const float* at = from + term.offset + c;
#pragma GCC unroll 4
        for (int64_t j = 0; j < N; ++j) sum[j] += factor * read<Lanes>(at + j * next);
      }
#pragma GCC unroll 4
      for (int64_t j = 0; j < N; ++j) {
        if (bias) sum[j] += read<Lanes>(bias + c);
        write(to + j * to_next + c, sum[j]);
      }
    });
  }

  std::vector<Interior> interiors_;
};

// Sums of bands of rows, which are added in order: the same for any number of threads.
class ChannelGradient final : public ChannelPass {
 public:
  explicit ChannelGradient(Depthwise p) : ChannelPass(std::move(p)), bands_((p_.axes[0].result + kBand - 1) / kBand) {
    for (const auto& tap : p_.axes[1].phases[0].taps)
      interiors_.emplace_back(p_.axes[1], Axis::Phase{0, p_.axes[1].result, {tap}});
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
      for (int64_t c = 0; c < p_.channels; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < pieces; ++i) sum += static_cast<double>(sums[i * each + t * p_.channels + c]);
        number(weight, c, t) = static_cast<float>(sum);
      }
    return true;
  }

 private:
  static constexpr int64_t kBand = 16;

  void add_row(const float* image, const float* gradient, float* sums) const {
    const Axis& axis = p_.axes[1];
    for (const auto& tap : axis.phases[0].taps) {
      const Interior& there = interiors_[static_cast<size_t>(tap.index)];
      for (int64_t q = there.begin; q < there.end; q += kChain) {
        const int64_t count = std::min(kChain, there.end - q);
        const float* x = image + (tap.base + axis.read_step * q) * p_.read_strides[3];
        const float* dy = gradient + q * p_.result_strides[3];
        float* sum = sums + tap.index * p_.channels;
        int64_t c = 0;
        for (; c + kTogether * kLanes <= p_.channels; c += kTogether * kLanes)
          add_vectors<kTogether>(count, x + c, dy + c, sum + c, kTogether * kLanes);
        for (; c + kLanes <= p_.channels; c += kLanes) add_vectors<1>(count, x + c, dy + c, sum + c, kLanes);
        if (c < p_.channels) {
          const int64_t last = p_.channels - kLanes;
          add_vectors<1>(count, x + last, dy + last, sum + last, p_.channels - c);
        }
      }
    }
  }

  // Adds to the last `channels` of N vectors.
  template <int64_t N>
  void add_vectors(int64_t count, const float* x, const float* dy, float* sums, int64_t channels) const {
    const int64_t x_step = p_.axes[1].read_step * p_.read_strides[3], dy_step = p_.result_strides[3];
    Lanes sum[N] = {};
    for (int64_t i = 0; i < count; ++i)
#pragma GCC unroll 4
      for (int64_t v = 0; v < N; ++v)
        sum[v] += read<Lanes>(x + i * x_step + v * kLanes) * read<Lanes>(dy + i * dy_step + v * kLanes);
    if (channels == N * kLanes) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < N; ++v) write(sums + v * kLanes, read<Lanes>(sums + v * kLanes) + sum[v]);
    } else {
      float numbers[kLanes];  // by a variable index the sums themselves would leave their registers
      write(numbers, sum[0]);
      for (int64_t i = kLanes - channels; i < kLanes; ++i) sums[i] += numbers[i];
    }
  }

  int64_t bands_;
  std::vector<Interior> interiors_;  // of each tap
};

}  // namespace
}  // namespace depthwise

std::unique_ptr<convolution::DepthwisePass> depthwise_of_channels(convolution::Depthwise p) {
  using Kind = convolution::Depthwise::Kind;
  if (p.channels < kLanes) return nullptr;
  if (p.kind == Kind::WeightGradient) return std::make_unique<depthwise::ChannelGradient>(std::move(p));
  return std::make_unique<depthwise::ChannelProduct>(std::move(p));
}

}  // namespace maca::MACA_ISA
