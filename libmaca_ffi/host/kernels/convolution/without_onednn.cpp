// Convolutions where oneDNN is not there: Winograd's and gathered products of float32, loops for whatever those do not
// serve or find not to be finite.
#include "convolution.h"

namespace maca::convolution {
namespace {

using onednn::at;
using onednn::Workspace;

bool is_named(const Way& way) { return way.asked() && way.name() != "onednn"; }

void refuse_onednn(const Way& way) {
  if (way.asked() && !is_named(way)) throw Declined("no convolution goes by \"onednn\": it is not in this library");
}

class OwnForwardPlan final : public Plan {
 public:
  OwnForwardPlan(const Request& r, const Geometry& g, const StencilAlgorithms& algorithms, const Way& way)
      : weight_(r.in(1)), has_bias_(r.in(2).present()), loops_(direct_forward(r, g)) {
    Workspace space;
    x_ = Staged(r.in(0), Dtype::F32, space);
    y_ = Staged(r.out(), Dtype::F32, space);
    if (has_bias_) bias_ = Staged(r.in(2), Dtype::F32, space);
    if (is_stencil(g) && way.may("winograd"))
      product_ = PlacedProduct(algorithms.product(stencil(g, weight_.strides), way.asked()), space);
    way.require("winograd", static_cast<bool>(product_));
    if (product_)
      implementation = "winograd";
    else if (way.may("gathered"))
      product_ = PlacedProduct(gathered(g, false, weight_.strides, true), space);
    if (!product_) throw Declined("no panels are built for this level");
    if (implementation.empty()) implementation = "gathered";
    implementation += ", direct loops where it is not finite";
    packed_bytes = product_->packed_bytes();
    packed_operand = weight_.slot;
    loops_space_ = space.take(loops_->workspace_bytes);
    workspace_bytes = space.bytes();
    work = g.work();
  }

  void pack(const void* operand, void* packed) const override {
    product_->pack(static_cast<const float*>(operand), static_cast<float*>(packed));
  }

  void run(const Launch& launch) const override {
    void *x = x_.input(launch), *bias = has_bias_ ? bias_.input(launch) : nullptr, *y = y_.target(launch);
    if (product_.run(launch, x, launch.data(weight_.slot), launch.packed, bias, y)) return y_.finish(launch, y);
    Launch inner = launch;
    inner.workspace = at(launch.workspace, loops_space_);
    inner.packed = nullptr;
    loops_->run(inner);
  }

 private:
  Operand weight_;
  Staged x_, y_, bias_;
  bool has_bias_;
  PlacedProduct product_;
  std::unique_ptr<Plan> loops_;  // whole, on the user's operands
  uint64_t loops_space_ = 0;
};

class OwnBackwardPlan final : public Plan {
 public:
  OwnBackwardPlan(const Request& r, const Geometry& g, const StencilAlgorithms& algorithms, const Way& input_way,
                  const Way& weight_way)
      : weight_(r.in(2)), of_weight_(r.out(1)) {
    Workspace space;
    dy_ = Staged(r.in(0), Dtype::F32, space);
    if (r.out(0).present()) {
      dx_ = Staged(r.out(0), Dtype::F32, space);
      input_loops_ = direct_backward(r, g, {true, false, false});
      if (is_stencil(g) && input_way.may("winograd"))
        product_ = PlacedProduct(
            algorithms.product(input_gradient_stencil(g, weight_.strides), input_way.asked()), space);
      input_way.require("winograd", static_cast<bool>(product_));
      implementation = product_ ? "winograd input" : "gathered input";
      if (!product_ && input_way.may("gathered"))
        product_ = PlacedProduct(gathered(g, true, weight_.strides, true), space);
      if (!product_) throw Declined("no panels are built for this level");
    }
    if (of_weight_.present()) {
      x_ = Staged(r.in(1), Dtype::F32, space);
      weight_loops_ = direct_backward(r, g, {false, true, false});
      if (is_stencil(g) && weight_way.may("winograd"))
        gradient_ = algorithms.gradient(stencil(g, of_weight_.strides), weight_way.asked());
      weight_way.require("winograd", gradient_ != nullptr);
      if (!gradient_ && weight_way.may("columns"))
        columns_ = Columns::make(g, Columns::Pass::WeightGradient, Dtype::F32, of_weight_.strides, false, true);
      weight_way.require("columns", columns_ != nullptr);
      if (gradient_) scratch_bytes_ = gradient_->workspace_bytes();
      if (columns_) scratch_bytes_ = columns_->workspace_bytes();
      implementation += std::string(implementation.empty() ? "" : ", ") +
                        (gradient_  ? "winograd weight"
                         : columns_ ? "columns of the weight"
                                    : "direct loops weight");
    }
    if (r.out(2).present()) bias_loops_ = direct_backward(r, g, {false, false, true});
    implementation += ", direct loops where it is not finite";
    scratch_ = space.take(scratch_bytes_);
    workspace_bytes = space.bytes();
    work = g.work() * ((input_loops_ ? 1 : 0) + (weight_loops_ ? 1 : 0)) + static_cast<uint64_t>(r.in(0).numel());
  }

  void run(const Launch& launch) const override {
    void* dy = dy_.input(launch);
    void* scratch = at(launch.workspace, scratch_);
    if (input_loops_) {
      void* dx = dx_.target(launch);
      if (product_.run(launch, dy, launch.data(weight_.slot), nullptr, nullptr, dx))
        dx_.finish(launch, dx);
      else
        input_loops_->run(launch);
    }
    if (weight_loops_) {
      const auto *x = static_cast<const float*>(x_.input(launch)), *gradient = static_cast<const float*>(dy);
      auto* dw = static_cast<float*>(launch.data(of_weight_.slot));
      const bool done = (gradient_ && gradient_->run(x, gradient, dw, scratch)) ||
                        (columns_ && columns_->run(x, gradient, dw, scratch));
      if (!done) weight_loops_->run(launch);
    }
    if (bias_loops_) bias_loops_->run(launch);
  }

 private:
  Operand weight_, of_weight_;
  Staged dy_, x_, dx_;
  PlacedProduct product_;
  std::unique_ptr<StencilGradient> gradient_;
  std::unique_ptr<Columns> columns_;
  std::unique_ptr<Plan> input_loops_, weight_loops_, bias_loops_;  // on the user's operands
  uint64_t scratch_ = 0, scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Plan> own_forward(const Request& r, const Geometry& g, const StencilAlgorithms& algorithms,
                                  const Way& way) {
  refuse_onednn(way);
  if (r.in(0).dtype != Dtype::F32) return direct_forward(r, g);
  return std::make_unique<OwnForwardPlan>(r, g, algorithms, way);
}

std::unique_ptr<Plan> own_backward(const Request& r, const Geometry& g, const StencilAlgorithms& algorithms,
                                   const Way& input_way, const Way& weight_way) {
  refuse_onednn(input_way);
  refuse_onednn(weight_way);
  if (r.in(1).dtype != Dtype::F32) return direct_backward(r, g);
  return std::make_unique<OwnBackwardPlan>(r, g, algorithms, input_way, weight_way);
}

}  // namespace maca::convolution
