// Parts of a plan's workspace that its steps use as operands: copies of another layout, and results before they are
// copied to where they go.
#pragma once
#include "copy.h"

namespace maca_cuda {

class Staged {
 public:
  explicit Staged(const Request& r) : first_slot_(r.operand_count()), next_slot_(r.operand_count()) {}

  // Memory for the elements of `like` with other strides, dense in some order.
  Operand place(const Operand& like, const Dims& strides) {
    Operand o = like;
    o.strides = strides, o.offset = 0, o.slot = next_slot_++;
    offsets_.push_back(bytes_);
    bytes_ += (static_cast<uint64_t>(o.numel() * item_size(o.dtype)) + kAlignment - 1) / kAlignment * kAlignment;
    return o;
  }
  uint64_t bytes() const { return bytes_; }

  // Runs what takes those parts for operands.
  template <class F> cudaError_t with(const Launching& l, F&& run) const {
    if (offsets_.empty()) return run(l);
    std::vector<void*> pointers(l.launch.pointers, l.launch.pointers + first_slot_);
    for (const uint64_t offset : offsets_) pointers.push_back(static_cast<char*>(l.launch.workspace) + offset);
    maca_launch launch = l.launch;
    launch.pointers = pointers.data(), launch.pointer_count = static_cast<uint32_t>(pointers.size());
    return run(Launching{l.device, l.stream, launch, l.kernel});
  }

 private:
  static constexpr uint64_t kAlignment = 256;
  int first_slot_, next_slot_;
  uint64_t bytes_ = 0;
  std::vector<uint64_t> offsets_;
};

}  // namespace maca_cuda
