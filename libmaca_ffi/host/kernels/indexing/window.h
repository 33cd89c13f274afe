// Sliding windows over up to three spatial dimensions, for pooling, resampling and the backward of padding.
#pragma once
#include <functional>

#include "index.h"
#include "kernels/reduction/lanes.h"

namespace maca::MACA_ISA {

// Numbers that stay in registers, which arrays in a loop over a window do not in GCC 12: a stored and reloaded sum
// costs 9 cycles a tap. Blocks that are compared must be as wide as a register (kVectorBytes).
template <class A, int Bytes = 64> struct Block {
  typedef A Vector __attribute__((vector_size(Bytes)));
  static constexpr int64_t kLanes = Bytes / static_cast<int64_t>(sizeof(A));

  template <class T> static Vector load(const T* from) {
    Vector v;
    if constexpr (std::is_same_v<T, A>) {
      std::memcpy(&v, from, sizeof v);
    } else {
      alignas(Bytes) A wide[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) wide[i] = static_cast<A>(from[i]);
      std::memcpy(&v, wide, sizeof v);
    }
    return v;
  }
  template <class T> static void store(T* to, Vector v) {
    alignas(Bytes) A wide[kLanes];
    std::memcpy(wide, &v, sizeof v);
    for (int64_t i = 0; i < kLanes; ++i) to[i] = static_cast<T>(wide[i]);
  }
};

// A batch of images or volumes of any rank from 1 (one spatial dimension, no channels) as [N, C, D, H, W].
struct Volume {
  std::array<int64_t, 5> sizes{1, 1, 1, 1, 1}, strides{0, 0, 0, 0, 0};

  Volume(const Operand& o, int spatial) {
    if (o.rank() < spatial || o.rank() > spatial + 2)
      throw Invalid("a tensor of rank " + std::to_string(o.rank()) + " has no batch, channels and " +
                    std::to_string(spatial) + " spatial dimensions");
    for (int d = 0; d < o.rank(); ++d) {
      const int to = d < spatial ? 4 - d : 1 - (d - spatial);  // from the innermost
      const size_t from = static_cast<size_t>(o.rank() - 1 - d);
      sizes[static_cast<size_t>(to)] = o.sizes[from];
      strides[static_cast<size_t>(to)] = o.sizes[from] == 1 ? 0 : o.strides[from];
    }
  }
  int64_t plane() const { return sizes[2] * sizes[3] * sizes[4]; }
  int64_t numel() const { return sizes[0] * sizes[1] * plane(); }
  bool channels_inside() const { return sizes[1] > 1 && strides[1] == 1; }
};

// What each coordinate of the result takes along one dimension: entries [first[i], first[i + 1]) of `source`.
struct Taps {
  std::vector<int64_t> first{0};
  std::vector<int64_t> source;
  std::vector<double> weight;

  int64_t size() const { return static_cast<int64_t>(first.size()) - 1; }
  void add(int64_t from, double w) {
    source.push_back(from);
    weight.push_back(w);
  }
  void close() { first.push_back(static_cast<int64_t>(source.size())); }

  static Taps identity(int64_t n) {
    Taps taps;
    for (int64_t i = 0; i < n; ++i) {
      taps.add(i, 1);
      taps.close();
    }
    return taps;
  }
  // The same pairs seen from the source, which has `n` coordinates: what a backward gathers.
  Taps transposed(int64_t n) const {
    Taps taps;
    std::vector<int64_t> count(static_cast<size_t>(n) + 1, 0);
    for (const int64_t s : source) ++count[static_cast<size_t>(s) + 1];
    std::partial_sum(count.begin(), count.end(), count.begin());
    taps.first = count;
    taps.source.resize(source.size());
    taps.weight.resize(source.size());
    for (int64_t i = 0; i < size(); ++i)
      for (int64_t t = first[static_cast<size_t>(i)]; t < first[static_cast<size_t>(i) + 1]; ++t) {
        const size_t place = static_cast<size_t>(count[static_cast<size_t>(source[static_cast<size_t>(t)])]++);
        taps.source[place] = i;
        taps.weight[place] = weight[static_cast<size_t>(t)];
      }
    return taps;
  }
};
using TapSet = std::array<Taps, 3>;  // D, H, W

// out[n, c, d, h, w] = sum of in[...] * weights over the taps, divided by divisor[d] * divisor[h] * divisor[w].
// A divisor list is empty where it would be all ones.
std::unique_ptr<Plan> weighted_sum(const Operand& out, const Operand& in, int spatial, const TapSet& taps,
                                   const std::array<std::vector<double>, 3>& divisor = {});

// Attributes of a pooling operator, spread over D, H, W; missing dimensions pool nothing.
struct PoolShape {
  std::array<int64_t, 3> kernel{1, 1, 1}, stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};

  PoolShape(const Request& r, int spatial) {
    read(r.integers("kernel_size"), spatial, kernel);
    const auto step = r.integers("stride", Dims{});
    read(step.empty() ? r.integers("kernel_size") : step, spatial, stride);
    read(r.integers("padding", Dims{0}), spatial, padding);
    read(r.integers("dilation", Dims{1}), spatial, dilation);
    for (size_t d = 0; d < 3; ++d)
      if (kernel[d] <= 0 || stride[d] <= 0 || dilation[d] <= 0 || padding[d] < 0)
        throw Invalid("pooling wants positive kernel, stride and dilation, and no negative padding");
  }

 private:
  static void read(const Dims& values, int spatial, std::array<int64_t, 3>& to) {
    if (values.size() != 1 && values.size() != static_cast<size_t>(spatial))
      throw Invalid("a pooling attribute has the wrong length");
    for (size_t d = 0; d < static_cast<size_t>(spatial); ++d)
      to[3 - static_cast<size_t>(spatial) + d] = values.size() == 1 ? values[0] : values[d];
  }
};

// Windows of a pooling along dimension d of `in` with `outputs` results.
inline Taps pool_taps(const PoolShape& shape, size_t d, int64_t inputs, int64_t outputs) {
  Taps taps;
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t start = o * shape.stride[d] - shape.padding[d];
    for (int64_t k = 0; k < shape.kernel[d]; ++k) {
      const int64_t at = start + k * shape.dilation[d];
      if (at >= 0 && at < inputs) taps.add(at, 1);
    }
    taps.close();
  }
  return taps;
}
// Windows of an adaptive pooling: as even as integers allow.
inline Taps adaptive_taps(int64_t inputs, int64_t outputs) {
  Taps taps;
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t start = o * inputs / outputs, end = ((o + 1) * inputs + outputs - 1) / outputs;
    for (int64_t at = start; at < end; ++at) taps.add(at, 1);
    taps.close();
  }
  return taps;
}

inline TapSet taps_by_dimension(const std::function<Taps(size_t)>& make) { return {make(0), make(1), make(2)}; }

}  // namespace maca::MACA_ISA
