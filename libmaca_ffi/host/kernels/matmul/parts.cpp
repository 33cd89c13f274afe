// Matrix products of float32 in three bfloat16 parts: twice as fast as float32 on a processor with tiles for bfloat16,
// and no less accurate. Factors whose products would leave the range of the parts go to BLAS.
#include <atomic>
#include <cstring>

#include "tiles.h"
#include "onednn/engine.h"
#include "processor.h"

namespace maca::matmul {
namespace {

using namespace bfloat16_tiles;  // NOLINT(google-build-using-namespace): this file is about them
using onednn::Workspace;

// What is packed at once: of the right factor, as deep as sums stay in tiles, so that they are read and written seldom;
// of the left one so many rows besides that both stay in a second-level cache of 2 MiB, as processors with AMX have it.
constexpr int64_t kSlice = 512;
constexpr int64_t kRows = 256;

// The smallest and the largest number that several threads saw.
class SharedRange {
 public:
  void add(const Range& r) {
    for (uint32_t seen = smallest_; r.smallest < seen && !smallest_.compare_exchange_weak(seen, r.smallest);) {
    }
    for (uint32_t seen = largest_; r.largest > seen && !largest_.compare_exchange_weak(seen, r.largest);) {
    }
  }
  operator Range() const { return {smallest_, largest_}; }

 private:
  std::atomic<uint32_t> smallest_{~uint32_t{0}}, largest_{0};
};

class PartsPlan final : public Plan {
 public:
  explicit PartsPlan(const Problem& p)
      : p_(p), otherwise_(blas_plan(p, true)), threads_(ThreadPool::instance().threads()) {
    Workspace space;
    inner_ = space.take(otherwise_->workspace_bytes);
    const int64_t panel = std::min(steps(p.k()), steps(kSlice)) * kStepBytes<float>;
    right_ = space.take(static_cast<uint64_t>(panels_at_once(p) * panel));
    left_bytes_ = std::min(panels(p.m()), panels(kRows)) * panel;
    left_ = space.take(static_cast<uint64_t>(left_bytes_ * threads_));
    workspace_bytes = space.bytes();
    work = p.work();
    implementation = "three bfloat16 parts, " + otherwise_->implementation + " where they do not suit";
    if (p.packs()) {
      packed_operand = p.b.slot;
      packed_bytes = static_cast<uint64_t>(kHeader + panels(p.n()) * steps(p.k()) * kStepBytes<float>);
    }
  }

  void pack(const void* operand, void* packed) const override {
    const auto right = factor_of<float>(p_.b.transposed(), operand);
    SharedRange seen;
    parallel_for(panels(p_.n()), 4, [&](int64_t begin, int64_t end) {
      seen.add(range_of(p_.b.transposed(), right, begin * kEdge, std::min(end * kEdge, p_.n())));
      for (int64_t deep = 0; deep < p_.k(); deep += kSlice)
        pack_panels(right, begin, end, deep, static_cast<char*>(packed) + kHeader + slice_offset(deep, begin));
    });
    const Range range = seen;
    std::memcpy(packed, &range, sizeof range);
  }

  void run(const Launch& launch) const override {
    const bool plain = is_one(launch, p_.alpha_slot) && (!p_.self || is_one(launch, p_.beta_slot));
    if (plain && multiply_parts(launch)) return;
    Launch inner = launch;
    inner.workspace = onednn::at(launch.workspace, inner_);
    inner.packed = nullptr;
    otherwise_->run(inner);
  }

 private:
  static constexpr int64_t kHeader = 64;  // the packed factor's Range

  static Range range_of(const Matrix& m, const Factor<float>& f, int64_t begin, int64_t end) {
    if (begin >= end) return {};
    if (f.depth_step == 1) return range(f.at(begin, 0), end - begin, m.columns, f.line_step);
    return range(f.at(begin, 0), m.columns, end - begin, f.depth_step);
  }

  // In the packed right factor one slice of the depth follows the other, in each one panel the other.
  int64_t slice_offset(int64_t deep, int64_t panel) const {
    return (panels(p_.n()) * steps(deep) + panel * steps(std::min(kSlice, p_.k() - deep))) * kStepBytes<float>;
  }
  void pack_panels(const Factor<float>& right, int64_t begin, int64_t end, int64_t deep, char* to) const {
    const int64_t depth = std::min(kSlice, p_.k() - deep), panel = steps(depth) * kStepBytes<float>;
    for (int64_t j = begin; j < end; ++j, to += panel)
      pack_right(right, j * kEdge, std::min(kEdge, p_.n() - j * kEdge), deep, depth, to);
  }

  // False if the factors do not suit; nothing was written then.
  bool multiply_parts(const Launch& launch) const {
    const auto left = factor_of<float>(p_.a, launch.data(p_.a.slot));
    const auto right = factor_of<float>(p_.b.transposed(), launch.data(p_.b.slot));
    const auto* packed = static_cast<const char*>(launch.packed);
    SharedRange of_left, of_right;
    if (packed) {
      Range known;
      std::memcpy(&known, packed, sizeof known);
      of_right.add(known);
    }
    on_members(p_, threads_, [&](const Member& member) {
      const auto add = [&](SharedRange& seen, const Matrix& m, const Factor<float>& f) {
        const int64_t count = panels(m.rows);
        seen.add(range_of(m, f, member.begin(count) * kEdge, std::min(member.end(count) * kEdge, m.rows)));
      };
      add(of_left, p_.a, left);
      if (!packed) add(of_right, p_.b.transposed(), right);
      member.wait();
      if (!suits(of_left, of_right, p_.k())) return;
      char* own = onednn::at(launch.workspace, right_);
      begin_tiles();
      each_width(p_, packed, [&](int64_t first, int64_t count) {
        const Part part = member.part(panels(p_.m()), count);
        for (int64_t deep = 0; deep < p_.k(); deep += kSlice) {
          if (!packed) {
            if (first > 0 || deep > 0) member.wait();  // until nobody reads the last slice
            const int64_t begin = member.begin(count),
                          panel = steps(std::min(kSlice, p_.k() - deep)) * kStepBytes<float>;
            pack_panels(right, first + begin, first + member.end(count), deep, own + begin * panel);
            member.wait();
          }
          const char* slice = packed ? packed + kHeader + slice_offset(deep, first) : own;
          multiply_slice(launch, member, part, left, slice, first, deep);
        }
      });
      end_tiles();
    });
    return suits(of_left, of_right, p_.k());
  }

  // `slice`: of the right factor's panels from the `first` on, from which the part's columns count.
  void multiply_slice(const Launch& launch, const Member& member, const Part& part, const Factor<float>& left,
                      const char* slice, int64_t first, int64_t deep) const {
    const auto* bias = p_.self ? launch.data<const float>(p_.self->slot) : nullptr;
    auto* out = launch.data<float>(p_.out.slot);
    char* own = onednn::at(launch.workspace, left_) + member.index * left_bytes_;
    const int64_t depth = std::min(kSlice, p_.k() - deep), panel = steps(depth) * kStepBytes<float>,
                  step = p_.out.leading();
    for (int64_t row = part.row; row < part.row_end; row += panels(kRows)) {
      const int64_t count = std::min(panels(kRows), part.row_end - row);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t line = (row + i) * kEdge;
        pack_left(left, line, std::min(kEdge, p_.m() - line), deep, depth, own + i * panel);
      }
      for (int64_t j = part.column; j < part.column_end; ++j)
        for (int64_t i = 0; i < count; ++i) {
          const int64_t line = (row + i) * kEdge, column = (first + j) * kEdge;
          const Sums sums{out + line * step + column, step, std::min(kEdge, p_.m() - line),
                          std::min(kEdge, p_.n() - column)};
          multiply<float>(own + i * panel, slice + j * panel, steps(depth), deep > 0, sums);
          // at the end: rounded once, a bias that is larger than the products costs no more than in float32
          if (bias && deep + depth == p_.k()) add_row(bias + column, sums);
        }
    }
  }

  Problem p_;
  std::unique_ptr<Plan> otherwise_;
  int threads_;
  int64_t left_bytes_ = 0;
  uint64_t inner_ = 0, right_ = 0, left_ = 0;
};

}  // namespace

std::unique_ptr<Plan> parts_plan(const Problem& p) {
  static const bool allowed = is_allowed("MACA_SPLIT_FLOAT32") && available();
  if (!allowed) return nullptr;
  const bool bias = !p.self || p.self->repeats_one_row();
  // What is gained grows with m n k, the cost of packing with m k + n k. Of 210 shapes up to 1024^3 these are quicker
  // than float32, those of 128 columns by little, large ones by a third, whether the right factor is packed already or
  // not.
  const bool pays = p.k() >= 64 && p.m() * p.n() >= 100 * (p.m() + p.n()) && p.multiplications() >= 1 << 22;
  return tiles_take(p) && bias && pays ? std::make_unique<PartsPlan>(p) : nullptr;
}

}  // namespace maca::matmul
