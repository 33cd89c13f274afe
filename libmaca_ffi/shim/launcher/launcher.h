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

// What was raised, as an object with its traceback; it is set no more.
inline Ref raised() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return Ref(value);
}

// Another object in a slot that holds a reference; what was there goes last, which may run Python's code.
inline void put(PyObject*& slot, PyObject* value) { Ref old(std::exchange(slot, Ref::borrowed(value).release())); }

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

// A type that the module has from now on; nullptr with an exception.
inline PyTypeObject* add_type(PyObject* module, PyType_Spec spec) {
  auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type && PyModule_AddType(module, type) == 0 ? type : nullptr;
}
// A module and its types; nullptr with an exception.
inline PyObject* new_module(PyModuleDef& definition, std::initializer_list<bool (*)(PyObject*)> adders) {
  Ref module(PyModule_Create(&definition));
  for (const auto add : adders)
    if (!module || !add(module.get())) return nullptr;
  return module.release();
}
// A method of Python that takes arguments by their names, or in another way that its flags say.
template <class Function> PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// A tuple or a list of `n` items; nullptr with an exception when there is none, or `n` is negative.
template <auto kNew, auto kSet, class Item> PyObject* new_sequence(Py_ssize_t n, const Item& item) {
  Ref made(n < 0 ? nullptr : kNew(n));
  for (Py_ssize_t i = 0; made && i < n; ++i) {
    PyObject* one = item(i);
    if (!one) return nullptr;
    kSet(made.get(), i, one);
  }
  return made.release();
}
template <class Item> PyObject* new_tuple(Py_ssize_t n, const Item& item) {
  return new_sequence<PyTuple_New, PyTuple_SetItem>(n, item);
}
template <class Item> PyObject* new_list(Py_ssize_t n, const Item& item) {
  return new_sequence<PyList_New, PyList_SetItem>(n, item);
}

// Objects of Python that a module holds as long as the process lives: members that have names.
class NamedObjects {
 public:
  // Takes those over that are given; false with an exception, also where one is lacking yet and `is_all`.
  bool take(PyObject* args, PyObject* kwargs, bool is_all);
  bool are_all_there() const;
  bool intern();  // each is its name; false with an exception

 protected:
  PyObject* named(const char* name, PyObject*& slot) {
    objects_.push_back({name, &slot});
    return nullptr;
  }

 private:
  std::vector<std::pair<const char*, PyObject**>> objects_;
};

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
struct Known : NamedObjects {
  PyObject* tensor = named("tensor", tensor);                    // the type MacaTensor
  PyObject* make_wrapper = named("make_wrapper", make_wrapper);  // torch.Tensor._make_wrapper_subclass
  PyObject* strided = named("strided", strided);                 // torch.strided
  PyObject* device = named("device", device);                    // torch.device("maca", 0)
  PyObject* bind = named("bind", bind);           // sets and returns the launcher of an OpOverload that has none
  PyObject* failure = named("failure", failure);  // from (status, operator) to an exception
  // a hashable stand-in for an argument that is part of the plan
  PyObject* static_key = named("static_key", static_key);
  PyObject* true_key = named("true_key", true_key);  // static_key(True), static_key(False)
  PyObject* false_key = named("false_key", false_key);
  PyObject* in_inference = named("in_inference", in_inference);  // torch.is_inference_mode_enabled
  // torch.are_deterministic_algorithms_enabled, as C has it
  PyObject* is_deterministic = named("is_deterministic", is_deterministic);
  PyObject* plain_types = named("plain_types", plain_types);  // types of static arguments that are their own key
  PyObject* absent = named("absent", absent);                 // the payload of an operand that is not given
  PyObject* is_profiled = named("is_profiled", is_profiled);  // whether PyTorch's profiler is at work
  PyObject* function_modes = named("function_modes", function_modes);  // how many of PyTorch's are entered
  PyObject* below_modes = named("below_modes", below_modes);           // calls a launcher as if none were
  PyObject* payload_name = nullptr;                                    // "_payload"
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
PyObject* lend(PyObject* module, PyObject* args);
PyObject* lender(PyObject* module, PyObject* capsule);

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
bool add_tape_type(PyObject* module);
PyObject* plan_memory(PyObject* module, PyObject* args);
bool is_program(PyObject* object);
PyObject* observe(PyObject* module, PyObject* observer);
PyObject* is_observed(PyObject* module, PyObject*);
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
bool add_assigned_attribute_type(PyObject* module);
bool add_kept_error_type(PyObject* module);
bool add_cast_call_type(PyObject* module);
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
