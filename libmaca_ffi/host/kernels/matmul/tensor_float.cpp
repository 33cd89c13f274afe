#include "tensor_float.h"

#include <cstring>

#include "onednn/engine.h"

namespace maca::tensor_float {

void round(const float* from, float* to, int64_t count) {
  parallel_for(count, 65536, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint32_t bits;
      std::memcpy(&bits, from + i, 4);
      const uint32_t even = 0x0fffu + ((bits >> 13) & 1);
      const uint32_t nearest = (bits + even) & ~0x1fffu;  // a carry goes to the exponent, from the largest to infinity
      bits = (bits & 0x7f800000u) == 0x7f800000u ? bits : nearest;
      std::memcpy(to + i, &bits, 4);
    }
  });
}

namespace {

struct Copied {
  int slot;
  int64_t floats;
  uint64_t offset;
};

class RoundedPlan final : public Plan {
 public:
  RoundedPlan(const Request& r, std::initializer_list<int> inputs, Factory factory)
      : plan_(factory(r)), operands_(static_cast<size_t>(r.operand_count())) {
    onednn::Workspace space;
    inner_ = space.take(plan_->workspace_bytes);
    for (int i : inputs) {
      const Operand& o = r.in(i);
      const int64_t parts = o.dtype == Dtype::F32 ? 1 : o.dtype == Dtype::C64 ? 2 : 0;
      if (parts == 0 || o.scalar() || o.numel() == 0) continue;
      // Everything from the first element to the last, so that the strides hold for the copy, whatever they are.
      int64_t last = 0;
      for (size_t d = 0; d < o.sizes.size(); ++d) last += (o.sizes[d] - 1) * o.strides[d];
      const int64_t floats = (last + 1) * parts;
      copied_.push_back({o.slot, floats, space.take(static_cast<uint64_t>(floats) * 4)});
      work += static_cast<uint64_t>(floats);
    }
    workspace_bytes = space.bytes();
    work += plan_->work;
    implementation = "tf32 " + plan_->implementation;
  }

  void run(const Launch& launch) const override {
    std::vector<void*> pointers(launch.pointers, launch.pointers + operands_);
    for (const Copied& c : copied_) {
      auto* to = reinterpret_cast<float*>(onednn::at(launch.workspace, c.offset));
      round(launch.data<float>(c.slot), to, c.floats);
      pointers[static_cast<size_t>(c.slot)] = to;
    }
    Launch inner = launch;
    inner.pointers = pointers.data();
    inner.workspace = onednn::at(launch.workspace, inner_);
    inner.packed = nullptr;  // made of the operand before it was rounded
    plan_->run(inner);
  }

 private:
  std::unique_ptr<Plan> plan_;
  size_t operands_;
  std::vector<Copied> copied_;
  uint64_t inner_ = 0;
};

}  // namespace

std::unique_ptr<Plan> rounded(const Request& r, std::initializer_list<int> inputs, Factory factory) {
  if (!r.tf32()) return factory(r);
  return std::make_unique<RoundedPlan>(r, inputs, factory);
}

}  // namespace maca::tensor_float
