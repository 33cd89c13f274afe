// What the products on a processor's tiles share: how their factors are read and their results divided.
#pragma once
#include "bfloat16_tiles.h"
#include "matmul.h"
#include "threads/thread_team.h"

namespace maca::matmul {

inline int64_t panels(int64_t lines) { return (lines + bfloat16_tiles::kEdge - 1) / bfloat16_tiles::kEdge; }
inline int64_t steps(int64_t depth) { return (depth + bfloat16_tiles::kDepth - 1) / bfloat16_tiles::kDepth; }

inline bool tiles_take(const Problem& p) {
  return p.out.batch == 1 && p.a.blas() && p.b.blas() && p.out.row_major() && p.activation == Activation::None;
}

// Lines are the rows of `m`.
template <class T> bfloat16_tiles::Factor<T> factor_of(const Matrix& m, const void* data) {
  const bool rows = m.row_major();
  return {static_cast<const T*>(data), rows ? m.leading() : 1, rows ? 1 : m.leading()};
}

// Panels of rows and columns of a result.
struct Part {
  int64_t row, row_end, column, column_end;
};

// One thread of a team.
struct Member {
  int64_t index, size;
  int64_t begin(int64_t whole) const { return whole * index / size; }  // of its share in what all prepare together
  int64_t end(int64_t whole) const { return whole * (index + 1) / size; }
  Part part(int64_t rows, int64_t columns) const {
    const Grid grid = grid_of(size, rows, columns);
    const int64_t r = index / grid.wide, c = index % grid.wide;
    return {rows * r / grid.high, rows * (r + 1) / grid.high, columns * c / grid.wide, columns * (c + 1) / grid.wide};
  }
  void wait() const {
    if (size > 1) team_barrier();
  }
};

// f(member) on as many threads as so many multiplications repay, and as there are pieces.
template <class F> void on_members(int64_t multiplications, int64_t pieces, F&& f) {
  constexpr int64_t kPiece = 1 << 19;  // multiplications that repay a thread, as in blas.cpp
  const int64_t most = std::min<int64_t>(ThreadPool::instance().threads(), pieces);
  const int64_t size = std::clamp<int64_t>(multiplications / ThreadPool::grain(kPiece), 1, most);
  on_team(static_cast<int>(size), [&](int64_t index, int64_t members) { f(Member{index, members}); });
}
template <class F> void on_members(const Problem& p, int threads, F&& f) {
  on_members(p.multiplications(), std::min<int64_t>(threads, panels(p.m()) * panels(p.n())), std::forward<F>(f));
}

// Panels of a right factor that is not packed for good: so many are packed at once, however many columns a result has.
inline int64_t panels_at_once(const Problem& p) { return std::min<int64_t>(panels(p.n()), 128); }

// f(first, count) for all panels of the right factor, in turn.
template <class F> void each_width(const Problem& p, bool packed, F&& f) {
  const int64_t columns = panels(p.n()), width = packed ? columns : panels_at_once(p);
  for (int64_t first = 0; first < columns; first += width) f(first, std::min(width, columns - first));
}

}  // namespace maca::matmul
