// What the _foreach_* families share: one launch for whole lists of tensors.
#pragma once
#include "tile.h"

namespace maca::MACA_ISA {

// A number of the operator: it serves as alpha or value, or takes the place of a tensor.
struct Coefficient {
  c128 value{1.0, 0.0};
  int64_t integer = 1;  // an int64 never passes through a double
  template <class T> T as() const {
    if constexpr (std::is_same_v<T, int64_t>)
      return integer;
    else if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(value.real());
    else
      return T(static_cast<typename T::value_type>(value.real()), static_cast<typename T::value_type>(value.imag()));
  }
};

// Where a Coefficient comes from: nowhere (it is 1), a Scalar, a Scalar[] or the elements of a tensor.
class Source {
 public:
  Source() = default;
  static Source scalar(const Request& request, const std::string& name);  // Scalar or Scalar[]
  static Source elements(const Operand& tensor);                          // one for all, or one for each
  Source& times(const Request& request, const std::string& name);         // an alpha on top
  Coefficient get(const Launch& launch, size_t i) const;
  size_t count() const { return count_; }  // 0: one for all

 private:
  int first_ = -1, factor_ = -1;
  size_t count_ = 0;
  Operand tensor_;
};

// `in` has as many pointers as the operator has operands; all are contiguous and of the compute type.
using Loop = void (*)(void* out, const void* const* in, int64_t n, const Coefficient& s);

using Loops = std::array<Loop, kComputes>;

// F<T> has `static T at(T a, T b, T c, T s)`; types for which F<T>::ok is false are left out.
template <template <class> class F> constexpr Loops make_loops() {
  const auto loop = []<class T>(T) -> Loop {
    if constexpr (!F<T>::ok)
      return nullptr;
    else
      return [](void* out_, const void* const* in, int64_t n, const Coefficient& coefficient) {
        T* out = static_cast<T*>(out_);
        const T *a = static_cast<const T*>(in[0]), *b = static_cast<const T*>(in[1]), *c = static_cast<const T*>(in[2]);
        const T s = coefficient.as<T>();
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) out[i] = F<T>::at(a[i], b[i], c[i], s);
      };
  };
  return {loop(float{}), loop(double{}), loop(int64_t{}), nullptr, loop(c64{}), loop(c128{})};
}

// One operand of an operator: a Tensor[] argument, or a number in the place of a tensor (argument -1).
struct Place {
  int argument = -1;
  Source number;
};

// The lists that `places` name go in, result 0 comes out, or argument 0 where the request says inplace.
std::unique_ptr<Plan> foreach_plan(const Request& request, std::vector<Place> places, Source coefficient,
                                   const Loops& loops);

// The list an operator writes.
inline std::span<const Operand> written_list(const Request& r) {
  return r.boolean("inplace", false) || r.outputs() == 0 ? r.in_list(0) : r.out_list(0);
}

}  // namespace maca::MACA_ISA
