// Copies through one table of offsets a dimension: flip, roll, repeat, reflection and replication padding forward.
#include "index_map.h"

namespace maca::MACA_ISA {
namespace {

struct Level {
  int64_t size, out_step;
  Dims table;
  bool affine;  // table[i] == i * step
  int64_t step;
};

class MapPlan final : public Plan {
 public:
  MapPlan(const Operand& out, const Operand& in, MapOffsets tables) : out_(out), in_(in) {
    std::vector<Level> levels;
    for (size_t d = 0; d < out.sizes.size(); ++d) {
      if (out.sizes[d] == 1) {
        base_ += tables[d].empty() ? 0 : tables[d][0];
        continue;
      }
      Level level{out.sizes[d], out.strides[d], std::move(tables[d]), true, 0};
      const int64_t start = level.table.empty() ? 0 : level.table[0];
      base_ += start;
      for (int64_t& offset : level.table) offset -= start;
      level.step = level.size > 1 ? level.table[1] : 0;
      for (int64_t i = 0; level.affine && i < level.size; ++i)
        level.affine = level.table[static_cast<size_t>(i)] == i * level.step;
      levels.push_back(std::move(level));
    }
    std::stable_sort(levels.begin(), levels.end(),
                     [](const Level& a, const Level& b) { return a.out_step > b.out_step; });
    for (Level& level : levels) {
      Level* outer = levels_.empty() ? nullptr : &levels_.back();
      if (outer && outer->affine && level.affine && outer->step == level.step * level.size &&
          outer->out_step == level.out_step * level.size) {
        outer->size *= level.size;
        outer->step = level.step;
        outer->out_step = level.out_step;
      } else {
        levels_.push_back(std::move(level));
      }
    }
    if (levels_.empty()) levels_.push_back({1, 1, {0}, true, 1});
    work = static_cast<uint64_t>(out.numel());
    rows_ = 1;
    for (size_t k = 0; k + 1 < levels_.size(); ++k) rows_ *= levels_[k].size;
  }

  void run(const Launch& launch) const override {
    if (out_.numel() == 0) return;
    with_item_size(item_size(out_.dtype), [&](auto tag) {
      using T = decltype(tag);
      const T* from = launch.data<const T>(in_) + base_;
      T* to = launch.data<T>(out_);
      const Level& inner = levels_.back();
      if (rows_ == 1 && inner.affine) {  // one long row
        parallel_for(inner.size, kGrain, [&](int64_t begin, int64_t end) {
          copy_row(to + begin * inner.out_step, inner.out_step, from + begin * inner.step, inner.step, end - begin);
        });
        return;
      }
      parallel_for(rows_, std::max<int64_t>(1, kGrain / inner.size), [&](int64_t begin, int64_t end) {
        int64_t at[kMaxRank];
        int64_t rest = begin;
        for (size_t k = levels_.size() - 1; k-- > 0; rest /= levels_[k].size) at[k] = rest % levels_[k].size;
        for (int64_t row = begin; row < end; ++row) {
          int64_t source = 0, place = 0;
          for (size_t k = 0; k + 1 < levels_.size(); ++k) {
            const Level& level = levels_[k];
            source += level.affine ? at[k] * level.step : level.table[static_cast<size_t>(at[k])];
            place += at[k] * level.out_step;
          }
          for (size_t k = levels_.size() - 1; k-- > 0;) {
            if (++at[k] < levels_[k].size) break;
            at[k] = 0;
          }
          if (inner.affine) {
            copy_row(to + place, inner.out_step, from + source, inner.step, inner.size);
          } else {
            const int64_t* table = inner.table.data();
            const T* line = from + source;
            T* result = to + place;
            for (int64_t i = 0; i < inner.size; ++i) result[i * inner.out_step] = line[table[i]];
          }
        }
      });
    });
  }

 private:
  Operand out_, in_;
  std::vector<Level> levels_;
  int64_t base_ = 0, rows_ = 1;
};

}  // namespace

MapOffsets identity_offsets(const Operand& in) {
  MapOffsets tables(in.sizes.size());
  for (size_t d = 0; d < tables.size(); ++d)
    for (int64_t i = 0; i < in.sizes[d]; ++i) tables[d].push_back(i * in.strides[d]);
  return tables;
}

std::unique_ptr<Plan> mapped_copy(const Operand& out, const Operand& in, MapOffsets tables) {
  expect_dtype(in, out.dtype, "the input");
  if (tables.size() != out.sizes.size()) throw Invalid("the result's rank is not the map's");
  int64_t reach = 0;
  for (size_t d = 0; d < tables.size(); ++d) {
    if (static_cast<int64_t>(tables[d].size()) != out.sizes[d]) throw Invalid("the result's size is not the map's");
    if (tables[d].empty()) continue;
    const auto [low, high] = std::minmax_element(tables[d].begin(), tables[d].end());
    if (*low < 0) throw Invalid("a map points before the input");
    reach += *high;
  }
  if (out.numel() > 0 && reach >= span_of(in)) throw Invalid("a map points behind the input");
  return std::make_unique<MapPlan>(out, in, std::move(tables));
}

Dims padded_coordinates(int64_t n, int64_t before, int64_t after, bool reflect) {
  Dims result;
  for (int64_t o = 0; o < n + before + after; ++o) {
    int64_t i = o - before;
    if (reflect)
      i = i < 0 ? -i : (i >= n ? 2 * (n - 1) - i : i);
    else
      i = std::clamp<int64_t>(i, 0, n - 1);
    if (i < 0 || i >= n) throw Invalid("padding is larger than the input it reflects");
    result.push_back(i);
  }
  return result;
}

namespace {

std::unique_ptr<Plan> flip(const Request& r) {
  const Operand in = r.in(0);
  MapOffsets tables = identity_offsets(in);
  for (const int64_t dim : r.integers("dims", Dims{})) {
    if (in.rank() == 0) continue;
    auto& table = tables[static_cast<size_t>(wrap_dim(dim, in.rank()))];
    std::reverse(table.begin(), table.end());
  }
  return mapped_copy(r.out(), in, std::move(tables));
}

// Over the flattened tensor: two runs in row-major order.
std::unique_ptr<Plan> roll_flat(const Operand& out, const Operand& in, int64_t by) {
  expect_dtype(in, out.dtype, "the input");
  const int64_t n = in.numel(), shift = n > 0 ? ((by % n) + n) % n : 0;
  std::unique_ptr<Plan> plan;
  with_item_size(item_size(out.dtype), [&](auto tag) {
    using T = decltype(tag);
    plan = make_plan(static_cast<uint64_t>(n),
                     [=, to_place = Unravel(out), from_place = Unravel(in)](const Launch& launch) {
                       const T* from = launch.data<const T>(in);
                       T* to = launch.data<T>(out);
                       parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
                         for (int64_t i = begin; i < end; ++i)
                           to[to_place(i)] = from[from_place(i < shift ? i + n - shift : i - shift)];
                       });
                     });
  });
  return plan;
}

std::unique_ptr<Plan> roll(const Request& r) {
  const Operand in = r.in(0);
  const Dims shifts = r.integers("shifts"), dims = r.integers("dims", Dims{});
  MapOffsets tables = identity_offsets(in);
  if (dims.empty()) {
    if (shifts.size() != 1) throw Invalid("roll() over all elements takes one shift");
    return roll_flat(r.out(), in, shifts[0]);
  }
  if (shifts.size() != dims.size()) throw Invalid("roll() takes a shift for each dimension");
  for (size_t k = 0; k < dims.size(); ++k) {
    auto& table = tables[static_cast<size_t>(wrap_dim(dims[k], in.rank()))];
    const int64_t n = static_cast<int64_t>(table.size());
    if (n > 0) std::rotate(table.begin(), table.end() - ((shifts[k] % n) + n) % n, table.end());
  }
  return mapped_copy(r.out(), in, std::move(tables));
}

std::unique_ptr<Plan> repeat(const Request& r) {
  Operand in = r.in(0);
  while (in.rank() < r.out().rank()) {
    in.sizes.insert(in.sizes.begin(), 1);
    in.strides.insert(in.strides.begin(), 0);
  }
  MapOffsets tables(in.sizes.size());
  for (size_t d = 0; d < tables.size(); ++d)
    for (int64_t o = 0; o < r.out().sizes[d]; ++o)
      tables[d].push_back(o % std::max<int64_t>(in.sizes[d], 1) * in.strides[d]);
  return mapped_copy(r.out(), in, std::move(tables));
}

MACA_KERNEL("flip", flip);
MACA_KERNEL("roll", roll);
MACA_KERNEL("repeat", repeat);

}  // namespace
}  // namespace maca::MACA_ISA
