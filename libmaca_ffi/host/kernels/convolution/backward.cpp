// Convolution backward on oneDNN: gradients of the input, the weight and the bias.
#include "depthwise.h"
#include "processor.h"
#include "signals.h"
#include "ways.h"

namespace maca::convolution {
namespace {

using onednn::at;
using onednn::Call;
using onednn::Desc;
using onednn::Workspace;

// Convolution and its transposition differ only in the names of oneDNN's classes.
struct Straight {
  using Forward = dnnl::convolution_forward;
  using BackwardData = dnnl::convolution_backward_data;
  static constexpr auto algorithm = dnnl::algorithm::convolution_direct;
};
struct Transposed {
  using Forward = dnnl::deconvolution_forward;
  using BackwardData = dnnl::deconvolution_backward_data;
  static constexpr auto algorithm = dnnl::algorithm::deconvolution_direct;
};

// The weight's gradients of oneDNN's kernel for AVX-512 (jit:avx512_core), PyTorch's too, are wrong for some strides.
// It halves rows of 29 to 55 results where windows reach beyond their end, also by more than such a half: of 64 places,
// 5 taps 7 apart with stride 2 and a padding of 17.
bool is_wrong_in_rows(const Geometry& g) {
  constexpr int64_t kHalf = 14;
  const int64_t in = g.in.back(), out = g.out.back(), before = g.padding.back();
  const int64_t last = (out - 1) * g.stride.back() + (g.kernel.back() - 1) * g.dilation.back() - before;
  return g.stride.back() > 1 && out > 2 * kHalf && std::max(before, last - (in - 1)) > kHalf;
}
// And where windows begin more than a stride before the first plane it reads beyond the images: of 2 x 16 x 7 x 2 x 3,
// 7 x 3 x 3 with stride 2 and a padding of 3 planes; PyTorch's process ends for some.
bool is_wrong_in_depth(const Geometry& g) {
  return g.dims == 3 && g.stride.front() > 1 && g.padding.front() > g.stride.front();
}

// The convolution whose transposition it is: of the result, to the image.
Geometry turned(Geometry g) {
  g.transposed = !g.transposed;
  std::swap(g.in_channels, g.out_channels);
  std::swap(g.in, g.out);
  return g;
}

class BackwardPlan final : public Plan {
 public:
  BackwardPlan(const Request& r, const Geometry& g, const StencilAlgorithms& algorithms, Dtype type,
               const Way& input_way, const Way& weight_way)
      : db_(r.out(2)), type_(type), transposed_(g.transposed) {
    const Operand &dy = r.in(0), &x = r.in(1), &w = r.in(2), &dx = r.out(0), &dw = r.out(1);
    Workspace space;
    const auto in_planes = [&](const Way& of, Columns::Pass pass, const Operand& image, const Operand& weight) {
      return of.make("planes", [&] { return Planes::make(g, pass, image, weight, dy, {}, of.asked()); });
    };
    if (dx.present()) input_planes_ = in_planes(input_way, Columns::Pass::InputGradient, dx, w);
    if (dw.present()) weight_planes_ = in_planes(weight_way, Columns::Pass::WeightGradient, x, dw);
    for (const auto* planes : {&input_planes_, &weight_planes_})
      if (*planes) scratch_bytes_ = std::max(scratch_bytes_, (*planes)->workspace_bytes());
    with_dx_ = dx.present() && !input_planes_;
    with_dw_ = dw.present() && !weight_planes_;
    with_db_ = db_.present();
    if (with_dx_ || with_dw_ || with_db_) dy_ = Staged(dy, type_, space);
    if (with_db_) {
      channels_ = dy.sizes[1];
      rows_ = dy.numel() / channels_;
      chunks_ = std::min<int64_t>(64, (rows_ + kBlock - 1) / kBlock);
      sums_ = space.take(static_cast<uint64_t>(chunks_ * channels_) * sizeof(double));
    }
    if (!onednn::kPresent) last_ = direct_backward(r, g), implementation_ = last_->implementation;
    onednn::declined_if_refused([&] {
      if (!with_dx_ && !with_dw_)
        return;
      else if (last_)
        lay_out(x, w, dx, dw, space);
      else if (g.transposed)
        build<Transposed>(g, x, w, dx, dw, space);
      else
        build<Straight>(g, x, w, dx, dw, space);
    });
    const bool asked_input = input_way.asked() || last_, asked_weight = weight_way.asked() || last_;
    const bool floats = dy.dtype == Dtype::F32;
    if (with_dx_) {
      product_ = input_way.make("winograd", [&] {
        return floats && is_stencil(g)
                   ? PlacedProduct(algorithms.product(input_gradient_stencil(g, w.strides), asked_input), space)
                   : PlacedProduct();
      });
      input_depthwise_ = input_way.make("depthwise", [&] {
        return PlacedDepthwise(g, Depthwise::Kind::InputGradient, dx, dx_, w, dy, dy_, asked_input);
      });
      input_signals_ = input_way.make("signals", [&] {
        return !input_depthwise_ ? PlacedProduct(signal_product(g, true, dx, w, dy, asked_input), space)
                                 : PlacedProduct();
      });
      of_input_ = input_way.make("columns", [&] {
        return product_ ? nullptr
                        : Columns::make(g, Columns::Pass::InputGradient, dy.dtype, w.strides, false, input_way.asked());
      });
      gathered_ = input_way.make("gathered", [&] {
        return floats && !of_input_ && !input_depthwise_
                   ? PlacedProduct(gathered(g, true, w.strides, asked_input), space)
                   : PlacedProduct();
      });
    }
    if (with_dw_) {
      gradient_ = weight_way.make("winograd", [&] {
        return floats && is_stencil(g) ? algorithms.gradient(stencil(g, dw.strides), asked_weight) : nullptr;
      });
      weight_depthwise_ = weight_way.make("depthwise", [&] {
        return PlacedDepthwise(g, Depthwise::Kind::WeightGradient, x, x_, dw, dy, dy_, asked_weight);
      });
      weight_signals_ = weight_way.make(
          "signals", [&] { return !weight_depthwise_ ? signal_gradient(g, x, dw, dy, asked_weight) : nullptr; });
      of_weight_ = weight_way.make("columns", [&] {
        return gradient_
                   ? nullptr
                   : Columns::make(g, Columns::Pass::WeightGradient, dy.dtype, dw.strides, false, weight_way.asked());
      });
    }
    input_way.require("onednn", onednn::kPresent);
    weight_way.require("onednn", onednn::kPresent);
    for (const auto* depthwise : {&input_depthwise_, &weight_depthwise_})
      scratch_bytes_ = std::max(scratch_bytes_, depthwise->workspace_bytes());
    for (const auto* columns : {&of_input_, &of_weight_})
      if (*columns) scratch_bytes_ = std::max(scratch_bytes_, (*columns)->workspace_bytes());
    for (const auto* gradient : {&gradient_, &weight_signals_})
      if (*gradient) scratch_bytes_ = std::max(scratch_bytes_, (*gradient)->workspace_bytes());
    scratch_ = space.take(scratch_bytes_);
    workspace_bytes = space.bytes();
    work = g.work() * ((dx.present() ? 1 : 0) + (dw.present() ? 1 : 0)) + static_cast<uint64_t>(dy.numel());
    implementation = (last_ ? "" : "onednn ") + implementation_;
    if (!with_dx_ && !with_dw_) {
      implementation = input_planes_ || weight_planes_ ? "planes" : "sums of rows";
      return;
    }
    if (input_planes_ || weight_planes_) implementation = "planes, " + implementation;
    if (product_ || gradient_)
      implementation = std::string("winograd ") +
                       (!gradient_  ? "input"
                        : !product_ ? "weight"
                                    : "input, weight") +
                       ", where it is not finite " + implementation;
    if (gathered_ && !product_) implementation = "gathered input, where it is not finite " + implementation;
    if (of_input_ || of_weight_) implementation = "columns, " + implementation;
    if (input_signals_ || weight_signals_) implementation = "signals, where it is not finite " + implementation;
    if (input_depthwise_ || weight_depthwise_) implementation = "depthwise, where it is not finite " + implementation;
  }

  void run(const Launch& launch) const override {
    void* scratch = at(launch.workspace, scratch_);
    if (input_planes_) input_planes_->run(launch, scratch);
    if (weight_planes_) weight_planes_->run(launch, scratch);
    void *w = with_dx_ ? weight_.user(launch) : nullptr, *dw = with_dw_ ? dw_.user(launch) : nullptr;
    const bool with_dx = with_dx_ && !input_as_it_lies(launch, w, scratch);
    const bool with_dw = with_dw_ && !weight_as_it_lies(launch, dw, scratch);
    void* dy = with_dx || with_dw || with_db_ ? dy_.input(launch) : nullptr;
    if (with_dx) {
      void* dx = dx_.target(launch);
      bool done = of_input_ ? of_input_->run(static_cast<const float*>(dy), static_cast<const float*>(w),
                                             static_cast<float*>(dx), scratch)
                            : product_ && product_.run(launch, dy, w, nullptr, nullptr, dx);
      if (input_depthwise_.of_copies()) done = input_depthwise_.run(dy, w, nullptr, dx, scratch);
      if (!done && gathered_) done = gathered_.run(launch, dy, w, nullptr, nullptr, dx);
      if (!done && last_) return last_->run(launch);
      if (!done) {
        void* const addresses[] = {dy, weight_.input(launch), dx, scratch};
        data_call_(addresses);
      }
      dx_.finish(launch, dx);
    }
    if (with_dw) {
      void* x = x_.input(launch);
      const auto compute = [&](const auto& way) {
        return way->run(static_cast<const float*>(x), static_cast<const float*>(dy), static_cast<float*>(dw), scratch);
      };
      const bool done = weight_depthwise_.of_copies() ? weight_depthwise_.run(x, dw, nullptr, dy, scratch)
                        : of_weight_                  ? compute(of_weight_)
                                                      : gradient_ && compute(gradient_);
      if (!done && last_) return last_->run(launch);
      if (!done) {
        const auto [big, small] = big_and_small(x, dy);
        void* const addresses[] = {big, small, dw_.target(launch), scratch};
        weights_call_(addresses);
        dw_.finish(launch);
      }
    }
    if (with_db_) {
      auto* sums = reinterpret_cast<double*>(at(launch.workspace, sums_));
      switch (type_) {
        case Dtype::BF16: sum_rows(static_cast<const bf16*>(dy), sums); break;
        case Dtype::F16: sum_rows(static_cast<const f16*>(dy), sums); break;
        default: sum_rows(static_cast<const float*>(dy), sums); break;
      }
      std::vector<float> db(static_cast<size_t>(channels_));
      for (int64_t c = 0; c < channels_; ++c) db[static_cast<size_t>(c)] = static_cast<float>(sums[c]);
      const int64_t size[] = {channels_}, one[] = {1};
      onednn::copy_strided(size, {Dtype::F32, db.data(), one}, {db_.dtype, launch.data(db_.slot), db_.strides});
    }
  }

 private:
  // Of the user's operands: false where none of these ways is taken, or numbers are not finite.
  bool input_as_it_lies(const Launch& launch, void* w, void* scratch) const {
    void *dy = dy_.user(launch), *dx = dx_.user(launch);
    return input_depthwise_.of_operands() ? input_depthwise_.run(dy, w, nullptr, dx, scratch)
                                          : input_signals_ && input_signals_.run(launch, dy, w, nullptr, nullptr, dx);
  }
  bool weight_as_it_lies(const Launch& launch, void* dw, void* scratch) const {
    void *x = x_.user(launch), *dy = dy_.user(launch);
    if (weight_depthwise_.of_operands()) return weight_depthwise_.run(x, dw, nullptr, dy, scratch);
    if (!weight_signals_) return false;
    const auto [big, small] = big_and_small(x, dy);
    return weight_signals_->run(static_cast<const float*>(big), static_cast<const float*>(small),
                                static_cast<float*>(dw), scratch);
  }
  // Of image and result the one that the stride leaps over, and the other one.
  template <class T> std::pair<T, T> big_and_small(T x, T dy) const {
    return transposed_ ? std::pair(dy, x) : std::pair(x, dy);
  }

  void lay_out(const Operand& x, const Operand& w, const Operand& dx, const Operand& dw, Workspace& space) {
    if (with_dw_) x_ = Staged(x, type_, space), dw_ = Weight(dw);
    if (with_dx_) dx_ = Staged(dx, type_, space), weight_ = Weight(w);
  }

  template <class Kind>
  void build(const Geometry& g, const Operand& x, const Operand& w, const Operand& dx, const Operand& dw,
             Workspace& space) {
    const Window v(g);
    const auto attr = onednn::attributes();
    const Desc any = any_layout(weight_desc(g, type_, onednn::contiguous_strides(w.sizes)));
    auto& e = onednn::engine();
    lay_out(x, w, dx, dw, space);
    if (with_dx_) {
      const typename Kind::Forward::primitive_desc hint(e, dnnl::prop_kind::forward_training, Kind::algorithm,
                                                        dx_.desc(), any, dy_.desc(), v.stride, v.dilation, v.before,
                                                        v.after, attr);
      const auto describe = [&] {
        return typename Kind::BackwardData::primitive_desc(e, Kind::algorithm, dx_.desc(), any, dy_.desc(), v.stride,
                                                           v.dilation, v.before, v.after, hint, attr);
      };
      const auto pd = strided_to_few(g, true) ? describe() : primitive_for(g, describe);
      weight_ = Weight(w, g, type_, pd.weights_desc(), false, space);
      data_call_ = Call(typename Kind::BackwardData(pd), {{DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                                                          {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                                          {DNNL_ARG_DIFF_SRC, pd.diff_src_desc()},
                                                          {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}});
      note(pd, "input ");
    }
    if (with_dw_) {
      // Of a transposed convolution it is that of the convolution of the result: which has several kernels.
      const Geometry straight = g.transposed ? turned(g) : g;
      const auto [big, small] = big_and_small(x_.desc(), dy_.desc());
      const auto algorithm = dnnl::algorithm::convolution_direct;
      const Desc to = any_layout(weight_desc(straight, type_, onednn::contiguous_strides(w.sizes)));
      const dnnl::convolution_forward::primitive_desc hint(e, dnnl::prop_kind::forward_training, algorithm, big, to,
                                                           small, v.stride, v.dilation, v.before, v.after, attr);
      dnnl::convolution_backward_weights::primitive_desc pd(e, algorithm, big, to, small, v.stride, v.dilation,
                                                            v.before, v.after, hint, attr);
      // oneDNN 3.2 gathers strided pixels first (jit_1x1), 8 or 16 channels at once. On two threads or more its weight
      // gradient is wrong where channels do not fill such a block, and with AVX-512 it writes beyond its scratch
      // memory.
      const bool strided = std::ranges::any_of(g.stride, [](int64_t s) { return s > 1; });
      if (strided && straight.in_channels / g.groups % 16 != 0)
        while (std::string_view(pd.impl_info_str()).starts_with("jit_1x1") && pd.next_impl()) continue;
      if (is_wrong_in_rows(straight) || is_wrong_in_depth(straight))
        while (std::string_view(pd.impl_info_str()) == "jit:avx512_core" && pd.next_impl()) continue;
      dw_ = Weight(dw, straight, type_, pd.diff_weights_desc(), true, space);
      weights_call_ = Call(dnnl::convolution_backward_weights(pd), {{DNNL_ARG_SRC, pd.src_desc()},
                                                                    {DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                                                                    {DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()},
                                                                    {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}});
      note(pd, "weight ");
    }
  }

  // Sums over all positions of the channels-last gradient, into sums[0 .. channels). oneDNN adds one position after
  // the other in float32, which loses a digit at 25,000 of them; here 32 in float, the rest in double.
  template <class T> void sum_rows(const T* dy, double* sums) const {
    parallel_for(chunks_, std::max<int64_t>(1, 32768 * chunks_ / std::max<int64_t>(1, rows_ * channels_)),
                 [&](int64_t begin, int64_t end) {
                   std::vector<float> block(static_cast<size_t>(channels_));
                   for (int64_t chunk = begin; chunk < end; ++chunk) {
                     double* sum = sums + chunk * channels_;
                     std::fill_n(sum, channels_, 0.0);
                     const int64_t last = rows_ * (chunk + 1) / chunks_;
                     for (int64_t r0 = rows_ * chunk / chunks_; r0 < last; r0 += kBlock) {
                       std::fill(block.begin(), block.end(), 0.0f);
                       for (int64_t r = r0; r < std::min(last, r0 + kBlock); ++r)
                         for (int64_t c = 0; c < channels_; ++c)
                           block[static_cast<size_t>(c)] += static_cast<float>(dy[r * channels_ + c]);
                       for (int64_t c = 0; c < channels_; ++c)
                         sum[c] += static_cast<double>(block[static_cast<size_t>(c)]);
                     }
                   }
                 });
    for (int64_t chunk = 1; chunk < chunks_; ++chunk)
      for (int64_t c = 0; c < channels_; ++c) sums[c] += sums[chunk * channels_ + c];
  }
  static constexpr int64_t kBlock = 32;

  template <class P> void note(const P& pd, const char* what) {
    scratch_bytes_ = std::max<uint64_t>(scratch_bytes_, pd.scratchpad_desc().get_size());
    implementation_ += (implementation_.empty() ? "" : ", ") + std::string(what) + pd.impl_info_str();
  }

  Operand db_;
  Dtype type_;
  bool transposed_;
  Staged dy_, x_, dx_;
  Weight weight_, dw_;
  PlacedProduct product_, gathered_, input_signals_;
  std::unique_ptr<StencilGradient> gradient_, weight_signals_;
  std::unique_ptr<Columns> of_input_, of_weight_;
  std::unique_ptr<Planes> input_planes_, weight_planes_;
  PlacedDepthwise input_depthwise_, weight_depthwise_;
  Call data_call_, weights_call_;
  std::unique_ptr<Plan> last_;  // in place of the calls, without oneDNN; of the user's operands
  bool with_dx_ = false, with_dw_ = false, with_db_ = false;  // of channels-last images
  int64_t channels_ = 0, rows_ = 0, chunks_ = 0;
  uint64_t scratch_ = 0, scratch_bytes_ = 0, sums_ = 0;
  std::string implementation_;
};

}  // namespace

// What sums of no terms are: new results, without gaps.
static std::unique_ptr<Plan> zeros(std::vector<Operand> results) {
  return make_plan(0, [results = std::move(results)](const Launch& launch) {
    for (const Operand& o : results)
      if (o.present() && o.numel())
        std::memset(launch.data<char>(o), 0, static_cast<size_t>(o.numel() * item_size(o.dtype)));
  });
}

namespace {
// Of "input gathered, weight onednn" what follows `gradient`.
Way part_of(const std::string& way, std::string_view gradient) {
  const size_t begin = way.find(gradient);
  if (begin == std::string::npos) return Way();
  const size_t from = begin + gradient.size();
  return Way(way.substr(from, way.find(',', from) - from));
}

void check_way(const Way& way, auto&& ways, bool wanted) {
  const bool known = std::ranges::find(ways, way.name()) != std::end(ways);
  if (way.asked() ? !(known && wanted) : wanted) throw Declined("no gradient of a convolution goes by such a name");
}
}  // namespace

std::unique_ptr<Plan> backward(const Request& r, const StencilAlgorithms& algorithms) {
  const std::string asked = way_of(r);
  const Way input_way = part_of(asked, "input "), weight_way = part_of(asked, "weight ");
  if (!asked.empty()) {
    check_way(input_way, kInputWays, r.out(0).present());
    check_way(weight_way, kWeightWays, r.out(1).present());
  }
  const Operand &dy = r.in(0), &x = r.in(1), &w = r.in(2);
  const Geometry g = read_geometry(r, x, w, dy);
  if (dy.dtype != x.dtype || w.dtype != x.dtype) throw Declined("convolution_backward of different dtypes");
  for (int i = 0; i < 3; ++i)
    if (r.out(i).present() && r.out(i).dtype != x.dtype) throw Declined("convolution_backward into another dtype");
  // the result's size is an argument of the operator, and may be any
  const Operand& db = r.out(2);
  if (db.present() && db.sizes != std::vector{g.out_channels}) throw Invalid("a bias has one number for each channel");
  if (!r.out(0).present() && !r.out(1).present() && !db.present()) return make_plan(0, [](const Launch&) {});
  if (dy.numel() == 0) return zeros({r.out(0), r.out(1), r.out(2)});
  if (!fast(x.dtype) || x.numel() == 0 || dy.numel() == 0 || w.numel() == 0) return direct_backward(r, g);
  try {
    // oneDNN 3.2's bfloat16 weight gradient (jit_bf16) multiplies scratch memory that it never wrote where an image
    // is one wide or narrower than a stride (NaN, by chance), or where its rows are read with gaps and its channels do
    // not fill a block (34 channels in two groups, 2 x 76, 1 x 2 with gaps of 3), and is plainly wrong over three
    // dimensions of little depth.
    const int64_t narrower = std::min(g.in.back(), g.out.back());
    // No other kernel of its own stands in for the one that is wrong in tiles, where this is the gradient of a
    // transposed convolution.
    const bool wrong_in_tiles = g.transposed && tiles_allowed() && is_wrong_in_tiles(g, kInTiles);
    const int64_t channels = (g.transposed ? g.out_channels : g.in_channels) / g.groups;
    const bool gaps = g.dims == 2 && g.dilation.front() > 1 && channels % 16 != 0;
    const bool wrong = x.dtype == Dtype::BF16 &&
                       (g.dims == 3 || narrower == 1 || narrower < g.stride.back() || gaps || wrong_in_tiles);
    return onednn::plan_in(wrong ? Dtype::F32 : x.dtype, [&](Dtype type) {
      return std::make_unique<BackwardPlan>(r, g, algorithms, type, input_way, weight_way);
    });
  } catch (const Declined&) {  // e.g. an output padding beyond the stride
    if (!asked.empty()) throw;
    return direct_backward(r, g);
  }
}

}  // namespace maca::convolution
