// Accumulation into a tensor of any strides, in the type sums are computed in.
#pragma once
#include "conversion.h"
#include "index.h"

namespace maca::MACA_ISA {

// Calls f(T{}) with a type whose += is the dtype's: integers wrap, so one type an item size; bool is "or".
template <class F> void with_addable(Dtype d, F&& f) {
  switch (d) {
    case Dtype::Bool: f(Truth{}); return;
    case Dtype::F16: f(f16{}); return;
    case Dtype::BF16: f(bf16{}); return;
    case Dtype::F32: f(float{}); return;
    case Dtype::F64: f(double{}); return;
    case Dtype::C32: f(c32{}); return;
    case Dtype::C64: f(c64{}); return;
    case Dtype::C128: f(c128{}); return;
    case Dtype::U8:
    case Dtype::I8: f(uint8_t{}); return;
    case Dtype::I16: f(uint16_t{}); return;
    case Dtype::I32: f(uint32_t{}); return;
    case Dtype::I64: f(uint64_t{}); return;
    default: throw Declined(std::string("no accumulation in ") + dtype_name(d));
  }
}

template <class A> inline void add_to(A& to, A value) { to = static_cast<A>(to + value); }
template <> inline void add_to(Truth& to, Truth value) { to = to || value; }

template <class T, class A> inline void add_row(A* to, int64_t to_step, const T* from, int64_t from_step, int64_t n) {
  if (to_step == 1 && from_step == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) add_to(to[i], convert<A>(from[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) add_to(to[i * to_step], convert<A>(from[i * from_step]));
  }
}

// The tensor that an accumulating operator writes: begins as self, or as zeros when there is none. Halves are
// accumulated in an image of floats of it in the workspace (in bf16 adding ones stops at 256).
class Sums {
 public:
  Sums(const Operand* self, const Operand& target)
      : target_(target),
        nest_(target.sizes,
              {target.strides, self ? broadcast_strides(*self, target.sizes) : Dims(target.sizes.size(), 0)}) {
    if (self) {
      expect_dtype(*self, target.dtype, "the tensor");
      self_ = *self;
    }
    with_addable(target.dtype, [&](auto tag) {
      using A = compute_t<decltype(tag)>;
      if (!std::is_same_v<A, decltype(tag)>) image_bytes_ = static_cast<uint64_t>(span_of(target)) * sizeof(A);
    });
  }
  uint64_t workspace_bytes() const { return image_bytes_; }
  uint64_t work() const { return static_cast<uint64_t>(nest_.numel()); }

  // body(compute_t<T>* data), with the target's strides.
  template <class T, class Body> void run(const Launch& launch, void* image, Body&& body) const {
    using A = compute_t<T>;
    T* to = launch.data<T>(target_);
    const bool in_place = self_.present() && launch.data(self_) == launch.data(target_);
    const T zero{};
    const T* from = self_.present() ? launch.data<const T>(self_) : &zero;
    const auto [t_step, s_step] = nest_.inner().stride;
    if constexpr (std::is_same_v<A, T>) {
      if (!in_place) copy_nest(nest_, to, from);
      body(to);
    } else {
      A* sums = static_cast<A*>(image);
      nest_.parallel([&, ts = t_step, ss = s_step](const auto& o, int64_t n) {
        for (int64_t i = 0; i < n; ++i) sums[o[0] + i * ts] = convert<A>(from[o[1] + i * ss]);
      });
      body(sums);
      nest_.parallel([&, ts = t_step](const auto& o, int64_t n) {
        for (int64_t i = 0; i < n; ++i) to[o[0] + i * ts] = convert<T>(sums[o[0] + i * ts]);
      });
    }
  }

 private:
  Operand self_, target_;
  Nest<2> nest_;
  uint64_t image_bytes_ = 0;
};

}  // namespace maca::MACA_ISA
