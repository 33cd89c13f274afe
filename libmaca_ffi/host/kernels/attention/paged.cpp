// Attention of tokens that are written, one a sequence, over keys and values in blocks of a common cache.
//
// query [sequences, heads, E], caches [blocks, block size, kv heads, E], blocks of each sequence int32 [sequences,
// most], lengths int32 [sequences]. A block or a slot that is not there is an IndexError.
#include <cmath>
#include <cstring>
#include <vector>

#include "conversion.h"
#include "kernel.h"
#include "kernels/reduction/lanes.h"
#include "shared/vector_math.h"
#include "threads/thread_pool.h"

namespace maca::MACA_ISA {
namespace {

constexpr int64_t kTokens = 16;               // of a block at once, that a sum of their values stays in registers
constexpr int64_t kSums = 4;                  // one would wait for each addition
constexpr int64_t kRow = 256 / kVectorBytes;  // vectors of a value at once, as of a head of 64: else lines come twice

// The products of a query with `count` keys. What is added up across lanes is for as many keys as there are lanes.
template <class C> void dots(const C* query, const C* const* keys, int64_t count, int64_t n, C* to) {
  using V = Vector<C>;
  constexpr int64_t kLanes = kLanesOf<V>;
  for (int64_t first = 0; first < count; first += kLanes) {
    const int64_t some = std::min(kLanes, count - first);
    V square[kLanes] = {};  // keys side by side
    C rest[kLanes] = {};
    for (int64_t t = 0; t < some; ++t) {
      const C* key = keys[first + t];
      V sums[kSums] = {};
      int64_t i = 0;
      for (; i + kSums * kLanes <= n; i += kSums * kLanes)
#pragma GCC unroll 4
        for (int64_t v = 0; v < kSums; ++v) sums[v] += read<V>(query + i + v * kLanes) * read<V>(key + i + v * kLanes);
      for (; i + kLanes <= n; i += kLanes) sums[0] += read<V>(query + i) * read<V>(key + i);
      for (; i < n; ++i) rest[t] += query[i] * key[i];
      square[t] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    transpose(square);
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half; ++i) square[i] += square[i + half];
    for (int64_t t = 0; t < some; ++t) to[first + t] = square[0][t] + rest[t];
  }
}

// Adds `count` values, each by its weight.
template <class C> void add_weighted(C* to, const C* const* values, const C* weights, int64_t count, int64_t n) {
  constexpr int64_t kLanes = kLanesOf<Vector<C>>;
  const auto add = [&]<int64_t N>(int64_t i) {
    Vector<C> sums[N];
    std::memcpy(sums, to + i, sizeof sums);
    for (int64_t t = 0; t < count; ++t)
#pragma GCC unroll 16
      for (int64_t v = 0; v < N; ++v) sums[v] += weights[t] * read<Vector<C>>(values[t] + i + v * kLanes);
    std::memcpy(to + i, sums, sizeof sums);
  };
  int64_t i = 0;
  for (; i + kRow * kLanes <= n; i += kRow * kLanes) add.template operator()<kRow>(i);
  for (; i + kSums * kLanes <= n; i += kSums * kLanes) add.template operator()<kSums>(i);
  for (; i + kLanes <= n; i += kLanes) add.template operator()<1>(i);
  for (; i < n; ++i)
    for (int64_t t = 0; t < count; ++t) to[i] += weights[t] * values[t][i];
}

struct Paged {
  Operand query, keys, values, blocks, lengths, slopes, out;
  double scale, softcap;
  int64_t window, heads, kv_heads, width, block, most;

  explicit Paged(const Request& r)
      : query(r.in(0)),
        keys(r.in(1)),
        values(r.in(2)),
        blocks(r.in(3)),
        lengths(r.in(4)),
        slopes(r.in(5)),
        out(r.out(0)),
        scale(r.number("scale")),
        softcap(r.number("softcap", 0.0)),
        window(r.integer("window", -1)) {
    if (query.rank() != 3 || keys.rank() != 4 || values.sizes != keys.sizes || blocks.rank() != 2 ||
        lengths.rank() != 1 || keys.sizes[3] != query.sizes[2] || blocks.sizes[0] != query.sizes[0] ||
        lengths.sizes[0] != query.sizes[0] || out.sizes != query.sizes || keys.sizes[2] == 0 ||
        query.sizes[1] % keys.sizes[2])
      throw Invalid("paged attention: the extents of the operands do not match");
    if (keys.dtype != query.dtype || values.dtype != query.dtype || out.dtype != query.dtype)
      throw Declined("paged attention of different dtypes");
    if (blocks.dtype != Dtype::I32 || lengths.dtype != Dtype::I32 || (slopes.present() && slopes.dtype != Dtype::F32))
      throw Declined("paged attention: blocks and lengths of int32, slopes of float32");
    heads = query.sizes[1], kv_heads = keys.sizes[2], width = query.sizes[2];
    block = keys.sizes[1], most = blocks.sizes[1];
  }

  int64_t block_of(const Launch& launch, int64_t sequence, int64_t i) const {
    const int64_t found = launch.data<const int32_t>(blocks)[sequence * blocks.strides[0] + i * blocks.strides[1]];
    if (found < 0 || found >= keys.sizes[0])
      throw LaunchError(MACA_ERROR_INDEX, "paged_attention: block " + std::to_string(found) + " of a cache of " +
                                              std::to_string(keys.sizes[0]));
    return found;
  }

  int64_t length_of(const Launch& launch, int64_t sequence) const {
    const int64_t length = launch.data<const int32_t>(lengths)[sequence * lengths.strides[0]];
    if (length > most * block)
      throw LaunchError(MACA_ERROR_INDEX, "paged_attention: a sequence of " + std::to_string(length) + " tokens has " +
                                              std::to_string(most) + " blocks of " + std::to_string(block));
    return length;
  }

  // The query's heads of keys [first, last) of a token, which lie side by side.
  template <class C> void attend(const Launch& launch, int64_t sequence, int64_t first, int64_t last) const {
    const int64_t group = heads / kv_heads, head = first * group, own = (last - first) * group;
    const int64_t end = length_of(launch, sequence), begin = window < 0 ? 0 : std::max<int64_t>(0, end - 1 - window);
    const int64_t count = std::max<int64_t>(0, end - begin);
    std::vector<C> room(static_cast<size_t>(own * (2 * width + count) + kTokens * width));
    C *queries = room.data(), *sums = queries + own * width, *rows = sums + own * width,
      *scores = rows + kTokens * width;
    const auto place = [&](const Operand& o, int64_t h) {
      return at(launch.data(o.slot), o.dtype, sequence * o.strides[0] + (head + h) * o.strides[1]);
    };
    for (int64_t h = 0; h < own; ++h)
      load_tile(compute_for<C>, queries + h * width, query.dtype, place(query, h), query.strides[2], width);
    // visit(head of the query, place of the first token, its row and those of the next, how many)
    const auto each = [&](const Operand& cache, auto&& visit) {
      const void* base = launch.data(cache.slot);
      const auto start_of = [&](int64_t i) {
        return block_of(launch, sequence, i / block) * cache.strides[0] + i % block * cache.strides[1];
      };
      const int64_t bytes = width * static_cast<int64_t>(item_size(cache.dtype));
      int64_t start = begin < end ? start_of(begin) : 0;
      for (int64_t i = begin, some; i < end; i += some) {
        some = std::min({kTokens, end - i, block - i % block});
        const int64_t next = i + some < end ? start_of(i + some) : start;
        for (int64_t k = first; k < last; ++k) {
          const int64_t from = start + k * cache.strides[2];
          const int64_t ahead = k + 1 < last ? from + cache.strides[2] : next + first * cache.strides[2];
          const C* found[kTokens];
          for (int64_t t = 0; t < some; ++t) {
            const int64_t row = t * cache.strides[1];
            found[t] = tile(rows + t * width, cache.dtype, base, from + row, cache.strides[3], width);
            // the rows after these, which lie behind sixteen strides: without it 1.4 ms of 0.7 (Zen 3)
            for (int64_t byte = 0; byte < bytes; byte += 64)
              __builtin_prefetch(at(base, cache.dtype, ahead + row) + byte);
          }
          for (int64_t h = (k - first) * group; h < (k - first + 1) * group; ++h) visit(h, i - begin, found, some);
        }
        start = next;
      }
    };
    each(keys, [&](int64_t h, int64_t i, const C* const* found, int64_t some) {
      dots(queries + h * width, found, some, width, scores + h * count + i);
    });
    for (int64_t h = 0; h < own; ++h) weigh(launch, head + h, scores + h * count, count);
    each(values, [&](int64_t h, int64_t i, const C* const* found, int64_t some) {
      add_weighted(sums + h * width, found, scores + h * count + i, some, width);
    });
    for (int64_t h = 0; h < own; ++h)
      store_tile(compute_for<C>, sums + h * width, out.dtype, place(out, h), out.strides[2], width);
  }

  // The scores of a head become weights.
  template <class C> void weigh(const Launch& launch, int64_t head, C* scores, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) scores[i] *= static_cast<C>(scale);
    if (softcap > 0)
      for (int64_t i = 0; i < count; ++i)
        scores[i] = static_cast<C>(softcap) * std::tanh(scores[i] / static_cast<C>(softcap));
    if (slopes.present()) {
      const auto slope = static_cast<C>(launch.data<const float>(slopes)[head * slopes.strides[0]]);
      for (int64_t i = 0; i < count; ++i) scores[i] += slope * static_cast<C>(i - count + 1);
    }
    const C top = lane_max(scores, count);
    for (int64_t i = 0; i < count; ++i) scores[i] = vm::exp_under(scores[i] - top);
    const double sum = lane_sum<C>(count, [scores](auto at, int64_t i) { return at(scores, i); });
    for (int64_t i = 0; i < count; ++i) scores[i] = static_cast<C>(static_cast<double>(scores[i]) / sum);
  }
};

std::unique_ptr<Plan> paged_attention(const Request& r) {
  const Paged p(r);
  std::unique_ptr<Plan> plan;
  const bool known = with_real(compute_of(p.query.dtype), [&](auto tag) {
    using C = decltype(tag);
    plan = make_plan(
        static_cast<uint64_t>(p.query.numel()) * static_cast<uint64_t>(p.most * p.block), [p](const Launch& launch) {
          // a thread reads whole tokens, unless there are fewer sequences than threads
          const int64_t sequences = p.query.sizes[0], threads = ThreadPool::instance().threads();
          const int64_t parts =
              std::clamp<int64_t>((threads + sequences - 1) / std::max<int64_t>(1, sequences), 1, p.kv_heads);
          parallel_for(sequences * parts, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const int64_t part = i % parts;
              p.attend<C>(launch, i / parts, p.kv_heads * part / parts, p.kv_heads * (part + 1) / parts);
            }
          });
        });
  });
  if (!known) throw Declined("paged attention of floating numbers");
  return plan;
}
MACA_KERNEL("paged_attention", paged_attention);

// keys and values [tokens, kv heads, E] go to slots of caches; a slot below 0 is of no token.
std::unique_ptr<Plan> paged_write(const Request& r) {
  const Operand keys = r.in(0), values = r.in(1), key_cache = r.in(2), value_cache = r.in(3), slots = r.in(4);
  if (keys.rank() != 3 || values.sizes != keys.sizes || key_cache.rank() != 4 || value_cache.sizes != key_cache.sizes ||
      key_cache.sizes[2] != keys.sizes[1] || key_cache.sizes[3] != keys.sizes[2] || slots.rank() != 1 ||
      slots.sizes[0] != keys.sizes[0])
    throw Invalid("reshape_and_cache: the extents of the operands do not match");
  if (key_cache.dtype != keys.dtype || value_cache.dtype != keys.dtype || values.dtype != keys.dtype)
    throw Declined("reshape_and_cache of different dtypes");
  if (slots.dtype != Dtype::I64) throw Declined("reshape_and_cache: slots of int64");
  const auto item = static_cast<size_t>(item_size(keys.dtype));
  const int64_t width = keys.sizes[2];
  return make_plan(static_cast<uint64_t>(keys.numel()) * 2, [=](const Launch& launch) {
    const auto put = [&](const Operand& from, const Operand& to, int64_t token, int64_t slot) {
      for (int64_t h = 0; h < from.sizes[1]; ++h) {
        const char* source = at(launch.data(from.slot), from.dtype, token * from.strides[0] + h * from.strides[1]);
        char* target = at(launch.data(to.slot), to.dtype,
                          slot / to.sizes[1] * to.strides[0] + slot % to.sizes[1] * to.strides[1] + h * to.strides[2]);
        if (from.strides[2] == 1 && to.strides[3] == 1)
          std::memcpy(target, source, item * static_cast<size_t>(width));
        else
          for (int64_t i = 0; i < width; ++i)
            std::memcpy(at(target, to.dtype, i * to.strides[3]), at(source, from.dtype, i * from.strides[2]), item);
      }
    };
    // in their order: of two tokens for a slot the last one stays
    for (int64_t token = 0; token < slots.sizes[0]; ++token) {
      const int64_t slot = launch.data<const int64_t>(slots)[token * slots.strides[0]];
      if (slot < 0) continue;
      if (slot >= key_cache.sizes[0] * key_cache.sizes[1])
        throw LaunchError(MACA_ERROR_INDEX, "reshape_and_cache: slot " + std::to_string(slot) + " of a cache of " +
                                                std::to_string(key_cache.sizes[0] * key_cache.sizes[1]));
      put(keys, key_cache, token, slot);
      put(values, value_cache, token, slot);
    }
  });
}
MACA_KERNEL("paged_write", paged_write);

}  // namespace
}  // namespace maca::MACA_ISA
