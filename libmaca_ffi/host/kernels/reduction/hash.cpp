// hash_tensor: the exclusive or of elements' bits as float64 or int64.
#include "kernels/indexing/index.h"
#include "conversion.h"

namespace maca::MACA_ISA {
namespace {

std::unique_ptr<Plan> hash(const Request& r) {
  const Operand in = r.in(0), out = r.out();
  if (out.dtype != Dtype::U64) throw Invalid("a hash is uint64");
  if (is_complex(in.dtype)) throw Declined("no hash of complex numbers");
  if (type_code(in.dtype) == MACA_UINT && in.dtype != Dtype::U8) throw Declined("no hash of wide unsigned numbers");
  if (r.integer("mode", 0) != 0) throw Declined("one mode: exclusive or");
  std::vector<bool> reduced(in.sizes.size(), false);
  const auto dims = r.integers("dim", Dims{});
  const int64_t rank = at_least_1d(in).rank();
  for (const int64_t d : dims) {
    const auto at = static_cast<size_t>(wrap_dim(d, rank));
    if (in.rank() > 0) reduced[at] = true;
  }
  if (dims.empty()) reduced.assign(in.sizes.size(), true);
  const bool keeps = r.boolean("keepdim", false);
  Dims to(in.sizes.size(), 0), inner_sizes, inner_strides, outer_sizes, outer_to, outer_from;
  for (size_t d = 0, o = 0; d < in.sizes.size(); ++d) {
    if (reduced[d]) {
      inner_sizes.push_back(in.sizes[d]);
      inner_strides.push_back(in.strides[d]);
      o += keeps;
    } else {
      if (o >= out.sizes.size() || out.sizes[o] != in.sizes[d]) throw Invalid("hash_tensor: the result's sizes");
      outer_sizes.push_back(in.sizes[d]);
      outer_to.push_back(out.strides[o++]);
      outer_from.push_back(in.strides[d]);
    }
  }
  const Nest<1> inner(inner_sizes, {inner_strides});
  const Nest<2> outer(outer_sizes, {outer_to, outer_from});
  const Compute wide = is_floating(in.dtype) ? Compute::F64 : Compute::I64;
  return make_plan(static_cast<uint64_t>(in.numel()), [=](const Launch& launch) {
    const char* from = launch.data<const char>(in);
    auto* result = launch.data<uint64_t>(out);
    const int64_t size = item_size(in.dtype);
    outer.parallel(
        [&](const auto& o, int64_t n) {
          uint64_t bits[256];
          for (int64_t i = 0; i < n; ++i) {
            const char* base = from + (o[1] + i * outer.inner().stride[1]) * size;
            uint64_t sum = 0;
            const int64_t step = inner.inner().stride[0];
            inner.runs(0, inner.numel(), [&](const auto& at, int64_t count) {
              for (int64_t k = 0; k < count; k += 256) {
                const int64_t some = std::min<int64_t>(256, count - k);
                load_tile(wide, bits, in.dtype, base + (at[0] + k * step) * size, step, some);
                for (int64_t b = 0; b < some; ++b) sum ^= bits[b];
              }
            });
            result[o[0] + i * outer.inner().stride[0]] = sum;
          }
        },
        std::max<int64_t>(1, kGrain / std::max<int64_t>(1, inner.numel())));
  });
}
MACA_KERNEL("hash_tensor", hash);

}  // namespace
}  // namespace maca::MACA_ISA
