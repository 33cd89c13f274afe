// Matrix products: mm, bmm, addmm, addbmm, baddbmm, mv, addmv. Reads the request into one Problem and chooses who
// computes.
#include "matmul.h"

#include <cmath>

#include "onednn/engine.h"
#include "onednn/staging.h"
#include "processor.h"
#include "tensor_float.h"
#include "ways.h"

namespace maca {
MACA_AT_EACH_LEVEL(std::unique_ptr<Plan> product_in_panels(const matmul::Problem& p))
MACA_AT_EACH_LEVEL(std::unique_ptr<Plan> product_of_rows(const matmul::Problem& p))
}  // namespace maca

namespace maca::matmul {

std::unique_ptr<Plan> panels_plan(const Problem& p) {
  const auto make = MACA_BEST(product_in_panels);
  return make ? make(p) : nullptr;
}

namespace {
std::unique_ptr<Plan> product_by_columns(const Problem& p) {
  const auto make = MACA_BEST(product_of_rows);
  return make ? make(p) : nullptr;
}
}  // namespace

// Few rows: AVX-512's sgemm has chains as short and takes 0.6 to 0.9 of the time of two rows; those below it add all
// terms up to 192 in one. Products of 3 to 8 rows take 0.63 to 1.1 of the time of AVX2's, 0.4 to 1.1 of SSE2's (a Xeon
// with AVX-512, model 167, kept to these by MACA_SIMD).
//
// AVX2: shallow ones spend their time on adding up lanes. Measured as ways (`macatensor tune`) on one thread of an EPYC
// that ends at AVX2, over sgemm's time: 1 and 2 rows 13 deep 1.6 to 2.2, from 64 deep 0.5 to 0.95; 3 to 8 rows 13 deep
// 2 to 11, 64 deep 1.3 to 2.5, 512 deep 1.0 to 1.2, 1024 deep 0.5 to 0.9: there from 64 deep, too, for short chains.
//
// Halves: where oneDNN does not compute in them it widens the whole right factor at each call. Where it does, its
// kernels are for more rows than one: of one, 768 x 3072 and 3072 x 768, these take 0.5 to 0.9 of their time (a Xeon
// with AMX, 1 and 2 threads).
std::unique_ptr<Plan> rows_plan(const Problem& p, bool asked) {
  const Isa isa = allowed_isa();
  const bool halves = p.out.dtype != Dtype::F32;
  if (!asked && (halves ? p.m() > 1 && onednn::computes(p.out.dtype) : isa == Isa::Avx2 && p.k() < 64)) return nullptr;
  const bool suits = p.m() <= (isa >= Isa::Avx512 && !halves ? 1 : kDotRows) && p.k() > 0 && p.out.batch == 1 &&
                     (halves || p.a.column_stride == 1 || p.k() == 1) && !p.b.row_major() && p.b.column_major();
  return suits ? product_by_columns(p) : nullptr;
}

std::unique_ptr<Plan> widened_plan(const Problem& p, bool asked) {
  if (p.out.dtype == Dtype::F32 || (!asked && onednn::computes(p.out.dtype))) return nullptr;
  const bool suits =
      p.m() > kDotRows && p.k() > 0 && p.n() > 0 && p.out.batch == 1 && !p.b.row_major() && p.b.column_major();
  return suits ? product_by_columns(p) : nullptr;
}

// Whose sums oneDNN's primitives would add in longer chains than PyTorch's MKL does, or in others for another number of
// threads.
//
// AVX-512: the primitive adds up to 1024 terms in one accumulator, MKL 192 (EPYC, Zen 4) or 384 (Xeon). Errors in eps
// of the sum of the terms' magnitudes (rms, uniform numbers; EPYC) 256 and 2048 deep: primitive 1.85 and 2.6, MKL 0.98
// and 0.67, the sgemm 192 at a time 1.0 and 0.75, panels 0.7 and 0.45. On one thread of that EPYC the sgemm takes 0.92
// to 1.09 of the primitive's time, and 1.1 to 1.3 of a transposed right factor, of which panels take 0.97 to 1.12.
// AVX2, by MACA_SIMD on a Xeon with AVX-512 and AMX (model 167), not on a processor that ends there: whatever the
// depth, oneDNN and OpenBLAS add the last rows and columns of a thread's part in another order than the others; of 76
// shapes 66 had other bits with other threads. Panels take 0.75 to 1.23 of oneDNN's time on one thread (18 shapes of 40
// x 64 x 40 to 128 x 3072 x 768, three layouts); the most where a depth of thousands meets few rows or few columns.
// Baseline, so as well: oneDNN's batches have other bits with other threads; panels were not timed for batches.
std::unique_ptr<Plan> short_chains_plan(const Problem& p) {
  constexpr int64_t kDeep = 192;
  const bool one = p.out.batch == 1;
  switch (allowed_isa()) {
    case Isa::Avx512: {
      if (p.k() <= kDeep) return nullptr;
      return one && p.a.blas() && p.b.row_major() && p.out.row_major() ? blas_plan(p) : panels_plan(p);
    }
    case Isa::Avx2: return panels_plan(p);
    default: return !one ? panels_plan(p) : p.k() <= kDeep ? nullptr : blas_plan(p);
  }
}

void copy(const Matrix& from, const void* from_data, const Matrix& to, void* to_data) {
  const int64_t sizes[] = {to.batch, to.rows, to.columns};
  const int64_t from_strides[] = {from.batch_stride, from.row_stride, from.column_stride};
  const int64_t to_strides[] = {to.batch_stride, to.row_stride, to.column_stride};
  onednn::copy_strided(sizes, {from.dtype, const_cast<void*>(from_data), from_strides},
                       {to.dtype, to_data, to_strides});
}

Grid grid_of(int64_t pieces, int64_t rows, int64_t columns) {
  int64_t high = 1;
  for (int64_t r = 2; r <= pieces; ++r)
    if (pieces % r == 0 && rows / r + columns * r / pieces < rows / high + columns * high / pieces) high = r;
  return {high, pieces / high};
}

namespace {

template <class C> C activate(C x, Activation activation) {
  if constexpr (std::is_floating_point_v<C>) {
    if (activation == Activation::Relu) return x < C(0) ? C(0) : x;  // keeps NaN
    if (activation == Activation::Gelu) return x * C(0.5) * (C(1) + std::erf(x * C(0.70710678118654752440)));
  }
  return x;
}

template <class C> C scalar_as(const maca_scalar& s) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(scalar_to_int(s));
  else if constexpr (std::is_floating_point_v<C>)
    return static_cast<C>(scalar_to_double(s));
  else
    return static_cast<C>(scalar_to_complex(s));
}

template <class T, class P>
void combine_typed(const Problem& p, const Launch& launch, const Matrix& product, const P* acc, T* out) {
  const P alpha = scalar_as<P>(factor(launch, p.alpha_slot)), beta = scalar_as<P>(factor(launch, p.beta_slot));
  const bool with_self = p.self && beta != P(0);
  const T* self = with_self ? launch.data<T>(p.self->slot) : nullptr;
  const Matrix s = with_self ? *p.self : Matrix{};
  const Matrix& o = p.out;
  parallel_for(
      o.batch * o.rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, o.columns)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t batch = i / o.rows, row = i % o.rows;
          const P* from = acc + batch * product.batch_stride + row * product.row_stride;
          T* to = out + batch * o.batch_stride + row * o.row_stride;
          if (with_self) {
            const T* add = self + batch * s.batch_stride + row * s.row_stride;
            for (int64_t j = 0; j < o.columns; ++j)
              to[j * o.column_stride] =
                  static_cast<T>(activate(static_cast<P>(alpha * from[j * product.column_stride] +
                                                         beta * static_cast<P>(add[j * s.column_stride])),
                                          p.activation));
          } else {
            for (int64_t j = 0; j < o.columns; ++j)
              to[j * o.column_stride] =
                  static_cast<T>(activate(static_cast<P>(alpha * from[j * product.column_stride]), p.activation));
          }
        }
      });
}

Matrix read_matrix(const Operand& o, int64_t rank) {
  if (o.rank() != rank) throw Invalid("a matrix product got an operand of rank " + std::to_string(o.rank()));
  Matrix m;
  m.dtype = o.dtype;
  m.slot = o.slot;
  const auto r = static_cast<size_t>(rank);
  if (rank == 3) m.batch = o.sizes[0], m.batch_stride = o.strides[0];
  m.rows = o.sizes[r - 2], m.row_stride = o.strides[r - 2];
  m.columns = o.sizes[r - 1], m.column_stride = o.strides[r - 1];
  return m;
}

Matrix read_column(const Operand& o) {
  if (o.rank() != 1) throw Invalid("a matrix-vector product got a vector of rank " + std::to_string(o.rank()));
  Matrix m;
  m.dtype = o.dtype;
  m.slot = o.slot;
  m.rows = o.sizes[0], m.row_stride = o.strides[0];
  return m;
}

// `self` broadcast to the result: extents of one repeat.
Matrix read_self(const Operand& o, const Matrix& out, bool vector) {
  Matrix m = out;
  m.dtype = o.dtype;
  m.slot = o.slot;
  int64_t* strides[] = {&m.batch_stride, &m.row_stride, &m.column_stride};
  const int64_t sizes[] = {out.batch, out.rows, out.columns};
  for (int64_t* s : strides) *s = 0;
  const int last = vector ? 1 : 2;  // of a matrix-vector product self runs along the rows
  if (o.rank() > last + 1) throw Invalid("a matrix product cannot broadcast its first operand");
  for (int i = 0; i < o.rank(); ++i) {
    const auto from = static_cast<size_t>(o.rank() - 1 - i);
    const int to = last - i;
    if (o.sizes[from] == sizes[to])
      *strides[to] = sizes[to] == 1 ? 0 : o.strides[from];
    else if (o.sizes[from] != 1)
      throw Invalid("a matrix product cannot broadcast its first operand");
  }
  return m;
}

Problem read_problem(const Request& r) {
  const std::string_view name = r.kernel();
  const bool batched = name == "bmm" || name == "baddbmm";
  const bool vector = name == "mv" || name == "addmv";
  const int first = name == "mm" || name == "bmm" || name == "mv" ? 0 : 1;
  Problem p;
  p.a = read_matrix(r.in(first), batched ? 3 : 2);
  p.b = vector ? read_column(r.in(first + 1)) : read_matrix(r.in(first + 1), batched ? 3 : 2);
  p.out = vector ? read_column(r.out()) : read_matrix(r.out(), batched ? 3 : 2);
  // PyTorch's sum of one number and a product without rows is that number
  if (name == "addmv" && p.a.rows == 0 && p.out.rows == 1) p.a.rows = 1, p.a.columns = p.b.rows = 0;
  if (p.a.columns != p.b.rows || p.out.rows != p.a.rows || p.out.columns != p.b.columns || p.a.batch != p.b.batch ||
      p.out.batch != p.a.batch)
    throw Invalid("the extents of a matrix product do not match");
  if (p.a.dtype != p.b.dtype || p.out.dtype != p.a.dtype)
    throw Declined(std::string("matrix product of ") + dtype_name(p.a.dtype) + " and " + dtype_name(p.b.dtype) +
                   " into " + dtype_name(p.out.dtype));
  if (first == 1) {
    if (r.in(0).scalar()) throw Declined("matrix product with a number as its first operand");
    if (r.in(0).dtype != p.out.dtype) throw Declined("matrix product with a first operand of another dtype");
    p.self = read_self(r.in(0), p.out, vector);
    p.beta_slot = static_cast<int>(r.integer("beta.scalar", -1));
    p.alpha_slot = static_cast<int>(r.integer("alpha.scalar", -1));
  }
  if (name == "_addmm_activation") p.activation = r.boolean("use_gelu", false) ? Activation::Gelu : Activation::Relu;
  p.constant_b = !batched && !vector;
  return p;
}

// `way`: one of kWays, or empty.
std::unique_ptr<Plan> choose(Problem p, const std::string& way) {
  // BLAS writes rows: a column-major result is the row-major result of the transposed product. A row vector times
  // a matrix is what both libraries do best, so a matrix times a column goes that way, too.
  if (!p.out.row_major() && p.out.column_major())
    p = p.transposed();
  else if (p.n() == 1 && p.m() > 1 && p.out.column_major())
    p = p.transposed();
  return way.empty() ? by_rule(p) : plan_by_name(p, way);
}

// AVX2: small shallow products in panels take 0.65 to 0.96 of sgemm's time (one thread of an EPYC that ends there, 30
// shapes of 3 x 8 x 3 to 32 x 32 x 32), and as long or longer where a wide right factor is transposed.
bool is_shallow(const Problem& p) {
  constexpr int64_t kShallow = 32, kWide = 64;
  return allowed_isa() == Isa::Avx2 && p.k() > 0 && p.k() <= kShallow && (p.b.row_major() || p.n() <= kWide);
}

}  // namespace

std::unique_ptr<Plan> by_rule(const Problem& p) {
  switch (p.out.dtype) {
    case Dtype::F32: {
      // Up to 32^3 the call is what costs; up to 8 rows a product is bound by memory, which oneDNN's sgemm reads
      // as fast as a primitive does, without 0.5 ms of code generation for every new shape (decoding makes one a
      // token).
      const bool tiny = p.multiplications() <= 32 * 32 * 32, thin = p.m() <= 8;
      if (auto rows = rows_plan(p)) return rows;
      if (tiny && is_shallow(p))
        if (auto panels = panels_plan(p)) return panels;
      if (tiny || thin || p.k() == 0) return blas_plan(p);
      if (auto parts = parts_plan(p)) return parts;
      if (auto plan = short_chains_plan(p)) return plan;
      return onednn_plan(p);
    }
    case Dtype::BF16:
      if (auto tiles = bfloat16_plan(p)) return tiles;
      [[fallthrough]];
    case Dtype::F16:
      if (auto rows = rows_plan(p)) return rows;
      if (auto panels = widened_plan(p)) return panels;
      return onednn_plan(p);
    case Dtype::F64:
    case Dtype::C64:
    case Dtype::C128: return blas_plan(p);
    default: return integer_plan(p);
  }
}

namespace {

std::unique_ptr<Plan> make_matmul(const Request& r) {
  const Problem p = read_problem(r);
  if (p.out.dtype == Dtype::Bool) return bool_plan(p, r.kernel() == "mv" || r.kernel() == "addmv");
  return choose(p, way_of(r));
}

// addbmm: a sum over the batch is one product of the matrices laid side by side.
class SidewaysPlan final : public Plan {
 public:
  explicit SidewaysPlan(const Request& r) {
    const Operand& out = r.out();
    from_a_ = read_matrix(r.in(1), 3);
    from_b_ = read_matrix(r.in(2), 3);
    if (from_a_.batch != from_b_.batch || from_a_.columns != from_b_.rows)
      throw Invalid("the extents of addbmm do not match");
    const int64_t batch = from_a_.batch, m = from_a_.rows, k = from_a_.columns, n = from_b_.columns;
    Problem p;
    p.a = {from_a_.dtype, 0, 1, m, batch * k, 0, batch * k, 1};
    p.b = {from_b_.dtype, 1, 1, batch * k, n, 0, n, 1};
    p.out = read_matrix(out, 2);
    if (p.out.rows != m || p.out.columns != n) throw Invalid("the extents of addbmm do not match");
    if (p.a.dtype != p.b.dtype || p.out.dtype != p.a.dtype || r.in(0).dtype != p.a.dtype || r.in(0).scalar())
      throw Declined("addbmm of different dtypes");
    p.self = read_self(r.in(0), p.out, false);
    slots_[0] = r.in(0).slot, slots_[1] = out.slot;
    p.self->slot = 2;
    p.out.slot = 3;
    p.beta_slot = static_cast<int>(r.integer("beta.scalar", -1));
    p.alpha_slot = static_cast<int>(r.integer("alpha.scalar", -1));
    to_a_ = {from_a_.dtype, 0, batch, m, k, k, batch * k, 1};
    to_b_ = {from_b_.dtype, 1, batch, k, n, k * n, n, 1};
    product_ = choose(p, way_of(r));
    onednn::Workspace space;
    const auto bytes = static_cast<uint64_t>(item_size(p.a.dtype));
    inner_ = space.take(product_->workspace_bytes);
    a_ = space.take(static_cast<uint64_t>(to_a_.numel()) * bytes);
    b_ = space.take(static_cast<uint64_t>(to_b_.numel()) * bytes);
    workspace_bytes = space.bytes();
    work = product_->work;
    implementation = product_->implementation;
  }

  void run(const Launch& launch) const override {
    void* a = onednn::at(launch.workspace, a_);
    void* b = onednn::at(launch.workspace, b_);
    copy(from_a_, launch.data(from_a_.slot), to_a_, a);
    copy(from_b_, launch.data(from_b_.slot), to_b_, b);
    void* const pointers[] = {a, b, launch.data(slots_[0]), launch.data(slots_[1])};
    Launch inner = launch;
    inner.pointers = pointers;
    inner.workspace = onednn::at(launch.workspace, inner_);
    inner.packed = nullptr;
    product_->run(inner);
  }

 private:
  Matrix from_a_, from_b_, to_a_, to_b_;
  int slots_[2] = {};
  std::unique_ptr<Plan> product_;
  uint64_t inner_ = 0, a_ = 0, b_ = 0;
};

std::unique_ptr<Plan> make_addbmm(const Request& r) { return std::make_unique<SidewaysPlan>(r); }

// Under TF32 the factors are rounded, what is added is not. Products with a vector keep float32, as on CUDA.
std::unique_ptr<Plan> make_product(const Request& r) { return tensor_float::rounded(r, {0, 1}, make_matmul); }
std::unique_ptr<Plan> make_sum(const Request& r) { return tensor_float::rounded(r, {1, 2}, make_matmul); }
std::unique_ptr<Plan> make_sum_of_batch(const Request& r) { return tensor_float::rounded(r, {1, 2}, make_addbmm); }

}  // namespace

std::unique_ptr<Plan> plan_by_name(const Problem& p, std::string_view way) {
  const bool f32 = p.out.dtype == Dtype::F32, halves = p.out.dtype == Dtype::BF16 || p.out.dtype == Dtype::F16;
  std::unique_ptr<Plan> plan;
  if (p.out.numel() == 0 || p.k() == 0)
    ;  // there is nothing to choose
  else if (onednn::kPresent && way == "onednn" && (f32 || halves))
    plan = onednn_plan(p);
  else if (way == "tiles" && p.out.dtype == Dtype::BF16)
    plan = bfloat16_plan(p);
  else if (way == "sgemm" && f32)
    plan = blas_plan(p);
  else if (way == "openblas" && f32)
    plan = blas_plan(p, true);
  else if (way == "panels" && (f32 || halves))
    plan = f32 ? panels_plan(p) : widened_plan(p, true);
  else if (way == "dot products" && (f32 || halves))
    plan = rows_plan(p, true);
  else if (way == "parts" && f32)
    plan = parts_plan(p);
  if (!plan) throw Declined("no matrix product like this one goes by \"" + std::string(way) + '"');
  return plan;
}

void combine(const Problem& p, const Launch& launch, const Matrix& product, const void* acc, void* out) {
  const auto go = [&](auto t, auto c) {
    using T = decltype(t);
    using P = decltype(c);
    combine_typed<T, P>(p, launch, product, static_cast<const P*>(acc), static_cast<T*>(out));
  };
  switch (p.out.dtype) {
    case Dtype::F32: return go(float{}, float{});
    case Dtype::BF16: return go(bf16{}, float{});
    case Dtype::F16: return go(f16{}, float{});
    case Dtype::F64: return go(double{}, double{});
    case Dtype::C64: return go(c64{}, c64{});
    case Dtype::C128: return go(c128{}, c128{});
    default: break;
  }
  if (!with_integral(p.out.dtype, [&](auto t) { go(t, t); })) throw Declined("matrix product of this dtype");
}

MACA_KERNEL("mm", make_product);
MACA_KERNEL("bmm", make_product);
MACA_KERNEL("addmm", make_sum);
MACA_KERNEL("_addmm_activation", make_sum);
MACA_KERNEL("baddbmm", make_sum);
MACA_KERNEL("addbmm", make_sum_of_batch);
MACA_KERNEL("mv", make_matmul);
MACA_KERNEL("addmv", make_matmul);

}  // namespace maca::matmul
