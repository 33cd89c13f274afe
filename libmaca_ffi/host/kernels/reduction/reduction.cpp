// The walk that every reduction shares.
#include "reduction.h"

namespace maca::MACA_ISA {

namespace {
constexpr int64_t kColumns = 1024;  // 8 KiB of double states: half of a first-level cache
constexpr int64_t kChunk = 32768;   // elements of one partial state
constexpr int64_t kBuffer = 4096;   // elements converted at once
constexpr int64_t kGrain = 65536;   // elements worth a second thread
constexpr int64_t kBatch = 64;      // results stored at once
constexpr int64_t kFewTasks = 16;   // fewer independent results than that: cut the reduced space, too

// Scratch of one thread: aligned bytes that grow and stay.
char* scratch(int64_t bytes, int which) {
  thread_local std::vector<char> memory[2];
  auto& m = memory[which];
  if (static_cast<int64_t>(m.size()) < bytes + 64) m.resize(static_cast<size_t>(bytes + 64));
  const auto address = reinterpret_cast<uintptr_t>(m.data());
  return m.data() + ((64 - address % 64) % 64);
}
}  // namespace

std::vector<bool> reduced_dims(const Request& q, const Operand& in, const Operand& out) {
  const int rank = in.rank();
  std::vector<bool> reduced(static_cast<size_t>(rank), false);
  const std::vector<int64_t> dims = q.integers("dim", std::vector<int64_t>{});
  if (dims.empty()) {
    const bool untouched = q.has("dim") && rank > 0 && out.sizes == in.sizes;
    if (!untouched) reduced.assign(reduced.size(), true);
    return reduced;
  }
  for (int64_t d : dims) {
    if (d < 0) d += rank;
    if (rank == 0) continue;
    if (d < 0 || d >= rank) throw Invalid("a reduced dimension is out of range");
    reduced[static_cast<size_t>(d)] = true;
  }
  return reduced;
}

Result result_of(const Operand& out, Compute compute, const std::vector<bool>& reduced) {
  Result r{compute, out.dtype, {}};
  const bool keeps = out.sizes.size() == reduced.size();
  size_t next = 0;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (reduced[d]) {
      r.strides.push_back(0);
      continue;
    }
    const size_t at = keeps ? d : next++;
    if (at >= out.strides.size()) throw Invalid("the result lacks a dimension");
    r.strides.push_back(out.strides[at]);
  }
  return r;
}

Reduction::Reduction(const Operand& in, const std::vector<bool>& reduced, Compute compute, Result out0, Result out1,
                     bool in_order)
    : compute_(compute), dtype_(in.dtype), out_{std::move(out0), std::move(out1)} {
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    if (reduced[d]) {
      reduced_.add(in.sizes[d], {in.strides[d]});
    } else {
      const auto& second = out_[1].strides;
      kept_.add(in.sizes[d], {in.strides[d], out_[0].strides[d], second.empty() ? out_[0].strides[d] : second[d]});
    }
  }
  kept_.sort(0);
  if (!in_order) reduced_.sort(0);
  n_ = reduced_.numel();
  m_ = kept_.numel();
  if (m_ == 0) return;

  const int64_t run = reduced_.inner().size, run_stride = reduced_.inner().stride[0];
  const int64_t row = kept_.inner().size, row_stride = kept_.inner().stride[0];
  // Lanes need runs long enough to fill them; where both ways gather, the smaller stride wins.
  const bool rows_nearer = run_stride == 0 ? row_stride == 1 : row_stride < run_stride;
  if (row > 1) columns_ = rows_nearer || run == 1 || (run < 32 && m_ >= 32);
  if (columns_ && row * n_ < 64) {  // too little in a row: take the longest dimension for columns
    auto& dims = kept_.dims();
    auto longest =
        std::max_element(dims.begin(), dims.end(), [](const auto& a, const auto& b) { return a.size < b.size; });
    std::rotate(longest, longest + 1, dims.end());
  }
  chunk_ = std::max<int64_t>(n_, 1);
  if (columns_) {
    width_ = std::min(kColumns, kept_.inner().size);
    const int64_t tasks = m_ / kept_.inner().size * ((kept_.inner().size + width_ - 1) / width_);
    if (tasks < kFewTasks && n_ * width_ > 2 * kChunk) chunk_ = std::max<int64_t>(kChunk / width_, 64);
  } else {
    width_ = n_ < 64 ? 16 : n_ < 512 ? 32 : 128;
    if (n_ > 2 * kChunk) chunk_ = kChunk;
  }
}

void Reduction::fold_columns(const Reducer& r, char* state, const void* in, int64_t offset, int64_t step,
                             int64_t columns, int64_t begin, int64_t end) const {
  const bool direct = reads_in_place(compute_, dtype_) && (step == 1 || columns == 1);
  const int size = item_size(compute_);
  const int64_t block = std::max<int64_t>(1, kBuffer / columns);
  char* buffer = direct ? nullptr : scratch(std::max(kBuffer, columns) * size, 1);
  int64_t row = 0;
  bool begun = false;
  reduced_.runs(begin, end, [&](const auto& o, int64_t rows) {
    const int64_t stride = reduced_.inner().stride[0];
    const char* base = at(in, dtype_, offset + o[0]);
    if (direct) {
      if (!begun) r.begin(state, width_, columns, base, 1);
      begun = true;
      r.rows(state, width_, base, rows, stride, columns, row);
      row += rows;
      return;
    }
    for (int64_t i = 0; i < rows; i += block) {
      const int64_t some = std::min(block, rows - i);
      for (int64_t j = 0; j < some; ++j)
        load_tile(compute_, buffer + j * columns * size, dtype_, at(base, dtype_, (i + j) * stride), step, columns);
      if (!begun) r.begin(state, width_, columns, buffer, 1);
      begun = true;
      r.rows(state, width_, buffer, some, columns, columns, row);
      row += some;
    }
  });
  if (!begun) r.begin(state, width_, width_, nullptr, 0);
  r.close(state, width_, 0, begin);
}

void Reduction::fold_lanes(const Reducer& r, char* state, const void* in, int64_t offset, int64_t begin,
                           int64_t end) const {
  const int64_t step = reduced_.inner().stride[0];
  const bool direct = reads_in_place(compute_, dtype_) && step == 1;
  const int size = item_size(compute_);
  char* buffer = direct ? nullptr : scratch(kBuffer * size, 1);
  const bool runs = r.folds_runs();
  const int64_t width = runs ? 1 : width_;
  int64_t row = 0;
  bool begun = false;
  const auto feed = [&](const char* tile, int64_t count) {
    if (!begun) r.begin(state, width, width, tile, 0);
    begun = true;
    if (runs) return r.whole(state, tile, count);
    const int64_t full = count / width_, rest = count % width_;
    if (full) r.rows(state, width_, tile, full, width_, width_, row);
    if (rest) r.rows(state, width_, tile + full * width_ * size, 1, width_, rest, row + full);
    row += full + (rest != 0);
  };
  if (direct && single_run() && begin == 0 && end == n_ && n_ > 0) {  // short rows: no walk
    feed(at(in, dtype_, offset), n_);
    r.close(state, width, width, begin);
    return;
  }
  reduced_.runs(begin, end, [&](const auto& o, int64_t count) {
    const char* base = at(in, dtype_, offset + o[0]);
    if (direct) return feed(base, count);
    for (int64_t i = 0; i < count; i += kBuffer) {
      const int64_t some = std::min(kBuffer, count - i);
      load_tile(compute_, buffer, dtype_, at(base, dtype_, i * step), step, some);
      feed(buffer, some);
    }
  });
  if (!begun) r.begin(state, width, width, nullptr, 0);
  r.close(state, width, width, begin);
}

void Reduction::store(const Reducer& r, const char* state, int64_t columns, void* const* out, const int64_t* offset,
                      const int64_t* step) const {
  alignas(64) char results[2][kColumns * 16];
  r.finish(state, width_, columns, n_, results[0], results[1]);
  for (int k = 0; k < 2; ++k)
    if (out[k])
      store_tile(out_[k].compute, results[k], out_[k].dtype, at(out[k], out_[k].dtype, offset[k]), step[k], columns);
}

void Reduction::run_columns(const Reducer& r, const void* in, void* const* out) const {
  const auto inner = kept_.inner();
  const int64_t tiles = (inner.size + width_ - 1) / width_, chunks = n_ ? (n_ + chunk_ - 1) / chunk_ : 1;
  const int64_t tasks = m_ / inner.size * tiles;
  const int64_t bytes = (r.state_bytes(width_) + 63) / 64 * 64;
  const auto place = [&](int64_t task, int64_t* offset) {  // input and result offsets, columns
    const int64_t first = task % tiles * width_;
    const auto o = kept_.offset(task / tiles * inner.size + first);
    std::copy(o.begin(), o.end(), offset);
    return std::min(width_, inner.size - first);
  };
  const int64_t steps[2] = {inner.stride[1], inner.stride[2]};
  if (chunks == 1) {
    parallel_for(tasks, kGrain / std::max<int64_t>(1, width_ * n_) + 1, [&](int64_t from, int64_t to) {
      char* state = scratch(bytes, 0);
      for (int64_t t = from; t < to; ++t) {
        int64_t offset[3];
        const int64_t columns = place(t, offset);
        fold_columns(r, state, in, offset[0], inner.stride[0], columns, 0, n_);
        store(r, state, columns, out, offset + 1, steps);
      }
    });
    return;
  }
  std::vector<char> memory(static_cast<size_t>(tasks * chunks * bytes + 64));
  char* states = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  parallel_for(tasks * chunks, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      int64_t offset[3];
      const int64_t chunk = i / tasks, columns = place(i % tasks, offset);
      fold_columns(r, states + i * bytes, in, offset[0], inner.stride[0], columns, chunk * chunk_,
                   std::min(n_, (chunk + 1) * chunk_));
    }
  });
  for (int64_t t = 0; t < tasks; ++t) {
    int64_t offset[3];
    const int64_t columns = place(t, offset);
    for (int64_t chunk = 1; chunk < chunks; ++chunk)
      r.merge(states + t * bytes, states + (chunk * tasks + t) * bytes, width_, columns, chunk * chunk_,
              std::min(n_ - chunk * chunk_, chunk_));
    store(r, states + t * bytes, columns, out, offset + 1, steps);
  }
}

void Reduction::run_lanes(const Reducer& r, const void* in, void* const* out) const {
  const int64_t chunks = n_ ? (n_ + chunk_ - 1) / chunk_ : 1;
  const int64_t bytes = (r.state_bytes(width_) + 63) / 64 * 64;
  const int64_t steps[2] = {1, 1};
  if (chunks == 1) {
    parallel_for(m_, kGrain / std::max<int64_t>(1, n_) + 1, [&](int64_t from, int64_t to) {
      char* state = scratch(bytes, 0);
      const int64_t in_step = kept_.inner().stride[0], step0 = kept_.inner().stride[1], step1 = kept_.inner().stride[2];
      const bool direct = reads_in_place(compute_, dtype_) && reduced_.inner().stride[0] == 1 && single_run() && n_ > 0;
      const bool plain = direct && r.folds_runs();  // short runs leave no time for a walk and a state each
      kept_.runs(from, to, [&](const auto& o, int64_t count) {
        alignas(64) char results[2][kBatch * 16];
        for (int64_t i = 0; i < count; i += kBatch) {
          const int64_t some = std::min(kBatch, count - i);
          if (plain) r.results(at(in, dtype_, o[0] + i * in_step), in_step, n_, some, results[0]);
          for (int64_t j = 0; j < some && !plain; ++j) {
            fold_lanes(r, state, in, o[0] + (i + j) * in_step, 0, n_);
            r.finish(state, width_, 1, n_, results[0] + j * item_size(out_[0].compute),
                     results[1] + j * item_size(out_[1].compute));
          }
          const int64_t to[2] = {o[1] + i * step0, o[2] + i * step1}, step[2] = {step0, step1};
          for (int k = 0; k < 2; ++k)
            if (out[k])
              store_tile(out_[k].compute, results[k], out_[k].dtype, at(out[k], out_[k].dtype, to[k]), step[k], some);
        }
      });
    });
    return;
  }
  std::vector<char> memory(static_cast<size_t>(m_ * chunks * bytes + 64));
  char* states = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  parallel_for(m_ * chunks, 2, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t chunk = i % chunks;
      fold_lanes(r, states + i * bytes, in, kept_.offset(i / chunks)[0], chunk * chunk_,
                 std::min(n_, (chunk + 1) * chunk_));
    }
  });
  for (int64_t i = 0; i < m_; ++i) {
    char* state = states + i * chunks * bytes;
    for (int64_t chunk = 1; chunk < chunks; ++chunk)
      r.merge(state, state + chunk * bytes, width_, 1, chunk * chunk_, std::min(n_ - chunk * chunk_, chunk_));
    const auto o = kept_.offset(i);
    const int64_t offset[2] = {o[1], o[2]};
    store(r, state, 1, out, offset, steps);
  }
}

void Reduction::run(const Reducer& r, const void* in, void* out0, void* out1) const {
  if (m_ == 0) return;
  void* const out[2] = {out0, out1};
  if (columns_)
    run_columns(r, in, out);
  else
    run_lanes(r, in, out);
}

}  // namespace maca::MACA_ISA
