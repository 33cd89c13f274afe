// Stands in for cuDNN on the emulated device: what the CUDA library calls of it, computed by plain loops in double and
// rounded once, as work of the stream. With STAND_IN_HAS_NO_GRAPHS there are the older functions alone. Sizes that do
// not fit, layouts that are not dense or not alike, unaligned addresses and a missing workspace are refused. The file
// STAND_IN_LOG gets a line a convolution.
#include <vector>

#include "vendor_stand_in.h"

using namespace stand_in;

namespace {

constexpr int kSuccess = 0, kBadParameter = 2000, kNotSupported = 3000;
constexpr size_t kWorkspaceBytes = 512;

using Ints = std::vector<int64_t>;
struct Image {
  int type = 0;
  Ints sizes, strides;
};
struct Weight {
  int type = 0, format = 0;
  Ints sizes;
  Ints strides() const {
    Ints strides(sizes.size());
    int64_t step = 1;
    if (format == 1) strides[1] = step, step *= sizes[1];
    for (size_t d = sizes.size(); d-- > 2;) strides[d] = step, step *= sizes[d];
    if (format == 0) strides[1] = step, step *= sizes[1];
    strides[0] = step;
    return strides;
  }
};
struct Convolution {
  Ints padding, stride, dilation;
  int mode = 0, type = 0, groups = 1, math = 0;
};
struct Choice {
  int algorithm, status;
  float time;
  size_t bytes;
  int determinism, math;
  int reserved[3];
};
struct Handle {
  void* stream = nullptr;
};

Type type_of(int data_type) {
  return data_type == 0 ? Type::Float : data_type == 1 ? Type::Double : data_type == 2 ? Type::Half : Type::Bfloat16;
}
Ints list(const int* from, int count) { return Ints(from, from + count); }

bool fits(const Image& x, const Weight& w, const Convolution& c, const Image& y) {
  if (x.sizes.size() < 4 || w.sizes.size() != x.sizes.size() || y.sizes.size() != x.sizes.size()) return false;
  if (x.type != w.type || x.type != y.type || c.mode != 1 || c.type != (x.type == 1 ? 1 : 0)) return false;
  if (x.sizes[0] != y.sizes[0] || w.sizes[0] != y.sizes[1] || w.sizes[1] * c.groups != x.sizes[1]) return false;
  for (size_t d = 0; d + 2 < x.sizes.size(); ++d) {
    const int64_t reach = x.sizes[d + 2] + 2 * c.padding[d] - c.dilation[d] * (w.sizes[d + 2] - 1) - 1;
    if (reach < 0 || reach / c.stride[d] + 1 != y.sizes[d + 2]) return false;
  }
  for (const Image* image : {&x, &y}) {  // dense, in the weight's order
    const Weight same{0, w.format, image->sizes};
    if (same.strides() != image->strides) return false;
  }
  return true;
}

// Visits each product: of an element of x, one of w and one of y.
template <class F> void each(const Image& x, const Weight& w, const Convolution& c, const Image& y, F&& f) {
  const size_t spatial = x.sizes.size() - 2;
  const Ints strides = w.strides();
  int64_t places = 1, taps = 1;
  for (size_t d = 0; d < spatial; ++d) places *= y.sizes[d + 2], taps *= w.sizes[d + 2];
  const int64_t out_channels = y.sizes[1] / c.groups;
  for (int64_t n = 0; n < y.sizes[0]; ++n)
    for (int64_t k = 0; k < y.sizes[1]; ++k)
      for (int64_t place = 0; place < places; ++place)
        for (int64_t channel = 0; channel < w.sizes[1]; ++channel)
          for (int64_t tap = 0; tap < taps; ++tap) {
            int64_t of_x = n * x.strides[0] + (k / out_channels * w.sizes[1] + channel) * x.strides[1];
            int64_t of_w = k * strides[0] + channel * strides[1], of_y = n * y.strides[0] + k * y.strides[1];
            bool is_inside = true;
            for (size_t d = spatial, p = static_cast<size_t>(place), t = static_cast<size_t>(tap); d-- > 0;) {
              const auto many = static_cast<size_t>(y.sizes[d + 2]), deep = static_cast<size_t>(w.sizes[d + 2]);
              const auto to = static_cast<int64_t>(p % many), at = static_cast<int64_t>(t % deep);
              p /= many, t /= deep;
              const int64_t from = to * c.stride[d] - c.padding[d] + at * c.dilation[d];
              is_inside = is_inside && from >= 0 && from < x.sizes[d + 2];
              of_x += from * x.strides[d + 2], of_w += at * strides[d + 2], of_y += to * y.strides[d + 2];
            }
            if (is_inside) f(of_x, of_w, of_y);
          }
}

int64_t count(const Ints& sizes) {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

int run(void* handle, const char* name, const Image& x, const void* at_x, const Weight& w, const void* at_w,
        const Convolution& c, const Image& y, const void* at_y, void* to, void* workspace, size_t bytes,
        const char* how, int way) {
  if (!fits(x, w, c, y)) return kBadParameter;
  if (!workspace || bytes < kWorkspaceBytes) return kBadParameter;
  if (std::getenv("STAND_IN_FAILS")) return kNotSupported;
  for (const void* address : {at_x, at_w, at_y})
    if (!is_multiple(address, 16)) return kBadParameter;
  note("%s, type %d, format %d, %d dimensions, %d groups, %s %d\n", name, x.type, w.format,
       static_cast<int>(x.sizes.size()) - 2, c.groups, how, way);
  return queue(static_cast<Handle*>(handle)->stream, [=] {
    std::memset(plain(workspace), 0xff, bytes);
    const Type type = type_of(x.type);
    std::vector<double> sums(static_cast<size_t>(to == at_x   ? count(x.sizes)
                                                 : to == at_w ? count(w.sizes)
                                                              : count(y.sizes)));
    each(x, w, c, y, [&](int64_t i, int64_t j, int64_t k) {
      if (to == at_y)
        sums[static_cast<size_t>(k)] += read(at_x, type, i) * read(at_w, type, j);
      else if (to == at_x)
        sums[static_cast<size_t>(i)] += read(at_y, type, k) * read(at_w, type, j);
      else
        sums[static_cast<size_t>(j)] += read(at_x, type, i) * read(at_y, type, k);
    });
    for (size_t i = 0; i < sums.size(); ++i) write(to, type, static_cast<int64_t>(i), sums[i]);
  });
}

// Of the older functions: the first is a transform, the second takes too much memory, the third is right.
int choose(bool is_right, int wanted, int* found, Choice* to) {
  if (!is_right) return kNotSupported;
  if (wanted < 3) return kBadParameter;
  to[0] = {5, 0, 1, 0, 1, 0, {}}, to[1] = {0, 0, 2, size_t{1} << 40, 1, 0, {}},
  to[2] = {1, 0, 3, kWorkspaceBytes, 1, 0, {}};
  *found = 3;
  return kSuccess;
}
int bytes_of(bool is_right, size_t* bytes) {
  *bytes = kWorkspaceBytes;
  return is_right ? kSuccess : kNotSupported;
}

int run_right(int algorithm, void* handle, const char* name, const Image& x, const void* at_x, const Weight& w,
              const void* at_w, const Convolution& c, const Image& y, const void* at_y, void* to, void* workspace,
              size_t bytes) {
  if (algorithm != 1) return kBadParameter;
  return run(handle, name, x, at_x, w, at_w, c, y, at_y, to, workspace, bytes, "math", c.math);
}

Image& image(void* d) { return *static_cast<Image*>(d); }
Weight& weight(void* d) { return *static_cast<Weight*>(d); }
Convolution& convolution(void* d) { return *static_cast<Convolution*>(d); }

template <class T> int create(void** made) {
  *made = new T;
  return kSuccess;
}
template <class T> int destroy(void* made) {
  delete static_cast<T*>(made);
  return kSuccess;
}

}  // namespace

#include "vendor_convolution_graphs.h"

extern "C" {

size_t cudnnGetVersion() { return 91905; }
const char* cudnnGetErrorString(int status) {
  return status == kBadParameter ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_NOT_SUPPORTED";
}
int cudnnCreate(void** handle) { return create<Handle>(handle); }
int cudnnSetStream(void* handle, void* stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return kSuccess;
}

int cudnnCreateTensorDescriptor(void** made) { return create<Image>(made); }
int cudnnDestroyTensorDescriptor(void* made) { return destroy<Image>(made); }
int cudnnSetTensorNdDescriptor(void* d, int type, int rank, const int* sizes, const int* strides) {
  image(d) = {type, list(sizes, rank), list(strides, rank)};
  return rank >= 4 ? kSuccess : kNotSupported;
}
int cudnnCreateFilterDescriptor(void** made) { return create<Weight>(made); }
int cudnnDestroyFilterDescriptor(void* made) { return destroy<Weight>(made); }
int cudnnSetFilterNdDescriptor(void* d, int type, int format, int rank, const int* sizes) {
  weight(d) = {type, format, list(sizes, rank)};
  return rank >= 4 ? kSuccess : kNotSupported;
}
int cudnnCreateConvolutionDescriptor(void** made) { return create<Convolution>(made); }
int cudnnDestroyConvolutionDescriptor(void* made) { return destroy<Convolution>(made); }
int cudnnSetConvolutionNdDescriptor(void* d, int rank, const int* padding, const int* stride, const int* dilation,
                                    int mode, int type) {
  auto& c = convolution(d);
  c.padding = list(padding, rank), c.stride = list(stride, rank), c.dilation = list(dilation, rank);
  c.mode = mode, c.type = type;
  return kSuccess;
}
int cudnnSetConvolutionGroupCount(void* d, int groups) {
  convolution(d).groups = groups;
  return kSuccess;
}
int cudnnSetConvolutionMathType(void* d, int math) {
  convolution(d).math = math;
  return kSuccess;
}

int cudnnGetConvolutionForwardAlgorithm_v7(void*, void* x, void* w, void* c, void* y, int wanted, int* found,
                                           Choice* to) {
  return choose(fits(image(x), weight(w), convolution(c), image(y)), wanted, found, to);
}
int cudnnGetConvolutionBackwardDataAlgorithm_v7(void*, void* w, void* dy, void* c, void* dx, int wanted, int* found,
                                                Choice* to) {
  return choose(fits(image(dx), weight(w), convolution(c), image(dy)), wanted, found, to);
}
int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void*, void* x, void* dy, void* c, void* dw, int wanted, int* found,
                                                  Choice* to) {
  return choose(fits(image(x), weight(dw), convolution(c), image(dy)), wanted, found, to);
}
int cudnnGetConvolutionForwardWorkspaceSize(void*, void* x, void* w, void* c, void* y, int, size_t* bytes) {
  return bytes_of(fits(image(x), weight(w), convolution(c), image(y)), bytes);
}
int cudnnGetConvolutionBackwardDataWorkspaceSize(void*, void* w, void* dy, void* c, void* dx, int, size_t* bytes) {
  return bytes_of(fits(image(dx), weight(w), convolution(c), image(dy)), bytes);
}
int cudnnGetConvolutionBackwardFilterWorkspaceSize(void*, void* x, void* dy, void* c, void* dw, int, size_t* bytes) {
  return bytes_of(fits(image(x), weight(dw), convolution(c), image(dy)), bytes);
}

int cudnnConvolutionForward(void* handle, const void*, void* x, const void* at_x, void* w, const void* at_w, void* c,
                            int algorithm, void* workspace, size_t bytes, const void*, void* y, void* at_y) {
  return run_right(algorithm, handle, "forward", image(x), at_x, weight(w), at_w, convolution(c), image(y), at_y, at_y,
                   workspace, bytes);
}
int cudnnConvolutionBackwardData(void* handle, const void*, void* w, const void* at_w, void* dy, const void* at_y,
                                 void* c, int algorithm, void* workspace, size_t bytes, const void*, void* dx,
                                 void* at_x) {
  return run_right(algorithm, handle, "backward data", image(dx), at_x, weight(w), at_w, convolution(c), image(dy),
                   at_y, at_x, workspace, bytes);
}
int cudnnConvolutionBackwardFilter(void* handle, const void*, void* x, const void* at_x, void* dy, const void* at_y,
                                   void* c, int algorithm, void* workspace, size_t bytes, const void*, void* dw,
                                   void* at_w) {
  return run_right(algorithm, handle, "backward filter", image(x), at_x, weight(dw), at_w, convolution(c), image(dy),
                   at_y, at_w, workspace, bytes);
}

}  // extern "C"
