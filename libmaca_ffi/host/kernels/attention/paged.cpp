// Attention of tokens that are written, one a sequence, over keys and values in blocks of a common cache.
//
// query [sequences, heads, E], caches [blocks, block size, kv heads, E], blocks of each sequence int32 [sequences,
// most], lengths int32 [sequences]. A block or a slot that is not there is an IndexError.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "conversion.h"
#include "kernel.h"
#include "threads/thread_pool.h"

namespace maca::MACA_ISA {
namespace {

// In four sums of 32 bytes each: one would wait for each addition.
template <class C> C dot(const C* a, const C* b, int64_t n) {
  typedef C Vector __attribute__((vector_size(32)));
  constexpr int64_t kSums = 4, kLane = 32 / sizeof(C);
  Vector sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kLane <= n; i += kSums * kLane)
    for (int64_t j = 0; j < kSums; ++j) {
      Vector x, y;
      std::memcpy(&x, a + i + j * kLane, sizeof x);
      std::memcpy(&y, b + i + j * kLane, sizeof y);
      sums[j] += x * y;
    }
  const Vector sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  C whole = 0;
  for (int64_t j = 0; j < kLane; ++j) whole += sum[j];
  for (; i < n; ++i) whole += a[i] * b[i];
  return whole;
}

template <class C> void add_scaled(C* to, const C* from, C by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += by * from[i];
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
    std::vector<C> room(static_cast<size_t>(own * (2 * width + count) + width));
    C *queries = room.data(), *sums = queries + own * width, *row = sums + own * width, *scores = row + width;
    const auto place = [&](const Operand& o, int64_t h) {
      return at(launch.data(o.slot), o.dtype, sequence * o.strides[0] + (head + h) * o.strides[1]);
    };
    for (int64_t h = 0; h < own; ++h)
      load_tile(compute_for<C>, queries + h * width, query.dtype, place(query, h), query.strides[2], width);
    const auto each = [&](const Operand& cache, auto&& visit) {
      const void* base = launch.data(cache.slot);
      for (int64_t i = begin; i < end;) {
        const int64_t start = block_of(launch, sequence, i / block) * cache.strides[0];
        for (const int64_t stop = std::min(end, (i / block + 1) * block); i < stop; ++i)
          for (int64_t k = first; k < last; ++k) {
            const int64_t from = start + i % block * cache.strides[1] + k * cache.strides[2];
            const C* found = tile(row, cache.dtype, base, from, cache.strides[3], width);
            for (int64_t h = (k - first) * group; h < (k - first + 1) * group; ++h) visit(h, i - begin, found);
          }
      }
    };
    each(keys, [&](int64_t h, int64_t i, const C* key) {
      scores[h * count + i] = dot(queries + h * width, key, width) * static_cast<C>(scale);
    });
    for (int64_t h = 0; h < own; ++h) weigh(launch, head + h, scores + h * count, count);
    each(values, [&](int64_t h, int64_t i, const C* value) {
      add_scaled(sums + h * width, value, scores[h * count + i], width);
    });
    for (int64_t h = 0; h < own; ++h)
      store_tile(compute_for<C>, sums + h * width, out.dtype, place(out, h), out.strides[2], width);
  }

  // The scores of a head become weights.
  template <class C> void weigh(const Launch& launch, int64_t head, C* scores, int64_t count) const {
    if (softcap > 0)
      for (int64_t i = 0; i < count; ++i)
        scores[i] = static_cast<C>(softcap) * std::tanh(scores[i] / static_cast<C>(softcap));
    if (slopes.present()) {
      const auto slope = static_cast<C>(launch.data<const float>(slopes)[head * slopes.strides[0]]);
      for (int64_t i = 0; i < count; ++i) scores[i] += slope * static_cast<C>(i - count + 1);
    }
    C top = -std::numeric_limits<C>::infinity(), sum = 0;
    for (int64_t i = 0; i < count; ++i) top = scores[i] > top || scores[i] != scores[i] ? scores[i] : top;
    for (int64_t i = 0; i < count; ++i) sum += scores[i] = std::exp(scores[i] - top);
    for (int64_t i = 0; i < count; ++i) scores[i] /= sum;
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
