// QR factorizations, and products with the orthogonal matrices that reflections make.
#include "reflections.h"

namespace maca::linalg {
namespace {

std::unique_ptr<Plan> qr(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const std::string mode = r.text("mode", "reduced");
  const bool with_q = mode != "r";
  const Matrices a(r.in(0), batch, 2), upper(r.out(1), batch, 2);
  Matrices q;
  if (with_q) q = Matrices(r.out(0), batch, 2), expect_size(q, a.rows, upper.rows);
  expect_size(upper, mode == "complete" ? a.rows : std::min(a.rows, a.columns), a.columns);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 2 * a.rows * a.rows * a.columns, [=](const Launch& launch, int64_t i) {
      const Columns<T> x = load<T>(launch, i, a, a.columns);
      Reflections<T> reflections(a.rows, std::min(a.rows, a.columns));
      reflections.factor(x, a.columns);
      for (int64_t c = 0; c < std::min(a.rows, a.columns); ++c) std::fill(x.at(c + 1, c), x.at(a.rows, c), T(0));
      store(launch, i, x, upper);
      if (!with_q) return;
      const Columns<T> of_q(q.rows, q.columns);
      reflections.generate(of_q, q.columns);
      store(launch, i, of_q, q);
    });
  });
}

std::unique_ptr<Plan> geqrf(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), out(r.out(0), batch, 2), tau(r.out(1), batch, 1);
  expect_size(out, a.rows, a.columns);
  expect_size(tau, std::min(a.rows, a.columns), 1);
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 2 * a.rows * a.columns * std::min(a.rows, a.columns), [=](const Launch& launch, int64_t i) {
      const Columns<T> x = load<T>(launch, i, a, a.columns);
      Reflections<T> reflections(a.rows, tau.rows);
      reflections.factor(x, a.columns);
      store(launch, i, x, out);
      tau.store(launch, i, reflections.tau.data(), tau.rows);
    });
  });
}

template <class T> Reflections<T> given(const Launch& launch, int64_t i, const Matrices& vectors, const Matrices& tau) {
  Reflections<T> reflections(vectors.rows, tau.rows);
  tau.load(launch, i, reflections.tau.data(), tau.rows);
  const Columns<T> x = load<T>(launch, i, vectors, vectors.columns);
  reflections.take(x.at(0, 0), x.step);
  return reflections;
}

std::unique_ptr<Plan> householder_product(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const Matrices a(r.in(0), batch, 2), tau(r.in(1), batch, 1), out(r.out(), batch, 2);
  expect_dtype(r.in(1), r.in(0).dtype);
  expect_size(out, a.rows, a.columns);
  if (tau.rows > a.columns || a.columns > a.rows) throw Declined("more reflections than columns, or columns than rows");
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 2 * a.rows * a.columns * a.columns, [=](const Launch& launch, int64_t i) {
      const Columns<T> q(a.rows, a.columns);
      given<T>(launch, i, a, tau).generate(q, a.columns);
      store(launch, i, q, out);
    });
  });
}

std::unique_ptr<Plan> ormqr(const Request& r) {
  const Dims batch = batch_of(r.in(0), 2);
  const bool left = r.boolean("left", true), transpose = r.boolean("transpose", false);
  const Matrices a(r.in(0), batch, 2), tau(r.in(1), batch, 1);
  Matrices c(r.in(2), batch, 2), out(r.out(), batch, 2);
  if (!left) c = c.transposed(), out = out.transposed();  // C op(Q) is the adjoint of op(Q)^H C^H
  expect_dtype(r.in(1), r.in(0).dtype);
  expect_dtype(r.in(2), r.in(0).dtype);
  expect_size(out, c.rows, c.columns);
  if (a.rows != c.rows || tau.rows != std::min(c.rows, a.columns)) throw Declined("reflections of another size");
  return by_dtype(r.in(0).dtype, [&](auto tag) {
    using T = decltype(tag);
    return batched(batch, 4 * c.rows * c.columns * tau.rows, [=](const Launch& launch, int64_t i) {
      const Columns<T> x = load<T>(launch, i, c, c.columns);
      if (!left) conjugate_all(x, c.columns);
      given<T>(launch, i, a, tau).apply(transpose == left, x.at(0, 0), x.step, c.columns);
      if (!left) conjugate_all(x, c.columns);
      store(launch, i, x, out);
    });
  });
}

MACA_KERNEL("linalg_qr", qr);
MACA_KERNEL("geqrf", geqrf);
MACA_KERNEL("linalg_householder_product", householder_product);
MACA_KERNEL("ormqr", ormqr);

}  // namespace
}  // namespace maca::linalg
