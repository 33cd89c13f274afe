// Matrix products on BLAS: float64 and complex always, float32 where a call must cost little.
#include "blas.h"

#include "matmul.h"
#include "processor.h"

namespace maca::matmul {

void one_blas_thread() {
  static const bool done = (scipy_openblas_set_num_threads(1), true);
  static_cast<void>(done);
}

namespace {

// Terms of float32 that one call adds, alike but for the last: the libraries would add up to 384 in one accumulator,
// whose errors are 1.5 to 2 times those of the MKL of an EPYC (Zen 4), which adds 192. Uniform numbers, eps of the sum
// of the terms' magnitudes (rms), before and now: 256 deep 1.85 and 1.0, MKL 0.98; 2048 deep 1.05 and 0.75, MKL 0.67.
// Under few rows AVX-512's kernels read a transposed right factor along the depth and add 16 to 64 terms at once: their
// chains are short until the depth is thousands, and in pieces of 192 they take 1.35 times as long.
template <class T> int64_t terms_at_once(int64_t depth, bool along_depth) {
  constexpr int64_t kWhole = 16;
  const int64_t most = along_depth && allowed_isa() >= Isa::Avx512 ? 2048 : 192;
  if (!std::is_same_v<T, float> || depth <= most) return std::max<int64_t>(depth, 1);
  const int64_t pieces = (depth + most - 1) / most;
  return ((depth + pieces - 1) / pieces + kWhole - 1) / kWhole * kWhole;
}

// f(index, size) on a team of up to `count` threads; one thread, too, is in a region, where oneDNN starts no others.
template <class F> void in_region(int64_t count, F&& f) {
  if (ThreadPool::in_region()) return f(int64_t{0}, int64_t{1});
  const auto task = [](void* context) {
    (*static_cast<std::remove_reference_t<F>*>(context))(ThreadPool::thread_index(), ThreadPool::team_size());
  };
  ThreadPool::instance().run(static_cast<int>(count), task, &f);
}

// Where part `index` of `count` begins. The libraries' kernels add what is left over at the end of a part in an order
// of its own: cut at multiples of what they compute at once, results do not depend on the number of threads.
int64_t cut(int64_t size, int64_t index, int64_t count) {
  constexpr int64_t kWhole = 16;
  return index == count ? size : size / kWhole * index / count * kWhole;
}

template <class T> T number(const maca_scalar& s) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(scalar_to_double(s));
  else
    return static_cast<T>(scalar_to_complex(s));
}

template <class T> class BlasPlan final : public Plan {
 public:
  BlasPlan(const Problem& p, bool own_float) : p_(p), a_(p.a), b_(p.b), out_(p.out), own_float_(own_float) {
    one_blas_thread();
    constexpr int64_t limit = 0x7fffffff;
    for (const Matrix* x : {&p.a, &p.b, &p.out})
      if (x->rows > limit || x->columns > limit || x->leading() > limit)
        throw Declined("BLAS counts in 32 bits, an extent exceeds them");
    onednn::Workspace space;
    const auto stage = [&](const Matrix& from, Matrix& to, uint64_t& offset) {
      if (from.blas()) return;
      to = from.compact(from.dtype);
      if (from.batch_stride == 0 && &from != &p.out) to.batch_stride = 0, to.batch = 1;
      offset = space.take(static_cast<uint64_t>(to.numel()) * sizeof(T));
      to.batch = from.batch;
    };
    stage(p.a, a_, a_offset_);
    stage(p.b, b_, b_offset_);
    if (!p.out.row_major()) stage(p.out, out_, out_offset_);
    workspace_bytes = space.bytes();
    work = p.work();
    implementation = std::is_same_v<T, float> && !own_float && on_onednn() ? "onednn sgemm" : "openblas gemm";
  }

  void run(const Launch& launch) const override {
    if (p_.out.numel() == 0) return;
    const auto* a = launch.data<T>(p_.a.slot);
    const auto* b = launch.data<T>(p_.b.slot);
    auto* out = launch.data<T>(p_.out.slot);
    a = staged(launch, p_.a, a_, a_offset_, a);
    b = staged(launch, p_.b, b_, b_offset_, b);
    if (out_offset_ != onednn::Workspace::kNone) out = reinterpret_cast<T*>(onednn::at(launch.workspace, out_offset_));

    const T alpha = number<T>(factor(launch, p_.alpha_slot));
    T beta = p_.self ? number<T>(factor(launch, p_.beta_slot)) : T(0);
    if (beta != T(0)) copy(*p_.self, launch.data(p_.self->slot), out_, out);
    multiply(alpha, a, b, beta, out);
    if (p_.activation != Activation::None) {
      Problem only = p_;
      only.self.reset();
      only.alpha_slot = -1;
      combine(only, launch, out_, out, launch.data(p_.out.slot));
    } else if (out_offset_ != onednn::Workspace::kNone) {
      copy(out_, out, p_.out, launch.data(p_.out.slot));
    }
  }

 private:
  // Either library is as quick for small ones, whose call is what costs; but for 1 or 2 rows OpenBLAS packs the matrix:
  // of 128 x 128 and 256 x 64 oneDNN takes 0.68 to 0.85 of its time, of 64 x 64 as long (one thread of an EPYC, AVX2).
  bool on_onednn() const {
    const bool is_large = p_.multiplications() > (std::min(p_.m(), p_.n()) <= 2 ? 8192 : 32 * 32 * 32);
    return onednn::kPresent && p_.out.batch == 1 && is_large;
  }

  static const T* staged(const Launch& launch, const Matrix& from, const Matrix& to, uint64_t offset, const T* data) {
    if (offset == onednn::Workspace::kNone) return data;
    auto* copied = reinterpret_cast<T*>(onednn::at(launch.workspace, offset));
    Matrix source = from, target = to;
    if (to.batch_stride == 0) source.batch = target.batch = 1;
    copy(source, data, target, copied);
    return copied;
  }

  void multiply(T alpha, const T* a, const T* b, T beta, T* out) const {
    const int64_t m = p_.m(), n = p_.n(), k = p_.k(), batch = out_.batch;
    const bool at = !a_.row_major(), bt = !b_.row_major();
    const int64_t lda = a_.leading(), ldb = b_.leading(), ldc = out_.leading();
    const int64_t a_row = at ? 1 : lda, b_column = bt ? ldb : 1, a_depth = at ? lda : 1, b_depth = bt ? 1 : ldb;
    const int64_t terms = terms_at_once<T>(k, bt && m <= 8);
    const int64_t product = std::max<int64_t>(1, m * n * k);
    // Multiplications that repay handing a piece to another thread, 10 to 20 us on one machine, which was not noted.
    constexpr int64_t kPiece = 1 << 19;
    // Either library on one thread each: oneDNN's sgemm would cut the depth by the number of threads.
    const bool onednn = std::is_same_v<T, float> && !own_float_ && on_onednn();
    const auto one = [&](int64_t i, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
      for (int64_t deep = 0; deep < k; deep += terms)
        gemm<T>(at, bt, m1 - m0, n1 - n0, std::min(terms, k - deep), alpha,
                a + i * a_.batch_stride + m0 * a_row + deep * a_depth, lda,
                b + i * b_.batch_stride + n0 * b_column + deep * b_depth, ldb, deep == 0 ? beta : T(1),
                out + i * out_.batch_stride + m0 * ldc + n0, ldc, onednn);
    };
    if (k == 0) {  // BLAS may leave the result alone
      scale(beta, out);
    } else if (batch > 1) {
      parallel_for(batch, std::max<int64_t>(1, kPiece / product), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) one(i, 0, m, 0, n);
      });
    } else {
      const int64_t threads = ThreadPool::instance().threads();
      const auto [high, wide] = grid_of(std::clamp<int64_t>(product / ThreadPool::grain(kPiece), 1, threads), m, n);
      in_region(high * wide, [&, high = high, wide = wide](int64_t first, int64_t step) {
        for (int64_t i = first; i < high * wide; i += step) {
          const int64_t r = i / wide, c = i % wide;
          const int64_t m0 = cut(m, r, high), m1 = cut(m, r + 1, high), n0 = cut(n, c, wide), n1 = cut(n, c + 1, wide);
          if (m0 < m1 && n0 < n1) one(0, m0, m1, n0, n1);
        }
      });
    }
  }

  void scale(T beta, T* out) const {
    for (int64_t i = 0; i < out_.batch; ++i)
      for (int64_t r = 0; r < out_.rows; ++r) {
        T* row = out + i * out_.batch_stride + r * out_.leading();
        for (int64_t c = 0; c < out_.columns; ++c) row[c] = beta == T(0) ? T(0) : beta * row[c];
      }
  }

  Problem p_;
  Matrix a_, b_, out_;  // what BLAS sees
  bool own_float_;      // not on oneDNN's sgemm
  uint64_t a_offset_ = onednn::Workspace::kNone, b_offset_ = onednn::Workspace::kNone,
           out_offset_ = onednn::Workspace::kNone;
};

}  // namespace

std::unique_ptr<Plan> blas_plan(const Problem& p, bool own_float) {
  switch (p.out.dtype) {
    case Dtype::F32: return std::make_unique<BlasPlan<float>>(p, own_float);
    case Dtype::F64: return std::make_unique<BlasPlan<double>>(p, false);
    case Dtype::C64: return std::make_unique<BlasPlan<c64>>(p, false);
    default: return std::make_unique<BlasPlan<c128>>(p, false);
  }
}

}  // namespace maca::matmul
