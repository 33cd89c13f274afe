// _embedding_bag, its gradients, and embedding_renorm_: rows of a table, summed, averaged or maximized by bag. Rows of
// a bag are added in order.
#include "each.h"

namespace maca_cuda {
namespace {

enum Mode { kSum = 0, kMean = 1, kMax = 2 };
constexpr const char* kOutside =
    "Index %lld of input takes value %lld which is not in the valid range [0, %lld): Expected idx >= 0 && idx < "
    "num_embeddings";

void expect_index(const Operand& o) {
  if (o.dtype != Dtype::I64 && o.dtype != Dtype::I32) throw Invalid("indices and offsets are int64 or int32");
}
struct Table {
  View view;
  int64_t rows = 0, width = 0, row_step = 0, step = 0;
  Table() = default;
  explicit Table(const Operand& o) : view(o) {
    if (o.rank() != 2) throw Invalid("an embedding table has two dimensions");
    rows = o.sizes[0], width = o.sizes[1], row_step = o.strides[0], step = o.strides[1];
  }
  Table on(const Launching& l) const {
    Table t = *this;
    t.view = view.on(l);
    return t;
  }
  __device__ double get(int64_t row, int64_t d) const { return view.get_at<double>(row * row_step + d * step); }
  __device__ void set(int64_t row, int64_t d, double value) const { view.set_at(row * row_step + d * step, value); }
  // Is the word a row? Reported with where it stands.
  __device__ bool has(int64_t word, int64_t i, Finding* outside) const {
    if (word >= 0 && word < rows) return true;
    if (!atomicExch(&outside->is_found, 1))
      outside->index = i, outside->dimension = static_cast<int32_t>(word), outside->extent = rows;
    return false;
  }
};

struct Bags {
  Table table, out;
  View indices, offsets, scales, bag_of, size_of, chosen;
  int64_t bags, mode, padding, count;
  bool has_last;
  Finding *outside, *unsorted;

  __device__ int64_t begin_of(int64_t b) const {
    if (b >= bags || (b == offsets.count && !has_last)) return count;
    return offsets.get<int64_t>(b);
  }
  // One thread a bag and column; the first column's writes what is of the bag.
  __device__ void operator()(int64_t i) const {
    const int64_t width = table.width, b = width ? i / width : i, d = width ? i % width : 0;
    const int64_t begin = begin_of(b), end = b + 1 >= bags ? count : begin_of(b + 1);
    if (begin < 0 || end < begin || end > count || (b == 0 && begin != 0)) {
      report(unsorted, b == 0 ? begin : end);
      return;
    }
    double sum = 0;
    int64_t size = 0, best = 0;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t word = indices.get<int64_t>(k);
      if (!table.has(word, k, outside)) continue;
      if (d == 0 && bag_of.count) bag_of.set(k, b);
      if (word == padding) continue;
      if (width) {
        const double value = table.get(word, d);
        if (mode == kMax) {
          if (size == 0 || value > sum) sum = value, best = word;
        } else {
          sum += scales.data ? scales.get<double>(k) * value : value;
        }
      }
      ++size;
    }
    if (width) out.set(b, d, mode == kMean && size > 1 ? sum / static_cast<double>(size) : sum);
    if (width && mode == kMax && chosen.count) chosen.set(b * width + d, best);
    if (d != 0) return;
    const int64_t counted = mode == kSum ? 0 : size;
    if (b < size_of.count) size_of.set(b, counted);
    if (mode != kMax && b < chosen.count) chosen.set(b, counted);
  }
};
struct ZeroTail {  // what no bag writes
  View of;
  int64_t first;
  __device__ void operator()(int64_t i) const { of.set(first + i, int64_t{0}); }
};
MACA_KERNEL("_embedding_bag", [](const Request& r) {
  const Operand weight = r.memory(0), indices = r.memory(1), offsets = r.memory(2), scales = r.in(3), out = r.out(0);
  if (!is_floating(out.dtype) || weight.dtype != out.dtype) throw Declined("embedding tables are floating");
  if (indices.rank() != 1 || offsets.rank() != 1) throw Invalid("indices and offsets are vectors");
  expect_index(indices), expect_index(offsets);
  if (scales.present() && scales.sizes != indices.sizes) throw Invalid("a weight for each index");
  Bags body{};
  body.table = Table(weight), body.out = Table(out);
  body.indices = View(indices), body.offsets = View(offsets);
  if (scales.present()) body.scales = View(scales);
  body.bag_of = View(r.out(1)), body.size_of = View(r.out(2)), body.chosen = View(r.out(3));
  body.mode = r.integer("mode", 0), body.padding = r.integer("padding_idx", -1);
  body.has_last = r.boolean("include_last_offset", false), body.count = indices.numel();
  body.bags = offsets.numel() - (body.has_last ? 1 : 0);
  if (body.bags < 0) throw Invalid("include_last_offset: number of offset should be at least 1");
  if (body.bags > body.out.rows || body.out.width != body.table.width)
    throw Invalid("embedding_bag: the result's size");
  if (body.mode == kMax && body.chosen.count && body.chosen.count != body.bags * body.table.width)
    throw Invalid("an index for each maximum");
  return make_plan(
      [=](const Launching& l) {
        return checked_launch(l, MACA_ERROR_VALUE, kOutside, [&](Finding* outside) {
          return checked_launch(
              l, MACA_ERROR_VALUE, "embedding_bag: offsets begin with 0 and increase, but one is %lld",
              [&](Finding* unsorted) {
                Bags mine = body;
                mine.table = body.table.on(l), mine.out = body.out.on(l), mine.indices = body.indices.on(l);
                mine.offsets = body.offsets.on(l), mine.scales = body.scales.on(l), mine.bag_of = body.bag_of.on(l);
                mine.size_of = body.size_of.on(l), mine.chosen = body.chosen.on(l);
                mine.outside = outside, mine.unsorted = unsorted;
                const int64_t width = body.table.width ? body.table.width : 1;
                const int64_t written = body.mode == kMax ? body.bags * body.table.width : body.bags;
                cudaError_t said = each(l, body.bags * width, mine);
                if (said == cudaSuccess)
                  said = each(l, body.size_of.count - body.bags, ZeroTail{mine.size_of, body.bags});
                return said == cudaSuccess ? each(l, body.chosen.count - written, ZeroTail{mine.chosen, written})
                                           : said;
              });
        });
      },
      "a thread for each column of a bag");
});

// A column of the table's gradient is one thread's, which adds its words in their order.
struct TableGradient {
  Table grad, out;
  View indices, bag_of, size_of, chosen, scales;
  double* sums;     // a row-major image
  int64_t* counts;  // of each word, where the frequency scales
  int64_t mode, padding, count;
  Finding* outside;
  __device__ void operator()(int64_t d) const {
    const int64_t width = out.width;
    for (int64_t w = 0; w < out.rows; ++w) sums[w * width + d] = 0;
    if (mode == kMax) {
      for (int64_t b = 0; b < grad.rows; ++b) {
        if (b < size_of.count && size_of.get<int64_t>(b) == 0) continue;
        const int64_t word = chosen.get<int64_t>(b * width + d);
        if (out.has(word, b, outside) && word != padding) sums[word * width + d] += grad.get(b, d);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t word = indices.get<int64_t>(i), b = bag_of.get<int64_t>(i);
        if (!out.has(word, i, outside) || word == padding || !grad.has(b, i, outside)) continue;
        double factor = scales.data ? scales.get<double>(i) : 1.0;
        if (counts) factor /= static_cast<double>(counts[word]);
        if (mode == kMean) {
          const int64_t size = size_of.get<int64_t>(b);
          factor /= static_cast<double>(size > 1 ? size : 1);
        }
        sums[word * width + d] += factor * grad.get(b, d);
      }
    }
    for (int64_t w = 0; w < out.rows; ++w) out.set(w, d, sums[w * width + d]);
  }
};
struct CountWords {
  View indices;
  unsigned long long* counts;
  int64_t rows;
  __device__ void operator()(int64_t i) const {
    const int64_t word = indices.get<int64_t>(i);
    if (word >= 0 && word < rows) atomicAdd(counts + word, 1ull);
  }
};
MACA_KERNEL("_embedding_bag_dense_backward", [](const Request& r) {
  const Operand grad = r.memory(0), indices = r.memory(1), bag_of = r.memory(2), size_of = r.memory(3),
                chosen = r.memory(4), scales = r.in(5), out = r.out();
  if (!is_floating(out.dtype) || grad.dtype != out.dtype) throw Declined("gradients are floating");
  for (const Operand* o : {&indices, &bag_of, &size_of, &chosen}) expect_index(*o);
  TableGradient body{};
  body.grad = Table(grad), body.out = Table(out);
  body.indices = View(indices), body.bag_of = View(bag_of), body.size_of = View(size_of), body.chosen = View(chosen);
  if (scales.present()) body.scales = View(scales);
  body.mode = r.integer("mode"), body.padding = r.integer("padding_idx", -1), body.count = indices.numel();
  const bool by_frequency = r.boolean("scale_grad_by_freq", false);
  if (body.grad.width != body.out.width) throw Invalid("the gradient has another width");
  if (body.mode != kMax && bag_of.numel() != indices.numel()) throw Invalid("a bag for each index");
  if (body.mode == kMean && size_of.numel() < body.grad.rows) throw Invalid("a size for each bag");
  if (scales.present() && scales.numel() != indices.numel()) throw Invalid("a weight for each index");
  if (body.mode == kMax && chosen.numel() != body.grad.rows * body.grad.width)
    throw Invalid("an index for each maximum");
  const int64_t rows = body.out.rows, image = rows * body.out.width;
  auto plan = make_plan(
      [=](const Launching& l) {
        return checked_launch(l, MACA_ERROR_VALUE, kOutside, [&](Finding* outside) {
          TableGradient mine = body;
          mine.grad = body.grad.on(l), mine.out = body.out.on(l), mine.indices = body.indices.on(l);
          mine.bag_of = body.bag_of.on(l), mine.size_of = body.size_of.on(l), mine.chosen = body.chosen.on(l);
          mine.scales = body.scales.on(l), mine.outside = outside;
          mine.sums = static_cast<double*>(l.launch.workspace);
          if (by_frequency && rows > 0) {
            mine.counts = reinterpret_cast<int64_t*>(mine.sums + image);
            cudaError_t said = cudaMemsetAsync(mine.counts, 0, static_cast<size_t>(rows) * 8, l.stream);
            if (said == cudaSuccess)
              said = each(l, body.count,
                          CountWords{mine.indices, reinterpret_cast<unsigned long long*>(mine.counts), rows});
            if (said != cudaSuccess) return said;
          }
          return each(l, body.out.width, mine);
        });
      },
      "a thread for each column");
  plan->workspace_bytes = static_cast<uint64_t>(image + (by_frequency ? rows : 0)) * 8;
  return plan;
});

struct ScaleGradient {
  Table grad, table;
  View indices, offsets, bag_of, out;
  int64_t padding;
  Finding* outside;
  __device__ void operator()(int64_t i) const {
    const int64_t word = indices.get<int64_t>(i);
    int64_t b = 0;
    if (bag_of.count == indices.count) {
      b = bag_of.get<int64_t>(i);
    } else {  // PyTorch's CPU leaves it out where a plain sum does not need it
      while (b + 1 < offsets.count && offsets.get<int64_t>(b + 1) <= i) ++b;
    }
    double dot = 0;
    if (word != padding && table.has(word, i, outside) && grad.has(b, i, outside))
      for (int64_t d = 0; d < grad.width; ++d) dot += grad.get(b, d) * table.get(word, d);
    out.set(i, dot);
  }
};
MACA_KERNEL("_embedding_bag_per_sample_weights_backward", [](const Request& r) {
  const Operand grad = r.memory(0), weight = r.memory(1), indices = r.memory(2), offsets = r.memory(3),
                bag_of = r.memory(4), out = r.out();
  if (r.integer("mode") != kSum) throw Declined("per_sample_weights go with sums only");
  if (!is_floating(out.dtype)) throw Declined("gradients are floating");
  for (const Operand* o : {&indices, &offsets, &bag_of}) expect_index(*o);
  if (out.numel() != indices.numel()) throw Invalid("a gradient for each index");
  const ScaleGradient body{
      Table(grad), Table(weight), View(indices), View(offsets), View(bag_of), View(out), r.integer("padding_idx", -1),
      nullptr};
  if (body.grad.width != body.table.width) throw Invalid("the gradient has another width");
  return make_plan([=](const Launching& l) {
    return checked_launch(l, MACA_ERROR_VALUE, kOutside, [&](Finding* outside) {
      return each(l, body.out.count,
                  ScaleGradient{body.grad.on(l), body.table.on(l), body.indices.on(l), body.offsets.on(l),
                                body.bag_of.on(l), body.out.on(l), body.padding, outside});
    });
  });
});

// Rows that are named and whose norm is above the largest are shrunk to it: by the first thread that comes.
struct Renorm {
  Table table;
  View indices;
  int* claims;
  double largest, p;
  Finding* outside;
  __device__ void operator()(int64_t i) const {
    const int64_t word = indices.get<int64_t>(i);
    if (word < 0 || word >= table.rows) return report(outside, word);
    if (atomicExch(claims + word, 1)) return;
    const bool is_extremum = p - p != 0;
    double norm = 0;
    for (int64_t d = 0; d < table.width; ++d) {
      const double x = std::fabs(table.get(word, d));
      if (is_extremum)
        norm = x > norm || x != x ? x : norm;
      else
        norm += p == 0 ? (x != 0 ? 1.0 : 0.0) : p == 1 ? x : p == 2 ? x * x : std::pow(x, p);
    }
    if (!is_extremum && p != 0 && p != 1) norm = p == 2 ? std::sqrt(norm) : std::pow(norm, 1 / p);
    if (!(norm > largest)) return;
    const double scale = largest / (norm + 1e-7);
    for (int64_t d = 0; d < table.width; ++d) table.set(word, d, table.get(word, d) * scale);
  }
};
MACA_KERNEL("embedding_renorm_", [](const Request& r) {
  const Operand table = r.outputs() ? r.out() : r.memory(0), indices = r.memory(1);
  if (!is_floating(table.dtype)) throw Declined("embedding tables are floating");
  expect_index(indices);
  const Renorm body{Table(table), View(indices), nullptr, r.number("max_norm"), r.number("norm_type"), nullptr};
  auto plan = make_plan(
      [=](const Launching& l) {
        if (body.indices.count == 0) return cudaSuccess;
        return checked_launch(l, MACA_ERROR_INDEX, "index out of range in self", [&](Finding* outside) {
          Renorm mine = body;
          mine.table = body.table.on(l), mine.indices = body.indices.on(l), mine.outside = outside;
          mine.claims = static_cast<int*>(l.launch.workspace);
          const cudaError_t said =
              cudaMemsetAsync(mine.claims, 0, static_cast<size_t>(body.table.rows) * sizeof(int), l.stream);
          return said == cudaSuccess ? each(l, body.indices.count, mine) : said;
        });
      },
      "a thread for each index");
  plan->workspace_bytes = static_cast<uint64_t>(body.table.rows) * sizeof(int);
  return plan;
});

}  // namespace
}  // namespace maca_cuda
