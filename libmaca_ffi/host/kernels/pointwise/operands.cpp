// What pointwise ops know of their operands: dtypes and their promotion, numbers, merged dimensions.
#include <algorithm>

#include "pointwise.h"

namespace maca::MACA_ISA::pointwise {

Dtype dtype_of(Compute c) {
  constexpr Dtype dtypes[] = {Dtype::F32, Dtype::F64, Dtype::I64, Dtype::Bool, Dtype::C64, Dtype::C128};
  return dtypes[static_cast<int>(c)];
}

Compute compute_of(Dtype d) {
  switch (d) {
    case Dtype::F64: return Compute::F64;
    case Dtype::C128: return Compute::C128;
    case Dtype::C64:
    case Dtype::C32: return Compute::C64;
    case Dtype::Bool: return Compute::Bool;
    default: return is_floating(d) ? Compute::F32 : Compute::I64;
  }
}

Dtype promote(Dtype a, Dtype b) {
  if (a == b || b == Dtype::None) return a;
  if (a == Dtype::None) return b;
  if (is_complex(a) || is_complex(b)) {
    const auto width = [](Dtype d) { return is_complex(d) ? item_size(d) : is_floating(d) ? 2 * item_size(d) : 0; };
    const int bytes = std::max(width(a), width(b));
    // bfloat16 has no complex of its own width
    const bool brain = a == Dtype::BF16 || b == Dtype::BF16;
    return bytes == 16 ? Dtype::C128 : bytes == 8 || brain ? Dtype::C64 : Dtype::C32;
  }
  if (is_floating(a) && is_floating(b))
    return item_size(a) == item_size(b) ? Dtype::F32 : item_size(a) > item_size(b) ? a : b;
  if (is_floating(a)) return a;
  if (is_floating(b)) return b;
  if (a == Dtype::Bool) return b;
  if (b == Dtype::Bool) return a;
  if (type_code(a) == type_code(b)) return item_size(a) > item_size(b) ? a : b;
  const Dtype with_sign = type_code(a) == MACA_INT ? a : b, without = type_code(a) == MACA_INT ? b : a;
  if (item_size(with_sign) > item_size(without)) return with_sign;
  return item_size(without) == 1 ? Dtype::I16 : item_size(without) == 2 ? Dtype::I32 : Dtype::I64;
}

Iteration make_iteration(const std::vector<const Operand*>& operands) {
  const Operand& out = *operands[0];
  const int rank = out.rank(), count = static_cast<int>(operands.size());
  std::vector<std::vector<int64_t>> strides(operands.size());
  for (int k = 0; k < count; ++k) {
    const Operand& o = *operands[static_cast<size_t>(k)];
    auto& s = strides[static_cast<size_t>(k)];
    s.assign(static_cast<size_t>(rank), 0);
    if (o.scalar() || !o.present()) continue;
    const int lead = rank - o.rank();
    if (lead < 0) throw Invalid("a pointwise operand has more dimensions than the result");
    for (int d = 0; d < o.rank(); ++d) {
      const auto i = static_cast<size_t>(d);
      const int64_t size = out.sizes[static_cast<size_t>(d + lead)];
      if (o.sizes[i] != size && o.sizes[i] != 1) throw Invalid("pointwise operands do not broadcast to the result");
      if (o.sizes[i] != 1) s[static_cast<size_t>(d + lead)] = o.strides[i] * item_size(o.dtype);
    }
  }
  std::vector<int> order;
  for (int d = 0; d < rank; ++d)
    if (out.sizes[static_cast<size_t>(d)] != 1) order.push_back(d);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return strides[0][static_cast<size_t>(a)] > strides[0][static_cast<size_t>(b)];
  });
  Iteration it;
  it.numel = out.numel();
  if (it.numel == 0) return it;
  for (const int d : order) {
    const int64_t size = out.sizes[static_cast<size_t>(d)];
    bool merges = it.dims > 0;
    for (int k = 0; k < count && merges; ++k)
      merges = it.strides[k][it.dims - 1] == strides[static_cast<size_t>(k)][static_cast<size_t>(d)] * size;
    if (!merges && it.dims == kMaxDims) throw Declined("more than 10 dimensions that do not merge");
    if (!merges) it.sizes[it.dims++] = 1;
    it.sizes[it.dims - 1] *= size;
    for (int k = 0; k < count; ++k)
      it.strides[k][it.dims - 1] = strides[static_cast<size_t>(k)][static_cast<size_t>(d)];
  }
  return it;
}

}  // namespace maca::MACA_ISA::pointwise
