// Matrix products of float32 on panels of our own. oneDNN's for AVX-512 adds up to 1024 terms in one accumulator, whose
// error is 2 to 17 times that of MKL's; here kChain terms are, their sums within kSlice in order, and those of the
// slices in order to the result.
#include "tiles.h"
#include "onednn/engine.h"
#include "panel_product.h"
#include "scratch.h"

namespace maca::MACA_ISA {
namespace {

using matmul::is_one;
using matmul::Matrix;
using matmul::Member;
using matmul::Part;
using matmul::Problem;
using onednn::Workspace;

// Depth of what is packed at once: a panel of the right factor takes 64 KiB with AVX-512, and the result is read and
// written once for it. Sums of more slices are what the error grows with where the depth is thousands. The numbers at
// once are of times on one machine, which was not noted.
constexpr int64_t kSlice = 512;
constexpr int64_t kRowsAtOnce = 240;
// That one accumulator adds: twice as many as where a sum has an error from elsewhere, too. 2 to 4 % of the time.
constexpr int64_t kTerms = 2 * kChain;
constexpr int64_t kPanelsAtOnce = 128;  // of the right factor, where it is not packed for good

class PanelsPlan final : public Plan {
 public:
  explicit PanelsPlan(const Problem& p)
      : p_(p), a_(p.a), b_(p.b), product_(p.out), threads_(ThreadPool::instance().threads()) {
    Workspace space;
    if (!p.a.blas()) a_offset_ = stage(a_, space);
    if (!p.b.blas()) b_offset_ = stage(b_, space);
    if (!p.out.row_major()) {
      product_ = p.out.compact(Dtype::F32);
      product_offset_ = space.take(static_cast<uint64_t>(product_.numel()) * 4);
    }
    const int64_t slice = std::min(kSlice, p.k());
    shares_matrix_ = p.out.batch == 1 || p.m() * p.n() * p.k() >= (int64_t{1} << 22);
    const bool collide = a_.row_major() && a_.leading() % kColliding == 0;
    packs_left_ = panels() >= (collide ? kPanelsToPackColliding : kPanelsToPack) || (!a_.row_major() && panels() > 1);
    right_bytes_ = bytes(std::min(panels(), kPanelsAtOnce) * slice * kColumns);
    left_bytes_ = packs_left_ ? bytes(std::min(p.m(), kRowsAtOnce) * slice + kLanes) : 0;
    if (shares_matrix_) right_ = space.take(right_bytes_);
    scratch_ = Scratch(static_cast<int64_t>(left_bytes_ + (shares_matrix_ ? 0 : right_bytes_)));
    left_ = space.take(scratch_.workspace());
    workspace_bytes = space.bytes();
    work = p.work();
    implementation = "panels";
    direct_ = p.out.row_major() && p.activation == matmul::Activation::None &&
              (!p.self || (p.self->repeats_one_row() && p.out.batch == 1));
    if (p.packs() && p.out.batch == 1 && b_offset_ == Workspace::kNone) {
      packed_operand = p.b.slot;
      packed_bytes = bytes(p.k() * panels() * kColumns);
    }
  }

  void pack(const void* operand, void* packed) const override {
    parallel_for(panels(), 4, [&](int64_t begin, int64_t end) {
      each_slice([&](int64_t deep, int64_t depth) {
        pack_right(static_cast<const float*>(operand), begin, end, deep, depth,
                   static_cast<float*>(packed) + deep * panels() * kColumns + begin * depth * kColumns);
      });
    });
  }

  void run(const Launch& launch) const override {
    const bool ones = is_one(launch, p_.alpha_slot) && (!p_.self || is_one(launch, p_.beta_slot));
    const bool direct = direct_ && ones;
    const auto* bias = direct && p_.self ? launch.data<const float>(p_.self->slot) : nullptr;
    const float *a = staged(launch, p_.a, a_, a_offset_), *b = staged(launch, p_.b, b_, b_offset_);
    auto* out = launch.data<float>(p_.out.slot);
    auto* product = product_offset_ == Workspace::kNone
                        ? out
                        : reinterpret_cast<float*>(onednn::at(launch.workspace, product_offset_));
    const auto one = [&](const Member& member, int64_t i) {
      multiply(launch, member, a + i * a_.batch_stride, b + i * b_.batch_stride, bias,
               product + i * product_.batch_stride);
    };
    if (shares_matrix_) {
      Problem each = p_;
      each.out.batch = 1;
      matmul::on_members(each, threads_, [&](const Member& member) {
        for (int64_t i = 0; i < p_.out.batch; ++i) {
          if (i > 0) member.wait();  // until nobody reads the last one's panels
          one(member, i);
        }
      });
    } else {
      parallel_for(p_.out.batch, std::max<int64_t>(1, (1 << 19) / std::max<int64_t>(1, p_.m() * p_.n() * p_.k())),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) one(Member{0, 1}, i);
                   });
    }
    if (!direct) matmul::combine(p_, launch, product_, product, out);
  }

 private:
  // Panels that repay a packed left factor: 3 % of a product of 1024; where kRows rows meet in few sets of a
  // first-level cache of 8 ways, whatever their number, as half a page apart, 10 % (EPYC, Zen 4, 256 x 2048 x 256).
  static constexpr int64_t kPanelsToPack = 32, kPanelsToPackColliding = 4, kColliding = 512;
  // Bytes of panels that a second-level cache does not hold: each comes from further away for its first rows, so it is
  // asked for while the one before is multiplied, and the result's rows before they are. 0.84 to 0.89 of the time of
  // 2048 x 2048 x 2048 (Xeon with AVX-512, model 167); where panels stay in the cache it would cost 1 to 3 %.
  static constexpr int64_t kAhead = 2 << 20;

  static uint64_t bytes(int64_t floats) { return (static_cast<uint64_t>(floats) * 4 + 63) / 64 * 64; }
  int64_t panels() const { return (p_.n() + kColumns - 1) / kColumns; }

  static uint64_t stage(Matrix& m, Workspace& space) {
    const bool repeated = m.batch_stride == 0;
    m = m.compact(Dtype::F32);
    if (repeated) m.batch = 1, m.batch_stride = 0;
    return space.take(static_cast<uint64_t>(m.numel()) * 4);
  }
  static const float* staged(const Launch& launch, const Matrix& from, const Matrix& to, uint64_t offset) {
    if (offset == Workspace::kNone) return launch.data<const float>(from.slot);
    auto* copied = reinterpret_cast<float*>(onednn::at(launch.workspace, offset));
    Matrix source = from;
    source.batch = to.batch;
    matmul::copy(source, launch.data(from.slot), to, copied);
    return copied;
  }

  template <class F> void each_slice(F&& f) const {
    for (int64_t deep = 0; deep < p_.k(); deep += kSlice) f(deep, std::min(kSlice, p_.k() - deep));
  }

  // Panels [begin, end) of the right factor, `depth` of it from `deep` on, one after the other.
  void pack_right(const float* right, int64_t begin, int64_t end, int64_t deep, int64_t depth, float* to) const {
    const int64_t step = b_.leading();
    const Panels panels{depth, p_.n() - begin * kColumns, depth};
    if (b_.row_major())
      panels.pack(0, end - begin, to, [&](int64_t k) { return right + (deep + k) * step + begin * kColumns; });
    else
      panels.pack_transposed(0, end - begin, to,
                             [&](int64_t j) { return right + (begin * kColumns + j) * step + deep; });
  }

  void multiply(const Launch& launch, const Member& member, const float* left, const float* right, const float* bias,
                float* out) const {
    const auto* packed = static_cast<const float*>(launch.packed);
    std::unique_ptr<char[]> heap;
    char* scratch = scratch_.of_thread(onednn::at(launch.workspace, left_), heap);
    auto* rows = reinterpret_cast<float*>(scratch);
    auto* own = reinterpret_cast<float*>(shares_matrix_ ? onednn::at(launch.workspace, right_) : scratch + left_bytes_);
    const int64_t width = packed ? panels() : std::min(panels(), kPanelsAtOnce);
    for (int64_t first = 0; first < panels(); first += width) {
      const int64_t count = std::min(width, panels() - first);
      const Part part = member.part((p_.m() + kRows - 1) / kRows, count);
      each_slice([&](int64_t deep, int64_t depth) {
        const float* slice = own;
        if (packed) {
          slice = packed + deep * panels() * kColumns;
        } else {
          if (first > 0 || deep > 0) member.wait();  // until nobody reads the last slice
          const int64_t begin = member.begin(count);
          pack_right(right, first + begin, first + member.end(count), deep, depth, own + begin * depth * kColumns);
          member.wait();
        }
        multiply_slice(part, left, slice, first, deep, depth, bias, out, rows);
      });
    }
  }

  static void ask_for(const float* begin, const float* end) {
    for (constexpr int64_t kLine = 16; begin < end; begin += kLine) __builtin_prefetch(begin);
  }

  // `slice`: of the right factor's panels from the `first` on, from which the part's columns count.
  void multiply_slice(const Part& part, const float* left, const float* slice, int64_t first, int64_t deep,
                      int64_t depth, const float* bias, float* out, float* packed) const {
    const int64_t step = product_.leading(), end = std::min(part.row_end * kRows, p_.m());
    const int64_t row_step = a_.row_major() ? a_.leading() : 1, depth_step = a_.row_major() ? 1 : a_.leading();
    const bool last = deep + depth == p_.k();
    left += deep * depth_step;
    const int64_t begin = part.row * kRows, blocks = (end - begin + kRows - 1) / kRows;
    const int64_t times = (blocks * kRows + kRowsAtOnce - 1) / kRowsAtOnce;  // alike: few rows reread all panels, too
    for (int64_t t = 0; t < times; ++t) {
      const int64_t row = begin + blocks * t / times * kRows,
                    rows = std::min(begin + blocks * (t + 1) / times * kRows, end) - row;
      if (packs_left_)
        Panels::each_row_block(rows, [&](int64_t i, int64_t n) {
          const float* from = left + (row + i) * row_step;
          float* to = packed + i * depth;
          if (depth_step == 1)
            pack_left_rows(depth, n, from, row_step, to);
          else if (n == kRows)  // a size that is known is copied in two instructions
            for (int64_t k = 0; k < depth; ++k) std::memcpy(to + k * kRows, from + k * depth_step, kRows * 4);
          else
            for (int64_t k = 0; k < depth; ++k) std::copy_n(from + k * depth_step, n, to + k * n);
        });
      const int64_t panel = depth * kColumns;
      const bool ahead = (part.column_end - part.column) * panel * 4 > kAhead;
      for (int64_t j = part.column; j < part.column_end; ++j) {
        const int64_t column = (first + j) * kColumns, width = p_.n() - column;
        Panels::each_row_block(rows, [&](int64_t i, int64_t n) {
          if (ahead) {
            if (j + 1 < part.column_end)  // its share for these rows
              ask_for(slice + (j + 1) * panel + panel * i / rows, slice + (j + 1) * panel + panel * (i + n) / rows);
            for (int64_t r = 0; r < n; ++r) {
              const float* at = out + (row + i + r) * step + column;
              ask_for(at, at + std::min(width, kColumns));
            }
          }
          float* to = out + (row + i) * step + column;
          const Sums sums{to, step, deep > 0, kTerms};
          if (packs_left_)
            Panels::multiply_few_rows(n, depth, PackedLeft{packed + i * depth}, slice + j * panel, width, sums);
          else
            Panels::multiply_few_rows(n, depth, Left{left + (row + i) * row_step, row_step, depth_step},
                                      slice + j * panel, width, sums);
          // at the end: rounded once, a bias that is larger than the products costs no more
          if (bias && last)
            for (int64_t r = 0; r < n; ++r)
              for (int64_t c = 0; c < std::min(width, kColumns); ++c) to[r * step + c] += bias[column + c];
        });
      }
    }
  }

  Problem p_;
  Matrix a_, b_, product_;  // what is read and written
  int threads_;
  Scratch scratch_;
  bool shares_matrix_ = true, packs_left_ = false, direct_ = false;
  uint64_t right_bytes_ = 0, left_bytes_ = 0, right_ = 0, left_ = 0, a_offset_ = Workspace::kNone,
           b_offset_ = Workspace::kNone, product_offset_ = Workspace::kNone;
};

}  // namespace

std::unique_ptr<Plan> product_in_panels(const Problem& p) { return std::make_unique<PanelsPlan>(p); }

}  // namespace maca::MACA_ISA
