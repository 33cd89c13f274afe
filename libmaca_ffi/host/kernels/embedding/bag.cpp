// _embedding_bag, its gradients, and embedding_renorm_: rows of a table, summed, averaged or maximized by bag.
//
// Indices and offsets are int32 or int64 and row-major. Rows of a bag are added in order, in float for the halves.
#include <cmath>
#include <limits>

#include "kernels/indexing/index.h"
#include "conversion.h"
#include "row_sums.h"

namespace maca::MACA_ISA {
namespace {

enum Mode { kSum = 0, kMean = 1, kMax = 2 };

std::vector<int64_t> whole_numbers(const Launch& launch, const Operand& o) {
  std::vector<int64_t> values(static_cast<size_t>(o.numel()));
  if (!values.empty()) load_tile(Compute::I64, values.data(), o.dtype, launch.data(o), 1, o.numel());
  return values;
}
void store_whole(const Launch& launch, const Operand& o, const std::vector<int64_t>& values) {
  if (o.numel()) store_tile(Compute::I64, values.data(), o.dtype, launch.data(o), 1, o.numel());
}
void expect_index(const Operand& o) {
  if (o.dtype != Dtype::I64 && o.dtype != Dtype::I32) throw Invalid("indices and offsets are int64 or int32");
  if (!o.contiguous()) throw Invalid("indices and offsets are row-major");
}

// First index of each bag and, at the end, of the bag after the last.
std::vector<int64_t> bounds_of(std::vector<int64_t> offsets, int64_t indices, bool include_last) {
  const auto fail = [](const std::string& text) { return LaunchError(MACA_ERROR_VALUE, text); };
  if (offsets.empty()) {
    if (include_last) throw fail("include_last_offset: number of offset should be at least 1");
    return {0};
  }
  if (offsets[0] != 0)
    throw fail(
        "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
        "However, got " +
        std::to_string(offsets[0]));
  if (offsets.back() > indices)
    throw fail("offsets[-1] can not be greater than input's length " + std::to_string(indices) +
               " but got offsets[-1] of " + std::to_string(offsets.back()));
  if (include_last)
    offsets.back() = indices;
  else
    offsets.push_back(indices);
  for (size_t b = 1; b < offsets.size(); ++b)
    if (offsets[b] < offsets[b - 1] || offsets[b] > indices)
      throw fail("embedding_bag: offsets have to be increasing, but got " + std::to_string(offsets[b]));
  return offsets;
}

struct Table {
  int64_t rows, width, row_step, step;
  explicit Table(const Operand& o) {
    if (o.rank() != 2) throw Invalid("an embedding table has two dimensions");
    rows = o.sizes[0], width = o.sizes[1], row_step = o.strides[0], step = o.strides[1];
  }
  int64_t row(int64_t word, int64_t i) const {
    if (word < 0 || word >= rows)
      // PyTorch's CPU has a text for each of its two ways: the words of both
      throw LaunchError(MACA_ERROR_VALUE, "Index " + std::to_string(i) + " of input takes value " +
                                              std::to_string(word) + " which is not in the valid range [0, " +
                                              std::to_string(rows) + "): Expected idx >= 0 && idx < num_embeddings");
    return word * row_step;
  }
};

// Do all words name rows of the table, none of them `padding`?
template <class I> bool all_plain(const I* words, int64_t count, int64_t rows, int64_t padding) {
  return std::all_of(words, words + count, [=](I w) { return w >= 0 && w < rows && w != padding; });
}

// Each bag's sum to a row of the result.
template <class T, class I>
void sum_bags(const Launch& launch, const I* words, const std::vector<int64_t>& bounds, const RowSums<T, I>& rows,
              const Table& to, const Operand& out, const Operand& bag_of) {
  using A = compute_t<T>;
  const auto bags = static_cast<int64_t>(bounds.size()) - 1;
  if (bags > to.rows) throw LaunchError(MACA_ERROR_VALUE, "embedding_bag: more bags than results");
  T* result = launch.data<T>(out);
  const auto name = [&](int64_t first, int64_t end, int64_t b) {  // the bag of each index
    with_index(bag_of.dtype, [&](auto index) {
      using N = decltype(index);
      std::fill(launch.data<N>(bag_of) + first, launch.data<N>(bag_of) + end, static_cast<N>(b));
    });
  };
  const bool named = bag_of.numel() == bounds.back();
  parallel_for(bags, std::max<int64_t>(1, kGrain * bags / std::max<int64_t>(1, bounds.back() * to.width)),
               [&](int64_t begin, int64_t end) {
                 std::vector<A> sum(static_cast<size_t>(to.width));
                 for (int64_t b = begin; b < end; ++b) {
                   const auto at = static_cast<size_t>(b);
                   rows.add(words, bounds[at], bounds[at + 1], sum.data());
                   if (named) name(bounds[at], bounds[at + 1], b);
                   for (int64_t d = 0; d < to.width; ++d)
                     result[b * to.row_step + d * to.step] = static_cast<T>(sum[static_cast<size_t>(d)]);
                 }
               });
}

std::unique_ptr<Plan> bag(const Request& r) {
  const Operand weight = r.in(0), indices = r.in(1), offsets = r.in(2), scales = r.in(3);
  const Operand out = r.out(0), bag_of = r.out(1), size_of = r.out(2), chosen = r.out(3);
  const int64_t mode = r.integer("mode", 0), padding = r.integer("padding_idx", -1);
  const bool include_last = r.boolean("include_last_offset", false);
  expect_dtype(weight, out.dtype, "the table");
  if (indices.rank() != 1 || offsets.rank() != 1) throw Invalid("indices and offsets are vectors");
  expect_index(indices);
  expect_index(offsets);
  if (scales.present()) {
    expect_dtype(scales, out.dtype, "per_sample_weights");
    if (scales.sizes != indices.sizes) throw Invalid("a weight for each index");
  }
  if (mode == kMax && chosen.numel() && chosen.sizes != out.sizes) throw Invalid("an index for each maximum");
  const Table table(weight), to(out);
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(static_cast<uint64_t>((indices.numel() + to.rows) * table.width), [=](const Launch& launch) {
      bool plain = mode == kSum && table.step == 1;
      if (plain)
        with_index(indices.dtype, [&](auto index) {
          using I = decltype(index);
          const I* words = launch.data<const I>(indices);
          plain = all_plain(words, indices.numel(), table.rows, padding);
          if (!plain) return;
          const auto bounds = bounds_of(whole_numbers(launch, offsets), indices.numel(), include_last);
          sum_bags(launch, words, bounds,
                   RowSums<T, I>{launch.data<const T>(weight), table.row_step, table.width,
                                 scales.present() ? launch.data<const T>(scales) : nullptr,
                                 scales.present() ? scales.strides[0] : 0},
                   to, out, bag_of);
        });
      if (plain) {
        for (const Operand& o : {size_of, chosen})  // as PyTorch's: a sum does not count
          store_whole(launch, o, std::vector<int64_t>(static_cast<size_t>(o.numel()), 0));
        return;
      }
      const auto words = whole_numbers(launch, indices);
      const auto bounds = bounds_of(whole_numbers(launch, offsets), indices.numel(), include_last);
      const auto bags = static_cast<int64_t>(bounds.size()) - 1;
      if (bags > to.rows) throw LaunchError(MACA_ERROR_VALUE, "embedding_bag: more bags than results");
      std::vector<int64_t> owner(words.size()), sizes(static_cast<size_t>(bags), 0), best;
      for (size_t b = 0; b < sizes.size(); ++b)
        for (int64_t i = bounds[b]; i < bounds[b + 1]; ++i) {
          owner[static_cast<size_t>(i)] = static_cast<int64_t>(b);
          sizes[b] += words[static_cast<size_t>(i)] != padding;
        }
      if (mode == kMax) best.assign(static_cast<size_t>(bags * table.width), 0);
      const T* from = launch.data<const T>(weight);
      const T* scale = scales.present() ? launch.data<const T>(scales) : nullptr;
      T* result = launch.data<T>(out);
      parallel_for(bags, std::max<int64_t>(1, kGrain * bags / std::max<int64_t>(1, indices.numel() * table.width)),
                   [&](int64_t begin, int64_t end) {
                     std::vector<A> sum(static_cast<size_t>(table.width));
                     for (int64_t b = begin; b < end; ++b) {
                       const auto at = static_cast<size_t>(b);
                       std::fill(sum.begin(), sum.end(), A(0));
                       bool first = true;
                       for (int64_t i = bounds[at]; i < bounds[at + 1]; ++i) {
                         const int64_t word = words[static_cast<size_t>(i)];
                         const T* row = from + table.row(word, i);
                         if (word == padding) continue;
                         if (mode == kMax) {
                           int64_t* where = best.data() + b * table.width;
                           for (int64_t d = 0; d < table.width; ++d) {
                             const A value = static_cast<A>(row[d * table.step]);
                             A& top = sum[static_cast<size_t>(d)];
                             if (first || value > top) top = value, where[d] = word;
                           }
                           first = false;
                         } else if (scale) {
                           const A s = static_cast<A>(scale[i * scales.strides[0]]);
                           for (int64_t d = 0; d < table.width; ++d)
                             sum[static_cast<size_t>(d)] += s * static_cast<A>(row[d * table.step]);
                         } else {
                           for (int64_t d = 0; d < table.width; ++d)
                             sum[static_cast<size_t>(d)] += static_cast<A>(row[d * table.step]);
                         }
                       }
                       const A count = mode == kMean ? static_cast<A>(std::max<int64_t>(1, sizes[at])) : A(1);
                       for (int64_t d = 0; d < table.width; ++d)
                         result[b * to.row_step + d * to.step] = static_cast<T>(sum[static_cast<size_t>(d)] / count);
                     }
                   });
      store_whole(launch, bag_of, owner);
      // as PyTorch's: a sum does not count
      std::vector<int64_t> counted(static_cast<size_t>(size_of.numel()), 0);
      if (mode != kSum) std::copy(sizes.begin(), sizes.end(), counted.begin());
      store_whole(launch, size_of, counted);
      store_whole(launch, chosen, mode == kMax ? best : counted);
    });
  });
  if (!known) throw Declined("embedding tables are floating");
  return plan;
}

std::unique_ptr<Plan> dense_backward(const Request& r) {
  const Operand gradient = r.in(0), indices = r.in(1), bag_of = r.in(2), size_of = r.in(3), chosen = r.in(4),
                scales = r.in(5), out = r.out();
  const int64_t mode = r.integer("mode"), padding = r.integer("padding_idx", -1);
  const bool by_frequency = r.boolean("scale_grad_by_freq", false);
  expect_dtype(gradient, out.dtype, "the gradient");
  for (const Operand& o : {indices, bag_of, size_of, chosen}) expect_index(o);
  if (scales.present()) expect_dtype(scales, out.dtype, "per_sample_weights");
  if (mode != kMax && bag_of.numel() != indices.numel()) throw Invalid("a bag for each index");
  const Table from(gradient), to(out);
  if (from.width != to.width) throw Invalid("the gradient has another width");
  if (mode == kMean && size_of.numel() < from.rows) throw Invalid("a size for each bag");
  if (scales.present() && (scales.rank() != 1 || scales.numel() != indices.numel()))
    throw Invalid("a weight for each index");
  if (mode == kMax && chosen.numel() != from.rows * from.width) throw Invalid("an index for each maximum");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    using A = compute_t<T>;
    plan = make_plan(static_cast<uint64_t>((indices.numel() + to.rows) * to.width), [=](const Launch& launch) {
      const auto words = whole_numbers(launch, indices), owner = whole_numbers(launch, bag_of),
                 sizes = whole_numbers(launch, size_of), best = whole_numbers(launch, chosen);
      const T* g = launch.data<const T>(gradient);
      const T* scale = scales.present() ? launch.data<const T>(scales) : nullptr;
      T* result = launch.data<T>(out);
      std::vector<A> sums(static_cast<size_t>(to.rows * to.width), A(0));
      if (mode == kMax) {
        for (int64_t b = 0; b < from.rows; ++b) {
          if (b < static_cast<int64_t>(sizes.size()) && sizes[static_cast<size_t>(b)] == 0) continue;
          for (int64_t d = 0; d < to.width; ++d) {
            const int64_t word = best[static_cast<size_t>(b * to.width + d)];
            to.row(word, b);
            if (word == padding) continue;
            sums[static_cast<size_t>(word * to.width + d)] += static_cast<A>(g[b * from.row_step + d * from.step]);
          }
        }
      } else {
        std::vector<int64_t> count(static_cast<size_t>(to.rows), 0);
        for (size_t i = 0; i < words.size(); ++i) {
          to.row(words[i], static_cast<int64_t>(i));
          ++count[static_cast<size_t>(words[i])];
        }
        // columns are apart: each adds its words in index order
        parallel_for(to.width, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, indices.numel())),
                     [&](int64_t begin, int64_t end) {
                       for (size_t i = 0; i < words.size(); ++i) {
                         const int64_t word = words[i], b = owner[i];
                         if (word == padding) continue;
                         from.row(b, static_cast<int64_t>(i));
                         A factor = scale ? static_cast<A>(scale[static_cast<int64_t>(i) * scales.strides[0]]) : A(1);
                         if (by_frequency) factor /= static_cast<A>(count[static_cast<size_t>(word)]);
                         if (mode == kMean)
                           factor /= static_cast<A>(std::max<int64_t>(1, sizes[static_cast<size_t>(b)]));
                         for (int64_t d = begin; d < end; ++d)
                           sums[static_cast<size_t>(word * to.width + d)] +=
                               factor * static_cast<A>(g[b * from.row_step + d * from.step]);
                       }
                     });
      }
      for (int64_t w = 0; w < to.rows; ++w)
        for (int64_t d = 0; d < to.width; ++d)
          result[w * to.row_step + d * to.step] = static_cast<T>(sums[static_cast<size_t>(w * to.width + d)]);
    });
  });
  if (!known) throw Declined("gradients are floating");
  return plan;
}

std::unique_ptr<Plan> scales_backward(const Request& r) {
  const Operand gradient = r.in(0), weight = r.in(1), indices = r.in(2), offsets = r.in(3), bag_of = r.in(4),
                out = r.out();
  const int64_t padding = r.integer("padding_idx", -1);
  if (r.integer("mode") != kSum) throw Declined("per_sample_weights go with sums only");
  expect_dtype(gradient, out.dtype, "the gradient");
  expect_dtype(weight, out.dtype, "the table");
  for (const Operand& o : {indices, offsets, bag_of}) expect_index(o);
  if (out.numel() != indices.numel()) throw Invalid("a gradient for each index");
  const Table from(gradient), table(weight);
  if (from.width != table.width) throw Invalid("the gradient has another width");
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(indices.numel() * from.width), [=](const Launch& launch) {
      const auto words = whole_numbers(launch, indices);
      auto owner = whole_numbers(launch, bag_of);
      if (owner.size() != words.size()) {  // PyTorch's CPU leaves it out where a plain sum does not need it
        const auto starts = whole_numbers(launch, offsets);
        owner.assign(words.size(), 0);
        for (size_t i = 0; i < words.size(); ++i)
          owner[i] = std::upper_bound(starts.begin(), starts.end(), static_cast<int64_t>(i)) - starts.begin() - 1;
      }
      const T *g = launch.data<const T>(gradient), *w = launch.data<const T>(weight);
      T* result = launch.data<T>(out);
      const int64_t step = out.rank() ? out.strides[0] : 0;
      for (size_t i = 0; i < words.size(); ++i) {
        double dot = 0;
        if (words[i] != padding) {
          const int64_t row = table.row(words[i], static_cast<int64_t>(i)), b = from.row(owner[i], 0);
          for (int64_t d = 0; d < from.width; ++d)
            dot += static_cast<double>(g[b + d * from.step]) * static_cast<double>(w[row + d * table.step]);
        }
        result[static_cast<int64_t>(i) * step] = static_cast<T>(dot);
      }
    });
  });
  if (!known) throw Declined("gradients are floating");
  return plan;
}

// Rows that are named and whose norm is above the largest are shrunk to it.
std::unique_ptr<Plan> renorm(const Request& r) {
  const Operand table = target_of(r), indices = r.in(1);
  expect_index(indices);
  const double largest = r.number("max_norm"), p = r.number("norm_type");
  const Table to(table);
  std::unique_ptr<Plan> plan;
  const bool known = with_floating(table.dtype, [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(indices.numel() * to.width) * 4, [=](const Launch& launch) {
      auto words = whole_numbers(launch, indices);
      for (size_t i = 0; i < words.size(); ++i)
        if (words[i] < 0 || words[i] >= to.rows) throw LaunchError(MACA_ERROR_INDEX, "index out of range in self");
      std::sort(words.begin(), words.end());
      words.erase(std::unique(words.begin(), words.end()), words.end());
      T* data = launch.data<T>(table);
      for (const int64_t word : words) {
        T* row = data + word * to.row_step;
        double norm = 0;
        for (int64_t d = 0; d < to.width; ++d) {
          const double x = std::abs(static_cast<double>(row[d * to.step]));
          if (std::isinf(p))
            norm = x != x || norm != norm ? std::numeric_limits<double>::quiet_NaN() : std::max(norm, x);
          else
            norm += p == 0 ? (x != 0 ? 1.0 : 0.0) : p == 1 ? x : p == 2 ? x * x : std::pow(x, p);
        }
        if (!std::isinf(p) && p != 0 && p != 1) norm = p == 2 ? std::sqrt(norm) : std::pow(norm, 1 / p);
        if (!(norm > largest)) continue;
        const double scale = largest / (norm + 1e-7);
        for (int64_t d = 0; d < to.width; ++d)
          row[d * to.step] = static_cast<T>(static_cast<double>(row[d * to.step]) * scale);
      }
    });
  });
  if (!known) throw Declined("embedding tables are floating");
  return plan;
}

MACA_KERNEL("_embedding_bag", bag);
MACA_KERNEL("_embedding_bag_dense_backward", dense_backward);
MACA_KERNEL("_embedding_bag_per_sample_weights_backward", scales_backward);
MACA_KERNEL("embedding_renorm_", renorm);

}  // namespace
}  // namespace maca::MACA_ISA
