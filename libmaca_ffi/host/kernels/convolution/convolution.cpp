// Convolution forward on oneDNN, channels-last inside; and what forward and backward share.
#include "convolution.h"

#include <algorithm>
#include <numeric>

#include "depthwise.h"
#include "processor.h"
#include "signals.h"
#include "ways.h"

namespace maca::convolution {

using onednn::at;
using onednn::Call;
using onednn::Desc;
using onednn::Dims;
using onednn::Workspace;

uint64_t Geometry::work() const {
  // every value of the smaller image meets the whole kernel
  const Sizes& image = transposed ? in : out;
  int64_t n = batch * in_channels * out_channels / std::max<int64_t>(1, groups);
  for (const int64_t s : image) n *= s;
  for (const int64_t s : kernel) n *= s;
  return static_cast<uint64_t>(n + 7) / 8;  // eight multiplications count as one step of other kernels
}

namespace {
Sizes list(const Request& r, const char* name, int dims, int64_t otherwise) {
  Sizes values = r.integers(name, Sizes{otherwise});
  if (values.size() == 1) values.assign(static_cast<size_t>(dims), values[0]);
  if (values.size() != static_cast<size_t>(dims))
    throw Invalid(std::string("convolution: ") + name + " has the wrong length");
  return values;
}
}  // namespace

Geometry read_geometry(const Request& r, const Operand& input, const Operand& weight, const Operand& output) {
  Geometry g;
  g.dims = input.rank() - 2;
  if (g.dims < 1 || g.dims > 3) throw Declined("convolution over " + std::to_string(g.dims) + " dimensions");
  if (weight.rank() != input.rank() || output.rank() != input.rank()) throw Invalid("convolution: ranks differ");
  g.transposed = r.boolean("transposed", false);
  g.groups = r.integer("groups", 1);
  g.batch = input.sizes[0];
  g.in_channels = input.sizes[1];
  g.out_channels = output.sizes[1];
  g.in.assign(input.sizes.begin() + 2, input.sizes.end());
  g.out.assign(output.sizes.begin() + 2, output.sizes.end());
  g.kernel.assign(weight.sizes.begin() + 2, weight.sizes.end());
  g.stride = list(r, "stride", g.dims, 1);
  g.padding = list(r, "padding", g.dims, 0);
  g.dilation = list(r, "dilation", g.dims, 1);
  g.output_padding = list(r, "output_padding", g.dims, 0);
  if (g.groups < 1 || g.in_channels % g.groups || g.out_channels % g.groups)
    throw Invalid("convolution: channels are not a multiple of groups");
  // of an image without channels PyTorch makes one without channels, whatever the weight would make
  if (g.in_channels == 0 && g.out_channels == 0)
    g.out_channels = g.transposed ? weight.sizes[1] * g.groups : weight.sizes[0];
  const int64_t w0 = g.transposed ? g.in_channels : g.out_channels, w1 = g.transposed ? g.out_channels : g.in_channels;
  if (weight.sizes[0] != w0 || weight.sizes[1] != w1 / g.groups || output.sizes[0] != g.batch)
    throw Invalid("convolution: the weight does not fit the channels");
  for (int i = 0; i < g.dims; ++i) {
    const auto d = static_cast<size_t>(i);
    if (g.stride[d] < 1 || g.dilation[d] < 1 || g.padding[d] < 0 || g.kernel[d] < 1)
      throw Invalid("convolution: stride, dilation and kernel are at least 1, padding at least 0");
    const int64_t big = g.transposed ? g.out[d] : g.in[d], small = g.transposed ? g.in[d] : g.out[d];
    const int64_t extra = g.transposed ? g.output_padding[d] : 0;
    const int64_t room = big + 2 * g.padding[d] - extra - (g.dilation[d] * (g.kernel[d] - 1) + 1);
    if (big > 0 && small > 0 && (room < 0 || room / g.stride[d] + 1 != small))
      throw Invalid("convolution: the result has the wrong extent");
  }
  return g;
}

bool fast(Dtype d) { return d == Dtype::F32 || (onednn::kPresent && (d == Dtype::BF16 || d == Dtype::F16)); }

Window::Window(const Geometry& g) : stride(g.stride), dilation(g.dilation), before(g.padding), after(g.padding) {
  for (auto& d : dilation) --d;  // oneDNN counts the gaps
  if (g.transposed)
    for (size_t i = 0; i < after.size(); ++i) after[i] -= g.output_padding[i];
}

// ---- operands

Staged::Staged(const Operand& user, Dtype type, Workspace& space) : user_(user), type_(type) {
  const auto rank = static_cast<size_t>(user.rank());
  strides_.resize(rank);
  int64_t step = 1;
  const auto place = [&](size_t d) {
    strides_[d] = step;
    step *= std::max<int64_t>(user.sizes[d], 1);
  };
  if (rank > 1) place(1);
  for (size_t d = rank; d-- > 2;) place(d);
  place(0);
  bool equal = type == user.dtype;
  for (size_t d = 0; d < rank; ++d) equal = equal && (user.sizes[d] == 1 || user.strides[d] == strides_[d]);
  if (!equal) offset_ = space.take(static_cast<uint64_t>(user.numel()) * static_cast<uint64_t>(item_size(type)));
}

Desc Staged::desc() const { return {user_.sizes, onednn::data_type(type_), strides_}; }

Operand Staged::laid_out() const {
  Operand o = user_;
  o.strides = strides_;
  return o;
}

void* Staged::input(const Launch& launch) const {
  if (!copied()) return launch.data(user_.slot);
  void* copy = at(launch.workspace, offset_);
  onednn::copy_strided(user_.sizes, {user_.dtype, launch.data(user_.slot), user_.strides}, {type_, copy, strides_});
  return copy;
}

void* Staged::target(const Launch& launch) const {
  return copied() ? at(launch.workspace, offset_) : launch.data(user_.slot);
}

void Staged::finish(const Launch& launch, void* from) const {
  if (copied())
    onednn::copy_strided(user_.sizes, {type_, from, strides_}, {user_.dtype, launch.data(user_.slot), user_.strides});
}

Desc weight_desc(const Geometry& g, Dtype type, const Sizes& strides) {
  const int64_t out = g.out_channels / g.groups, in = g.in_channels / g.groups;
  Dims dims, steps;
  if (g.groups > 1) {
    dims.push_back(g.groups);
    steps.push_back(strides[0] * (g.transposed ? in : out));
  }
  dims.insert(dims.end(), {out, in});
  steps.insert(steps.end(), {strides[g.transposed ? 1 : 0], strides[g.transposed ? 0 : 1]});
  dims.insert(dims.end(), g.kernel.begin(), g.kernel.end());
  steps.insert(steps.end(), strides.begin() + 2, strides.end());
  return {dims, onednn::data_type(type), steps};
}

Desc any_layout(const Desc& d) { return {d.get_dims(), d.get_data_type(), dnnl::memory::format_tag::any}; }

Weight::Weight(const Operand& user, const Geometry& g, Dtype type, const Desc& library, bool gradient, Workspace& space)
    : user_(user), type_(type), library_(library) {
  convert_ = type != user.dtype || !user.dense();
  plain_strides_ = convert_ ? onednn::contiguous_strides(user.sizes) : user.strides;
  plain_ = weight_desc(g, type, plain_strides_);
  if (convert_) converted_offset_ = space.take(plain_.get_size());
  if (plain_ == library_) return;
  const Desc &from = gradient ? library_ : plain_, &to = gradient ? plain_ : library_;
  reorder_ = Call(dnnl::reorder(dnnl::reorder::primitive_desc(onednn::engine(), from, onednn::engine(), to)),
                  {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  offset_ = space.take(library_.get_size());
}

void Weight::prepare(const void* user, void* library, void* converted) const {
  void* from = const_cast<void*>(user);
  if (convert_) {
    void* to = reorder_ ? converted : library;
    onednn::copy_strided(user_.sizes, {user_.dtype, from, user_.strides}, {type_, to, plain_strides_});
    from = to;
  }
  if (!reorder_) return;
  void* const addresses[] = {from, library};
  reorder_(addresses);
}

void* Weight::input(const Launch& launch) const {
  if (same()) return launch.data(user_.slot);
  void* converted = convert_ ? at(launch.workspace, converted_offset_) : nullptr;
  void* library = reorder_ ? at(launch.workspace, offset_) : converted;
  prepare(launch.data(user_.slot), library, converted);
  return library;
}

void* Weight::target(const Launch& launch) const {
  if (reorder_) return at(launch.workspace, offset_);
  return convert_ ? at(launch.workspace, converted_offset_) : launch.data(user_.slot);
}

void Weight::finish(const Launch& launch) const {
  void* plain = convert_ ? at(launch.workspace, converted_offset_) : launch.data(user_.slot);
  if (reorder_) {
    void* const addresses[] = {at(launch.workspace, offset_), plain};
    reorder_(addresses);
  }
  if (convert_)
    onednn::copy_strided(user_.sizes, {type_, plain, plain_strides_},
                         {user_.dtype, launch.data(user_.slot), user_.strides});
}

// ---- 3 x 3 weights at stride 1

bool is_stencil(const Geometry& g) {
  static const bool allowed = is_allowed("MACA_WINOGRAD");
  return allowed && g.dims == 2 && !g.transposed && g.groups == 1 && all_are(3, g.kernel) && all_are(1, g.stride) &&
         all_are(1, g.dilation);
}

Stencil stencil(const Geometry& g, const Sizes& w) {
  return {g.batch,      g.in_channels, g.in[0], g.in[1], g.out_channels, g.out[0], g.out[1],
          g.padding[0], g.padding[1],  w[0],    w[1],    w[2],           w[3],     0};
}

Stencil input_gradient_stencil(const Geometry& g, const Sizes& w) {  // the weight turned by half a circle
  return {g.batch,          g.out_channels,   g.out[0], g.out[1], g.in_channels, g.in[0], g.in[1],
          2 - g.padding[0], 2 - g.padding[1], w[1],     w[0],     -w[2],         -w[3],   2 * (w[2] + w[3])};
}

PlacedProduct::PlacedProduct(std::unique_ptr<StencilProduct> product, Workspace& space) : product_(std::move(product)) {
  if (!product_) return;
  packed_ = space.take(product_->packed_bytes());
  scratch_ = space.take(product_->workspace_bytes());
}

bool PlacedProduct::run(const Launch& launch, const void* image, const void* weight, const void* packed,
                        const void* bias, void* result) const {
  if (!packed) {
    auto* room = reinterpret_cast<float*>(at(launch.workspace, packed_));
    product_->pack(static_cast<const float*>(weight), room);
    packed = room;
  }
  return product_->run(static_cast<const float*>(image), static_cast<const float*>(packed),
                       static_cast<const float*>(bias), static_cast<float*>(result), at(launch.workspace, scratch_));
}

// ---- forward

namespace {

class ForwardPlan final : public Plan {
 public:
  ForwardPlan(const Request& r, const Geometry& g, const StencilAlgorithms& algorithms, Dtype type, const Way& way) {
    const Operand &x = r.in(0), &w = r.in(1), &bias = r.in(2), &y = r.out();
    Workspace space;
    x_ = Staged(x, type, space);
    y_ = Staged(y, type, space);
    if (bias.present()) bias_ = Staged(bias, type, space);
    has_bias_ = bias.present();
    if (!onednn::kPresent) last_ = direct_forward(r, g), implementation = last_->implementation;
    const bool asked = way.asked() || last_;
    const Desc any = any_layout(weight_desc(g, type, w.strides));
    const auto attr = onednn::attributes();
    const Window v(g);
    const Desc bias_desc = has_bias_ ? bias_.desc() : Desc();
    const auto kind = dnnl::prop_kind::forward_inference;
    const auto build = [&](const auto& pd, const dnnl::primitive& primitive) {
      weight_ = Weight(w, g, type, pd.weights_desc(), false, space);
      std::vector<Call::Argument> arguments{{DNNL_ARG_SRC, pd.src_desc()},
                                            {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                            {DNNL_ARG_DST, pd.dst_desc()},
                                            {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}};
      if (has_bias_) arguments.push_back({DNNL_ARG_BIAS, bias_desc});
      call_ = Call(primitive, arguments);
      scratch_ = space.take(pd.scratchpad_desc().get_size());
      implementation = std::string("onednn ") + pd.impl_info_str();
    };
    onednn::declined_if_refused([&] {
      if (last_) {
        weight_ = Weight(w);
      } else if (g.transposed) {
        const auto algorithm = dnnl::algorithm::deconvolution_direct;
        const dnnl::deconvolution_forward::primitive_desc pd(onednn::engine(), kind, algorithm, x_.desc(), any,
                                                             bias_desc, y_.desc(), v.stride, v.dilation, v.before,
                                                             v.after, attr);
        build(pd, dnnl::deconvolution_forward(pd));
      } else {
        const auto algorithm = dnnl::algorithm::convolution_direct;
        const auto pd = primitive_for(g, [&] {
          return dnnl::convolution_forward::primitive_desc(onednn::engine(), kind, algorithm, x_.desc(), any, bias_desc,
                                                           y_.desc(), v.stride, v.dilation, v.before, v.after, attr);
        });
        build(pd, dnnl::convolution_forward(pd));
      }
    });
    const bool floats = x.dtype == Dtype::F32;
    product_ = way.make("winograd", [&] {
      return floats && is_stencil(g) ? PlacedProduct(algorithms.product(stencil(g, w.strides), asked), space)
                                     : PlacedProduct();
    });
    if (product_) implementation = "winograd, " + implementation + " where it is not finite";
    depthwise_ = way.make("depthwise", [&] {
      return !bias.present() || bias.strides[0] == 1
                 ? PlacedDepthwise(g, Depthwise::Kind::Forward, x, x_, w, y, y_, asked)
                 : PlacedDepthwise();
    });
    if (depthwise_) {
      depthwise_space_ = space.take(depthwise_.workspace_bytes());
      implementation = "depthwise, " + implementation + " where it is not finite";
    }
    signals_ = way.make("signals", [&] {
      return !depthwise_ && (!bias.present() || bias.strides[0] == 1)
                 ? PlacedProduct(signal_product(g, false, x, w, y, asked), space)
                 : PlacedProduct();
    });
    if (signals_) implementation = "signals, " + implementation + " where it is not finite";
    columns_ = way.make("columns", [&] {
      return product_ || y_.copied()
                 ? nullptr
                 : Columns::make(g, Columns::Pass::Forward, x.dtype, w.strides, has_bias_, way.asked());
    });
    gathered_ = way.make("gathered", [&] {
      return floats && !columns_ && !depthwise_ ? PlacedProduct(gathered(g, false, w.strides, asked), space)
                                                : PlacedProduct();
    });
    if (gathered_ && !product_ && !signals_) implementation = "gathered, " + implementation + " where it is not finite";
    if (columns_) {
      columns_space_ = space.take(columns_->workspace_bytes());
      implementation = "columns, " + implementation + " where they are not finite";
    }
    way.require("onednn", onednn::kPresent);
    packed_bytes = depthwise_  ? 0  // which reads the weight as it lies
                   : signals_  ? signals_->packed_bytes()
                   : product_  ? product_->packed_bytes()
                   : columns_  ? columns_->packed_bytes()
                   : gathered_ ? gathered_->packed_bytes()
                               : (weight_.same() ? 0 : weight_.library_bytes());
    if (packed_bytes > 0) packed_operand = w.slot;
    workspace_bytes = space.bytes();
    work = g.work();
  }

  void pack(const void* operand, void* packed) const override {
    if (signals_) return signals_->pack(static_cast<const float*>(operand), static_cast<float*>(packed));
    if (product_) return product_->pack(static_cast<const float*>(operand), static_cast<float*>(packed));
    if (columns_) return columns_->pack(operand, packed);
    if (gathered_) return gathered_->pack(static_cast<const float*>(operand), static_cast<float*>(packed));
    const auto converted = std::make_unique<char[]>(weight_.converted_bytes());
    weight_.prepare(operand, packed, converted.get());
  }

  void run(const Launch& launch) const override {
    void *weight = weight_.user(launch), *filters = at(launch.workspace, depthwise_space_);
    if (depthwise_.of_operands() &&
        depthwise_.run(x_.user(launch), weight, has_bias_ ? bias_.user(launch) : nullptr, y_.user(launch), filters))
      return;
    if (signals_ && signals_.run(launch, x_.user(launch), weight, launch.packed,
                                 has_bias_ ? bias_.user(launch) : nullptr, y_.user(launch)))
      return;
    void *x = x_.input(launch), *bias = has_bias_ ? bias_.input(launch) : nullptr, *y = y_.target(launch);
    bool done = depthwise_.of_copies() ? depthwise_.run(x, weight, bias, y, filters)
                                       : product_ && product_.run(launch, x, weight, launch.packed, bias, y);
    if (columns_)
      done = columns_->run(static_cast<const float*>(x), static_cast<const float*>(weight), static_cast<float*>(y),
                           at(launch.workspace, columns_space_), static_cast<const float*>(bias), launch.packed);
    if (!done && gathered_)
      done = gathered_.run(launch, x, weight, product_ || signals_ ? nullptr : launch.packed, bias, y);
    if (!done && last_) return last_->run(launch);
    if (!done) {
      const bool packed = launch.packed && !product_ && !columns_ && !gathered_ && !signals_;
      void* laid_out = packed ? const_cast<void*>(launch.packed) : weight_.input(launch);
      void* const addresses[] = {x, laid_out, y, at(launch.workspace, scratch_), bias};
      call_(std::span(addresses, has_bias_ ? 5 : 4));
    }
    y_.finish(launch, y);
  }

 private:
  Staged x_, y_, bias_;
  Weight weight_;
  PlacedProduct product_, gathered_, signals_;  // the last of the user's operands
  std::unique_ptr<Columns> columns_;
  PlacedDepthwise depthwise_;
  Call call_;
  std::unique_ptr<Plan> last_;  // in place of the call, without oneDNN; of the user's operands
  bool has_bias_ = false;
  uint64_t scratch_ = 0, columns_space_ = 0, depthwise_space_ = 0;
};
}  // namespace

std::unique_ptr<Plan> forward(const Request& r, const StencilAlgorithms& algorithms) {
  const Operand &x = r.in(0), &w = r.in(1), &bias = r.in(2), &y = r.out();
  if (w.dtype != x.dtype || y.dtype != x.dtype || (bias.present() && bias.dtype != x.dtype))
    throw Declined("convolution of different dtypes");
  const Geometry g = read_geometry(r, x, w, y);
  if (bias.present() && (bias.rank() != 1 || bias.sizes[0] != g.out_channels))
    throw Invalid("convolution: bias does not fit");
  if (y.numel() == 0) return make_plan(0, [](const Launch&) {});
  if (!fast(x.dtype) || x.numel() == 0 || w.numel() == 0) return direct_forward(r, g);
  const Way way(way_of(r));
  if (auto product = pixel_product(r, g, way)) return product;
  if (way.may("planes"))
    if (auto planes = Planes::make(g, Columns::Pass::Forward, x, w, y, bias, way.asked())) {
      const uint64_t workspace = planes->workspace_bytes();
      auto plan =
          make_plan(g.work(), [p = std::move(planes)](const Launch& launch) { p->run(launch, launch.workspace); });
      plan->workspace_bytes = workspace;
      plan->implementation = "planes";
      return plan;
    }
  const bool known = std::ranges::find(kWays, way.name()) != kWays.end();
  if (way.asked() && (!known || way.name().starts_with("product ") || way.name() == "planes"))
    throw Declined("no convolution like this one goes by \"" + way.name() + '"');
  try {
    return onednn::plan_in(x.dtype,
                           [&](Dtype type) { return std::make_unique<ForwardPlan>(r, g, algorithms, type, way); });
  } catch (const Declined&) {  // e.g. an output padding beyond the stride
    if (way.asked()) throw;
    return direct_forward(r, g);
  }
}

}  // namespace maca::convolution
