// cublasLtMatmul: the algorithm is chosen with the plan, scratch memory is the plan's, and a launch has no state but
// its own, so that no handle is locked and equal calls give equal bits. Of a long product the library's proposals are
// timed, once a process for each; halves in lines of no whole vectors are copied to such lines first.
#include "vendor_products.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "../vendor.h"
#include "fastest.h"
#include "padded_lines.h"
#include "staged.h"
#include "shared/pointwise/values.h"

namespace maca_cuda {
namespace {

using maca::MACA_ISA::pointwise::value_of;

// What is used of cublasLt.h, cublas_api.h and library_types.h (CUDA 12 and 13, where these numbers are the same).
using Handle = void*;
using Descriptor = void*;
constexpr int kSuccess = 0;
constexpr int kOperationTransposed = 1;
enum Compute : int { kCompute32F = 68, kCompute64F = 70, kComputeTf32 = 77 };
enum DataType : int { kReal32 = 0, kReal64 = 1, kReal16 = 2, kRealBf16 = 14 };
enum OfProduct : int { kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum OfLayout : int { kBatchCount = 5, kBatchOffset = 6 };
enum OfPreference : int { kMostWorkspace = 1, kReductionSchemes = 3, kAlignmentA = 5 };  // 6, 7, 8: of B, C and D
constexpr int kEpilogueBias = 4;
constexpr uint32_t kReduceInComputeType = 2;  // parts of a sum are added up as floats, not as halves
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

struct Library {
  const Vendor* vendor = nullptr;
  int (*create)(Handle*) = nullptr;
  const char* (*status_name)(int) = nullptr;
  int (*product_create)(Descriptor*, int compute, int scale_type) = nullptr;
  int (*product_destroy)(Descriptor) = nullptr;
  int (*product_set)(Descriptor, int attribute, const void*, size_t) = nullptr;
  int (*layout_create)(Descriptor*, int type, uint64_t rows, uint64_t columns, int64_t leading) = nullptr;
  int (*layout_destroy)(Descriptor) = nullptr;
  int (*layout_set)(Descriptor, int attribute, const void*, size_t) = nullptr;
  int (*preference_create)(Descriptor*) = nullptr;
  int (*preference_destroy)(Descriptor) = nullptr;
  int (*preference_set)(Descriptor, int attribute, const void*, size_t) = nullptr;
  int (*choose)(Handle, Descriptor product, Descriptor a, Descriptor b, Descriptor c, Descriptor d,
                Descriptor preference, int wanted, Heuristic*, int* found) = nullptr;
  int (*multiply)(Handle, Descriptor product, const void* alpha, const void* a, Descriptor, const void* b, Descriptor,
                  const void* beta, const void* c, Descriptor, void* d, Descriptor, const Algorithm*, void* workspace,
                  size_t workspace_bytes, cudaStream_t) = nullptr;
};

const Library* find_library() {
  static const Library* const found = []() -> const Library* {
    const Vendor* vendor = Vendor::find(VendorLibrary::Products);
    if (!vendor) return nullptr;
    static Library all;
    all.vendor = vendor;
    vendor->get("LtCreate", all.create);
    vendor->get("LtGetStatusName", all.status_name);
    vendor->get("LtMatmulDescCreate", all.product_create);
    vendor->get("LtMatmulDescDestroy", all.product_destroy);
    vendor->get("LtMatmulDescSetAttribute", all.product_set);
    vendor->get("LtMatrixLayoutCreate", all.layout_create);
    vendor->get("LtMatrixLayoutDestroy", all.layout_destroy);
    vendor->get("LtMatrixLayoutSetAttribute", all.layout_set);
    vendor->get("LtMatmulPreferenceCreate", all.preference_create);
    vendor->get("LtMatmulPreferenceDestroy", all.preference_destroy);
    vendor->get("LtMatmulPreferenceSetAttribute", all.preference_set);
    vendor->get("LtMatmulAlgoGetHeuristic", all.choose);
    vendor->get("LtMatmul", all.multiply);
    const bool is_whole = all.create && all.product_create && all.product_destroy && all.product_set &&
                          all.layout_create && all.layout_destroy && all.layout_set && all.preference_create &&
                          all.preference_destroy && all.preference_set && all.choose && all.multiply;
    return is_whole ? &all : nullptr;
  }();
  return found;
}

// One a device, for all threads: cublasLt.h says that its functions may share one.
Handle handle_of(const Library& library, const maca_device& device) {
  static std::mutex mutex;
  static std::map<int, Handle> handles;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = handles.find(device.index);
  if (known != handles.end()) return known->second;
  Handle made = nullptr;
  if (library.create(&made) != kSuccess) made = nullptr;
  return handles[device.index] = made;
}

int data_type(Dtype d) {
  return d == Dtype::F64 ? kReal64 : d == Dtype::F16 ? kReal16 : d == Dtype::BF16 ? kRealBf16 : kReal32;
}

// A descriptor and the function that ends it.
class Held {
 public:
  Held() = default;
  Held(Descriptor made, int (*destroy)(Descriptor)) : made_(made), destroy_(destroy) {}
  Held(Held&& other) noexcept : made_(other.made_), destroy_(other.destroy_) { other.made_ = nullptr; }
  Held& operator=(Held&& other) noexcept {
    std::swap(made_, other.made_), std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Held() {
    if (made_) destroy_(made_);
  }
  Descriptor get() const { return made_; }

 private:
  Descriptor made_ = nullptr;
  int (*destroy_)(Descriptor) = nullptr;
};

struct NotServed {};  // the library says no; another way is gone

// A matrix as the library knows them, by columns: of `rows` x `columns` in memory, and transposed before it is used.
struct ByColumns {
  int64_t rows, columns, leading, batch;
  bool is_transposed;
};
std::optional<ByColumns> by_columns(const MatrixOperand& m) {
  if (m.row == 1 || m.rows == 1) {
    const int64_t leading = m.columns == 1 ? m.rows : m.column;
    if (leading >= m.rows) return ByColumns{m.rows, m.columns, leading, m.batch, false};
  }
  if (m.column == 1 || m.columns == 1) {
    const int64_t leading = m.rows == 1 ? m.columns : m.row;
    if (leading >= m.columns) return ByColumns{m.columns, m.rows, leading, m.batch, true};
  }
  return {};
}
MatrixOperand transposed(MatrixOperand m) {
  std::swap(m.rows, m.columns), std::swap(m.row, m.column);
  return m;
}

constexpr size_t kMostWorkspaceBytes = size_t{32} << 20;  // what PyTorch gives it on the same GPUs
constexpr uint32_t kGoodAlignment = 16;                   // what the quick algorithms load at once

// One way to compute it: with these layouts, this epilogue and addresses of this alignment.
class Multiplication {
 public:
  // Of several proposals the quickest is found by running them.
  Multiplication(const Library& library, Handle handle, Dtype dtype, Dtype result, bool allows_tf32, int64_t batches,
                 const ByColumns& a, const ByColumns& b, const ByColumns& c, const ByColumns& d, bool has_bias,
                 uint32_t alignment, int proposals)
      : library_(library), handle_(handle), has_bias_(has_bias) {
    const bool is_double = dtype == Dtype::F64;
    const bool is_tf32 = dtype == Dtype::F32 && allows_tf32;
    Descriptor made = nullptr;
    check(library.product_create(&made,
                                 is_double ? kCompute64F
                                 : is_tf32 ? kComputeTf32
                                           : kCompute32F,
                                 is_double ? kReal64 : kReal32));
    product_ = Held(made, library.product_destroy);
    if (a.is_transposed) set_product(kTransA, int32_t{kOperationTransposed});
    if (b.is_transposed) set_product(kTransB, int32_t{kOperationTransposed});
    if (has_bias) {
      set_product(kEpilogue, uint32_t{kEpilogueBias});
      // any address of the alignment, so that the choice knows it
      set_product(kBiasPointer, reinterpret_cast<const void*>(uintptr_t{4096} + (alignment & (kGoodAlignment - 1))));
    }
    a_ = layout(dtype, a, batches), b_ = layout(dtype, b, batches);
    c_ = layout(result, c, batches), d_ = layout(result, d, batches);
    check(library.preference_create(&made));
    const Held preference(made, library.preference_destroy);
    const auto prefer = [&](int attribute, auto value) {
      check(library.preference_set(preference.get(), attribute, &value, sizeof value));
    };
    prefer(kMostWorkspace, uint64_t{kMostWorkspaceBytes});
    if (is_half(dtype)) prefer(kReductionSchemes, kReduceInComputeType);
    for (int k = 0; k < 4; ++k) prefer(kAlignmentA + k, alignment);
    std::vector<Heuristic> proposed(static_cast<size_t>(proposals));
    int found = 0;
    check(library.choose(handle, product_.get(), a_.get(), b_.get(), c_.get(), d_.get(), preference.get(), proposals,
                         proposed.data(), &found));
    proposed.resize(static_cast<size_t>(std::max(found, 0)));
    proposed.erase(
        std::remove_if(proposed.begin(), proposed.end(), [](const Heuristic& h) { return h.state != kSuccess; }),
        proposed.end());
    if (proposed.empty()) throw NotServed();
    chosen_ = proposed[0];
    if (proposed.size() < 2) return;
    static std::mutex mutex;
    static std::map<std::vector<int64_t>, Heuristic> known;
    std::vector<int64_t> key{reinterpret_cast<intptr_t>(handle),
                             static_cast<int64_t>(dtype),
                             static_cast<int64_t>(result),
                             is_tf32,
                             batches,
                             has_bias};
    for (const ByColumns* m : {&a, &b, &d})
      key.insert(key.end(), {m->rows, m->columns, m->leading, m->batch, m->is_transposed});
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto found_before = known.find(key); found_before != known.end()) {
      chosen_ = found_before->second;
      return;
    }
    const auto bytes = [batches](Dtype of, const ByColumns& m) {
      return static_cast<size_t>(((batches - 1) * m.batch + m.leading * m.columns) * item_size(of));
    };
    chosen_ = known[key] = quickest(proposed, bytes(dtype, a), bytes(dtype, b), bytes(result, d));
  }

  size_t workspace_bytes() const { return chosen_.workspace_bytes; }

  template <class Scalar>
  void run(const Launching& l, void* workspace, Scalar alpha, const void* a, const void* b, Scalar beta, const void* c,
           void* d, const void* bias) const {
    std::unique_lock<std::mutex> lock(bias_mutex_, std::defer_lock);
    if (has_bias_) {  // its address stands in the descriptor, which is read before the call returns
      lock.lock();
      if (const int said = library_.product_set(product_.get(), kBiasPointer, &bias, sizeof bias); said != kSuccess)
        fail(said);
    }
    const int said = library_.multiply(handle_, product_.get(), &alpha, a, a_.get(), b, b_.get(), &beta, c, c_.get(), d,
                                       d_.get(), &chosen_.algorithm, workspace, chosen_.workspace_bytes, l.stream);
    if (said != kSuccess) fail(said);
  }

 private:
  static void check(int said) {
    if (said != kSuccess) throw NotServed();
  }
  [[noreturn]] void fail(int said) const {
    throw LaunchError(MACA_ERROR_INTERNAL,
                      std::string(library_.vendor->name()) + " fails with " +
                          (library_.status_name ? library_.status_name(said) : "status " + std::to_string(said)));
  }
  Heuristic quickest(const std::vector<Heuristic>& proposed, size_t bytes_a, size_t bytes_b, size_t bytes_d) {
    const auto whole = [](size_t bytes) {
      return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    };
    const size_t at_b = whole(bytes_a), at_d = at_b + whole(bytes_b), at_workspace = at_d + whole(bytes_d);
    const size_t bytes = at_workspace + kMostWorkspaceBytes;
    constexpr size_t kMostBytes = size_t{2} << 30;
    if (bytes > kMostBytes) return proposed[0];
    const ScratchMemory memory(bytes);
    // 0x3c3c is 0.0115 as a bfloat16, 1.06 as a float16: neither zeros, which cost no power, nor what overflows
    if (!memory.get() || cudaMemset(memory.get(), 0x3c, at_workspace) != cudaSuccess) return proposed[0];
    if (has_bias_) set_product(kBiasPointer, static_cast<const void*>(memory.get()));  // whatever the numbers are
    const float one = 1, zero = 0;
    const int way = fastest(static_cast<int>(proposed.size()), [&](int i, cudaStream_t stream) {
      const Heuristic& h = proposed[static_cast<size_t>(i)];
      void* const d = memory.get() + at_d;
      return library_.multiply(handle_, product_.get(), &one, memory.get(), a_.get(), memory.get() + at_b, b_.get(),
                               &zero, d, d_.get(), d, d_.get(), &h.algorithm, memory.get() + at_workspace,
                               h.workspace_bytes, stream) == kSuccess;
    });
    return proposed[static_cast<size_t>(way)];
  }
  template <class T> void set_product(int attribute, T value) {
    check(library_.product_set(product_.get(), attribute, &value, sizeof value));
  }
  Held layout(Dtype dtype, const ByColumns& m, int64_t batches) const {
    Descriptor made = nullptr;
    check(library_.layout_create(&made, data_type(dtype), static_cast<uint64_t>(m.rows),
                                 static_cast<uint64_t>(m.columns), m.leading));
    Held held(made, library_.layout_destroy);
    if (batches > 1) {
      const auto count = static_cast<int32_t>(batches);
      check(library_.layout_set(made, kBatchCount, &count, sizeof count));
      check(library_.layout_set(made, kBatchOffset, &m.batch, sizeof m.batch));
    }
    return held;
  }

  const Library& library_;
  Handle handle_;
  bool has_bias_;
  Held product_, a_, b_, c_, d_;
  Heuristic chosen_{};
  mutable std::mutex bias_mutex_;
};

// For addresses that are multiples of 16, and for others; either may be missing.
struct Pair {
  std::unique_ptr<const Multiplication> good, any;
  template <class... A> static Pair make(Dtype dtype, int proposals, const A&... arguments) {
    Pair p;
    const auto attempt = [&](uint32_t alignment, int wanted) -> std::unique_ptr<const Multiplication> {
      try {
        return std::make_unique<Multiplication>(arguments..., alignment, wanted);
      } catch (const NotServed&) {
        return nullptr;
      }
    };
    p.good = attempt(kGoodAlignment, proposals), p.any = attempt(static_cast<uint32_t>(item_size(dtype)), 1);
    return p;
  }
  size_t workspace_bytes() const {
    return std::max(good ? good->workspace_bytes() : 0, any ? any->workspace_bytes() : 0);
  }
};

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kGoodAlignment == 0; }

struct Made {
  Dtype dtype;
  Operand a, b, out, added;
  bool has_sum, adds_in_place;  // else `added` is copied to the result first
  int alpha, beta;
  Pair usual, with_bias;  // the latter where what is added is a row for all rows
  Staged staged;
  using Run = std::function<cudaError_t(const Launching&)>;
  std::vector<Run> before, behind;  // copies of what lies as the library does not take it
  Run add, otherwise;

  explicit Made(const Request& r) : staged(r) {}

  // `l` knows what is staged, `given` is the launch as it came.
  template <class Scalar> cudaError_t run(const Launching& l, const Launching& given) const {
    const auto number = [&](int slot) { return slot < 0 ? Scalar(1) : value_of(l.scalar(slot)).template as<Scalar>(); };
    const Scalar one = has_sum ? number(alpha) : Scalar(1);
    Scalar other = has_sum ? number(beta) : Scalar(0);
    const void *left = l.data(a), *right = l.data(b), *third = has_sum ? l.data(added) : nullptr;
    void* to = l.data(out);
    const bool is_good = is_aligned(left) && is_aligned(right) && is_aligned(to) && is_aligned(third);
    const auto choose = [is_good](const Pair& p) { return is_good && p.good ? p.good.get() : p.any.get(); };
    const Multiplication* const m = choose(usual);
    if (!m) return otherwise(given);
    for (const Run& run : before)
      if (const cudaError_t said = run(l); said != cudaSuccess) return said;
    const Multiplication* const biased = has_sum && other == Scalar(1) ? choose(with_bias) : nullptr;
    void* const workspace = scratch_from(l.launch.workspace, staged.bytes());
    if (biased) {
      biased->run(l, workspace, one, left, right, Scalar(0), to, to, third);
    } else {
      const void* c = to;
      if (adds_in_place) {
        c = third;
      } else if (has_sum && other != Scalar(0)) {  // with 0 what is added does not count, NaN included
        if (const cudaError_t said = add(l); said != cudaSuccess) return said;
      }
      m->run(l, workspace, one, left, right, other, c, to, nullptr);
    }
    for (const Run& run : behind)
      if (const cudaError_t said = run(l); said != cudaSuccess) return said;
    return cudaSuccess;
  }
};

// The operand as the library takes it: itself, or a dense copy.
MatrixOperand taken(const MatrixOperand& m, bool is_result, Made& made) {
  const auto lies = by_columns(m);
  if (lies) return m;
  const Operand& from = m.memory;
  Dims strides(from.sizes.size());
  int64_t step = 1;
  for (size_t d = from.sizes.size(); d-- > 0;) strides[d] = step, step *= from.sizes[d];
  const Operand other = made.staged.place(from, strides);
  (is_result ? made.behind : made.before).push_back((is_result ? make_copy(other, from) : make_copy(from, other))->run);
  return {other, m.rows, m.columns, m.rows * m.columns, m.columns, 1};
}

// How many algorithms of a long product are timed; 1: the library's first is taken.
int proposals_of(const Request& r, double work) {
  constexpr double kLong = double{1ull << 33};  // some ten microseconds
  static const int most = [] {
    const char* given = std::getenv("MACA_PRODUCT_PROPOSALS");
    return given && *given ? std::clamp(std::atoi(given), 1, 32) : 8;
  }();
  return r.is_deterministic() || work < kLong ? 1 : most;
}

// Tensor cores read vectors. Where lines of halves are no whole ones, as with an odd number of columns, and the product
// is so long that copies are little beside it, a, b and out become copies with more rows or columns, of zeros.
void pad(double work, MatrixOperand& a, MatrixOperand& b, MatrixOperand& out, Made& made) {
  constexpr int64_t kWidth = 8;
  constexpr double kLeastWork = double{1 << 30}, kWorkOfByte = 128, kMostBytes = double{1 << 30};
  const auto whole = [](int64_t n) { return (n + kWidth - 1) / kWidth * kWidth; };
  // The extents that some operand has beside one another in memory.
  const bool pads_rows = a.row == 1 || out.row == 1, pads_columns = b.column == 1 || out.column == 1;
  const bool pads_terms = a.column == 1 || b.row == 1;
  const int64_t rows = pads_rows ? whole(out.rows) : out.rows,
                columns = pads_columns ? whole(out.columns) : out.columns;
  const int64_t terms = pads_terms ? whole(a.columns) : a.columns;
  struct Part {
    MatrixOperand* matrix;
    int64_t rows, columns;
  };
  const Part parts[] = {{&a, rows, terms}, {&b, terms, columns}, {&out, rows, columns}};
  const auto is_padded = [](const Part& part) {
    const MatrixOperand& m = *part.matrix;
    return part.rows != m.rows || part.columns != m.columns || (m.row == 1 ? m.column : m.row) % kWidth != 0;
  };
  double bytes = 0;
  for (const Part& part : parts) {
    if ((part.matrix->row == 1) == (part.matrix->column == 1)) return;  // a line alone
    if (is_padded(part)) bytes += 2.0 * static_cast<double>(part.rows * part.columns);
  }
  if (bytes == 0 || bytes > kMostBytes || work < kLeastWork || work < kWorkOfByte * 2 * bytes) return;
  for (const Part& part : parts) {
    if (!is_padded(part)) continue;
    MatrixOperand& m = *part.matrix;
    Operand given = m.memory, like = m.memory;
    given.sizes = {m.rows, m.columns}, given.strides = {m.row, m.column};
    like.sizes = {part.rows, part.columns};
    const Operand copy = made.staged.place(like, m.row == 1 ? Dims{1, part.rows} : Dims{part.columns, 1});
    if (part.matrix == &out)
      made.behind.insert(made.behind.begin(), copy_lines(copy, given));
    else
      made.before.push_back(copy_lines(given, copy));
    m = {copy, part.rows, part.columns, 0, copy.strides[0], copy.strides[1]};
  }
}

}  // namespace

std::unique_ptr<Plan> vendor_product(const Request& r, const ProductRequest& p, std::unique_ptr<Plan> otherwise) {
  const Dtype dtype = p.a.memory.dtype, result_dtype = p.out.memory.dtype;
  if (result_dtype != dtype && !(is_half(dtype) && result_dtype == Dtype::F32)) return otherwise;
  const int64_t terms = p.a.columns;
  const double work = 2.0 * static_cast<double>(p.batches * p.out.rows) * static_cast<double>(p.out.columns * terms);
  if (!is_floating(dtype) || p.batches == 0 || p.out.rows == 0 || p.out.columns == 0 || terms == 0) return otherwise;
  if (p.has_sum && p.added.memory.dtype != result_dtype) return otherwise;
  if (p.batches > 65535) return otherwise;  // a grid's third dimension has no more
  const Library* library = find_library();
  const Handle handle = library ? handle_of(*library, r.device()) : nullptr;
  if (!handle) return otherwise;

  auto made = std::make_shared<Made>(r);
  MatrixOperand a = taken(p.a, false, *made), b = taken(p.b, false, *made), out = taken(p.out, true, *made);
  if (is_half(dtype) && result_dtype == dtype && p.batches == 1 && !p.has_sum) pad(work, a, b, out, *made);
  MatrixOperand added = p.added;
  // Of a result that lies by rows the transposed one is computed: it lies by columns.
  const auto lies_by_rows = by_columns(transposed(out));
  if (lies_by_rows && !lies_by_rows->is_transposed && out.columns != 1) {
    std::swap(a, b);
    a = transposed(a), b = transposed(b), out = transposed(out), added = transposed(added);
  }
  const auto first = by_columns(a), second = by_columns(b), result = by_columns(out);
  if (!first || !second || !result || result->is_transposed) return otherwise;

  made->dtype = dtype;
  made->a = a.memory, made->b = b.memory, made->out = out.memory, made->added = added.memory;
  made->has_sum = p.has_sum, made->adds_in_place = false, made->alpha = p.alpha, made->beta = p.beta;
  ByColumns third = *result;
  if (p.has_sum) {
    const auto lies = by_columns(added);
    if (lies && !lies->is_transposed && (p.batches == 1 || lies->batch >= lies->leading * lies->columns))
      third = *lies, made->adds_in_place = true;
    else
      made->add = make_copy(added.memory, out.memory)->run;
  }
  const auto pair = [&](const ByColumns& c, bool has_bias) {
    const bool may_time = dtype != Dtype::F64 && c.leading == result->leading && c.batch == result->batch;
    return Pair::make(dtype, may_time ? proposals_of(r, work) : 1, *library, handle, dtype, result_dtype, p.allows_tf32,
                      p.batches, *first, *second, c, *result, has_bias);
  };
  made->usual = pair(third, false);
  if (!made->usual.any && (!otherwise || !made->usual.good)) return otherwise;
  const bool is_bias =
      p.has_sum && p.batches == 1 && added.column == 0 && out.columns > 1 && (added.row == 1 || out.rows == 1);
  if (is_bias) made->with_bias = pair(*result, true);
  const size_t bytes =
      made->staged.bytes() + std::max(made->usual.workspace_bytes(), made->with_bias.workspace_bytes());
  if (otherwise) made->otherwise = std::move(otherwise->run);
  auto plan = make_plan(
      [made](const Launching& given) {
        return made->staged.with(given, [&](const Launching& l) {
          return made->dtype == Dtype::F64 ? made->run<double>(l, given) : made->run<float>(l, given);
        });
      },
      library->vendor->name());
  plan->workspace_bytes = bytes ? bytes + kScratchSlack : 0;
  return plan;
}

}  // namespace maca_cuda
