// Depthwise convolutions of images that lie in planes (NCHW), in vectors of places in a row.
#include <atomic>

#include "depthwise_pass.h"

namespace maca::MACA_ISA {
namespace depthwise {
namespace {

using convolution::round_up;

// Lines are too short to call memcpy for each.
inline void copy_line(const float* from, int64_t count, float* to) {
  if (count < kLanes) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i + kLanes <= count; i += kLanes) write(to + i, read<Lanes>(from + i));
  write(to + count - kLanes, read<Lanes>(from + count - kLanes));
}

// A plane that is read, with zeros around it, and each row in the parts that lie a read step apart: what a vector of
// results meets lies side by side, and every vector of a part meets the same terms.
class PlanePass : public Pass {
 public:
  explicit PlanePass(Depthwise p) : Pass(std::move(p)) {
    const auto &down = p_.axes[0], &along = p_.axes[1];
    const auto extent = [](const Axis& axis, int64_t vector) {
      std::pair<int64_t, int64_t> places{0, axis.read};
      for (const auto& phase : axis.phases)
        for (const auto& tap : phase.taps) {
          places.first = std::max(places.first, -tap.base);
          places.second = std::max(places.second, tap.base + axis.read_step * round_up(phase.count, vector) + 1);
        }
      return places;
    };
    const auto [above, below] = extent(down, 1);
    const auto [before, behind] = extent(along, kLanes);
    above_ = above, before_ = before, height_ = above + below;
    part_ = round_up((before + behind + along.read_step - 1) / along.read_step, kLanes);
    const int64_t row = part_ * along.read_step;
    for (const auto& y : down.phases)
      for (const auto& x : along.phases) {
        Part& part = parts_.emplace_back();
        part.down = &y, part.along = &x;
        for (const auto& ty : y.taps)
          for (const auto& tx : x.taps)
            part.terms.push_back({ty.index * p_.kernel[1] + tx.index, (ty.base + above) * row + place(tx.base)});
      }
  }
  uint64_t workspace_bytes() const override { return 0; }
  // Are the zeros around a plane few? Wide gaps between taps may need more of them than memory holds.
  bool is_filled() const { return padded() <= 4 * p_.axes[0].read * p_.axes[1].read + (1 << 16); }

 protected:
  struct Term {
    int64_t tap, offset;
  };
  struct Part {  // the results of a phase down and one along
    const Axis::Phase *down, *along;
    std::vector<Term> terms;
  };
  struct Numbers {  // a vector of results
    int64_t from, to, count;
  };

  // Of each run anew: in a plan's life they would take as much memory as a plane.
  std::vector<Numbers> vectors_of(const Part& part) const {
    const auto &down = p_.axes[0], &along = p_.axes[1];
    const int64_t row = part_ * along.read_step;
    std::vector<Numbers> vectors;
    for (int64_t q = 0; q < part.down->count; ++q)
      for (int64_t r = 0; r < part.along->count; r += kLanes)
        vectors.push_back(
            {q * down.read_step * row + r,
             (part.down->first + down.step * q) * p_.result_strides[2] + part.along->first + along.step * r,
             std::min(kLanes, part.along->count - r)});
    return vectors;
  }

  int64_t padded() const { return height_ * part_ * p_.axes[1].read_step; }

  // The plane of an image's channel, between zeros that are there.
  void copy(const float* from, int64_t n, int64_t c, float* to) const {
    const int64_t step = p_.axes[1].read_step, width = p_.axes[1].read;
    from += n * p_.read_strides[0] + c * p_.read_strides[1];
    to += above_ * part_ * step;
    for (int64_t y = 0; y < p_.axes[0].read; ++y, from += p_.read_strides[2], to += part_ * step) {
      if (step == 1) {
        copy_line(from, width, to + before_);
        continue;
      }
      for (int64_t x = 0; x < std::min(step, width); ++x) {
        float* part = to + place(x);
        const int64_t count = (width - x + step - 1) / step;
        for (int64_t i = 0; i < count; ++i) part[i] = from[x + i * step];
      }
    }
  }

  std::vector<Part> parts_;

 private:
  int64_t place(int64_t base) const {
    const int64_t step = p_.axes[1].read_step;
    return (base + before_) % step * part_ + (base + before_) / step;
  }

  int64_t above_ = 0, before_ = 0, height_ = 0, part_ = 0;
};

class PlaneProduct final : public PlanePass {
 public:
  using PlanePass::PlanePass;

  bool run(const float* read_from, float* weight, const float* bias, float* result, void*) const override {
    float check = 0;  // the zeros around a plane times infinity would be NaN
    for (int64_t c = 0; c < p_.channels; ++c)
      for (int64_t t = 0; t < taps(); ++t) check += number(filter_of(weight, c), t) * 0.0f;
    if (check != 0.0f) return false;
    std::vector<std::vector<Numbers>> vectors_of_parts;
    for (const Part& part : parts_) vectors_of_parts.push_back(vectors_of(part));
    parallel_for(p_.batch * p_.channels, std::max<int64_t>(1, kGrain / cost()), [&](int64_t begin, int64_t end) {
      std::vector<float> plane(static_cast<size_t>(padded())), filter(static_cast<size_t>(taps()));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / p_.channels, c = i % p_.channels;
        copy(read_from, n, c, plane.data());
        for (int64_t t = 0; t < taps(); ++t) filter[static_cast<size_t>(t)] = number(filter_of(weight, c), t);
        float* to = result + n * p_.result_strides[0] + c * p_.result_strides[1];
        for (size_t part = 0; part < parts_.size(); ++part) {
          std::span<const Numbers> vectors(vectors_of_parts[part]);
          const auto next = [&]<int64_t N>() {
            multiply<N>(plane.data(), filter.data(), bias ? bias[c] : 0.0f, parts_[part].terms, vectors.data(), to);
            vectors = vectors.subspan(N);
          };
          while (std::ssize(vectors) >= kTogether) next.template operator()<kTogether>();
          if (vectors.size() == 3) next.template operator()<3>();
          if (vectors.size() == 2) next.template operator()<2>();
          if (vectors.size() == 1) next.template operator()<1>();
        }
      }
    });
    return true;
  }

 private:
  template <int64_t N>
  void multiply(const float* plane, const float* filter, float bias, std::span<const Term> terms,
                const Numbers* vectors, float* to) const {
    Lanes sum[N] = {};
    for (const Term& term : terms)
#pragma GCC unroll 4
      for (int64_t j = 0; j < N; ++j) sum[j] += filter[term.tap] * read<Lanes>(plane + term.offset + vectors[j].from);
    const int64_t step = p_.axes[1].step;
#pragma GCC unroll 4
    for (int64_t j = 0; j < N; ++j) {
      sum[j] += bias;
      const auto& vector = vectors[j];
      if (step == 1 && vector.count == kLanes) {
        write(to + vector.to, sum[j]);
        continue;
      }
      float numbers[kLanes];  // by a variable index the sums themselves would leave their registers
      write(numbers, sum[j]);
      for (int64_t i = 0; i < vector.count; ++i) to[vector.to + i * step] = numbers[i];
    }
  }
};

class PlaneGradient final : public PlanePass {
 public:
  using PlanePass::PlanePass;

  bool run(const float* image, float* weight, const float*, float* gradient, void*) const override {
    const Part& part = parts_[0];
    const std::vector<Numbers> vectors = vectors_of(part);
    std::atomic<bool> finite = true;  // the zeros beside infinity
    parallel_for(p_.channels, std::max<int64_t>(1, kGrain / (p_.batch * cost())), [&](int64_t begin, int64_t end) {
      std::vector<float> plane(static_cast<size_t>(padded())), lines(vectors.size() * kLanes);
      std::vector<double> sums(static_cast<size_t>(taps()));
      for (int64_t c = begin; c < end; ++c) {
        std::ranges::fill(sums, 0.0);
        for (int64_t n = 0; n < p_.batch; ++n) {
          copy(image, n, c, plane.data());
          const float* from = gradient + n * p_.result_strides[0] + c * p_.result_strides[1];
          for (size_t v = 0; v < vectors.size(); ++v)
            copy_line(from + vectors[v].to, vectors[v].count, lines.data() + v * kLanes);
          for (const Term& term : part.terms)
            sums[static_cast<size_t>(term.tap)] += product(plane.data() + term.offset, lines.data(), vectors);
        }
        float check = 0;
        for (int64_t t = 0; t < taps(); ++t) {
          number(filter_of(weight, c), t) = static_cast<float>(sums[static_cast<size_t>(t)]);
          check += number(filter_of(weight, c), t) * 0.0f;
        }
        if (check != 0.0f) finite = false;
      }
    });
    return finite;
  }

 private:
  // Of the plane, from where a tap meets it, with the result's gradient.
  static double product(const float* plane, const float* lines, std::span<const Numbers> vectors) {
    const auto count = static_cast<int64_t>(vectors.size());
    double total = 0;
    for (int64_t first = 0; first < count; first += kTogether * kChain) {
      const int64_t end = std::min(first + kTogether * kChain, count);
      Lanes sum[kTogether] = {};
      int64_t v = first;
      for (; v + kTogether <= end; v += kTogether)
#pragma GCC unroll 4
        for (int64_t j = 0; j < kTogether; ++j)
          sum[j] +=
              read<Lanes>(plane + vectors[static_cast<size_t>(v + j)].from) * read<Lanes>(lines + (v + j) * kLanes);
      for (; v < end; ++v)
        sum[0] += read<Lanes>(plane + vectors[static_cast<size_t>(v)].from) * read<Lanes>(lines + v * kLanes);
      const Lanes all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      float rest = 0;
      for (int64_t i = 0; i < kLanes; ++i) rest += all[i];
      total += static_cast<double>(rest);
    }
    return total;
  }
};

template <class P> std::unique_ptr<DepthwisePass> made(Depthwise p) {
  auto pass = std::make_unique<P>(std::move(p));
  return pass->is_filled() ? std::move(pass) : nullptr;
}

}  // namespace
}  // namespace depthwise

std::unique_ptr<convolution::DepthwisePass> depthwise_of_planes(convolution::Depthwise p) {
  using Kind = convolution::Depthwise::Kind;
  return p.kind == Kind::WeightGradient ? depthwise::made<depthwise::PlaneGradient>(std::move(p))
                                        : depthwise::made<depthwise::PlaneProduct>(std::move(p));
}

}  // namespace maca::MACA_ISA
