// What the convolution kernels share: the geometry that a request describes, and operands brought to channels-last.
#pragma once
#include <algorithm>
#include <array>
#include <string_view>

#include "kernel.h"
#include "kernels/matmul/matmul.h"
#include "onednn/engine.h"
#include "onednn/staging.h"

namespace maca::convolution {

using Sizes = std::vector<int64_t>;

// What callers may ask for in place of the choice by rule: of the result, and of either gradient.
inline constexpr std::array kWays{"onednn",           "winograd",       "columns",      "gathered",
                                  "planes",           "signals",        "depthwise",    "product panels",
                                  "product openblas", "product onednn", "product sgemm"};
inline constexpr std::array kInputWays{"onednn", "winograd", "columns", "gathered", "planes", "signals", "depthwise"};
inline constexpr std::array kWeightWays{"onednn", "winograd", "columns", "planes", "signals", "depthwise"};

// Which of the ways a plan may try: by rule all in order, or the one that was asked for, whether it pays or not.
class Way {
 public:
  Way() = default;
  explicit Way(std::string name) : name_(std::move(name)) {}
  bool asked() const { return !name_.empty(); }
  bool may(std::string_view name) const { return name_.empty() || name_ == name; }
  // Whoever was asked for `name` must have become it.
  void require(std::string_view name, bool is_it) const {
    if (name_ == name && !is_it) throw Declined("no convolution like this one goes by \"" + name_ + '"');
  }
  // What `make` gives for the way of that name: empty where this is not to be tried, or, by rule, another is better.
  template <class F> auto make(std::string_view name, F&& make) const {
    auto made = may(name) ? make() : decltype(make()){};
    require(name, static_cast<bool>(made));
    return made;
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

struct Geometry {
  int dims = 0;  // spatial dimensions: 1, 2 or 3
  bool transposed = false;
  int64_t batch = 0, in_channels = 0, out_channels = 0, groups = 1;
  Sizes in, out, kernel, stride, padding, dilation, output_padding;

  // Of one pass over the data, in the units of Plan::work.
  uint64_t work() const;
};

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
inline bool all_are(int64_t n, const Sizes& sizes) { return std::ranges::count(sizes, n) == std::ssize(sizes); }

// Reads and checks the attributes against the three tensors (the gradient of the result stands for the result).
Geometry read_geometry(const Request& r, const Operand& input, const Operand& weight, const Operand& output);

// An operand as the library computes with it: channels-last (or, for vectors, adjacent) and in type `type`. Where
// the user's tensor differs, a copy in the workspace stands for it.
class Staged {
 public:
  Staged() = default;
  Staged(const Operand& user, Dtype type, onednn::Workspace& space);
  onednn::Desc desc() const;
  Operand laid_out() const;                           // the user's, as if it were channels-last
  void* input(const Launch& launch) const;            // the values, copied when needed
  void* target(const Launch& launch) const;           // where to compute a result
  void finish(const Launch& launch, void* at) const;  // and from there to the user's tensor
  bool copied() const { return offset_ != onednn::Workspace::kNone; }
  void* user(const Launch& launch) const { return launch.data(user_.slot); }

 private:
  Operand user_;
  Dtype type_ = Dtype::None;
  Sizes strides_;
  uint64_t offset_ = onednn::Workspace::kNone;
};

// A weight between the user's layout and the one that a primitive prefers.
class Weight {
 public:
  Weight() = default;
  explicit Weight(const Operand& user) : user_(user) {}  // as it lies
  // `library`: the primitive's layout. Direction: into it, or (gradients) out of it.
  Weight(const Operand& user, const Geometry& g, Dtype type, const onednn::Desc& library, bool gradient,
         onednn::Workspace& space);
  bool same() const { return !reorder_ && !convert_; }
  void* user(const Launch& launch) const { return launch.data(user_.slot); }
  void* input(const Launch& launch) const;
  void prepare(const void* user, void* library, void* converted) const;
  void* target(const Launch& launch) const;
  void finish(const Launch& launch) const;
  uint64_t library_bytes() const { return library_.get_size(); }
  uint64_t converted_bytes() const { return convert_ ? plain_.get_size() : 0; }

 private:
  Operand user_;
  Dtype type_ = Dtype::None;
  onednn::Desc plain_, library_;
  onednn::Call reorder_;
  bool convert_ = false;
  Sizes plain_strides_;
  uint64_t offset_ = onednn::Workspace::kNone, converted_offset_ = onednn::Workspace::kNone;
};

// The weight's shape in oneDNN's order: [groups,] out, in, kernel; strides of the user's tensor or of `strides`.
onednn::Desc weight_desc(const Geometry& g, Dtype type, const Sizes& strides);
onednn::Desc any_layout(const onednn::Desc& d);

// The library's geometry lists.
struct Window {
  onednn::Dims stride, dilation, before, after;
  explicit Window(const Geometry& g);
};

// oneDNN 3.2's kernel for AMX takes a row of the weight as one run of numbers where no padding parts it. Where that row
// ends inside of a tile of 32 its results are wrong throughout: bfloat16, 80 channels, 2 x 2 with stride 2, or 40
// channels, 4 x 4. The input's gradient of a transposed convolution is such a convolution of the result's.
inline constexpr std::string_view kInTiles = "brgconv:avx512_core_amx";
inline bool is_wrong_in_tiles(const Geometry& g, std::string_view implementation) {
  const int64_t channels = (g.transposed ? g.out_channels : g.in_channels) / g.groups;
  return implementation == kInTiles && g.kernel.back() > 1 && channels % 32 != 0;
}

// The primitive that `describe` describes. oneDNN puts its newest kernels (brg...) first, and older ones are better:
// single pixels on AVX2, one thread, in ResNet-50's layers 46 to 99 GFLOP/s against 76 to 101; on AVX-512, two threads,
// in the layers of a ResNet at 64 x 64 with the weight's reordering 0.4 to 3.4 ms against 0.4 to 1.8, without it 1.0 to
// 2 times as long. (All on Xeons with AVX-512, at one level or the other.)
template <class Describe> auto primitive_for(const Geometry& g, Describe&& describe) {
  auto first = describe();
  const std::string_view name = first.impl_info_str();
  if (is_wrong_in_tiles(g, name)) {
    for (auto other = describe(); other.next_impl();)
      if (std::string_view(other.impl_info_str()).find("amx") == std::string_view::npos) return other;
  }
  const bool pixels = all_are(1, g.kernel);
  const bool avx512 = name.ends_with(":avx512_core"), avx2 = pixels && name.ends_with(":avx2");
  if (!name.starts_with("brg") || !(avx512 || avx2)) return first;
  for (auto other = describe(); other.next_impl();) {
    const std::string_view better = other.impl_info_str();
    if (avx2 ? better == "jit_1x1:avx2" : better == "jit_1x1:avx512_core" || better == "jit:avx512_core") return other;
  }
  return first;
}

// Results of few channels of a convolution that spreads an image by a stride.
bool strided_to_few(const Geometry& g, bool input_gradient);

bool fast(Dtype d);  // oneDNN serves it, possibly in float32

// Is every result made of one pixel, that at its place?
bool of_single_pixels(const Geometry& g);

enum Slot { kLeft, kRight, kResult, kBias };  // of a product that a convolution becomes

// A convolution, or one of its gradients, as one product of matrices of float32. Images are channels-last and dense.
class Columns {
 public:
  enum class Pass { Forward, InputGradient, WeightGradient };
  // nullptr: another way is the better one. `weight_strides`: of the weight's gradient, where that is the result.
  static std::unique_ptr<Columns> make(const Geometry& g, Pass pass, Dtype type, const Sizes& weight_strides,
                                       bool bias = false, bool asked = false);
  uint64_t workspace_bytes() const { return workspace_bytes_; }
  // Of the forward pass, whose weight may be packed.
  uint64_t packed_bytes() const { return product_->packed_bytes; }
  void pack(const void* weight, void* packed) const { product_->pack(weight, packed); }
  // (image, weight) and the bias to the result, (gradient, weight) to the image's gradient, (image, gradient) to the
  // weight's. False where the library has to compute, as numbers are not finite.
  bool run(const float* first, const float* second, float* out, void* workspace, const float* bias = nullptr,
           const void* packed = nullptr) const;

 private:
  Columns(const Geometry& g, Pass pass, bool bias);
  bool few_positions() const;
  bool large_weight() const;
  matmul::Problem problem() const;
  template <class T, class F> void each_pixel(T* image, int64_t first, int64_t last, F&& f) const;
  const float* lay_out(const float* image, void* workspace) const;
  void add_up(const float* columns, float* image) const;
  void multiply(const void* left, const void* right, void* result, void* workspace, const void* bias = nullptr,
                const void* packed = nullptr) const;

  Geometry g_;
  Pass pass_;
  bool bias_;
  int64_t positions_, window_;  // results of all images, numbers that each is made of
  bool as_they_lie_;            // the columns are the image
  std::unique_ptr<Plan> product_;
  uint64_t columns_ = 0, product_space_ = 0, workspace_bytes_ = 0;
};

// A convolution of single pixels, or one of its gradients, as one product of matrices for each image, where images lie
// in planes.
class Planes {
 public:
  // nullptr: another way is the better one. `image`, `weight` and `result`: the tensors, or their gradients.
  static std::unique_ptr<Planes> make(const Geometry& g, Columns::Pass pass, const Operand& image,
                                      const Operand& weight, const Operand& result, const Operand& bias, bool asked);
  uint64_t workspace_bytes() const { return workspace_bytes_; }
  void run(const Launch& launch, void* workspace) const;

 private:
  Planes() = default;
  void add_up(const float* products, float* result) const;

  std::array<int, 4> slots_{};  // of the factors, the result and the bias
  std::unique_ptr<Plan> product_;
  matmul::Matrix out_;
  Sizes sum_;  // strides of the weight's gradient, which is the sum of the images' products
  uint64_t products_ = 0, product_space_ = 0, workspace_bytes_ = 0;
};

// A convolution of single pixels as one product of matrices, the weight packed as a product's is; nullptr: another way
// is the better one.
std::unique_ptr<Plan> pixel_product(const Request& r, const Geometry& g, const Way& way);

// A convolution of two-dimensional float32 images, channels-last and dense, with 3 x 3 weights at stride 1. The weight
// is the user's: its address is moved by `weight_offset`, its strides may be negative.
struct Stencil {
  int64_t batch, in_channels, in_height, in_width, out_channels, out_height, out_width, padding_y, padding_x;
  int64_t weight_out, weight_in, weight_y, weight_x, weight_offset;
  int64_t tiles(int64_t side) const {
    return batch * ((out_height + side - 1) / side) * ((out_width + side - 1) / side);
  }
};

// Other ways than the library's to compute one. They return false where a result is NaN or infinite: the library then
// says which.
class StencilProduct {
 public:
  virtual ~StencilProduct() = default;
  virtual uint64_t packed_bytes() const = 0;
  virtual uint64_t workspace_bytes() const = 0;
  virtual void pack(const float* weight, float* packed) const = 0;
  virtual bool run(const float* image, const float* packed, const float* bias, float* result,
                   void* workspace) const = 0;
};
class StencilGradient {  // of the weight
 public:
  virtual ~StencilGradient() = default;
  virtual uint64_t workspace_bytes() const = 0;
  virtual bool run(const float* image, const float* gradient, float* weight_gradient, void* workspace) const = 0;
};

// nullptr: the library is the better one, unless it was `asked` for, or this cannot serve.
struct StencilAlgorithms {
  std::unique_ptr<StencilProduct> (*product)(const Stencil& s, bool asked);
  std::unique_ptr<StencilGradient> (*gradient)(const Stencil& s, bool asked);
};

bool is_stencil(const Geometry& g);                                              // and MACA_WINOGRAD is not 0
Stencil stencil(const Geometry& g, const Sizes& weight_strides);                 // result of image
Stencil input_gradient_stencil(const Geometry& g, const Sizes& weight_strides);  // image's gradient of the result's

// A convolution of float32 images, channels-last and dense, of up to three dimensions: outer ones that are not there
// have the extent 1. Its image is either the one that the stride leaps over (read = result * stride - padding + tap *
// dilation), or, `spread`, the other one (result = read * stride - padding + tap * dilation).
struct Gathered {
  int64_t batch, groups, read_channels, result_channels;  // channels of one group
  bool spread;
  std::array<int64_t, 3> read, result, kernel, stride, padding, dilation;
  int64_t weight_group, weight_result, weight_read;  // strides of the weight
  std::array<int64_t, 3> weight_tap;
};

// With short chains, where the library's would be long, or where it is `asked` for; nullptr: the library's is short
// enough.
std::unique_ptr<StencilProduct> gathered(const Geometry& g, bool input_gradient, const Sizes& weight_strides,
                                         bool asked = false);

// A StencilProduct with its place in the workspace; none where `product` is nullptr.
class PlacedProduct {
 public:
  PlacedProduct() = default;
  PlacedProduct(std::unique_ptr<StencilProduct> product, onednn::Workspace& space);
  explicit operator bool() const { return product_ != nullptr; }
  const StencilProduct* operator->() const { return product_.get(); }
  // `packed`: the weight, if it is packed already.
  bool run(const Launch& launch, const void* image, const void* weight, const void* packed, const void* bias,
           void* result) const;

 private:
  std::unique_ptr<StencilProduct> product_;
  uint64_t packed_ = 0, scratch_ = 0;
};

std::unique_ptr<Plan> forward(const Request& r, const StencilAlgorithms& algorithms);
std::unique_ptr<Plan> backward(const Request& r, const StencilAlgorithms& algorithms);

std::unique_ptr<Plan> direct_forward(const Request& r, const Geometry& g);
std::unique_ptr<Plan> direct_backward(const Request& r, const Geometry& g);

}  // namespace maca::convolution
