// The index space of K operands of shape (N, C, spatial...) as batch and group norm walk it: either rows of adjacent
// channels (NHWC, or plain N x C), or one plane of a channel after the other (NCHW).
#pragma once
#include "reduction.h"

namespace maca::MACA_ISA {

template <int K> struct Channels {
  int64_t batch = 1, channels = 1, plane = 1;
  std::array<int64_t, K> batch_stride{}, channel_stride{};
  Nest<K> positions;  // batch and space, for rows
  Nest<K> space;      // of one plane
  bool rows = false;

  // The first operand decides which way to walk.
  explicit Channels(const std::array<const Operand*, K>& operands) {
    const Operand& lead = *operands[0];
    const auto strides = [&](size_t d) {
      std::array<int64_t, K> s;
      for (int k = 0; k < K; ++k) s[static_cast<size_t>(k)] = operands[static_cast<size_t>(k)]->strides[d];
      return s;
    };
    if (lead.rank() < 2) throw Invalid("channels lie in dimension 1");
    batch = lead.sizes[0];
    channels = lead.sizes[1];
    batch_stride = strides(0);
    channel_stride = strides(1);
    positions.add(batch, batch_stride);
    for (size_t d = 2; d < lead.sizes.size(); ++d) {
      plane *= lead.sizes[d];
      positions.add(lead.sizes[d], strides(d));
      space.add(lead.sizes[d], strides(d));
    }
    rows = channels > 1 && (channel_stride[0] == 1 || plane == 1) && !(plane > 1 && space.inner().stride[0] == 1);
  }
  int64_t count() const { return batch * plane; }

  // Do the planes of all operands lie densely in memory, in type C?
  template <class C> bool dense_planes(const std::array<Dtype, K>& dtypes) const {
    for (const Dtype d : dtypes)
      if (!is_native(compute_for<C>, d)) return false;
    if (space.rank() > 1) return false;
    for (const int64_t stride : space.inner().stride)
      if (stride != 1 && plane != 1) return false;
    return true;
  }

  // One sample alone; the caller moves the pointers by batch_stride.
  Channels sample() const {
    Channels one = *this;
    one.batch = 1;
    one.positions = space;
    return one;
  }
};

// The step from channel to channel: PyTorch counts elements only, so that a vector may have sides of 1 around it.
inline int64_t channel_stride(const Operand& o) {
  for (int d = 0; d < o.rank(); ++d)
    if (o.sizes[d] > 1) return o.strides[d];
  return 0;
}

// A vector with one element a channel in the type C of the loop; `otherwise` where the operator was given none.
template <class C> std::vector<C> channel_values(const Operand& o, const void* data, int64_t n, C otherwise) {
  std::vector<C> values(static_cast<size_t>(n), otherwise);
  if (o.present() && data) load_tile(compute_for<C>, values.data(), o.dtype, data, channel_stride(o), n);
  return values;
}
template <class C> void store_channels(const std::vector<C>& values, const Operand& o, void* data) {
  if (!o.present() || o.numel() != static_cast<int64_t>(values.size())) return;
  store_tile(compute_for<C>, values.data(), o.dtype, data, channel_stride(o), o.numel());
}
inline void check_channels(const Operand& o, int64_t n, const char* what) {
  if (o.present() && o.numel() != n) throw Invalid(std::string(what) + " has not one element a channel");
  if (o.present() && std::ranges::count_if(o.sizes, [](int64_t side) { return side > 1; }) > 1)
    throw Invalid(std::string(what) + " has more than one side");
  if (o.present() && o.scalar()) throw Declined(std::string(what) + " is a number");
}

// Null for operands the operator was not given.
inline void* memory(const Launch& l, const Operand& o) { return o.slot < 0 || !o.present() ? nullptr : l.data(o); }

}  // namespace maca::MACA_ISA
