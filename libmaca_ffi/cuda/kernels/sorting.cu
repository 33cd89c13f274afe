// sort, topk, kthvalue, median, nanmedian, mode: what comes out is read from the input by position, so values keep
// their bits. And searchsorted, bucketize, unique.
#include "copy.h"
#include "reduction.h"
#include "select.h"
#include "sorted_lines.h"
#include "shared/pointwise/values.h"

#include <limits>

namespace maca_cuda {
namespace {

constexpr int64_t kShared = 1024;  // entries that a block sorts in shared memory

// Steps of the network within pieces of `piece` entries: sizes [first, last] whole, or of the last size those within.
__global__ void sort_pieces(SortedLines s, int64_t piece, int64_t first, int64_t last) {
  __shared__ uint64_t keys[kShared];
  __shared__ int64_t places[kShared];
  const int64_t pieces = s.count * s.width / piece;
  for (int64_t b = blockIdx.x; b < pieces; b += gridDim.x) {
    const int64_t base = b * piece, in_line = base % s.width;
    for (int64_t i = threadIdx.x; i < piece; i += blockDim.x)
      keys[i] = s.keys[base + i], places[i] = s.places[base + i];
    __syncthreads();
    for (int64_t size = first; size <= last; size *= 2)
      for (int64_t step = size / 2 < piece / 2 ? size / 2 : piece / 2; step > 0; step /= 2) {
        for (int64_t t = threadIdx.x; t < piece / 2; t += blockDim.x) {
          const int64_t i = 2 * t - (t & (step - 1)), k = i + step;
          const bool rises = ((in_line + i) & size) == 0;
          const bool is_behind = keys[i] != keys[k] ? keys[i] > keys[k] : places[i] > places[k];
          if (is_behind != rises) continue;
          const uint64_t key = keys[i];
          const int64_t place = places[i];
          keys[i] = keys[k], places[i] = places[k], keys[k] = key, places[k] = place;
        }
        __syncthreads();
      }
    for (int64_t i = threadIdx.x; i < piece; i += blockDim.x)
      s.keys[base + i] = keys[i], s.places[base + i] = places[i];
    __syncthreads();
  }
}
struct SortStep {
  SortedLines s;
  int64_t size, step;
  __device__ void operator()(int64_t t) const {
    const int64_t i = 2 * t - (t & (step - 1)), k = i + step;
    const bool rises = (i & (s.width - 1) & size) == 0;
    if (s.is_behind(i, k) != rises) return;
    const uint64_t key = s.keys[i];
    const int64_t place = s.places[i];
    s.keys[i] = s.keys[k], s.places[i] = s.places[k], s.keys[k] = key, s.places[k] = place;
  }
};
struct Keys {
  View in;
  SortedLines s;
  int64_t length;
  bool turns;
  __device__ void operator()(int64_t i) const {
    const int64_t line = i / s.width, k = i % s.width;
    const bool is_padding = k >= length;
    const uint64_t key = is_padding ? ~uint64_t{0} : key_at(in.data, in.dtype, in.at(line * length + k));
    s.keys[i] = is_padding || !turns ? key : ~key;
    s.places[i] = is_padding ? INT64_MAX : k;
  }
};

// The operand with `dim` as its last dimension; the others before it.
View lines_of(const Operand& o, int64_t dim) {
  Dims sizes = o.sizes, strides = o.strides;
  if (!sizes.empty()) {
    const auto d = static_cast<size_t>(dim);
    sizes.push_back(sizes[d]), strides.push_back(strides[d]);
    sizes.erase(sizes.begin() + dim), strides.erase(strides.begin() + dim);
  }
  return View(o, sizes, strides);
}

}  // namespace

cudaError_t sort_lines(const Launching& l, const SortedLines& s) {
  const int64_t all = s.count * s.width, piece = std::min(s.width, kShared);
  if (s.width < 2) return cudaSuccess;
  cudaError_t said = start(l, sort_pieces, blocks_of(all / piece), threads_for(piece / 2), s, piece, 2, piece);
  for (int64_t size = 2 * piece; said == cudaSuccess && size <= s.width; size *= 2) {
    for (int64_t step = size / 2; said == cudaSuccess && step >= piece; step /= 2)
      said = each(l, all / 2, SortStep{s, size, step});
    if (said == cudaSuccess)
      said = start(l, sort_pieces, blocks_of(all / piece), threads_for(piece / 2), s, piece, size, size);
  }
  return said;
}
cudaError_t sort_lines_of(const Launching& l, const View& in, int64_t length, bool turns, const SortedLines& s) {
  const cudaError_t said = each(l, s.count * s.width, Keys{in.on(l), s, length, turns});
  return said == cudaSuccess ? sort_lines(l, s) : said;
}

namespace {

// The first `wanted` of each line.
struct FirstOfLines {
  View in, values, indices;
  SortedLines s;
  int64_t length, wanted;
  __device__ void operator()(int64_t i) const {
    const int64_t line = i / wanted, place = s.places[line * s.width + i % wanted];
    copy_item(values.data, values.at(i), in.data, in.at(line * length + place), item_size(in.dtype));
    if (indices.data) indices.set(i, place);
  }
};
std::unique_ptr<Plan> first_of_lines(const Request& r, bool turns, int64_t wanted) {
  const Operand in = r.memory(0), values = r.out(0), indices = r.out(1);
  if (values.dtype != in.dtype || indices.dtype != Dtype::I64) throw Invalid("dtypes that do not fit");
  const int64_t rank = std::max(in.rank(), 1), given = r.integer("dim", -1), dim = given < 0 ? given + rank : given;
  if (dim < 0 || dim >= rank) throw Invalid("a dimension that the operand has not");
  const int64_t length = in.rank() ? in.sizes[static_cast<size_t>(dim)] : 1;
  if (wanted < 0) wanted = length;
  if (wanted > length) throw Invalid("more than there is");
  FirstOfLines body{lines_of(in, dim), lines_of(values, dim), lines_of(indices, dim), {}, length, wanted};
  const int64_t lines = length ? body.in.count / length : 0;
  if (body.values.count != lines * wanted || body.indices.count != lines * wanted)
    throw Invalid("results of other sizes");
  auto plan = make_plan(
      [=](const Launching& l) {
        if (lines * wanted == 0) return cudaSuccess;
        FirstOfLines mine = body;
        mine.s = sorted_lines_at(l.launch.workspace, lines, length);
        if (const cudaError_t said = sort_lines_of(l, body.in, length, turns, mine.s); said != cudaSuccess) return said;
        mine.in = body.in.on(l), mine.values = body.values.on(l), mine.indices = body.indices.on(l);
        return each(l, lines * wanted, mine);
      },
      "a bitonic network");
  plan->workspace_bytes = sorted_bytes(lines, length);
  return plan;
}
MACA_KERNEL("sort", [](const Request& r) { return first_of_lines(r, r.boolean("descending", false), -1); });
MACA_KERNEL("topk", [](const Request& r) {
  // PyTorch's result of a number is a number, also where none was asked for
  const int64_t k = r.in(0).sizes.empty() ? 1 : r.integer("k");
  if (k < 0) throw Invalid("topk(): k is negative");
  return first_of_lines(r, r.boolean("largest", true), k);
});

// Operators that choose one element of a sorted line.
enum class Pick { Kth, Median, NanMedian, Mode };
struct OneOfLine {
  View in, values, indices;
  SortedLines s;
  int64_t length, k;
  uint64_t nan;
  Pick pick;
  bool has_nan;
  __device__ int64_t place_of(const uint64_t* keys) const {
    if (pick == Pick::Kth) return k;
    if (pick == Pick::Mode) {  // the smallest of the most frequent, its last copy; a NaN equals no other
      int64_t best = 0, chosen = 0, run = 0;
      for (int64_t i = 0; i < length; ++i) {
        ++run;
        if (i + 1 < length && keys[i] == keys[i + 1] && !(has_nan && keys[i] == nan)) continue;
        if (run > best) best = run, chosen = i;
        run = 0;
      }
      return chosen;
    }
    int64_t low = 0, high = has_nan ? length : 0;  // where NaNs begin
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (keys[middle] < nan)
        low = middle + 1;
      else
        high = middle;
    }
    const int64_t numbers = has_nan ? low : length;
    if (pick == Pick::Median && numbers < length) return numbers;
    return ((numbers ? numbers : length) - 1) / 2;
  }
  __device__ void operator()(int64_t line) const {
    const int64_t place = s.places[line * s.width + place_of(s.keys + line * s.width)];
    copy_item(values.data, values.at(line), in.data, in.at(line * length + place), item_size(in.dtype));
    if (indices.data) indices.set(line, place);
  }
};
struct MedianOfNothing {
  View out;
  __device__ void operator()(int64_t) const {
    if (is_floating(out.dtype))
      out.set(0, std::numeric_limits<double>::quiet_NaN());
    else
      out.set(0, std::numeric_limits<int64_t>::min());
  }
};
std::unique_ptr<Plan> one_of_line(const Request& r, Pick pick, bool is_whole) {
  const Operand in = r.memory(0), values = r.out(0), indices = is_whole ? Operand() : r.out(1);
  if (values.dtype != in.dtype || (!is_whole && indices.dtype != Dtype::I64)) throw Invalid("dtypes that do not fit");
  const int64_t rank = std::max(in.rank(), 1), given = r.integer("dim", -1), dim = given < 0 ? given + rank : given;
  if (!is_whole && (dim < 0 || dim >= rank)) throw Invalid("a dimension that the operand has not");
  const int64_t length = is_whole ? in.numel() : in.rank() ? in.sizes[static_cast<size_t>(dim)] : 1;
  OneOfLine body{is_whole ? View(in) : lines_of(in, dim),
                 View(values),
                 is_whole ? View() : View(indices),
                 {},
                 length,
                 0,
                 nan_key(in.dtype),
                 pick,
                 is_floating(in.dtype)};
  if (pick == Pick::Kth) {
    body.k = r.integer("k") - 1;
    if (body.k < 0 || body.k >= length) throw Invalid("kthvalue(): k is out of range");
  }
  if (is_whole && length == 0)
    return make_plan([=](const Launching& l) { return each(l, 1, MedianOfNothing{body.values.on(l)}); });
  if (length == 0 && values.numel() > 0) throw Invalid("a line without elements has nothing to choose");
  const int64_t lines = length ? body.in.count / length : 0;
  if (values.numel() != lines) throw Invalid("results of other sizes");
  auto plan = make_plan(
      [=](const Launching& l) {
        if (lines == 0) return cudaSuccess;
        OneOfLine mine = body;
        mine.s = sorted_lines_at(l.launch.workspace, lines, length);
        if (const cudaError_t said = sort_lines_of(l, body.in, length, false, mine.s); said != cudaSuccess) return said;
        mine.in = body.in.on(l), mine.values = body.values.on(l), mine.indices = body.indices.on(l);
        return each(l, lines, mine);
      },
      "a bitonic network");
  plan->workspace_bytes = sorted_bytes(lines, length);
  return plan;
}
MACA_KERNEL("kthvalue", [](const Request& r) { return one_of_line(r, Pick::Kth, false); });
MACA_KERNEL("mode", [](const Request& r) { return one_of_line(r, Pick::Mode, false); });
MACA_KERNEL("median", [](const Request& r) { return one_of_line(r, Pick::Median, !r.has("dim")); });
MACA_KERNEL("nanmedian", [](const Request& r) { return one_of_line(r, Pick::NanMedian, !r.has("dim")); });

// --- binary search: compared as int64, or as double
template <class C> struct Search {
  View sequence, values, sorter, out;
  int64_t length, row;  // values that share a sequence; 0: all do
  bool is_right;
  C number;
  Finding* outside;
  __device__ void operator()(int64_t i) const {
    const C value = values.data ? values.get<C>(i) : number;
    const int64_t base = row ? i / row * length : 0;
    int64_t low = 0, high = length;
    while (low < high) {  // written so that a NaN goes to the end, as in PyTorch
      const int64_t middle = low + (high - low) / 2;
      int64_t at = middle;
      if (sorter.data) {
        at = sorter.get<int64_t>(base + middle);
        if (at < 0 || at >= length) {
          report(outside);
          break;
        }
      }
      const C x = sequence.get<C>(base + at);
      if (is_right ? !(x > value) : !(x >= value))
        low = middle + 1;
      else
        high = middle;
    }
    out.set(i, low);
  }
};
std::unique_ptr<Plan> search(const Request& r, const Operand& sequence, const Operand& values, int slot,
                             const Operand& sorter, bool is_right) {
  const Operand out = r.out();
  if (sequence.rank() == 0) throw Declined("a 0-dim sequence");
  if (out.dtype != Dtype::I64 && out.dtype != Dtype::I32) throw Invalid("positions are int64 or int32");
  if (sorter.present() && (sorter.dtype != Dtype::I64 || sorter.sizes != sequence.sizes))
    throw Invalid("the sorter is int64 and has the sequence's size");
  if (slot < 0 && values.sizes != out.sizes) throw Invalid("a position for each value");
  const int64_t length = sequence.sizes.back();
  int64_t row = 0;
  if (sequence.rank() > 1) {
    if (slot >= 0 || values.rank() != sequence.rank() ||
        !std::equal(values.sizes.begin(), values.sizes.end() - 1, sequence.sizes.begin()))
      throw Invalid("a row of values for each sequence");
    row = values.sizes.back();
  }
  const auto make = [&](auto c) {
    using C = decltype(c);
    Search<C> body{View(sequence),
                   slot < 0 ? View(values) : View(),
                   sorter.present() ? View(sorter) : View(),
                   View(out),
                   length,
                   row,
                   is_right,
                   C(0),
                   nullptr};
    return make_plan([=](const Launching& l) {
      return checked_launch(
          l, MACA_ERROR_VALUE, "torch.searchsorted(): sorter index out of range", [&](Finding* finding) {
            auto mine = body;
            mine.sequence = body.sequence.on(l), mine.values = body.values.on(l), mine.sorter = body.sorter.on(l);
            mine.out = body.out.on(l), mine.outside = finding;
            if (slot >= 0) {
              mine.number = maca::MACA_ISA::pointwise::value_of(l.scalar(slot)).template as<C>();
              // to what it is compared with
              if (is_floating(sequence.dtype)) mine.number = rounded(mine.number, sequence.dtype);
            }
            return each(l, body.out.count, mine);
          });
    });
  };
  const bool is_whole = !is_floating(sequence.dtype) && slot < 0 && !is_floating(values.dtype);
  return is_whole ? make(int64_t{}) : make(double{});
}
int slot_of(const Request& r, const Operand* values) {
  return values ? values->scalar() ? values->scalar_slot : -1 : r.scalar("self");
}
MACA_KERNEL("searchsorted", [](const Request& r) {
  const bool is_number = r.has("self.scalar");
  const bool is_right = r.boolean("right", false) || r.text("side", "left") == "right";
  const int sorter = is_number ? 1 : 2;
  const Operand values = is_number ? Operand() : r.in(1);
  return search(r, r.memory(0), values, slot_of(r, is_number ? nullptr : &values),
                sorter < r.inputs() ? r.in(sorter) : Operand(), is_right);
});
MACA_KERNEL("bucketize", [](const Request& r) {
  const bool is_number = r.has("self.scalar");
  const Operand values = is_number ? Operand() : r.in(0);
  return search(r, r.memory(is_number ? 0 : 1), values, slot_of(r, is_number ? nullptr : &values), Operand(),
                r.boolean("right", false));
});

// --- unique, in its two halves, on rows of a row-major matrix. Rows with a NaN equal no other, -0 equals 0, and a
// group shows its first row.
struct RowKeys {  // entries of column `column`, in the order so far
  View rows;
  SortedLines s;
  const int64_t* order;
  int64_t n, columns, column;
  __device__ void operator()(int64_t i) const {
    const bool is_padding = i >= n;
    s.keys[i] = is_padding ? ~uint64_t{0} : key_at(rows.data, rows.dtype, order[i] * columns + column);
    s.places[i] = is_padding ? INT64_MAX : i;
  }
};
struct Iota {
  int64_t* to;
  __device__ void operator()(int64_t i) const { to[i] = i; }
};
struct Reordered {
  SortedLines s;
  const int64_t* from;
  int64_t* to;
  __device__ void operator()(int64_t i) const { to[i] = from[s.places[i]]; }
};
struct Groups {  // a row that differs from the one before begins a group
  View rows;
  const int64_t* order;
  int64_t *group, *count;
  int64_t columns;
  uint64_t nan;
  __device__ bool chosen(int64_t i) const {
    if (i == 0) return false;  // the number of the first group is 0
    for (int64_t c = 0; c < columns; ++c) {
      const uint64_t a = key_at(rows.data, rows.dtype, order[i - 1] * columns + c);
      if (a != key_at(rows.data, rows.dtype, order[i] * columns + c) || (is_floating(rows.dtype) && a == nan))
        return true;
    }
    return false;
  }
  __device__ void take(int64_t i, int64_t before, bool is_chosen) const { group[i] = before + is_chosen; }
  __device__ void finish(int64_t) const {}
};
struct CountGroups {
  const int64_t* group;
  int64_t* count;
  int64_t n;
  __device__ void operator()(int64_t) const { *count = n ? group[n - 1] + 1 : 0; }
};
bool is_row_major(const Operand& o) {
  int64_t stride = 1;
  for (size_t d = o.sizes.size(); d-- > 0;) {
    if (o.sizes[d] != 1 && o.strides[d] != stride) return false;
    stride *= o.sizes[d];
  }
  return true;
}
MACA_KERNEL("unique_group", [](const Request& r) {
  const Operand in = r.memory(0), order = r.out(0), groups = r.out(1), count = r.out(2);
  const bool is_consecutive = r.boolean("consecutive");
  if (in.rank() != 2 || !is_row_major(in)) throw Invalid("unique: a row-major matrix");
  const int64_t n = in.sizes[0], m = in.sizes[1], width = sorted_width(n);
  for (const Operand* o : {&order, &groups})
    if (o->dtype != Dtype::I64 || !is_row_major(*o) || o->numel() != n)
      throw Invalid("unique: a position for each row");
  if (count.dtype != Dtype::I64) throw Invalid("unique: the count is int64");
  const uint64_t entries = static_cast<uint64_t>(width) * 16, other = static_cast<uint64_t>(n) * 8;
  auto plan = make_plan([=](const Launching& l) {
    char* const workspace = static_cast<char*>(l.launch.workspace);
    int64_t* const to = static_cast<int64_t*>(l.data(order));
    int64_t* const scratch = reinterpret_cast<int64_t*>(workspace + entries);
    const View rows = View(in).on(l);
    const SortedLines s = sorted_lines_at(workspace, 1, n);
    cudaError_t said = each(l, n, Iota{to});
    for (int64_t column = m; column-- > 0 && n > 0 && !is_consecutive && said == cudaSuccess;) {
      said = each(l, width, RowKeys{rows, s, to, n, m, column});
      if (said == cudaSuccess) said = sort_lines(l, s);
      if (said == cudaSuccess) said = each(l, n, Reordered{s, to, scratch});
      if (said == cudaSuccess) said = cudaMemcpyAsync(to, scratch, other, cudaMemcpyDeviceToDevice, l.stream);
    }
    int64_t* const group = static_cast<int64_t*>(l.data(groups));
    int64_t* const number = static_cast<int64_t*>(l.data(count));
    if (said == cudaSuccess)
      said = launch_selection(l, n, Groups{rows, to, group, number, m, nan_key(in.dtype)}, workspace + entries + other);
    return said == cudaSuccess ? each(l, 1, CountGroups{group, number, n}) : said;
  });
  plan->workspace_bytes = entries + other + select_workspace(n);
  return plan;
});

struct FillGroups {
  View rows;
  const int64_t *order, *group;
  void* values;
  int64_t *inverse, *counts;
  int64_t n, columns, count;
  Finding* wrong;
  __device__ void operator()(int64_t i) const {
    const int64_t g = group[i], row = order[i];
    if (g < 0 || g >= count || row < 0 || row >= n) return report(wrong);
    inverse[row] = g;
    if (i > 0 && group[i - 1] == g) return;
    int64_t low = i, high = n;  // where the next group begins
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (group[middle] <= g)
        low = middle + 1;
      else
        high = middle;
    }
    counts[g] = low - i;
    for (int64_t c = 0; c < columns; ++c)
      copy_item(values, g * columns + c, rows.data, row * columns + c, item_size(rows.dtype));
  }
};
MACA_KERNEL("unique_fill", [](const Request& r) {
  const Operand in = r.memory(0), order = r.memory(1), groups = r.memory(2), values = r.out(0), inverse = r.out(1),
                counts = r.out(2);
  if (in.rank() != 2) throw Invalid("unique: a row-major matrix");
  const int64_t n = in.sizes[0], m = in.sizes[1], count = counts.numel();
  for (const Operand* o : {&in, &order, &groups, &values, &inverse, &counts})
    if (!is_row_major(*o)) throw Invalid("unique: row-major results");
  if (inverse.numel() != n || values.numel() != count * m || order.numel() != n || groups.numel() != n)
    throw Invalid("unique: results of other sizes");
  return make_plan([=](const Launching& l) {
    return checked_launch(l, MACA_ERROR_VALUE, "unique: a group", [&](Finding* finding) {
      return each(l, n,
                  FillGroups{View(in).on(l), static_cast<const int64_t*>(l.data(order)),
                             static_cast<const int64_t*>(l.data(groups)), l.data(values),
                             static_cast<int64_t*>(l.data(inverse)), static_cast<int64_t*>(l.data(counts)), n, m, count,
                             finding});
    });
  });
});

}  // namespace
}  // namespace maca_cuda
