// maca_extension.h: kernels of your own in C++, joined to the running device by macatensor.cpp_extension.
//
//   #include <maca_extension.h>
//
//   MACA_KERNEL("mine::scaled", [](const maca::Request& request) {
//     return request.elementwise([](float x, float y) { return 2 * x + y; });
//   });
//
// A kernel is a function from a request to a launch. It is asked once for dtypes, sizes, strides and attributes,
// declines what it does not serve (maca::Declined: the next library is asked) and decides what depends on these alone;
// what it returns then runs for each call, by any thread, and may throw: std::out_of_range becomes an IndexError, any
// other exception a RuntimeError with its text.
//
// The header makes of this what maca.h asks of a library. It is for devices whose memory is the host's behind a tag in
// the addresses' top byte, as the host library's: a launch runs at once, on the thread that gives it, when what its
// stream has before it is over. macatensor refuses to join it to another device.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "maca.h"

#ifndef MACA_EXTENSION_NAME  // macatensor.cpp_extension says it
#define MACA_EXTENSION_NAME "extension"
#endif

namespace maca {

struct Declined : std::runtime_error {  // another library may serve the request
  using std::runtime_error::runtime_error;
};
struct Invalid : std::runtime_error {  // the request contradicts itself: nobody can
  using std::runtime_error::runtime_error;
};

template <class T> struct DtypeOf;
#define MACA_DTYPE(TYPE, CODE, NAME)                                                    \
  template <> struct DtypeOf<TYPE> {                                                    \
    static constexpr maca_dtype value{CODE, static_cast<uint8_t>(8 * sizeof(TYPE)), 1}; \
    static constexpr const char* name = NAME;                                           \
  };
MACA_DTYPE(float, MACA_FLOAT, "float32")
MACA_DTYPE(double, MACA_FLOAT, "float64")
MACA_DTYPE(int8_t, MACA_INT, "int8")
MACA_DTYPE(int16_t, MACA_INT, "int16")
MACA_DTYPE(int32_t, MACA_INT, "int32")
MACA_DTYPE(int64_t, MACA_INT, "int64")
MACA_DTYPE(uint8_t, MACA_UINT, "uint8")
MACA_DTYPE(bool, MACA_BOOL, "bool")
#undef MACA_DTYPE

// Where the device's memory is for the host.
inline void* host_address(const void* device) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(device) & ((uintptr_t{1} << 56) - 1));
}

// A tensor of a request. Strides count elements.
struct Operand {
  maca_dtype dtype{};
  std::vector<int64_t> sizes, strides;
  bool is_output = false;
  bool is_absent = false;    // an optional tensor that is None
  int32_t scalar_slot = -1;  // else: a number, this scalar of each launch

  template <class T> bool is() const {
    constexpr maca_dtype wanted = DtypeOf<T>::value;
    return !is_absent && dtype.code == wanted.code && dtype.bits == wanted.bits;
  }
  size_t rank() const { return sizes.size(); }
  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t size : sizes) n *= size;
    return n;
  }
  bool is_contiguous() const {
    int64_t expected = 1;
    for (size_t d = rank(); d-- > 0; expected *= sizes[d])
      if (sizes[d] != 1 && strides[d] != expected) return numel() == 0;
    return true;
  }
};

// What a launch brings. Operands are counted over the request, lists flattened, results last.
class Launch {
 public:
  explicit Launch(const maca_launch& raw) : raw(raw) {}
  // The first element of an operand; nullptr where it is absent.
  template <class T> T* pointer(size_t operand) const { return static_cast<T*>(host_address(raw.pointers[operand])); }
  template <class T> T scalar(int32_t slot) const {
    const maca_scalar& s = raw.scalars[slot];
    const bool is_integer = s.tag == MACA_SCALAR_INT || s.tag == MACA_SCALAR_BOOL;
    return is_integer ? static_cast<T>(s.value.integer) : static_cast<T>(s.value.real);
  }
  const maca_launch& raw;
};

using Run = std::function<void(const Launch&)>;

// The elements of results, and where operands have theirs: an index space in the order of the first result's memory,
// with dimensions that lie behind one another joined. Inputs are broadcast.
class Walk {
 public:
  // `operands`: of the request; the last one gives the sizes.
  Walk(const std::vector<Operand>& all, const std::vector<size_t>& operands) {
    const Operand& result = all[operands.back()];
    std::vector<size_t> order(result.rank());
    for (size_t d = 0; d < order.size(); ++d) order[d] = d;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return result.strides[a] > result.strides[b]; });
    for (const size_t d : order) {
      std::vector<int64_t> step(operands.size());
      for (size_t i = 0; i < operands.size(); ++i) step[i] = stride_of(all[operands[i]], result, d);
      if (result.sizes[d] == 1) continue;
      if (!sizes.empty() && joins(step, result.sizes[d])) {
        sizes.back() *= result.sizes[d];
        strides.back() = step;
      } else {
        sizes.push_back(result.sizes[d]);
        strides.push_back(step);
      }
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      strides.emplace_back(operands.size(), 0);
    }
    is_empty = result.numel() == 0;
  }

  // Calls `row(offsets, count, strides)` for each innermost row: where it begins in each operand, in elements, how long
  // it is, and how far its elements are apart.
  template <class Row> void rows(const Row& row) const {
    if (is_empty) return;
    const size_t last = sizes.size() - 1;
    std::vector<int64_t> index(last), at(strides.back().size());
    for (;;) {
      row(at.data(), sizes[last], strides[last].data());
      size_t d = last;
      while (d > 0) {
        --d;
        for (size_t i = 0; i < at.size(); ++i) at[i] += strides[d][i];
        if (++index[d] < sizes[d]) break;
        for (size_t i = 0; i < at.size(); ++i) at[i] -= strides[d][i] * sizes[d];
        index[d] = 0;
        if (d == 0) return;
      }
      if (last == 0) return;
    }
  }

  std::vector<int64_t> sizes;                 // outermost first
  std::vector<std::vector<int64_t>> strides;  // of each dimension, by operand
  bool is_empty = false;

 private:
  static int64_t stride_of(const Operand& o, const Operand& result, size_t d) {
    if (o.rank() > result.rank()) throw Invalid("an operand has more dimensions than the result");
    const size_t shift = result.rank() - o.rank();
    if (d < shift) return 0;
    if (o.sizes[d - shift] == 1) return 0;
    if (o.sizes[d - shift] != result.sizes[d]) throw Invalid("the sizes of an operand do not fit the result's");
    return o.strides[d - shift];
  }
  bool joins(const std::vector<int64_t>& step, int64_t size) const {
    for (size_t i = 0; i < step.size(); ++i)
      if (strides.back()[i] != step[i] * size) return false;
    return true;
  }
};

template <class F> struct Signature : Signature<decltype(&F::operator())> {};
template <class C, class R, class... A> struct Signature<R (C::*)(A...) const> {
  using Result = R;
  using Arguments = std::tuple<std::decay_t<A>...>;
};

// What a kernel is asked for. It lives as long as the question.
class Request {
 public:
  explicit Request(const maca_plan_request& raw) : raw(raw) {
    for (int32_t a = 0; a < raw.argument_count; ++a)
      for (int32_t i = 0; i < std::max(raw.arguments[a].count, 0); ++i) {
        const maca_operand& o = raw.arguments[a].operands[i];
        Operand operand;
        operand.is_output = raw.arguments[a].is_output != 0;
        operand.is_absent = o.rank < 0;
        operand.scalar_slot = o.scalar_slot;
        if (!operand.is_absent) {
          operand.dtype = o.dtype;
          operand.sizes.assign(o.sizes, o.sizes + o.rank);
          operand.strides.assign(o.strides, o.strides + o.rank);
        }
        operands.push_back(std::move(operand));
      }
  }

  size_t inputs() const {
    return static_cast<size_t>(
        std::count_if(operands.begin(), operands.end(), [](const Operand& o) { return !o.is_output; }));
  }
  // Static arguments of the operator by name; where the call leaves one out, what the kernel takes for it.
  int64_t integer(std::string_view name, int64_t otherwise = 0) const {
    const maca_attribute* const found = attribute(name);
    return found ? found->integer : otherwise;
  }
  double real(std::string_view name, double otherwise = 0) const {
    const maca_attribute* const found = attribute(name);
    return !found ? otherwise : found->kind == MACA_ATTRIBUTE_FLOAT ? found->real : static_cast<double>(found->integer);
  }
  std::string text(std::string_view name, std::string_view otherwise = "") const {
    const maca_attribute* const found = attribute(name);
    return std::string(found && found->text ? std::string_view(found->text) : otherwise);
  }
  // Which scalar of each launch the argument is; nothing where it is None.
  std::optional<int32_t> slot(std::string_view name) const {
    const maca_attribute* const found = attribute(std::string(name) + ".scalar");
    return found ? std::optional<int32_t>(static_cast<int32_t>(found->integer)) : std::nullopt;
  }
  const maca_attribute* attribute(std::string_view name) const {
    for (int32_t i = 0; i < raw.attribute_count; ++i)
      if (name == raw.attributes[i].name) return &raw.attributes[i];
    return nullptr;
  }

  // One result, each of whose elements is `function` of the inputs' elements: of any strides, broadcast. Its parameters
  // and its result say of which dtypes; others are declined. An optional tensor that is left out is no input.
  template <class F> Run elementwise(F function) const {
    using Arguments = typename Signature<F>::Arguments;
    return elementwise(function, Arguments{}, std::make_index_sequence<std::tuple_size_v<Arguments>>{});
  }

  std::vector<Operand> operands;  // of all arguments, lists flattened, results last
  const maca_plan_request& raw;

 private:
  template <class T> void expect(size_t operand) const {
    const Operand& o = operands[operand];
    if (o.is<T>() || o.scalar_slot >= 0) return;  // a number is converted
    throw Declined("operand " + std::to_string(operand) + " is not of " + DtypeOf<T>::name);
  }

  template <class F, class... A, size_t... I>
  Run elementwise(F function, std::tuple<A...>, std::index_sequence<I...>) const {
    using Result = typename Signature<F>::Result;
    constexpr size_t kInputs = sizeof...(A);
    std::vector<size_t> there;  // without optional tensors that are left out
    for (size_t o = 0; o < operands.size(); ++o)
      if (!operands[o].is_absent) there.push_back(o);
    if (there.size() != kInputs + 1 || !operands[there.back()].is_output || (operands[there[I]].is_output || ...))
      throw Declined("takes " + std::to_string(kInputs) + " operands and one result");
    (expect<A>(there[I]), ...);
    expect<Result>(there.back());
    const std::array<int32_t, kInputs + 1> slots{operands[there[I]].scalar_slot..., -1};
    return [function, slots, there, walk = Walk(operands, there)](const Launch& launch) {
      std::tuple<A...> numbers{slots[I] >= 0 ? launch.scalar<A>(slots[I]) : A{}...};
      const std::tuple<const A*...> from{slots[I] >= 0 ? &std::get<I>(numbers) : launch.pointer<const A>(there[I])...};
      Result* const to = launch.pointer<Result>(there.back());
      walk.rows([&](const int64_t* at, int64_t count, const int64_t* step) {
        Result* const result = to + at[kInputs];
        const bool is_dense = step[kInputs] == 1 && ((step[I] == 1) && ...);
        if (is_dense)  // apart, so that the compiler makes vectors of it
          for (int64_t n = 0; n < count; ++n) result[n] = function(std::get<I>(from)[at[I] + n]...);
        else
          for (int64_t n = 0; n < count; ++n)
            result[n * step[kInputs]] = function(std::get<I>(from)[at[I] + n * step[I]]...);
      });
    };
  }
};

using Kernel = std::function<Run(const Request&)>;

// --- what maca.h asks of a library -----------------------------------------------------------------------------------
struct Registry {
  std::map<std::string, Kernel> kernels;
  std::vector<const char*> names;
  std::mutex mutex;
  std::deque<std::pair<int32_t, std::string>> errors;  // that no one has taken

  static Registry& the() {
    static Registry* const registry = new Registry;  // launches may outlive destructors
    return *registry;
  }
  bool add(const char* name, Kernel kernel) {
    const auto [place, is_new] = kernels.insert_or_assign(name, std::move(kernel));
    if (is_new) names.push_back(place->first.c_str());
    return true;
  }
  maca_status fail(int32_t code, const char* text) {
    const std::lock_guard<std::mutex> lock(mutex);
    errors.emplace_back(code, text);
    return MACA_DEVICE_ERROR;
  }
};

constexpr int64_t kLongWork = 200000;  // elements: other threads of Python may run meanwhile

}  // namespace maca

struct maca_plan {
  maca::Run run;
  int32_t cost;
};

namespace maca {

inline maca_status because(maca_status status, maca_reason* reason, const char* text) {
  if (reason && reason->size > offsetof(maca_reason, text))
    std::snprintf(reason->text, reason->size - offsetof(maca_reason, text), "%s", text);
  return status;
}

inline const char* kernel_name(maca_device*, int32_t index) {
  const auto& names = Registry::the().names;
  return index >= 0 && static_cast<size_t>(index) < names.size() ? names[static_cast<size_t>(index)] : nullptr;
}

inline maca_status plan_create(maca_device*, const maca_plan_request* request, maca_plan** plan, maca_reason* reason) {
  try {
    const auto found = Registry::the().kernels.find(request->kernel);
    if (found == Registry::the().kernels.end()) return because(MACA_DECLINED, reason, "there is no such kernel");
    const Request asked(*request);
    Run run = found->second(asked);
    if (!run) return because(MACA_DECLINED, reason, "the kernel gave no launch");
    int64_t work = 0;
    for (const Operand& o : asked.operands) work = std::max(work, o.is_absent ? 0 : o.numel());
    *plan = new maca_plan{std::move(run), work > kLongWork ? MACA_COST_LONG : MACA_COST_SHORT};
    return MACA_OK;
  } catch (const Declined& error) {
    return because(MACA_DECLINED, reason, error.what());
  } catch (const Invalid& error) {
    return because(MACA_INVALID, reason, error.what());
  } catch (const std::bad_alloc&) {
    return because(MACA_OUT_OF_MEMORY, reason, "no memory of the host for a plan");
  } catch (const std::exception& error) {
    return because(MACA_INVALID, reason, error.what());
  } catch (...) {
    return because(MACA_INVALID, reason, "the kernel threw what is no std::exception");
  }
}

inline maca_status plan_info(maca_device*, const maca_plan* plan, maca_plan_info* info) {
  info->cost = plan->cost;
  return MACA_OK;
}

inline maca_status plan_launch(maca_device*, const maca_plan* plan, const maca_launch* launch) {
  try {
    plan->run(Launch(*launch));
    return MACA_OK;
  } catch (const std::out_of_range& error) {
    return Registry::the().fail(MACA_ERROR_INDEX, error.what());
  } catch (const std::bad_alloc&) {
    return MACA_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    return Registry::the().fail(MACA_ERROR_VALUE, error.what());
  } catch (...) {
    return Registry::the().fail(MACA_ERROR_VALUE, "the kernel threw what is no std::exception");
  }
}

inline maca_status plan_destroy(maca_device*, maca_plan* plan) {
  delete plan;
  return MACA_OK;
}

inline maca_status error_take(maca_device*, maca_error* error) {
  Registry& registry = Registry::the();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  error->status = MACA_OK;
  if (registry.errors.empty()) return MACA_OK;
  error->status = MACA_DEVICE_ERROR;
  error->code = registry.errors.front().first;
  std::snprintf(error->text, sizeof error->text, "%s", registry.errors.front().second.c_str());
  registry.errors.pop_front();
  return MACA_OK;
}

}  // namespace maca

// weak: the header may stand in several sources of one library
extern "C" __attribute__((weak, visibility("default"))) const maca_interface* maca_get_interface(int32_t major) {
  static const maca_interface table = [] {
    maca_interface made{};
    made.size = sizeof made;
    made.major = MACA_ABI_MAJOR;
    made.minor = MACA_ABI_MINOR;
    made.library = MACA_EXTENSION_NAME;
    made.kernel_name = maca::kernel_name;
    made.plan_create = maca::plan_create;
    made.plan_info = maca::plan_info;
    made.plan_launch = maca::plan_launch;
    made.plan_destroy = maca::plan_destroy;
    made.error_take = maca::error_take;
    return made;
  }();
  return major == MACA_ABI_MAJOR ? &table : nullptr;
}

// Announces a kernel: a row's (`macatensor ops gelu` names it, docs/kernels.md says what it gets), or of an operator of
// your own, "namespace::name".
#define MACA_KERNEL(NAME, ...) MACA_KERNEL_AT(NAME, __COUNTER__, __VA_ARGS__)
#define MACA_KERNEL_AT(NAME, COUNT, ...) MACA_KERNEL_CALLED(NAME, COUNT, __VA_ARGS__)
#define MACA_KERNEL_CALLED(NAME, COUNT, ...) \
  [[maybe_unused]] static const bool maca_kernel_##COUNT = ::maca::Registry::the().add(NAME, __VA_ARGS__)
