// The two halves of unique: "unique_group" numbers the groups of equal rows, "unique_fill" writes what was asked.
//
// A matrix of rows, row-major. Rows with a NaN equal no other, -0 equals 0, and a group shows its first row.
#include "kernels/indexing/order.h"

namespace maca::MACA_ISA {
namespace {

// Numbers the groups of n values, which stay in order, when each key is one of few; false where the keys reach too far.
template <class K>
bool group_few(Dtype dtype, const char* from, int64_t n, int64_t* order, int64_t* groups, int64_t& count) {
  // A table of 256 KiB: beyond the second-level cache a pass of it costs as much as the two of sort_entries() it saves.
  constexpr int64_t kMost = 1 << 16, kPiece = 256, kGrain = 32 * 1024;
  std::vector<K> keys(static_cast<size_t>(n));
  K low = std::numeric_limits<K>::max(), high = 0;
  for (int64_t at = 0; at < n; at += kPiece) {
    Entry<K> piece[kPiece];
    const int64_t size = std::min(kPiece, n - at);
    load_keys<K>(dtype, from + at * item_size(dtype), 1, size, false, piece);
    for (int64_t i = 0; i < size; ++i) {
      const K key = keys[static_cast<size_t>(at + i)] = piece[i].key;
      low = std::min(low, key), high = std::max(high, key);
    }
  }
  if (high - low >= static_cast<K>(std::min(kMost, 2 * n))) return false;
  std::vector<uint32_t> number(static_cast<size_t>(high - low) + 1);  // 1 where there is such a key, then its group's
  for (const K key : keys) number[static_cast<size_t>(key - low)] = 1;
  count = 0;
  for (uint32_t& of_key : number) {
    const bool is_there = of_key > 0;
    of_key = static_cast<uint32_t>(count);
    count += is_there;
  }
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      order[i] = i;
      groups[i] = number[static_cast<size_t>(keys[static_cast<size_t>(i)] - low)];
    }
  });
  return true;
}

// in: rows [n, m]. out: order [n], the rows, those of a group one after the other or as they are (and as they are when
// `consecutive`); group [n], the number of the group that the i-th of them belongs to; count, of the groups.
std::unique_ptr<Plan> group(const Request& r) {
  const Operand in = r.in(0), order = r.out(0), groups = r.out(1), count = r.out(2);
  const bool consecutive = r.boolean("consecutive");
  if (in.rank() != 2 || !in.contiguous()) throw Invalid("unique: a row-major matrix");
  const int64_t n = in.sizes[0], m = in.sizes[1];
  if (n > std::numeric_limits<uint32_t>::max()) throw Declined("more than 2^32 rows");
  for (const Operand& o : {order, groups})
    if (o.dtype != Dtype::I64 || !o.contiguous() || o.numel() != n) throw Invalid("unique: a position for each row");
  if (count.dtype != Dtype::I64) throw Invalid("unique: the count is int64");
  std::unique_ptr<Plan> plan;
  with_key(in.dtype, [&](auto tag) {
    using K = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(in.numel()) * 20, [=](const Launch& launch) {
      auto* to = launch.data<int64_t>(order);
      auto* number = launch.data<int64_t>(groups);
      const bool floats = is_floating(in.dtype);
      if (m == 1 && !consecutive && !floats && n > 0 &&
          group_few<K>(in.dtype, launch.data<const char>(in), n, to, number, *launch.data<int64_t>(count)))
        return;
      std::vector<Entry<K>> keys(static_cast<size_t>(n * m)), scratch;
      // positions within 32 bits; for more than one column they are not read
      constexpr int64_t kPiece = int64_t{1} << 32;
      for (int64_t at = 0; at < n * m; at += kPiece)
        load_keys<K>(in.dtype, launch.data<const char>(in) + at * item_size(in.dtype), 1, std::min(kPiece, n * m - at),
                     false, keys.data() + at);
      const K nan = nan_key<K>(in.dtype, false);
      int64_t last = -1;
      if (m == 1) {  // neighbours lie side by side then: to look them up by position waits for memory twice
        if (!consecutive) sort_entries(keys, scratch);
        for (int64_t i = 0; i < n; ++i) {
          const Entry<K>& entry = keys[static_cast<size_t>(i)];
          const bool same = i > 0 && entry.key == keys[static_cast<size_t>(i - 1)].key && !(floats && entry.key == nan);
          to[i] = entry.at;
          number[i] = same ? last : ++last;
        }
      } else {
        std::iota(to, to + n, int64_t{0});
        const auto row = [&](int64_t i) { return keys.data() + i * m; };
        const auto same = [&](int64_t a, int64_t b) {
          for (int64_t d = 0; d < m; ++d)
            if (row(a)[d].key != row(b)[d].key || (floats && row(a)[d].key == nan)) return false;
          return true;
        };
        if (!consecutive)
          std::stable_sort(to, to + n, [&](int64_t a, int64_t b) {
            for (int64_t d = 0; d < m; ++d)
              if (row(a)[d].key != row(b)[d].key) return row(a)[d].key < row(b)[d].key;
            return false;
          });
        for (int64_t i = 0; i < n; ++i) number[i] = i > 0 && same(to[i - 1], to[i]) ? last : ++last;
      }
      *launch.data<int64_t>(count) = last + 1;
    });
  });
  return plan;
}

// in: rows, order, group. out: the groups' rows [count, m], the group of each row [n], the rows of each group [count].
std::unique_ptr<Plan> fill(const Request& r) {
  const Operand in = r.in(0), order = r.in(1), groups = r.in(2), values = r.out(0), inverse = r.out(1),
                counts = r.out(2);
  const int64_t n = in.sizes[0], m = in.sizes[1], count = counts.numel();
  if (!in.contiguous() || !values.contiguous() || !inverse.contiguous() || !counts.contiguous() ||
      inverse.numel() != n || values.numel() != count * m)
    throw Invalid("unique: row-major results");
  const auto bytes = static_cast<size_t>(m * item_size(in.dtype));
  return make_plan(static_cast<uint64_t>(in.numel()), [=](const Launch& launch) {
    const char* from = launch.data<const char>(in);
    char* to = launch.data<char>(values);
    const auto *at = launch.data<const int64_t>(order), *number = launch.data<const int64_t>(groups);
    auto *group_of = launch.data<int64_t>(inverse), *size_of = launch.data<int64_t>(counts);
    std::fill_n(size_of, count, int64_t{0});
    for (int64_t i = 0; i < n; ++i) {
      const int64_t g = number[i], row = at[i];
      if (g < 0 || g >= count || row < 0 || row >= n) throw LaunchError(MACA_ERROR_VALUE, "unique: a group");
      if (size_of[g]++ == 0)
        std::memcpy(to + static_cast<size_t>(g) * bytes, from + static_cast<size_t>(row) * bytes, bytes);
      group_of[row] = g;
    }
  });
}

MACA_KERNEL("unique_group", group);
MACA_KERNEL("unique_fill", fill);

}  // namespace
}  // namespace maca::MACA_ISA
