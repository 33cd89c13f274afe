// One description of every matrix product: out = act(beta * self + alpha * a @ b), batched.
#pragma once
#include <array>
#include <optional>

#include "kernel.h"

namespace maca::matmul {

// A batch of matrices; strides in elements. A broadcast dimension has stride 0.
struct Matrix {
  Dtype dtype = Dtype::None;
  int slot = -1;
  int64_t batch = 1, rows = 1, columns = 1;
  int64_t batch_stride = 0, row_stride = 0, column_stride = 0;

  // BLAS and oneDNN take matrices with one unit stride and no overlap.
  bool row_major() const {
    return (columns == 1 || column_stride == 1) && (rows == 1 || row_stride >= std::max<int64_t>(columns, 1));
  }
  bool column_major() const {
    return (rows == 1 || row_stride == 1) && (columns == 1 || column_stride >= std::max<int64_t>(rows, 1));
  }
  bool blas() const { return row_major() || column_major(); }
  // As a bias does, its numbers side by side.
  bool repeats_one_row() const {
    return (batch == 1 || batch_stride == 0) && row_stride == 0 && (column_stride == 1 || columns == 1);
  }
  int64_t leading() const {  // distance of rows (of columns where column-major)
    if (row_major()) return rows == 1 ? std::max<int64_t>(columns, 1) : row_stride;
    return columns == 1 ? std::max<int64_t>(rows, 1) : column_stride;
  }
  int64_t numel() const { return batch * rows * columns; }
  Matrix transposed() const {
    Matrix m = *this;
    std::swap(m.rows, m.columns);
    std::swap(m.row_stride, m.column_stride);
    return m;
  }
  Matrix compact(Dtype type) const {  // its row-major copy
    return {type, slot, batch, rows, columns, rows * columns, columns, 1};
  }
};

enum class Activation { None, Relu, Gelu };

struct Problem {
  Matrix a, b, out;
  std::optional<Matrix> self;           // broadcast to out by zero strides
  int alpha_slot = -1, beta_slot = -1;  // -1: one
  Activation activation = Activation::None;
  bool constant_b = false;  // b may be a weight: worth preparing once
  int64_t m() const { return out.rows; }
  int64_t n() const { return out.columns; }
  int64_t k() const { return a.columns; }
  // in the units of Plan::work: eight multiplications go by while one byte of a large array does
  uint64_t work() const {
    return static_cast<uint64_t>(out.numel()) * static_cast<uint64_t>(std::max<int64_t>(k(), 1) + 7) / 8;
  }
  int64_t multiplications() const { return out.numel() * k(); }
  static constexpr int64_t kPacked = 16384;  // numbers of a factor that is worth it
  bool packs() const { return constant_b && k() * n() >= kPacked; }
  Problem transposed() const {  // out^T = b^T a^T
    Problem p = *this;
    p.a = b.transposed();
    p.b = a.transposed();
    p.out = out.transposed();
    if (self) p.self = self->transposed();
    p.constant_b = false;
    return p;
  }
};

inline const maca_scalar kOne = {MACA_SCALAR_INT, 0, {1}, 0.0};
inline const maca_scalar& factor(const Launch& launch, int slot) { return slot < 0 ? kOne : launch.scalars[slot]; }
inline bool is_one(const Launch& launch, int slot) { return scalar_to_complex(factor(launch, slot)) == 1.0; }

std::unique_ptr<Plan> onednn_plan(const Problem& p);  // float32, bfloat16, float16
// int8 or uint8 and int8 in int32, where the processor has instructions for it; nullptr for others
std::unique_ptr<Plan> onednn_int8_plan(const Matrix& a, const Matrix& b, const Matrix& out);
// float32, float64, complex; one large product of float32 on oneDNN's sgemm unless `own_float`
std::unique_ptr<Plan> blas_plan(const Problem& p, bool own_float = false);
// float32, on processors that are quicker so and for products that are; nullptr for others
std::unique_ptr<Plan> parts_plan(const Problem& p);
std::unique_ptr<Plan> bfloat16_plan(const Problem& p);  // the same of bfloat16
// float32, k > 0, on panels of our own, whose sums are the shortest; nullptr where no kernels are built for this level
std::unique_ptr<Plan> panels_plan(const Problem& p);
// float32, whose sums are shorter or steadier so than oneDNN's; nullptr for others
std::unique_ptr<Plan> short_chains_plan(const Problem& p);
constexpr int64_t kDotRows = 8;
// float32, bfloat16 and float16, of at most so many rows and a matrix given by its columns, where that pays or is
// `asked` for; nullptr for others
std::unique_ptr<Plan> rows_plan(const Problem& p, bool asked = false);
// bfloat16 and float16, of more rows and such a matrix, widened in panels; nullptr for others
std::unique_ptr<Plan> widened_plan(const Problem& p, bool asked = false);
std::unique_ptr<Plan> by_rule(const Problem& p);  // of all dtypes, the best of these that is known
// What callers may ask for in place of the choice by rule, and the plan; Declined where it does not serve the problem.
inline constexpr std::array kWays{"onednn", "sgemm", "openblas", "panels", "dot products", "parts", "tiles"};
std::unique_ptr<Plan> plan_by_name(const Problem& p, std::string_view way);
std::unique_ptr<Plan> integer_plan(const Problem& p);  // wraps as PyTorch's integers do
// Without elements, or of inner size 0, which gives 0, and of a `vector` what is added; Declined for others, as PyTorch
// refuses them.
std::unique_ptr<Plan> bool_plan(const Problem& p, bool vector);

// out = act(beta * self + alpha * product) elementwise; the product in the type computed in. `self` is not read
// where beta is zero (its NaN must not pass).
void combine(const Problem& p, const Launch& launch, const Matrix& product, const void* product_data, void* out);

// Copies or converts one batch of matrices; either side may be strided.
void copy(const Matrix& from, const void* from_data, const Matrix& to, void* to_data);

// A grid of at most `pieces` pieces of a result whose edges are as short as can be.
struct Grid {
  int64_t high = 1, wide = 1;
};
Grid grid_of(int64_t pieces, int64_t rows, int64_t columns);

void one_blas_thread();  // OpenBLAS never starts threads of its own: our pool is the only one

}  // namespace maca::matmul
