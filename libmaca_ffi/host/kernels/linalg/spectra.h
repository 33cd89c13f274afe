// Operands of what computes eigenvalues.
#pragma once
#include "linalg.h"

namespace maca::linalg {
inline namespace MACA_ISA {

// A batch of matrices, their eigenvalues and, where they are wanted, eigenvectors.
struct Spectra {
  Dims batch;
  Matrices a, values, vectors;
  bool with_vectors;

  Spectra(const Request& r, bool with_vectors_) : batch(batch_of(r.in(0), 2)), with_vectors(with_vectors_) {
    expect_square(r.in(0));
    a = Matrices(r.in(0), batch, 2);
    values = Matrices(r.out(0), batch, 1);
    if (with_vectors) vectors = Matrices(r.out(1), batch, 2), expect_size(vectors, a.rows, a.rows);
    expect_size(values, a.rows, 1);
  }
  // Of a vector and a matrix of its order.
  template <class V, class M>
  void store(const Launch& launch, int64_t i, const std::vector<V>& w, const std::vector<M>& v) const {
    values.store(launch, i, w.data(), a.rows);
    if (with_vectors) vectors.store(launch, i, v.data(), a.rows);
  }
};

}  // namespace MACA_ISA
}  // namespace maca::linalg
