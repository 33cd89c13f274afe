// Reading through indices: index, index_select, take, gather, embedding, and the two halves of nonzero.
#include "lines.h"
#include "selection.h"

namespace maca::MACA_ISA {
namespace {

using Fail = LaunchError (*)(int64_t index, int64_t dim, int64_t extent);

// Rows of `Bytes`, or of `bytes` between one and two times that, from where `offsets` say: two copies whose length is
// known, which may overlap, take half the time of a loop over the numbers of a short row.
template <size_t Bytes, class T>
void copy_short_rows(const T* from, const int64_t* offsets, T* to, int64_t step, size_t bytes, int64_t count) {
  const size_t last = bytes - Bytes;
  for (int64_t b = 0; b < count; ++b) {
    const char* const source = reinterpret_cast<const char*>(from + offsets[b]);
    char* const place = reinterpret_cast<char*>(to + b * step);
    char first_part[Bytes], last_part[Bytes];
    std::memcpy(first_part, source, Bytes);
    std::memcpy(last_part, source + last, Bytes);
    std::memcpy(place, first_part, Bytes);
    std::memcpy(place + last, last_part, Bytes);
  }
}

template <class T>
void copy_rows(const T* from, const int64_t* offsets, T* to, int64_t step, int64_t n, int64_t count) {
  const size_t bytes = static_cast<size_t>(n) * sizeof(T);
  if (bytes < 8)
    copy_short_rows<4>(from, offsets, to, step, bytes, count);
  else if (bytes < 16)
    copy_short_rows<8>(from, offsets, to, step, bytes, count);
  else if (bytes < 32)
    copy_short_rows<16>(from, offsets, to, step, bytes, count);
  else if (bytes < 64)
    copy_short_rows<32>(from, offsets, to, step, bytes, count);
  else if (bytes <= 128)
    copy_short_rows<64>(from, offsets, to, step, bytes, count);
  else
    for (int64_t b = 0; b < count; ++b) copy_row(to + b * step, 1, from + offsets[b], 1, n);
}

// The rows that a selection has: where they lie is looked up by the thread that copies them.
template <class T> void read_rows(const Selection& selection, const Launch& launch, const T* from, T* to, Fail fail) {
  constexpr int64_t kTogether = 512;
  const int64_t n = selection.rest().numel(), step = selection.row_stride();
  parallel_for(selection.count(), std::max<int64_t>(1, kGrain / n), [&, n, step](int64_t begin, int64_t end) {
    int64_t offsets[kTogether];
    for (int64_t b = begin; b < end; b += kTogether) {
      const int64_t some = std::min(kTogether, end - b);
      selection.offsets(launch, b, b + some, offsets, fail);
      copy_rows(from, offsets, to + b * step, step, n, some);
    }
  });
}

LaunchError select_error(int64_t, int64_t, int64_t) { return {MACA_ERROR_INDEX, "index out of range in self"}; }

std::unique_ptr<Plan> read_selection(const Operand& self, const Operand& out, Selection selection, Fail fail) {
  expect_dtype(self, out.dtype, "the tensor");
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(self.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(selection.work(), [=](const Launch& launch) {
      const T* from = launch.data<const T>(self);
      T* to = launch.data<T>(out);
      if (selection.has_rows()) return read_rows(selection, launch, from, to, fail);
      auto* offsets = static_cast<int64_t*>(launch.workspace);
      selection.offsets(launch, offsets, fail);
      selection.each(offsets, false, [=](int64_t o, int64_t s, int64_t n, int64_t o_step, int64_t s_step) {
        copy_row(to + o, o_step, from + s, s_step, n);
      });
    });
  });
  if (!selection.has_rows()) plan->workspace_bytes = selection.workspace_bytes();
  return plan;
}

std::unique_ptr<Plan> index(const Request& r) {
  const Selection selection = Selection::advanced(r.in(0), r.in_list(1), r.out());
  if (selection.sees_none()) return make_plan(0, [](const Launch&) {});
  return read_selection(r.in(0), r.out(), selection, subscript_error);
}

std::unique_ptr<Plan> index_select(const Request& r) {
  const Operand self = at_least_1d(r.in(0));
  const Operand index = at_least_1d(r.in(1));
  Operand out = r.out();
  if (r.in(0).rank() == 0) out = at_least_1d(out);
  const int64_t dim = wrap_dim(r.integer("dim"), self.rank());
  return read_selection(self, out, Selection::along(self, dim, index, out), select_error);
}

std::unique_ptr<Plan> embedding(const Request& r) {
  return read_selection(r.in(0), r.out(), Selection::along(r.in(0), 0, r.in(1), r.out()), select_error);
}

std::unique_ptr<Plan> take(const Request& r) {
  const Operand self = r.in(0), index = r.in(1), out = r.out();
  expect_dtype(self, out.dtype, "the tensor");
  const Nest<2> nest = pair_nest(out, index);
  const int64_t extent = self.numel();
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(self.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(nest.numel()) * 4, [=, place = Unravel(self)](const Launch& launch) {
      const auto* indices = launch.data<const int64_t>(index);
      const T* from = launch.data<const T>(self);
      T* to = launch.data<T>(out);
      const auto [out_step, index_step] = nest.inner().stride;
      nest.parallel([&, out_step = out_step, index_step = index_step](const auto& o, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = indices[o[1] + i * index_step], position = at < 0 ? at + extent : at;
          if (position < 0 || position >= extent)
            throw LaunchError(MACA_ERROR_INDEX, "out of range: tried to access index " + std::to_string(at) +
                                                    " on a tensor of " + std::to_string(extent) + " elements.");
          to[o[0] + i * out_step] = from[place(position)];
        }
      });
    });
  });
  if (index.dtype != Dtype::I64) throw Invalid("take(): the index is int64");
  return plan;
}

std::unique_ptr<Plan> gather(const Request& r) {
  const Operand self = r.in(0), index = r.in(1), out = r.out();
  expect_dtype(self, out.dtype, "the tensor");
  const Lines lines(index, out, self, r.integer("dim"));
  std::unique_ptr<Plan> plan;
  with_line_index(index, [&](auto index_tag) {
    using I = decltype(index_tag);
    with_item_size(item_size(self.dtype), [&](auto tag) {
      using T = decltype(tag);
      plan = make_plan(static_cast<uint64_t>(lines.numel()) * 4, [=](const Launch& launch) {
        const I* indices = launch.data<const I>(index);
        const T* from = launch.data<const T>(self);
        T* to = launch.data<T>(out);
        const int64_t extent = lines.extent(), step = lines.target_step();
        lines.each(false, [&, extent, step](int64_t i, int64_t d, int64_t base) {
          const int64_t at = indices[i];
          if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(extent)) throw line_error(at, lines.dim(), extent);
          to[d] = from[base + at * step];
        });
      });
    });
  });
  return plan;
}

// Is an element nonzero? Bits that may be set in a zero: the signs of floats.
template <class F> void with_zero_test(Dtype d, F&& f) {
  switch (d) {
    case Dtype::F16:
    case Dtype::BF16: f(uint16_t{}, uint16_t{0x7fff}); break;
    case Dtype::F32: f(uint32_t{}, uint32_t{0x7fffffff}); break;
    case Dtype::C32: f(uint32_t{}, uint32_t{0x7fff7fff}); break;
    case Dtype::F64: f(uint64_t{}, uint64_t{0x7fffffffffffffff}); break;
    case Dtype::C64: f(uint64_t{}, uint64_t{0x7fffffff7fffffff}); break;
    case Dtype::C128: throw Declined("complex128");
    default:
      switch (item_size(d)) {
        case 1: f(uint8_t{}, uint8_t{0xff}); break;
        case 2: f(uint16_t{}, uint16_t{0xffff}); break;
        case 4: f(uint32_t{}, uint32_t{0xffffffff}); break;
        default: f(uint64_t{}, ~uint64_t{0});
      }
  }
}
// complex128 as pairs of uint64 would need its own loop; as two doubles it is a dimension more.
struct Tested {
  Operand operand;
  bool pairs;
};
Tested tested(const Operand& o) {
  Tested t{o, o.dtype == Dtype::C128};
  if (t.pairs) {
    t.operand.dtype = Dtype::F64;
    for (int64_t& s : t.operand.strides) s *= 2;
  }
  return t;
}
template <class T> inline bool nonzero_at(const T* p, T mask, bool pairs) {
  return (p[0] & mask) != 0 || (pairs && (p[1] & mask) != 0);
}

// nonzero_count(self) -> int64[]: how many rows nonzero_fill will write.
std::unique_ptr<Plan> nonzero_count(const Request& r) {
  const Operand out = r.out();
  const auto [self, pairs] = tested(r.in(0));
  const Nest<1> nest(self.sizes, {self.strides});
  std::unique_ptr<Plan> plan;
  with_zero_test(self.dtype, [&](auto tag, auto mask) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(nest.numel()), [=, self = self, pairs = pairs](const Launch& launch) {
      const T* from = launch.data<const T>(self);
      const int64_t step = nest.inner().stride[0];
      std::atomic<int64_t> total{0};
      parallel_for(nest.numel(), kGrain, [&](int64_t begin, int64_t end) {
        int64_t count = 0;
        nest.runs(begin, end, [&](const auto& o, int64_t n) {
          const T* p = from + o[0];
          if (step == 1 && !pairs) {
            for (int64_t i = 0; i < n; ++i) count += (p[i] & mask) != 0;
          } else {
            for (int64_t i = 0; i < n; ++i) count += nonzero_at<T>(p + i * step, mask, pairs);
          }
        });
        total += count;
      });
      *launch.data<int64_t>(out) = total;
    });
  });
  return plan;
}

// nonzero_fill(self) -> int64[n, rank]: coordinates in row-major order.
std::unique_ptr<Plan> nonzero_fill(const Request& r) {
  const Operand out = r.out();
  if (out.rank() != 2 || out.sizes[1] != r.in(0).rank() || out.dtype != Dtype::I64)
    throw Invalid("nonzero_fill writes an int64 matrix of a row for each element");
  const auto [self, pairs] = tested(r.in(0));
  std::unique_ptr<Plan> plan;
  with_zero_test(self.dtype, [&](auto tag, auto mask) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(self.numel()) * 2, [=, self = self, pairs = pairs](const Launch& launch) {
      const T* from = launch.data<const T>(self);
      int64_t* to = launch.data<int64_t>(out);
      const size_t rank = self.sizes.size();
      const int64_t total = self.numel(), limit = out.sizes[0];
      if (total == 0) return;
      Dims at(rank, 0);
      const int64_t inner = rank ? self.sizes[rank - 1] : 1, step = rank ? self.strides[rank - 1] : 0;
      int64_t row = 0, offset = 0;
      for (int64_t done = 0; done < total; done += inner) {
        for (int64_t i = 0; i < inner; ++i) {
          if (!nonzero_at<T>(from + offset + i * step, mask, pairs)) continue;
          if (row == limit) return;  // the tensor changed since it was counted
          int64_t* place = to + row++ * out.strides[0];
          for (size_t d = 0; d + 1 < rank; ++d) place[static_cast<int64_t>(d) * out.strides[1]] = at[d];
          if (rank) place[static_cast<int64_t>(rank - 1) * out.strides[1]] = i;
        }
        for (size_t d = rank; d-- > 0;) {
          if (d + 1 == rank) continue;
          offset += self.strides[d];
          if (++at[d] < self.sizes[d]) break;
          offset -= self.sizes[d] * self.strides[d];
          at[d] = 0;
        }
      }
      for (; row < limit; ++row)  // never hand out what memory held before
        for (size_t d = 0; d < rank; ++d) to[row * out.strides[0] + static_cast<int64_t>(d) * out.strides[1]] = 0;
    });
  });
  return plan;
}

// The elements of the broadcast self where the broadcast mask holds, in the order of the result; zeros follow where the
// result is longer.
std::unique_ptr<Plan> masked_scatter_backward(const Request& r) {
  const Operand self = r.in(0), mask = r.in(1), out = r.out();
  expect_dtype(self, out.dtype, "the tensor");
  if (item_size(mask.dtype) != 1) throw Invalid("a mask is bool or uint8");
  Dims sizes = self.sizes;
  if (mask.sizes.size() > sizes.size()) sizes.insert(sizes.begin(), mask.sizes.size() - sizes.size(), 1);
  for (size_t i = 0; i < mask.sizes.size(); ++i) {
    int64_t& size = sizes[sizes.size() - mask.sizes.size() + i];
    if (size == 1) size = mask.sizes[i];
  }
  const Nest<2> nest(sizes, {broadcast_strides(self, sizes), broadcast_strides(mask, sizes)}, Nest<2>::AS_GIVEN);
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(self.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(nest.numel()) * 2, [=, place = Unravel(out)](const Launch& launch) {
      const T* from = launch.data<const T>(self);
      const auto* chosen = launch.data<const uint8_t>(mask);
      T* to = launch.data<T>(out);
      const int64_t limit = out.numel();
      const auto steps = nest.inner().stride;
      int64_t row = 0;
      nest.runs(0, nest.numel(), [&](const auto& o, int64_t n) {
        for (int64_t i = 0; i < n; ++i)
          if (chosen[o[1] + i * steps[1]] && row < limit) to[place(row++)] = from[o[0] + i * steps[0]];
      });
      for (; row < limit; ++row) to[place(row)] = T{};
    });
  });
  return plan;
}

MACA_KERNEL("index", index);
MACA_KERNEL("index_select", index_select);
MACA_KERNEL("embedding", embedding);
MACA_KERNEL("take", take);
MACA_KERNEL("gather", gather);
MACA_KERNEL("nonzero_count", nonzero_count);
MACA_KERNEL("nonzero_fill", nonzero_fill);
MACA_KERNEL("masked_scatter_backward", masked_scatter_backward);

}  // namespace
}  // namespace maca::MACA_ISA
