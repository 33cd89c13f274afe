#include "convolution_graph.h"

#include <algorithm>

namespace maca_cuda {
namespace {

// What is used of cudnn_graph.h (cuDNN 8 and 9, where these numbers are the same).
using Handle = void*;
using Descriptor = void*;
constexpr int kSuccess = 0;
enum Kind : int {
  kConvolution = 1,
  kEngine = 2,
  kEngineConfiguration = 3,
  kHeuristics = 4,
  kExecutionPlan = 5,
  kForward = 10,
  kBackwardFilter = 11,
  kBackwardData = 12,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
};
enum Attribute : int {
  kComputeType = 100,
  kConvolutionMode = 101,
  kDilations = 102,
  kStrides = 103,
  kPaddingBehind = 104,
  kPaddingBefore = 105,
  kSpatialDimensions = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kEngineOfConfiguration = 300,
  kPlanHandle = 400,
  kPlanConfiguration = 401,
  kPlanWorkspaceBytes = 402,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorName = 906,
  kPackNames = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kNumericalNotes = 1303,
};
enum Type : int {
  kOfHandle = 0,
  kOfDataType = 1,
  kOfInt64 = 3,
  kOfFloat = 4,
  kOfDouble = 5,
  kOfPointer = 6,
  kOfConvolutionMode = 7,
  kOfHeuristicsMode = 8,
  kOfNote = 11,
  kOfDescriptor = 15,
};
// alpha, beta, the convolution, and the three tensors of each operation
struct OperationAttributes {
  Kind kind;
  int alpha, beta, convolution, weight, in, out;
};
constexpr OperationAttributes kOperations[] = {
    // by ConvolutionRequest::Result
    {kForward, 700, 701, 702, 703, 704, 705},
    {kBackwardData, 706, 707, 708, 709, 710, 711},
    {kBackwardFilter, 712, 713, 714, 715, 716, 717},
};
constexpr int kCrossCorrelation = 1;
constexpr int kHeuristicsModes[] = {3, 2};  // the better one, and what works when nothing else does
enum Note : int {
  kTensorCore = 0,
  kDownConverts = 1,
  kReducesInLess = 2,
  kFft = 3,
  kNotDeterministic = 4,
  kWinograd = 5
};
constexpr int kLastOfWinograd = 8, kMostNotes = 32;

struct Functions {
  int (*create)(int kind, Descriptor*) = nullptr;
  int (*destroy)(Descriptor) = nullptr;
  int (*finalize)(Descriptor) = nullptr;
  int (*set)(Descriptor, int attribute, int type, int64_t count, const void*) = nullptr;
  int (*get)(Descriptor, int attribute, int type, int64_t wanted, int64_t* count, void*) = nullptr;
  int (*execute)(Handle, Descriptor plan, Descriptor pack) = nullptr;
};

struct NotServed {};
void check(int said) {
  if (said != kSuccess) throw NotServed();
}

class Described {
 public:
  Described(const Functions& f, Kind kind) : f_(&f) { check(f.create(kind, &made_)); }
  Described(Described&& other) noexcept : f_(other.f_), made_(other.made_) { other.made_ = nullptr; }
  Described& operator=(Described&& other) noexcept {
    std::swap(f_, other.f_), std::swap(made_, other.made_);
    return *this;
  }
  ~Described() {
    if (made_) f_->destroy(made_);
  }
  Descriptor get() const { return made_; }
  template <class T> const Described& set(int attribute, Type type, const T* values, size_t count) const {
    check(f_->set(made_, attribute, type, static_cast<int64_t>(count), values));
    return *this;
  }
  template <class T> const Described& set(int attribute, Type type, const T& value) const {
    return set(attribute, type, &value, 1);
  }
  const Described& set(int attribute, const Dims& values) const {
    return set(attribute, kOfInt64, values.data(), values.size());
  }
  const Described& set(int attribute, const Described& other) const {
    return set(attribute, kOfDescriptor, other.made_);
  }
  void finalize() const { check(f_->finalize(made_)); }

 private:
  const Functions* f_;
  Descriptor made_ = nullptr;
};

enum Name : int64_t { kIn = 'x', kWeight = 'w', kOut = 'y' };

class Graph final : public ConvolutionGraph {
 public:
  Graph(const Functions& f, Handle handle, const ConvolutionProblem& p) : f_(f) {
    const auto tensor = [&](int64_t name, const ConvolutionProblem::Tensor& t) -> const Described& {
      const Described& made = keep(kTensor);
      made.set(kTensorName, kOfInt64, name).set(kTensorType, kOfDataType, p.type);
      made.set(kTensorSizes, t.sizes).set(kTensorStrides, t.strides);
      made.set(kTensorAlignment, kOfInt64, int64_t{16}).finalize();
      return made;
    };
    const Described& convolution = keep(kConvolution);
    convolution.set(kComputeType, kOfDataType, p.compute_type);
    convolution.set(kConvolutionMode, kOfConvolutionMode, kCrossCorrelation);
    convolution.set(kSpatialDimensions, kOfInt64, static_cast<int64_t>(p.padding.size()));
    convolution.set(kPaddingBefore, p.padding).set(kPaddingBehind, p.padding);
    convolution.set(kStrides, p.stride).set(kDilations, p.dilation).finalize();
    const OperationAttributes& of = kOperations[p.result];
    const Described& operation = keep(of.kind);
    operation.set(of.convolution, convolution);
    operation.set(of.in, tensor(kIn, p.in)).set(of.weight, tensor(kWeight, p.weight)).set(of.out, tensor(kOut, p.out));
    if (p.is_double)
      operation.set(of.alpha, kOfDouble, 1.0).set(of.beta, kOfDouble, 0.0);
    else
      operation.set(of.alpha, kOfFloat, 1.0f).set(of.beta, kOfFloat, 0.0f);
    operation.finalize();
    const Described& graph = keep(kOperationGraph);
    graph.set(kGraphHandle, kOfHandle, handle).set(kGraphOperations, operation).finalize();
    for (const int mode : kHeuristicsModes)
      if (choose(handle, graph, mode, p)) return;
    throw NotServed();
  }

  size_t workspace_bytes() const override { return bytes_; }

  int run(Handle handle, const void* in, const void* weight, const void* out, void* workspace) const override {
    const int64_t names[] = {kIn, kWeight, kOut};
    const void* pointers[] = {in, weight, out};
    Descriptor pack = nullptr;
    int said = f_.create(kVariantPack, &pack);
    if (said != kSuccess) return said;
    said = f_.set(pack, kPackNames, kOfInt64, 3, names);
    if (said == kSuccess) said = f_.set(pack, kPackPointers, kOfPointer, 3, pointers);
    if (said == kSuccess) said = f_.set(pack, kPackWorkspace, kOfPointer, 1, &workspace);
    if (said == kSuccess) said = f_.finalize(pack);
    if (said == kSuccess) said = f_.execute(handle, kept_.back().get(), pack);
    f_.destroy(pack);
    return said;
  }

 private:
  const Described& keep(Kind kind) { return kept_.emplace_back(f_, kind); }

  // The plan of the first proposal that serves becomes the last of what is kept.
  bool choose(Handle handle, const Described& graph, int mode, const ConvolutionProblem& p) try {
    const Described heuristics(f_, kHeuristics);
    heuristics.set(kHeuristicsGraph, graph).set(kHeuristicsMode, kOfHeuristicsMode, mode).finalize();
    int64_t count = 0;
    check(f_.get(heuristics.get(), kHeuristicsResults, kOfDescriptor, 0, &count, nullptr));
    std::vector<Described> proposals;
    std::vector<Descriptor> raw;
    for (int64_t i = 0; i < count; ++i) raw.push_back(proposals.emplace_back(f_, kEngineConfiguration).get());
    check(f_.get(heuristics.get(), kHeuristicsResults, kOfDescriptor, count, &count, raw.data()));
    for (size_t i = 0; i < proposals.size() && static_cast<int64_t>(i) < count; ++i)
      if (keeps_to(proposals[i], p) && plan(handle, proposals[i], p)) {
        kept_.insert(kept_.end() - 1, std::move(proposals[i]));
        return true;
      }
    return false;
  } catch (const NotServed&) {
    return false;
  }
  bool keeps_to(const Described& configuration, const ConvolutionProblem& p) const try {
    const Described engine(f_, kEngine);
    Descriptor to = engine.get();
    int64_t count = 0;
    check(f_.get(configuration.get(), kEngineOfConfiguration, kOfDescriptor, 1, &count, &to));
    int notes[kMostNotes] = {};
    check(f_.get(engine.get(), kNumericalNotes, kOfNote, kMostNotes, &count, notes));
    return std::none_of(notes, notes + std::min<int64_t>(count, kMostNotes), [&p](int note) {
      // transforms mix neighbours: their sums differ from the definition's by more than their own terms allow
      return note == kDownConverts || note == kFft || (note >= kWinograd && note <= kLastOfWinograd) ||
             (note == kNotDeterministic && p.is_deterministic) ||
             ((note == kTensorCore || note == kReducesInLess) && p.is_exact);
    });
  } catch (const NotServed&) {
    return false;
  }
  bool plan(Handle handle, const Described& configuration, const ConvolutionProblem& p) try {
    Described made(f_, kExecutionPlan);
    made.set(kPlanHandle, kOfHandle, handle).set(kPlanConfiguration, configuration).finalize();
    int64_t bytes = 0, count = 0;
    check(f_.get(made.get(), kPlanWorkspaceBytes, kOfInt64, 1, &count, &bytes));
    if (bytes < 0 || static_cast<uint64_t>(bytes) > p.most_bytes) return false;
    bytes_ = static_cast<size_t>(bytes);
    kept_.push_back(std::move(made));
    return true;
  } catch (const NotServed&) {
    return false;
  }

  const Functions& f_;
  std::deque<Described> kept_;  // what the plan was made of, and the plan behind it; references stay
  size_t bytes_ = 0;
};

const Functions* find_functions(const Vendor& vendor) {
  static const Functions* const found = [&]() -> const Functions* {
    static Functions f;
    vendor.get("BackendCreateDescriptor", f.create), vendor.get("BackendDestroyDescriptor", f.destroy);
    vendor.get("BackendFinalize", f.finalize), vendor.get("BackendExecute", f.execute);
    vendor.get("BackendSetAttribute", f.set), vendor.get("BackendGetAttribute", f.get);
    return f.create && f.destroy && f.finalize && f.execute && f.set && f.get ? &f : nullptr;
  }();
  return found;
}

}  // namespace

std::unique_ptr<const ConvolutionGraph> ConvolutionGraph::make(const Vendor& vendor, Handle handle,
                                                               const ConvolutionProblem& p) try {
  const Functions* const functions = find_functions(vendor);
  return functions ? std::make_unique<const Graph>(*functions, handle, p) : nullptr;
} catch (const NotServed&) {
  return nullptr;
}

}  // namespace maca_cuda
