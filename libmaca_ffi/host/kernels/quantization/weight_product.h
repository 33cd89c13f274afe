// Products of floats with a weight of few bits, which is read as it is stored: few rows meet numbers that become
// float32 in registers, many rows panels that were unpacked for them.
#pragma once
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/unpacked_panels.h"
#include "onednn/engine.h"

namespace maca::MACA_ISA {

// result [m, n] = x [m, k] * weight^T, of float32, bfloat16 or float16, summed in float32 and rounded once. The weight
// has n rows, of which `unit` lie together.
class WeightProduct : public Plan {
 public:
  // `weight_bytes`: of the weight, which is dense.
  WeightProduct(const Request& r, int64_t rows, int64_t unit, int64_t weight_bytes)
      : x_(matrix(r.in(0))), out_(matrix(r.out())), weight_slot_(r.in(1).slot), unit_(unit) {
    const Operand& weight = r.in(1);
    if (weight.numel() * item_size(weight.dtype) != weight_bytes || out_.rows != x_.rows || out_.columns != rows)
      throw Invalid("the extents of a product with a weight of few bits do not match");
    if (x_.dtype != out_.dtype || (x_.dtype != Dtype::F32 && x_.dtype != Dtype::BF16 && x_.dtype != Dtype::F16))
      throw Declined(std::string("products of ") + dtype_name(x_.dtype) + " with a weight of few bits");
    if (r.in(2).dtype != x_.dtype) throw Declined("scales of another dtype than the floats'");
    if (!weight.contiguous()) throw Declined("a weight of few bits that is not dense");
    onednn::Workspace space;
    const auto floats = [&](int64_t count) { return space.take(static_cast<uint64_t>(count) * sizeof(float)); };
    left_ = x_;
    if (x_.dtype != Dtype::F32 || x_.column_stride != 1) {
      left_ = x_.compact(Dtype::F32);
      left_offset_ = floats(left_.numel());
    }
    sums_ = out_;
    if (out_.dtype != Dtype::F32 || !out_.row_major()) {
      sums_ = out_.compact(Dtype::F32);
      sums_offset_ = floats(sums_.numel());
    }
    own_ = space.bytes();
    work = static_cast<uint64_t>(m() * n()) * static_cast<uint64_t>(k() + 7) / 8;
    workspace_bytes = own_;
  }

  void run(const Launch& launch) const final {
    if (out_.numel() == 0) return;
    const float* left = launch.data<const float>(x_.slot);
    if (left_offset_ != onednn::Workspace::kNone) {
      auto* copied = reinterpret_cast<float*>(onednn::at(launch.workspace, left_offset_));
      matmul::copy(x_, launch.data(x_.slot), left_, copied);
      left = copied;
    }
    const bool apart = sums_offset_ != onednn::Workspace::kNone;
    auto* sums =
        apart ? reinterpret_cast<float*>(onednn::at(launch.workspace, sums_offset_)) : launch.data<float>(out_.slot);
    if (k() == 0)
      for (int64_t i = 0; i < m(); ++i) std::fill_n(sums + i * sums_.row_stride, n(), 0.0f);
    else if (!panels_)
      few(launch, left, sums);
    else
      panels_->run(left, left_step(), sums, sums_step(), onednn::at(launch.workspace, packed_),
                   [&](int64_t row, int64_t rows, int64_t first, int64_t depth, float* to) {
                     unpack(launch, row, rows, first, depth, to);
                   });
    if (apart) matmul::copy(sums_, sums, out_, launch.data(out_.slot));
  }

 protected:
  static constexpr int64_t kFew = matmul::kDotRows;
  int64_t m() const { return x_.rows; }
  int64_t n() const { return out_.columns; }
  int64_t k() const { return x_.columns; }
  int64_t units() const { return (n() + unit_ - 1) / unit_; }
  bool is_few() const { return m() <= kFew; }
  const char* weight(const Launch& launch) const { return launch.data<const char>(weight_slot_); }
  // The end of what the base class takes of the workspace, before choose().
  uint64_t own() const { return own_; }
  int64_t left_step() const { return left_.row_stride; }
  int64_t sums_step() const { return sums_.row_stride; }

  // To be called by the constructor that knows the order: `by_rows`, what unpack() writes.
  void choose(bool by_rows) {
    if (is_few() || k() == 0 || n() == 0) return;
    panels_.emplace(m(), n(), k(), unit_, by_rows);
    packed_ = (workspace_bytes + 63) / 64 * 64;
    workspace_bytes = packed_ + panels_->workspace_bytes();
  }

  // Units [begin, end) of the weight times `left`, to columns of `sums`.
  virtual void few(const Launch& launch, const float* left, float* sums) const = 0;
  // `rows` of the weight from `row` on as float32, scaled, `depth` numbers of each from `first` on: [row][depth], or
  // [depth][row]. The rows are whole units, but for the weight's last.
  virtual void unpack(const Launch& launch, int64_t row, int64_t rows, int64_t first, int64_t depth,
                      float* to) const = 0;

 private:
  static matmul::Matrix matrix(const Operand& o) {
    if (o.rank() != 2)
      throw Invalid("a product with a weight of few bits got an operand of rank " + std::to_string(o.rank()));
    return {o.dtype, o.slot, 1, o.sizes[0], o.sizes[1], 0, o.strides[0], o.strides[1]};
  }

  matmul::Matrix x_, out_, left_, sums_;  // what is given, and as float32
  int weight_slot_;
  int64_t unit_;
  std::optional<UnpackedPanels> panels_;  // not of few rows
  uint64_t own_ = 0, left_offset_ = onednn::Workspace::kNone, sums_offset_ = onednn::Workspace::kNone, packed_ = 0;
};

// Any of the three float types, as a number.
template <class F> void with_scales(Dtype d, F&& f) {
  switch (d) {
    case Dtype::F32: return f(float{});
    case Dtype::BF16: return f(bf16{});
    case Dtype::F16: return f(f16{});
    default: throw Declined(std::string("scales of ") + dtype_name(d));
  }
}

}  // namespace maca::MACA_ISA
