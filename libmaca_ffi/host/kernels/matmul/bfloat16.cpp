// Large matrix products of bfloat16 on a processor's tiles. What keeps the tiles busy is where the factors lie: of the
// left one, rows of the whole depth stay in the second-level cache; of the right one, a slice of a panel stays in the
// first-level cache while these rows go by.
#include "tiles.h"
#include "onednn/engine.h"

namespace maca::matmul {
namespace {

using namespace bfloat16_tiles;  // NOLINT(google-build-using-namespace): this file is about them
using onednn::Workspace;

constexpr int64_t kSlice = 256;          // deep, 16 KiB of a panel: one of each factor and a block of sums fit in 48
constexpr int64_t kLeftBytes = 1 << 20;  // of 2 MiB of a core's second-level cache
constexpr int64_t kRows = 256, kFewestRows = 128;  // at once; fewer read the right factor too often

class Bfloat16Plan final : public Plan {
 public:
  explicit Bfloat16Plan(const Problem& p)
      : p_(p), threads_(ThreadPool::instance().threads()), panel_(steps(p.k()) * kStepBytes<bf16>) {
    rows_ = std::min(panels(p.m()), std::min(kRows, kLeftBytes / (2 * p.k())) / kEdge);
    Workspace space;
    right_ = space.take(static_cast<uint64_t>(panels_at_once(p) * panel_));
    left_ = space.take(static_cast<uint64_t>(rows_ * panel_ * threads_));
    sums_ = space.take(static_cast<uint64_t>(rows_ * kBlock * threads_) * sizeof(float));
    workspace_bytes = space.bytes();
    work = p.work();
    implementation = "bfloat16 tiles";
    if (p.packs()) {
      packed_operand = p.b.slot;
      packed_bytes = static_cast<uint64_t>(panels(p.n()) * panel_);
    }
  }

  void pack(const void* operand, void* packed) const override {
    const auto right = factor_of<bf16>(p_.b.transposed(), operand);
    parallel_for(panels(p_.n()), 4, [&](int64_t begin, int64_t end) {
      pack_panels(right, begin, end, static_cast<char*>(packed) + begin * panel_);
    });
  }

  void run(const Launch& launch) const override {
    const auto right = factor_of<bf16>(p_.b.transposed(), launch.data(p_.b.slot));
    char* own = onednn::at(launch.workspace, right_);
    on_members(p_, threads_, [&](const Member& member) {
      begin_tiles();
      each_width(p_, launch.packed, [&](int64_t first, int64_t count) {
        if (!launch.packed) {
          if (first > 0) member.wait();  // until nobody reads the last ones
          const int64_t begin = member.begin(count);
          pack_panels(right, first + begin, first + member.end(count), own + begin * panel_);
          member.wait();
        }
        const auto* packed = launch.packed ? static_cast<const char*>(launch.packed) : own;
        multiply_part(launch, member, member.part(panels(p_.m()), count), packed, first);
      });
      end_tiles();
    });
  }

 private:
  static constexpr int64_t kBlock = kEdge * kEdge;  // sums

  void pack_panels(const Factor<bf16>& right, int64_t begin, int64_t end, char* to) const {
    for (int64_t j = begin; j < end; ++j, to += panel_)
      pack_right(right, j * kEdge, std::min(kEdge, p_.n() - j * kEdge), 0, p_.k(), to);
  }

  // `right`: its panels from the `first` on, from which the part's columns count.
  void multiply_part(const Launch& launch, const Member& member, const Part& part, const char* right,
                     int64_t first) const {
    const auto factor = factor_of<bf16>(p_.a, launch.data(p_.a.slot));
    char* left = onednn::at(launch.workspace, left_) + member.index * rows_ * panel_;
    auto* sums = reinterpret_cast<float*>(onednn::at(launch.workspace, sums_)) + member.index * rows_ * kBlock;
    for (int64_t row = part.row; row < part.row_end; row += rows_) {
      const int64_t count = std::min(rows_, part.row_end - row);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t line = (row + i) * kEdge;
        pack_left(factor, line, std::min(kEdge, p_.m() - line), 0, p_.k(), left + i * panel_);
      }
      for (int64_t j = part.column; j < part.column_end; ++j) {
        multiply_rows(left, count, right + j * panel_, j + 1 < part.column_end, sums);
        for (int64_t i = 0; i < count; ++i) write(launch, row + i, first + j, sums + i * kBlock);
      }
    }
  }

  // `count` panels of the left factor by one of the right factor, which another follows or not.
  void multiply_rows(const char* left, int64_t count, const char* right, bool another, float* sums) const {
    const char* end = right + (another ? 2 : 1) * panel_;
    for (int64_t first = 0; first < p_.k(); first += kSlice) {
      const int64_t depth = std::min(kSlice, p_.k() - first), at = first / kDepth * kStepBytes<bf16>;
      const char* slice = right + at;
      const int64_t bytes = steps(depth) * kStepBytes<bf16>, share = bytes / count;
      for (int64_t i = 0; i < count; ++i) {
        prefetch(slice + bytes + i * share, share, end);
        multiply<bf16>(left + i * panel_ + at, slice, steps(depth), first > 0,
                       {sums + i * kBlock, kEdge, kEdge, kEdge});
      }
    }
  }

  // To the second-level cache: from the third, the next slice comes too late.
  static void prefetch(const char* from, int64_t bytes, const char* end) {
    constexpr int64_t kLine = 64;
    end = std::min(from + bytes, end);
    for (; from < end; from += kLine) __builtin_prefetch(from, 0, 2);
  }

  void write(const Launch& launch, int64_t row, int64_t column, float* sums) const {
    row *= kEdge, column *= kEdge;
    const auto number = [&](int slot) { return static_cast<float>(scalar_to_double(factor(launch, slot))); };
    Scaled scaled{number(p_.alpha_slot), number(p_.beta_slot), nullptr, 0};
    if (p_.self && scaled.beta != 0) {
      scaled.self = launch.data<const bf16>(p_.self->slot) + row * p_.self->row_stride + column;
      scaled.self_step = p_.self->row_stride;
    }
    round_to(launch.data<bf16>(p_.out.slot) + row * p_.out.leading() + column, p_.out.leading(),
             {sums, kEdge, std::min(kEdge, p_.m() - row), std::min(kEdge, p_.n() - column)}, scaled);
  }

  Problem p_;
  int threads_;
  int64_t panel_, rows_ = 0;  // bytes of a panel of the whole depth; panels of the left factor's rows at once
  uint64_t right_ = 0, left_ = 0, sums_ = 0;
};

}  // namespace

std::unique_ptr<Plan> bfloat16_plan(const Problem& p) {
  if (!available() || !tiles_take(p)) return nullptr;
  const bool self = !p.self || p.self->column_stride == 1;
  // Of 30 shapes from 128 to 4096 these take 0.71 to 1.04 of oneDNN's time where the right factor is packed already,
  // 0.63 to 0.91 where it is not. What is less deep oneDNN multiplies as fast, with fewer sums to round.
  const bool pays = p.k() > 1024 && p.m() >= 256 && p.m() * p.n() >= 400000;
  return self && pays && 2 * p.k() * kFewestRows <= kLeftBytes ? std::make_unique<Bfloat16Plan>(p) : nullptr;
}

}  // namespace maca::matmul
