// Integer matrix products: sums wrap in the operands' own type, as PyTorch's do. Of bool those that add up nothing.
#include "matmul.h"
#include "onednn/engine.h"

namespace maca::matmul {
namespace {

template <class T> class IntegerPlan final : public Plan {
 public:
  explicit IntegerPlan(const Problem& p) : p_(p), b_(p.b.compact(p.b.dtype)), acc_(p.out.compact(p.out.dtype)) {
    onednn::Workspace space;
    if (p.b.column_stride != 1 && p.n() > 1)
      b_offset_ = space.take(static_cast<uint64_t>(b_.numel()) * sizeof(T));
    else
      b_ = p.b;
    acc_offset_ = space.take(static_cast<uint64_t>(acc_.numel()) * sizeof(T));
    workspace_bytes = space.bytes();
    work = p.work();
    implementation = "integer product";
  }

  void run(const Launch& launch) const override {
    if (p_.out.numel() == 0) return;
    const auto* a = launch.data<T>(p_.a.slot);
    const auto* b = launch.data<T>(p_.b.slot);
    if (b_offset_ != onednn::Workspace::kNone) {
      auto* copied = reinterpret_cast<T*>(onednn::at(launch.workspace, b_offset_));
      copy(p_.b, b, b_, copied);
      b = copied;
    }
    auto* acc = reinterpret_cast<T*>(onednn::at(launch.workspace, acc_offset_));
    const int64_t m = p_.m(), n = p_.n(), k = p_.k();
    parallel_for(p_.out.batch * m, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, n * k)),
                 [&](int64_t begin, int64_t end) {
                   constexpr int64_t kColumns = 2048;  // a stripe of the sum and of a row of b stay in L1
                   for (int64_t i = begin; i < end; ++i) {
                     const T* a_row = a + i / m * p_.a.batch_stride + i % m * p_.a.row_stride;
                     const T* b_all = b + i / m * b_.batch_stride;
                     for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
                       U* sum = reinterpret_cast<U*>(acc + i * n + j0);
                       const int64_t count = std::min(n - j0, kColumns);
                       std::memset(sum, 0, static_cast<size_t>(count) * sizeof(T));
                       for (int64_t x = 0; x < k; ++x) {
                         const Product factor = static_cast<U>(a_row[x * p_.a.column_stride]);
                         const T* b_row = b_all + x * b_.row_stride + j0 * b_.column_stride;
                         if (n == 1)
                           sum[0] = static_cast<U>(sum[0] + factor * static_cast<Product>(b_row[0]));
                         else
#pragma GCC ivdep
                           for (int64_t j = 0; j < count; ++j)
                             sum[j] = static_cast<U>(sum[j] + factor * static_cast<Product>(b_row[j]));
                       }
                     }
                   }
                 });
    combine(p_, launch, acc_, acc, launch.data(p_.out.slot));
  }

 private:
  using U = std::make_unsigned_t<T>;  // wrapping is defined
  // products of narrow types are taken in 32 bits: uint16 would be promoted to int and overflow there
  using Product = std::conditional_t<(sizeof(T) < 4), uint32_t, U>;
  Problem p_;
  Matrix b_, acc_;
  uint64_t b_offset_ = onednn::Workspace::kNone, acc_offset_ = 0;
};

class BoolPlan final : public Plan {
 public:
  explicit BoolPlan(const Problem& p) : p_(p) {
    work = p.work();
    implementation = "product of nothing";
  }

  void run(const Launch& launch) const override {
    static const bool none = false;
    const Matrix nothing{Dtype::Bool, -1, p_.out.batch, p_.out.rows, p_.out.columns};
    const bool added = p_.self && scalar_to_double(factor(launch, p_.beta_slot)) != 0;
    copy(added ? *p_.self : nothing, added ? launch.data(p_.self->slot) : &none, p_.out, launch.data(p_.out.slot));
  }

 private:
  Problem p_;
};

}  // namespace

std::unique_ptr<Plan> bool_plan(const Problem& p, bool vector) {
  if (p.out.numel() > 0 && (p.k() > 0 || (p.self && !vector))) throw Declined("matrix product of bool");
  return std::make_unique<BoolPlan>(p);
}

std::unique_ptr<Plan> integer_plan(const Problem& p) {
  std::unique_ptr<Plan> plan;
  if (!with_integral(p.out.dtype, [&](auto t) { plan = std::make_unique<IntegerPlan<decltype(t)>>(p); }))
    throw Declined(std::string("matrix product of ") + dtype_name(p.out.dtype));
  return plan;
}

}  // namespace maca::matmul
