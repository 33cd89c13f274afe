// Copies through one table of offsets a dimension: flip, roll, repeat, reflection and replication padding forward.
#include "kernels/indexing/map.h"

namespace maca::MACA_ISA {
namespace {

// Offsets of the input along a dimension, counted from the first, as runs of one step where they are long: a table is
// as long as the dimension, and lives as long as the plan.
class Line {
 public:
  explicit Line(Dims table) : size_(static_cast<int64_t>(table.size())) {
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t offset = table[static_cast<size_t>(i)];
      if (!runs_.empty() && runs_.back().first + 1 == i)
        runs_.back().step = offset - runs_.back().offset;
      else if (runs_.empty() || offset != runs_.back().at(i))
        runs_.push_back({i, offset, 0});
    }
    if (static_cast<int64_t>(runs_.size()) * kShortRun > size_ && !is_affine()) {
      table_ = std::move(table);
      runs_ = {};
    }
  }
  explicit Line(int64_t size, int64_t step) : size_(size), runs_{{0, 0, step}} {}

  int64_t size() const { return size_; }
  bool is_affine() const { return runs_.size() == 1; }  // offset i * step()
  int64_t step() const { return runs_[0].step; }
  int64_t at(int64_t i) const {
    return runs_.empty() ? table_[static_cast<size_t>(i)] : is_affine() ? i * step() : run_of(i)->at(i);
  }

  // to[i * to_step] = from[at(i)] for [begin, end)
  template <class T> void copy(const T* from, T* to, int64_t to_step, int64_t begin, int64_t end) const {
    if (runs_.empty()) {
      for (int64_t i = begin; i < end; ++i) to[i * to_step] = from[table_[static_cast<size_t>(i)]];
      return;
    }
    for (auto run = run_of(begin); begin < end; ++run) {
      const int64_t stop = run + 1 == runs_.end() ? end : std::min(end, run[1].first);
      copy_row(to + begin * to_step, to_step, from + run->at(begin), run->step, stop - begin);
      begin = stop;
    }
  }

 private:
  static constexpr int64_t kShortRun = 8;  // on average; shorter ones cost more to find than to look up
  struct Run {
    int64_t first, offset, step;  // an index, the offset there
    int64_t at(int64_t i) const { return offset + (i - first) * step; }
  };
  std::vector<Run>::const_iterator run_of(int64_t i) const {
    return std::upper_bound(runs_.begin(), runs_.end(), i, [](int64_t at, const Run& r) { return at < r.first; }) - 1;
  }

  int64_t size_;
  std::vector<Run> runs_;
  Dims table_;
};

struct Level {
  Line line;
  int64_t out_step;
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
      const int64_t start = tables[d].empty() ? 0 : tables[d][0];
      base_ += start;
      for (int64_t& offset : tables[d]) offset -= start;
      levels.push_back({Line(std::move(tables[d])), out.strides[d]});
    }
    std::stable_sort(levels.begin(), levels.end(),
                     [](const Level& a, const Level& b) { return a.out_step > b.out_step; });
    for (Level& level : levels) {
      Level* outer = levels_.empty() ? nullptr : &levels_.back();
      const int64_t size = level.line.size();
      if (outer && outer->line.is_affine() && level.line.is_affine() &&
          outer->line.step() == level.line.step() * size && outer->out_step == level.out_step * size)
        *outer = {Line(outer->line.size() * size, level.line.step()), level.out_step};
      else
        levels_.push_back(std::move(level));
    }
    if (levels_.empty()) levels_.push_back({Line(1, 1), 1});
    work = static_cast<uint64_t>(out.numel());
    rows_ = 1;
    for (size_t k = 0; k + 1 < levels_.size(); ++k) rows_ *= levels_[k].line.size();
  }

  void run(const Launch& launch) const override {
    if (out_.numel() == 0) return;
    with_item_size(item_size(out_.dtype), [&](auto tag) {
      using T = decltype(tag);
      const T* from = launch.data<const T>(in_) + base_;
      T* to = launch.data<T>(out_);
      const Line& inner = levels_.back().line;
      const int64_t inner_step = levels_.back().out_step;
      if (rows_ == 1) {  // one long row
        parallel_for(inner.size(), kGrain,
                     [&](int64_t begin, int64_t end) { inner.copy(from, to, inner_step, begin, end); });
        return;
      }
      parallel_for(rows_, std::max<int64_t>(1, kGrain / inner.size()), [&](int64_t begin, int64_t end) {
        int64_t at[kMaxRank];
        int64_t rest = begin;
        for (size_t k = levels_.size() - 1; k-- > 0; rest /= levels_[k].line.size())
          at[k] = rest % levels_[k].line.size();
        for (int64_t row = begin; row < end; ++row) {
          int64_t source = 0, place = 0;
          for (size_t k = 0; k + 1 < levels_.size(); ++k) {
            source += levels_[k].line.at(at[k]);
            place += at[k] * levels_[k].out_step;
          }
          for (size_t k = levels_.size() - 1; k-- > 0;) {
            if (++at[k] < levels_[k].line.size()) break;
            at[k] = 0;
          }
          inner.copy(from + source, to + place, inner_step, 0, inner.size());
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
  if (!r.out().present() || r.out().rank() < in.rank())
    throw Invalid("repeat: the result has fewer dimensions than what is repeated");
  while (in.rank() < r.out().rank()) {
    in.sizes.insert(in.sizes.begin(), 1);
    in.strides.insert(in.strides.begin(), 0);
  }
  // of nothing a side may be as long as numbers are
  if (r.out().numel() == 0) return make_plan(0, [](const Launch&) {});
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
