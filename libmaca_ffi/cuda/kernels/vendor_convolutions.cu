// Convolutions by cuDNN: an execution plan of its graph interface, or where it has none for a request the older
// functions cudnnConvolutionForward, BackwardData and BackwardFilter. The algorithm is chosen with the plan by the
// library's heuristics, scratch memory is the plan's. Images and weights lie all by channels first or all by channels
// last, as the images do; what lies otherwise is copied, most often a small weight.
#include "vendor_convolutions.h"

#include <climits>
#include <map>

#include "../vendor.h"
#include "../launch.h"
#include "convolution_graph.h"
#include "staged.h"
#include "vendor_products.h"

namespace maca_cuda {
namespace {

// What is used of cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h (cuDNN 8 and 9, where these numbers are the same).
using Handle = void*;
using Descriptor = void*;
constexpr int kSuccess = 0, kCrossCorrelation = 1, kDeterministic = 1;
enum DataType : int { kFloat = 0, kDouble = 1, kHalf = 2, kBfloat16 = 9 };
enum Math : int { kDefaultMath = 0, kTensorMath = 1, kFmaMath = 3 };  // default: float32 may be TF32
enum Format : int { kChannelsFirst = 0, kChannelsLast = 1 };
struct Choice {
  int algorithm, status;
  float time;
  size_t bytes;
  int determinism, math;
  int reserved[3];
};

// The functions of one of the three results. They take their descriptors in an order of their own: see Convolution.
struct Functions {
  int (*choose)(Handle, Descriptor, Descriptor, Descriptor convolution, Descriptor, int wanted, int* found, Choice*);
  int (*bytes)(Handle, Descriptor, Descriptor, Descriptor convolution, Descriptor, int algorithm, size_t*);
  int (*run)(Handle, const void* alpha, Descriptor, const void*, Descriptor, const void*, Descriptor convolution,
             int algorithm, void* workspace, size_t workspace_bytes, const void* beta, Descriptor, void*);
};
struct Library {
  const Vendor* vendor = nullptr;
  int (*create)(Handle*) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;
  const char* (*status_name)(int) = nullptr;
  int (*image_create)(Descriptor*) = nullptr;
  int (*image_set)(Descriptor, int type, int rank, const int* sizes, const int* strides) = nullptr;
  int (*image_destroy)(Descriptor) = nullptr;
  int (*weight_create)(Descriptor*) = nullptr;
  int (*weight_set)(Descriptor, int type, int format, int rank, const int* sizes) = nullptr;
  int (*weight_destroy)(Descriptor) = nullptr;
  int (*convolution_create)(Descriptor*) = nullptr;
  int (*convolution_set)(Descriptor, int rank, const int* padding, const int* stride, const int* dilation, int mode,
                         int type) = nullptr;
  int (*convolution_groups)(Descriptor, int) = nullptr;
  int (*convolution_math)(Descriptor, int) = nullptr;
  int (*convolution_destroy)(Descriptor) = nullptr;
  Functions of[3] = {};  // by ConvolutionRequest::Result
};

const Library* find_library() {
  static const Library* const found = []() -> const Library* {
    const Vendor* vendor = Vendor::find(VendorLibrary::Convolutions);
    if (!vendor) return nullptr;
    static Library all;
    bool is_whole = true;
    const auto get = [&](const char* name, auto& function) {
      vendor->get(name, function);
      is_whole = is_whole && function;
    };
    all.vendor = vendor;
    get("Create", all.create), get("SetStream", all.set_stream), get("GetErrorString", all.status_name);
    get("CreateTensorDescriptor", all.image_create), get("SetTensorNdDescriptor", all.image_set);
    get("DestroyTensorDescriptor", all.image_destroy);
    get("CreateFilterDescriptor", all.weight_create), get("SetFilterNdDescriptor", all.weight_set);
    get("DestroyFilterDescriptor", all.weight_destroy);
    get("CreateConvolutionDescriptor", all.convolution_create);
    get("SetConvolutionNdDescriptor", all.convolution_set);
    get("SetConvolutionGroupCount", all.convolution_groups);
    get("SetConvolutionMathType", all.convolution_math);
    get("DestroyConvolutionDescriptor", all.convolution_destroy);
    const char* names[] = {"Forward", "BackwardData", "BackwardFilter"};
    for (size_t i = 0; i < 3; ++i) {
      const std::string name = names[i];
      get(("GetConvolution" + name + "Algorithm_v7").c_str(), all.of[i].choose);
      get(("GetConvolution" + name + "WorkspaceSize").c_str(), all.of[i].bytes);
      get(("Convolution" + name).c_str(), all.of[i].run);
    }
    return is_whole ? &all : nullptr;
  }();
  return found;
}

// One a device. It has a stream, so that two threads may not queue with it at once.
struct Shared {
  Handle handle = nullptr;
  std::mutex mutex;
};
Shared* shared_of(const Library& library, const maca_device& device) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<Shared>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Shared>& shared = all[device.index];
  if (!shared) {
    shared.reset(new Shared);
    if (library.create(&shared->handle) != kSuccess) shared->handle = nullptr;
  }
  return shared->handle ? shared.get() : nullptr;
}

int data_type(Dtype d) {
  return d == Dtype::F64 ? kDouble : d == Dtype::F16 ? kHalf : d == Dtype::BF16 ? kBfloat16 : kFloat;
}

struct NotServed {};
void check(int said) {
  if (said != kSuccess) throw NotServed();
}

struct Held {
  Descriptor made = nullptr;
  int (*destroy)(Descriptor) = nullptr;
  void create(int (*function)(Descriptor*), int (*end)(Descriptor)) {
    check(function(&made));
    destroy = end;
  }
  Held() = default;
  Held(const Held&) = delete;
  ~Held() {
    if (made && destroy) destroy(made);
  }
};

// Strides of a dense operand whose channels come first, or last.
Dims dense(const Dims& sizes, Format format) {
  Dims strides(sizes.size());
  int64_t step = 1;
  if (format == kChannelsLast) strides[1] = step, step *= sizes[1];
  for (size_t d = sizes.size(); d-- > 2;) strides[d] = step, step *= sizes[d];
  if (format == kChannelsFirst) strides[1] = step, step *= sizes[1];
  strides[0] = step;
  return strides;
}
bool lies(const Operand& o, Format format) {
  const Dims strides = dense(o.sizes, format);
  for (size_t d = 0; d < o.sizes.size(); ++d)
    if (o.sizes[d] != 1 && o.strides[d] != strides[d]) return false;
  return true;
}

std::vector<int> as_ints(const Dims& list) {
  std::vector<int> ints;
  for (const int64_t i : list) {
    if (i > INT_MAX) throw NotServed();
    ints.push_back(static_cast<int>(i));
  }
  return ints;
}
// Of a convolution of one dimension, as of two: the library has no less.
Dims two(Dims list, size_t at, int64_t more) {
  if (list.size() == at + 1) list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), more);
  return list;
}

// Whose sums differ from the definition's by more than their own terms allow: by transforms, of which each mixes
// neighbours. By ConvolutionRequest::Result.
bool is_transform(ConvolutionRequest::Result result, int algorithm) {
  switch (result) {
    case ConvolutionRequest::Out: return algorithm >= 4;                       // FFT, tiles of FFT, Winograd twice
    case ConvolutionRequest::In: return algorithm >= 2;                        // the same
    case ConvolutionRequest::Weight: return algorithm == 2 || algorithm >= 4;  // 3 is a direct one
  }
  return true;
}

constexpr size_t kMostWorkspaceBytes = size_t{512} << 20;

// A convolution of one format, its algorithm chosen.
struct Convolution {
  const Library& library;
  Shared& shared;
  ConvolutionRequest::Result result;
  bool is_double;
  std::unique_ptr<const ConvolutionGraph> graph;
  Held in, out, weight, convolution;  // without a graph
  int algorithm = -1;
  size_t bytes = 0;

  Convolution(const Library& library_, Shared& shared_, const Request& r, const ConvolutionRequest& c, Format format)
      : library(library_), shared(shared_), result(c.result), is_double(c.in.dtype == Dtype::F64) {
    const Dtype dtype = c.in.dtype;
    const int type = data_type(dtype);
    const bool is_exact = dtype == Dtype::F32 && !r.allows_tf32();
    const auto tensor = [format](const Operand& o) {
      const Dims sizes = two(o.sizes, 2, 1);
      return ConvolutionProblem::Tensor{sizes, dense(sizes, format)};
    };
    graph = ConvolutionGraph::make(*library.vendor, shared.handle,
                                   {result, type, is_double ? kDouble : kFloat, is_double, r.is_deterministic(),
                                    is_exact, tensor(c.in), tensor(c.weight), tensor(c.out), two(c.padding, 0, 0),
                                    two(c.stride, 0, 1), two(c.dilation, 0, 1), kMostWorkspaceBytes});
    if (graph) {
      bytes = graph->workspace_bytes();
      return;
    }
    const auto describe_image = [&](Held& held, const Operand& o) {
      const Dims sizes = two(o.sizes, 2, 1);
      held.create(library.image_create, library.image_destroy);
      check(library.image_set(held.made, type, static_cast<int>(sizes.size()), as_ints(sizes).data(),
                              as_ints(dense(sizes, format)).data()));
    };
    describe_image(in, c.in), describe_image(out, c.out);
    weight.create(library.weight_create, library.weight_destroy);
    const Dims sizes = two(c.weight.sizes, 2, 1);
    check(library.weight_set(weight.made, type, format, static_cast<int>(sizes.size()), as_ints(sizes).data()));
    convolution.create(library.convolution_create, library.convolution_destroy);
    const Dims padding = two(c.padding, 0, 0);
    check(library.convolution_set(convolution.made, static_cast<int>(padding.size()), as_ints(padding).data(),
                                  as_ints(two(c.stride, 0, 1)).data(), as_ints(two(c.dilation, 0, 1)).data(),
                                  kCrossCorrelation, is_double ? kDouble : kFloat));
    check(library.convolution_groups(convolution.made, as_ints({c.groups})[0]));
    check(library.convolution_math(convolution.made, is_half(dtype) ? kTensorMath
                                                     : is_exact     ? kFmaMath
                                                                    : kDefaultMath));

    const auto [first, second, third] = descriptors();
    constexpr int kMost = 10;
    Choice choices[kMost];
    int found = 0;
    const Functions& f = library.of[result];
    check(f.choose(shared.handle, first, second, convolution.made, third, kMost, &found, choices));
    for (int i = 0; i < found && algorithm < 0; ++i) {
      const Choice& choice = choices[i];
      if (choice.status != kSuccess || choice.bytes > kMostWorkspaceBytes || is_transform(result, choice.algorithm) ||
          (r.is_deterministic() && choice.determinism != kDeterministic) ||
          (is_exact && choice.math != kFmaMath && choice.math != kDefaultMath))
        continue;
      size_t needed = 0;
      if (library.convolution_math(convolution.made, is_exact ? kFmaMath : choice.math) != kSuccess ||
          f.bytes(shared.handle, first, second, convolution.made, third, choice.algorithm, &needed) != kSuccess ||
          needed > kMostWorkspaceBytes)
        continue;
      algorithm = choice.algorithm, bytes = needed;
    }
    if (algorithm < 0) throw NotServed();
  }

  // In the order of the library's functions: (x, w, y), (w, dy, dx), (x, dy, dw).
  std::array<Descriptor, 3> descriptors() const {
    switch (result) {
      case ConvolutionRequest::Out: return {in.made, weight.made, out.made};
      case ConvolutionRequest::In: return {weight.made, out.made, in.made};
      default: return {in.made, out.made, weight.made};
    }
  }

  void run(cudaStream_t stream, const void* a, const void* b, void* to, void* workspace) const {
    const std::lock_guard<std::mutex> lock(shared.mutex);
    int said = library.set_stream(shared.handle, stream);
    if (said == kSuccess) said = graph ? run_graph(a, b, to, workspace) : run_algorithm(a, b, to, workspace);
    if (said != kSuccess)
      throw LaunchError(MACA_ERROR_INTERNAL,
                        std::string(library.vendor->name()) + " fails with " + library.status_name(said));
  }

 private:
  int run_graph(const void* a, const void* b, void* to, void* workspace) const {
    switch (result) {
      case ConvolutionRequest::Out: return graph->run(shared.handle, a, b, to, workspace);
      case ConvolutionRequest::In: return graph->run(shared.handle, to, a, b, workspace);
      default: return graph->run(shared.handle, a, to, b, workspace);
    }
  }
  int run_algorithm(const void* a, const void* b, void* to, void* workspace) const {
    const auto [first, second, third] = descriptors();
    const float one = 1, zero = 0;
    const double one_double = 1, zero_double = 0;
    const void* alpha = is_double ? static_cast<const void*>(&one_double) : &one;
    const void* beta = is_double ? static_cast<const void*>(&zero_double) : &zero;
    return library.of[result].run(shared.handle, alpha, first, a, second, b, convolution.made, algorithm, workspace,
                                  bytes, beta, third, to);
  }
};

struct Bias {
  void* image;
  const void* bias;
  Dtype dtype, bias_dtype;
  int64_t count, channels, inner, stride;  // `inner` elements of a channel lie side by side
};
__global__ void add_bias(Bias b) {
  for (int64_t i = first_element(); i < b.count; i += element_step()) {
    const int64_t channel = i / b.inner % b.channels;
    if (b.dtype == Dtype::F64)
      store(b.image, b.dtype, i,
            load<double>(b.image, b.dtype, i) + load<double>(b.bias, b.bias_dtype, channel * b.stride));
    else
      store(b.image, b.dtype, i,
            load<float>(b.image, b.dtype, i) + load<float>(b.bias, b.bias_dtype, channel * b.stride));
  }
}

using Run = std::function<cudaError_t(const Launching&)>;

// The step in one format, or nothing.
Run step_in(Format format, const Library& library, Shared& shared, const Request& r, const ConvolutionRequest& c,
            const Run& otherwise, uint64_t& bytes) try {
  const auto made = std::make_shared<const Convolution>(library, shared, r, c, format);
  Staged staged(r);
  std::vector<Run> before, behind;
  const auto placed = [&](const Operand& o, bool is_result) {
    if (lies(o, format)) return o;
    const Operand other = staged.place(o, dense(o.sizes, format));
    if (is_result)
      behind.push_back(make_copy(other, o)->run);
    else
      before.push_back(make_copy(o, other)->run);
    return other;
  };
  const Operand in = placed(c.in, c.result == ConvolutionRequest::In);
  const Operand out = placed(c.out, c.result == ConvolutionRequest::Out);
  const Operand weight = placed(c.weight, c.result == ConvolutionRequest::Weight);
  const Operand first = c.result == ConvolutionRequest::In ? weight : in;
  const Operand second = c.result == ConvolutionRequest::Out ? weight : out;
  const Operand result = c.result == ConvolutionRequest::Out ? out : c.result == ConvolutionRequest::In ? in : weight;
  const uint64_t own = staged.bytes();  // the library's own scratch memory lies behind
  bytes = own + made->bytes + (made->bytes ? kScratchSlack : 0);
  const Operand bias = c.bias;
  const int64_t channels = result.sizes[1];
  const int64_t inner = format == kChannelsLast ? 1 : result.numel() / result.sizes[0] / channels;
  return [=](const Launching& usual) {
    return staged.with(usual, [&](const Launching& l) {
      const void *a = l.data(first), *b = l.data(second);
      void* to = l.data(result);
      for (const void* address : {a, b, static_cast<const void*>(to)})
        if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return otherwise(usual);
      for (const Run& run : before)
        if (const cudaError_t said = run(l); said != cudaSuccess) return said;
      made->run(l.stream, a, b, to, made->bytes ? scratch_from(l.launch.workspace, own) : nullptr);
      cudaError_t said = cudaSuccess;
      if (bias.present()) {
        const int64_t count = result.numel();
        said = start(l, add_bias, blocks_for(l, count), dim3(kThreads),
                     {to, l.data(bias), result.dtype, bias.dtype, count, channels, inner, bias.strides[0]});
      }
      for (size_t i = 0; i < behind.size() && said == cudaSuccess; ++i) said = behind[i](l);
      return said;
    });
  };
} catch (const NotServed&) {
  return nullptr;
}

bool is_all(const Dims& list, int64_t what) {
  return std::all_of(list.begin(), list.end(), [what](int64_t i) { return i == what; });
}

// A convolution of single places, channels last, is a product of matrices: a row a place, a column a channel.
ConvolutionStep as_product(const Request& r, const ConvolutionRequest& c, const ConvolutionStep& otherwise) {
  const Operand& w = c.weight;
  const int64_t places = c.in.numel() / c.in.sizes[1], from = c.in.sizes[1], to = c.out.sizes[1];
  if (c.groups != 1 || w.numel() != to * from || !is_all(c.stride, 1) || !is_all(c.padding, 0) ||
      c.out.numel() != places * to || !lies(c.in, kChannelsLast) || !lies(c.out, kChannelsLast) ||
      !(lies(w, kChannelsFirst) || lies(w, kChannelsLast)))
    return {};
  const MatrixOperand in{c.in, places, from, 0, from, 1}, out{c.out, places, to, 0, to, 1};
  const MatrixOperand weight{w, to, from, 0, from, 1};
  const auto transposed = [](const MatrixOperand& m) {
    return MatrixOperand{m.memory, m.columns, m.rows, 0, m.column, m.row};
  };
  ProductRequest p{};
  switch (c.result) {
    case ConvolutionRequest::Out: p.a = in, p.b = transposed(weight), p.out = out; break;
    case ConvolutionRequest::In: p.a = out, p.b = weight, p.out = in; break;
    case ConvolutionRequest::Weight: p.a = transposed(out), p.b = in, p.out = weight; break;
  }
  p.batches = 1, p.alpha = p.beta = -1, p.allows_tf32 = r.allows_tf32(), p.has_sum = c.bias.present();
  if (p.has_sum) {
    Operand bias = c.bias;  // aligned with the channels, where it is copied to the result
    bias.sizes.assign(c.in.sizes.size(), 1), bias.strides.assign(c.in.sizes.size(), 0);
    bias.sizes[1] = c.bias.sizes[0], bias.strides[1] = c.bias.strides[0];
    p.added = {bias, places, c.bias.sizes[0], 0, 0, c.bias.strides[0]};
  }
  const auto plan = vendor_product(r, p, make_plan(otherwise.run, otherwise.implementation));
  if (plan->implementation == otherwise.implementation) return {};
  return {plan->run, plan->workspace_bytes, plan->implementation};
}

}  // namespace

ConvolutionStep vendor_convolution(const Request& r, const ConvolutionRequest& c, ConvolutionStep otherwise) {
  if (!is_floating(c.in.dtype)) return otherwise;
  for (const Operand* o : {&c.in, &c.out, &c.weight})  // the library counts elements in 32 bits
    if (o->numel() == 0 || o->numel() > INT_MAX) return otherwise;
  if (ConvolutionStep product = as_product(r, c, otherwise); product.run) return product;
  const Library* library = find_library();
  Shared* shared = library ? shared_of(*library, r.device()) : nullptr;
  if (!shared) return otherwise;
  const bool is_last = !(lies(c.in, kChannelsFirst) && lies(c.out, kChannelsFirst)) &&
                       (lies(c.in, kChannelsLast) || lies(c.out, kChannelsLast));
  for (const Format format : {is_last ? kChannelsLast : kChannelsFirst, is_last ? kChannelsFirst : kChannelsLast}) {
    ConvolutionStep step;
    step.run = step_in(format, *library, *shared, r, c, otherwise.run, step.workspace_bytes);
    step.implementation = library->vendor->name();
    if (step.run) return step;
  }
  return otherwise;
}

}  // namespace maca_cuda
