// Products of matrices: mm, bmm, addmm, baddbmm. A block computes a tile of the result, the factors pass through shared
// memory. Halves are added up in float.
#include "../launch.h"

namespace maca_cuda {
namespace {

constexpr int kTile = 16;  // threads of a block are a tile: 256

struct Matrix {
  const void* memory;
  Dtype dtype;
  int32_t reserved;
  int64_t batch, row, column;  // strides
};

struct ProductArguments {
  Matrix a, b, added;  // added.dtype None: nothing is
  void* out;
  Dtype out_dtype;
  int32_t reserved;
  int64_t batch, row, column;  // strides of the result
  int64_t batches, rows, columns, terms;
  double alpha, beta;
  int64_t whole_alpha, whole_beta;
};

template <class C> __device__ inline C whole_or_real(double real, int64_t) { return static_cast<C>(real); }
template <> __device__ inline int64_t whole_or_real<int64_t>(double, int64_t whole) { return whole; }

// Integers wrap.
template <class C> __device__ inline C times(C a, C b) { return a * b; }
template <> __device__ inline int64_t times<int64_t>(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class C> __device__ inline C plus(C a, C b) { return a + b; }
template <> __device__ inline int64_t plus<int64_t>(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

template <class C> __global__ void product_of_tiles(ProductArguments p) {
  __shared__ C left[kTile][kTile + 1];  // one more: columns lie in other banks
  __shared__ C right[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t across = (p.columns + kTile - 1) / kTile, down = (p.rows + kTile - 1) / kTile;
  const int64_t tiles = across * down * p.batches;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t batch = tile / (across * down), within = tile % (across * down);
    const int64_t row = within / across * kTile + y, column = within % across * kTile + x;
    C total = C(0);
    for (int64_t k = 0; k < p.terms; k += kTile) {
      left[y][x] = row < p.rows && k + x < p.terms
                       ? load<C>(p.a.memory, p.a.dtype, batch * p.a.batch + row * p.a.row + (k + x) * p.a.column)
                       : C(0);
      right[y][x] = k + y < p.terms && column < p.columns
                        ? load<C>(p.b.memory, p.b.dtype, batch * p.b.batch + (k + y) * p.b.row + column * p.b.column)
                        : C(0);
      __syncthreads();
      for (int i = 0; i < kTile; ++i) total = plus(total, times(left[y][i], right[i][x]));
      __syncthreads();
    }
    if (row >= p.rows || column >= p.columns) continue;
    if (p.added.dtype != Dtype::None) {
      total = times(whole_or_real<C>(p.alpha, p.whole_alpha), total);
      const C beta = whole_or_real<C>(p.beta, p.whole_beta);
      if (beta != C(0))  // else what is added does not count, NaN included
        total = plus(total, times(beta, load<C>(p.added.memory, p.added.dtype,
                                                batch * p.added.batch + row * p.added.row + column * p.added.column)));
    }
    store(p.out, p.out_dtype, batch * p.batch + row * p.row + column * p.column, total);
  }
}

Matrix matrix_of(const Operand& o, bool has_batch) {
  if (o.rank() != (has_batch ? 3 : 2)) throw Invalid("an operand is no matrix");
  const size_t r = has_batch ? 1 : 0;
  return {nullptr, o.dtype, 0, has_batch ? o.strides[0] : 0, o.strides[r], o.strides[r + 1]};
}

std::unique_ptr<Plan> product(const Request& r, bool has_batch, bool has_sum) {
  const int first = has_sum ? 1 : 0;
  const Operand a = r.memory(first), b = r.memory(first + 1), out = r.out();
  if (r.inputs() != first + 2) throw Invalid("another number of matrices");
  ProductArguments p{};
  p.a = matrix_of(a, has_batch), p.b = matrix_of(b, has_batch);
  const Matrix result = matrix_of(out, has_batch);
  p.batch = result.batch, p.row = result.row, p.column = result.column;
  p.out_dtype = out.dtype;
  const size_t at = has_batch ? 1 : 0;
  p.batches = has_batch ? out.sizes[0] : 1;
  p.rows = out.sizes[at], p.columns = out.sizes[at + 1], p.terms = a.sizes[at + 1];
  if (a.sizes[at] != p.rows || b.sizes[at] != p.terms || b.sizes[at + 1] != p.columns)
    throw Invalid("sizes of matrices that do not fit");
  if (has_batch && (a.sizes[0] != p.batches || b.sizes[0] != p.batches)) throw Invalid("other numbers of matrices");
  if (a.dtype != b.dtype || a.dtype != out.dtype || a.dtype == Dtype::Bool) throw Declined("factors of other dtypes");
  p.added.dtype = Dtype::None;
  Operand added;
  int alpha = -1, beta = -1;
  if (has_sum) {
    added = r.memory(0);
    if (added.rank() > out.rank()) throw Invalid("what is added has more dimensions than the product");
    p.added.dtype = added.dtype;
    Dims strides(out.sizes.size(), 0);
    const size_t shift = out.sizes.size() - added.sizes.size();
    for (size_t d = 0; d < added.sizes.size(); ++d) {
      if (added.sizes[d] != 1 && added.sizes[d] != out.sizes[d + shift]) throw Invalid("what is added does not fit");
      if (added.sizes[d] != 1) strides[d + shift] = added.strides[d];
    }
    p.added.batch = has_batch ? strides[0] : 0, p.added.row = strides[at], p.added.column = strides[at + 1];
    p.alpha = p.beta = 1, p.whole_alpha = p.whole_beta = 1;
    alpha = r.scalar("alpha"), beta = r.scalar("beta");
  }
  const int64_t tiles = (p.rows + kTile - 1) / kTile * ((p.columns + kTile - 1) / kTile) * p.batches;
  return make_plan(
      [=](const Launching& l) {
        if (tiles == 0) return cudaSuccess;
        ProductArguments mine = p;
        mine.a.memory = l.data(a), mine.b.memory = l.data(b), mine.out = l.data(out);
        if (has_sum) mine.added.memory = l.data(added);
        const auto take = [&l](int slot, double& real, int64_t& whole) {
          if (slot < 0) return;
          const maca_scalar& s = l.scalar(slot);
          const bool is_whole = s.tag == MACA_SCALAR_INT || s.tag == MACA_SCALAR_BOOL;
          real = is_whole ? static_cast<double>(s.value.integer) : s.value.real;
          whole = is_whole ? s.value.integer : static_cast<int64_t>(s.value.real);
        };
        take(alpha, mine.alpha, mine.whole_alpha);
        take(beta, mine.beta, mine.whole_beta);
        const dim3 grid(static_cast<unsigned>(tiles < (1 << 20) ? tiles : 1 << 20)), block(kTile, kTile);
        const auto kernel = a.dtype == Dtype::F64  ? product_of_tiles<double>
                            : is_floating(a.dtype) ? product_of_tiles<float>
                                                   : product_of_tiles<int64_t>;
        return start(l, kernel, grid, block, mine);
      },
      "tiles of 16 x 16 in shared memory");
}

MACA_CUDA_KERNEL("mm", [](const Request& r) { return product(r, false, false); });
MACA_CUDA_KERNEL("bmm", [](const Request& r) { return product(r, true, false); });
MACA_CUDA_KERNEL("addmm", [](const Request& r) { return product(r, false, true); });
MACA_CUDA_KERNEL("baddbmm", [](const Request& r) { return product(r, true, true); });

}  // namespace
}  // namespace maca_cuda
