// Products of rows that are rounded to 8 bits, each to a grid of its own, with a weight of 4 bits: exact in int32
// within a block of neighbours that share a scale, and added in float32.
#include <cmath>

#include "int16_pairs.h"
#include "onednn/engine.h"
#include "scratch.h"

namespace maca::MACA_ISA {
namespace {

// One float32 holds a byte of the weight, which holds two neighbours along a row, less 8 each.
[[gnu::always_inline]] inline Pairs weight_pairs(const float* p) {
#if defined(__AVX512F__)
  const Pairs bytes = (Pairs)_mm512_maskz_cvttps_epi32(0xffff, _mm512_loadu_ps(p));
  return (Pairs)_mm512_sub_epi16((__m512i)((bytes & 15) | (bytes >> 4 << 16)), _mm512_set1_epi32(8 | 8 << 16));
#elif defined(__AVX2__)
  const Pairs bytes = (Pairs)_mm256_cvttps_epi32(_mm256_loadu_ps(p));
  return (Pairs)_mm256_sub_epi16((__m256i)((bytes & 15) | (bytes >> 4 << 16)), _mm256_set1_epi32(8 | 8 << 16));
#else
  Pairs value;
  for (int64_t l = 0; l < kPairLanes; ++l) {
    const auto byte = static_cast<uint8_t>(static_cast<int32_t>(p[l]));
    value[l] = pair_of<int16_t>(static_cast<int16_t>((byte & 15) - 8), static_cast<int16_t>((byte >> 4) - 8));
  }
  return value;
#endif
}
inline int32_t weight_pair(float number) {
  const auto byte = static_cast<uint8_t>(static_cast<int32_t>(number));
  return pair_of<int16_t>(static_cast<int16_t>((byte & 15) - 8), static_cast<int16_t>((byte >> 4) - 8));
}
inline int32_t product_of_pair(int32_t a, int32_t b) {
  const auto low = [](int32_t x) { return static_cast<int32_t>(static_cast<int16_t>(x & 0xffff)); };
  return low(a) * low(b) + (a >> 16) * (b >> 16);
}

template <class T> class RoundedProduct final : public Plan {
 public:
  RoundedProduct(const Request& r, int64_t n, int64_t block)
      : m_(r.in(0).sizes[0]),
        k_(r.in(0).sizes[1]),
        n_(n),
        block_(block),
        x_(r.in(0)),
        packed_(r.in(1)),
        out_(r.out()),
        scratch_(pairs() * 4) {
    onednn::Workspace space;
    numbers_ = space.take(static_cast<uint64_t>(m_ * pairs()) * 4);
    steps_ = space.take(static_cast<uint64_t>(m_) * 4);
    unpacked_ = space.take(scratch_.workspace());
    workspace_bytes = space.bytes();
    work = static_cast<uint64_t>(m_ * n_) * static_cast<uint64_t>(k_ + 7) / 8;
    implementation = "rows of 8 bits, weight of 4";
  }

  void run(const Launch& launch) const override {
    if (out_.numel() == 0) return;
    const T* x = launch.data<const T>(x_.slot);
    auto* numbers = reinterpret_cast<int32_t*>(onednn::at(launch.workspace, numbers_));
    auto* steps = reinterpret_cast<float*>(onednn::at(launch.workspace, steps_));
    parallel_for(m_, std::max<int64_t>(1, 16384 / k_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) steps[i] = round_row(x + i * x_.strides[0], numbers + i * pairs());
    });
    const float* packed = launch.data<const float>(packed_.slot);
    auto* out = launch.data<T>(out_.slot);
    const bool has_bias = packed_.numel() > n_ * pairs() + n_ * blocks();
    const float *scales = packed + n_ * pairs(), *bias = has_bias ? scales + n_ * blocks() : nullptr;
    parallel_for(n_, std::max<int64_t>(1, 65536 / (k_ * m_)), [&](int64_t begin, int64_t end) {
      std::unique_ptr<char[]> heap;
      auto* unpacked = reinterpret_cast<int32_t*>(scratch_.of_thread(onednn::at(launch.workspace, unpacked_), heap));
      for (int64_t j = begin; j < end; ++j) {
        unpack(packed + j * pairs(), unpacked);
        for (int64_t i = 0; i < m_; ++i) {
          float sum = product(numbers + i * pairs(), unpacked, scales + j * blocks()) * steps[i];
          if (bias) sum += bias[j];
          out[i * out_.strides[0] + j * out_.strides[1]] = shortened(sum);
        }
      }
    });
  }

 private:
  int64_t pairs() const { return k_ / 2; }
  int64_t blocks() const { return k_ / block_; }

  static T shortened(float sum) {
    if constexpr (std::is_same_v<T, bf16>) {  // cut off, not rounded, as PyTorch's
      uint32_t bits;
      std::memcpy(&bits, &sum, 4);
      bf16 half;
      half.bits = static_cast<uint16_t>(bits >> 16);
      return half;
    } else {
      return sum;
    }
  }

  // Numbers less their zero point, two in each int32; returns what one of them stands for.
  float round_row(const T* x, int32_t* to) const {
    const int64_t step = x_.strides[1];
    float low = 0, high = 0;
    for (int64_t i = 0; i < k_; ++i) {
      const auto value = static_cast<float>(x[i * step]);
      low = std::min(low, value), high = std::max(high, value);
    }
    const float by = low == high ? 1.0f : 255.0f / (high - low), below = low * by, above = high * by;
    const float place = (-128.0f + below) + (127.0f + above) > 0 ? -128.0f - below : 127.0f - above;
    const auto zero = std::isnan(place) ? 0 : static_cast<int32_t>(std::nearbyint(std::clamp(place, -128.0f, 127.0f)));
    const auto number = [&](int64_t i) {
      const float scaled = static_cast<float>(x[i * step]) * by, whole = std::trunc(scaled);
      const float away = std::abs(scaled - whole) >= 0.5f ? whole + std::copysign(1.0f, scaled) : whole;
      // what is no number is 0, and what lies far beyond the grid its end
      const float placed = std::isnan(away) ? 0.0f : std::clamp(away + static_cast<float>(zero), -128.0f, 127.0f);
      return static_cast<int16_t>(static_cast<int32_t>(placed) - zero);
    };
    for (int64_t i = 0; i < pairs(); ++i) to[i] = pair_of<int16_t>(number(2 * i), number(2 * i + 1));
    return by != 0 ? 1.0f / by : 0.0f;
  }

  void unpack(const float* from, int32_t* to) const {
    int64_t i = 0;
    for (; i + kPairLanes <= pairs(); i += kPairLanes) write(to + i, weight_pairs(from + i));
    for (; i < pairs(); ++i) to[i] = weight_pair(from[i]);
  }

  float product(const int32_t* x, const int32_t* y, const float* scales) const {
    float total = 0;
    const int64_t each = block_ / 2;
    for (int64_t b = 0; b < blocks(); ++b, x += each, y += each) {
      Pairs sum = {}, more = {};
      int64_t i = 0;
      for (; i + 2 * kPairLanes <= each; i += 2 * kPairLanes) {
        sum += products(read<Pairs>(x + i), read<Pairs>(y + i));
        more += products(read<Pairs>(x + i + kPairLanes), read<Pairs>(y + i + kPairLanes));
      }
      int32_t whole = sum_of(sum + more);
      for (; i < each; ++i) whole += product_of_pair(x[i], y[i]);
      total += static_cast<float>(whole) * scales[b];
    }
    return total;
  }

  int64_t m_, k_, n_, block_;
  Operand x_, packed_, out_;
  Scratch scratch_;
  uint64_t numbers_ = 0, steps_ = 0, unpacked_ = 0;
};

std::unique_ptr<Plan> make_rounded_product(const Request& r) {
  const Operand &x = r.in(0), &packed = r.in(1), &out = r.out();
  const int64_t block = r.integer("block_size"), k = r.integer("in_features"), n = r.integer("out_features");
  if (x.rank() != 2 || out.rank() != 2 || k <= 0 || k % 2 || n < 0 || x.sizes[1] != k || out.sizes[0] != x.sizes[0] ||
      out.sizes[1] != n || x.dtype != out.dtype)
    throw Invalid("the extents of a product with rounded rows do not match");
  if (block != k && (block <= 0 || block % 32 || k % block)) throw Declined("blocks of so many numbers");
  const int64_t least = n * (k / 2) + n * (k / block);
  if (packed.dtype != Dtype::F32 || !packed.contiguous() || packed.scalar())
    throw Declined("a weight of 4 bits that is no dense float32");
  if (packed.numel() != least && packed.numel() != least + n) throw Invalid("a weight of 4 bits of another size");
  if (x.dtype == Dtype::F32) return std::make_unique<RoundedProduct<float>>(r, n, block);
  if (x.dtype == Dtype::BF16 && block == k) return std::make_unique<RoundedProduct<bf16>>(r, n, block);
  throw Declined(std::string("rounded rows of ") + dtype_name(x.dtype));
}
MACA_KERNEL("_dyn_quant_matmul_4bit", make_rounded_product);

}  // namespace
}  // namespace maca::MACA_ISA
