// The way of an operator from __torch_dispatch__ to a kernel and back, as types of Python: `libmaca_ffi._launcher`.
//
// What is decided once is Python (macatensor/dispatch/kernel_calls.py): which row, which plan, what the result is. What
// is done at every call is here, since each attribute, call and object of Python costs 30 to 150 ns of an operator's 3
// us. Only Python's limited API is used and nothing of PyTorch's, so one build serves every version of both.
#pragma once
#include <Python.h>

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "runtime.h"

namespace maca_launcher {

// A reference to a Python object that this scope owns.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  static Ref borrowed(PyObject* object) {
    Py_XINCREF(object);
    return Ref(object);
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Memory of an instance, by way of its type: that may be a subclass made in Python, which has slots of its own.
inline PyObject* allocate(PyTypeObject* type) {
  return reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}
// The end of a tp_dealloc, with the reference that each instance holds to its type.
inline void release_memory(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

// Names of attributes and methods, made once. False with an exception set when Python has no memory.
inline bool intern_names(std::initializer_list<std::pair<PyObject**, const char*>> names) {
  for (const auto& [slot, name] : names)
    if (!(*slot = PyUnicode_InternFromString(name))) return false;
  return true;
}

// What Python tells a module by name: the name, and the member that holds it.
template <class T> struct Fact {
  const char* name;
  PyObject* T::* slot;
};
// Takes those over that are given; false with an exception, also where `known` still lacks one of them and `is_all`.
template <class T, size_t kFacts>
bool take_facts(T& known, const Fact<T> (&facts)[kFacts], PyObject* args, PyObject* kwargs, bool is_all) {
  PyObject *name, *value;
  for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &name, &value);) {
    size_t i = 0;
    while (i < kFacts && PyUnicode_CompareWithASCIIString(name, facts[i].name) != 0) ++i;
    if (i == kFacts) return PyErr_Format(PyExc_TypeError, "configure() takes no %R", name);
    Ref old(std::exchange(known.*facts[i].slot, Ref::borrowed(value).release()));
  }
  for (const Fact<T>& fact : facts)
    if (PyTuple_Size(args) > 0 || (is_all && !(known.*fact.slot)))
      return PyErr_Format(PyExc_TypeError, "configure() takes names only, and %s is one of them", fact.name);
  return true;
}

// A list that needs no memory of its own while it is short.
template <typename T, size_t kInline> class Few {
 public:
  void push(T value) {
    if (size_ == kInline) more_.assign(inline_, inline_ + kInline);
    if (size_ >= kInline)
      more_.push_back(value);
    else
      inline_[size_] = value;
    ++size_;
  }
  size_t size() const { return size_; }
  T* data() { return size_ <= kInline ? inline_ : more_.data(); }
  T& operator[](size_t i) { return data()[i]; }

 private:
  T inline_[kInline];
  std::vector<T> more_;
  size_t size_ = 0;
};

// What macatensor says once, by configure(): its own types and functions and PyTorch's.
struct Known {
  PyObject* tensor = nullptr;        // the type MacaTensor
  PyObject* make_wrapper = nullptr;  // torch.Tensor._make_wrapper_subclass
  PyObject* strided = nullptr;       // torch.strided
  PyObject* device = nullptr;        // torch.device("maca", 0)
  PyObject* bind = nullptr;          // sets and returns the launcher of an OpOverload that has none
  PyObject* failure = nullptr;       // from (status, operator) to an exception
  PyObject* static_key = nullptr;    // a hashable stand-in for an argument that is part of the plan
  PyObject* true_key = nullptr;      // static_key(True), static_key(False)
  PyObject* false_key = nullptr;
  PyObject* in_inference = nullptr;      // torch.is_inference_mode_enabled
  PyObject* is_deterministic = nullptr;  // torch.are_deterministic_algorithms_enabled, as C has it
  PyObject* plain_types = nullptr;       // types of static arguments that are their own key
  PyObject* absent = nullptr;            // the payload of an operand that is not given
  PyObject* is_profiled = nullptr;       // whether PyTorch's profiler is at work
  PyObject* payload_name = nullptr;      // "_payload"
  PyObject* is_inference_name = nullptr;
  PyObject* zero = nullptr;
};
extern Known known;

// --- buffers ------------------------------------------------------------------------------------------------
bool add_buffer_type(PyObject* module);
PyObject* new_buffer(maca_buffer* buffer);  // takes it over; releases it when that fails
// The memory of a payload, (Buffer, offset in elements, Meta); nullptr and TypeError when it is none.
maca_buffer* memory_of(PyObject* payload);
PyObject* allocate(PyObject* module, PyObject* nbytes);
PyObject* pin(PyObject* module, PyObject* nbytes);

// --- operands -----------------------------------------------------------------------------------------------
// What one launch is given. Holds the payloads, so that nobody frees the memory while a kernel runs.
class Operands {
 public:
  Operands() = default;
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;
  ~Operands();
  bool add(Ref payload);  // false and an exception when it is no payload
  void add_absent();
  bool add_number(Ref number);  // false and an exception when it does not fit
  void repeat_first();
  PyObject* payloads();  // new lists, for launchers that are written in Python
  PyObject* numbers();

  Few<maca_reference, 8> references;
  Few<maca_scalar, 4> scalars;
  bool has_wrapped = false;  // one of the scalars is above 2^63 and travels by its bits

 private:
  Few<PyObject*, 8> held_;  // nullptr: absent
  Few<PyObject*, 4> numbers_;
};

// --- programs -----------------------------------------------------------------------------------------------
bool add_program_type(PyObject* module);
bool is_program(PyObject* object);
PyObject* observe(PyObject* module, PyObject* observer);
// Are the numbers such that every element type that the program writes has room for them?
bool has_room(PyObject* program, Operands& operands);
PyObject* run_program(PyObject* program, Operands& operands, PyObject* args);

// A tensor of ours: `make` are the arguments of _make_wrapper_subclass. Takes `buffer` over.
PyObject* new_tensor(PyObject* make, PyObject* buffer, PyObject* offset, PyObject* meta);

// A new reference to the key of an argument that is part of the plan.
PyObject* static_key(PyObject* value);

// --- launchers ----------------------------------------------------------------------------------------------
bool add_kernel_call_type(PyObject* module);
bool add_view_call_type(PyObject* module);
bool add_blank_call_type(PyObject* module);
bool add_fixed_attribute_type(PyObject* module);
using Run = PyObject* (*)(PyObject* launcher, PyObject* args, PyObject* kwargs);
// What a call of `launcher` does; nullptr when it is none of that type, or a subclass that has its own __call__.
Run direct_kernel_call(PyObject* launcher);
Run direct_view_call(PyObject* launcher);
Run direct_blank_call(PyObject* launcher);

// Calls the launcher of an OpOverload, after known.bind(func) the first time.
PyObject* launch(PyObject* func, PyObject* args, PyObject* kwargs);
PyObject* launcher_of(PyObject* module, PyObject* func);
PyObject* set_launcher(PyObject* module, PyObject* args);
PyObject* forget_launchers(PyObject* module, PyObject*);

inline bool is_empty(PyObject* kwargs) { return !kwargs || kwargs == Py_None || PyDict_Size(kwargs) == 0; }

}  // namespace maca_launcher
