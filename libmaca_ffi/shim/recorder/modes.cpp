// The function mode and the dispatch mode that see every call: bases with only the method that PyTorch calls.
#include <string_view>

#include "recorder.h"

namespace maca::recorder {
namespace {

PyObject* g_recorder = nullptr;  // or nullptr: nobody records
PyTypeObject* g_functions_type = nullptr;

struct Given {
  PyObject *func, *types, *args, *kwargs = Py_None;
};

bool read(PyObject* args, PyObject* kwargs, Given& given) {
  static const char* names[] = {"func", "types", "args", "kwargs", nullptr};
  return PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!|O", const_cast<char**>(names), &given.func, &given.types,
                                     &PyTuple_Type, &given.args, &given.kwargs);
}

// Backward runs below the mode of functions, so that what Python does in it is seen. An operator that is given to the
// mode of operators there would go to that mode too when it runs, by way of Python. It is taken off for so long.
class FunctionsOff {
 public:
  FunctionsOff() : left_(Plainly::modes()) { is_right_ = left_ == 0 || (left_ > 0 && take_off()); }
  FunctionsOff(const FunctionsOff&) = delete;
  FunctionsOff& operator=(const FunctionsOff&) = delete;
  ~FunctionsOff() {
    if (!mode_) return;
    const KeptError kept;
    if (!put_on(mode_.get())) PyErr_WriteUnraisable(mode_.get());
  }
  explicit operator bool() const { return is_right_; }  // false with an exception
  long left() const { return left_; }                   // modes that are active

 private:
  static bool put_on(PyObject* mode) {
    return static_cast<bool>(Ref(PyObject_CallFunctionObjArgs(recording.push_mode, mode, nullptr)));
  }

  bool take_off() {
    Ref last = ask_torch(recording.pop_mode);
    if (!last) return false;
    if (!PyObject_TypeCheck(last.get(), g_functions_type)) return put_on(last.get());
    mode_ = std::move(last);
    --left_;
    return true;
  }

  Ref mode_;
  long left_;
  bool is_right_ = false;
};

Ref run(PyObject* func, const Given& given) {
  return Ref(PyObject_Call(func, given.args, PyDict_Check(given.kwargs) ? given.kwargs : nullptr));
}

void raise_again(Ref error) { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get()); }

// Runs what was called; `end` is told the result or what was raised. What the recorder raises has that as its context.
template <class End> PyObject* run_recorded(PyObject* func, const Given& given, const End& end) {
  Ref result = run(func, given);
  if (result) return end(result.get(), Py_None) ? result.release() : nullptr;
  Ref error = raised();
  if (end(Py_None, error.get())) {
    raise_again(std::move(error));
  } else {
    Ref other = raised();
    if (other.get() != error.get()) PyException_SetContext(other.get(), error.release());
    raise_again(std::move(other));
  }
  return nullptr;
}

// Sessions within each other, and torch.jit.trace.
PyObject* run_by_python(PyObject* recorder, const Given& given, PyObject* name) {
  return PyObject_CallFunctionObjArgs(recording.begin_and_end, recorder, given.func, name, given.args, given.kwargs,
                                      nullptr);
}

// Is the innermost call of this thread a function that began while torch.jit.trace did not run?
bool is_known_untraced(PyObject* recorder) {
  const ThreadState& thread = thread_of(of(recorder));
  Ref last = thread ? last_of(thread) : Ref();
  return is_function(last) && as_call(last)->is_untraced;
}

// 1: C records the call, 0: Python does, -1: an exception.
int is_for_c(PyObject* recorder) {
  if (!is_recorder(recorder)) return 0;
  if (!is_ready(of(recorder))) return -1;
  if (is_known_untraced(recorder)) return 1;
  if (PyErr_Occurred()) return -1;
  Ref tracing = ask_torch(recording.is_tracing);
  return !tracing ? -1 : tracing.get() == Py_None;
}

PyObject* torch_function(PyObject*, PyObject* args, PyObject* kwargs) {
  ++moment();
  Given given;
  if (!read(args, kwargs, given)) return nullptr;
  Ref recorder = Ref::borrowed(g_recorder);
  if (!recorder) return run(given.func, given).release();
  Ref name = Ref::borrowed(PyDict_GetItemWithError(recording.names, given.func));
  if (!name && !PyErr_Occurred()) {
    name = Ref(PyObject_CallFunctionObjArgs(recording.read_name, given.func, nullptr));
    if (name && PyDict_SetItem(recording.names, given.func, name.get())) return nullptr;
  }
  if (!name) return nullptr;
  if (name.get() == Py_None) return run(given.func, given).release();
  const int is = is_for_c(recorder.get());
  if (is <= 0) return is < 0 ? nullptr : run_by_python(recorder.get(), given, name.get());
  Recorder* self = of(recorder.get());
  const long active = Plainly::modes();  // and as many when the function ends: modes nest
  Ref call(active < 0 ? nullptr : begin_function(self, name.get(), given.args, given.kwargs, active));
  if (!call) return nullptr;
  as_call(call)->is_untraced = true;
  return run_recorded(given.func, given, [&](PyObject* result, PyObject* error) {
    return end_function(self, call.get(), result, error, active);
  });
}

PyObject* torch_dispatch(PyObject*, PyObject* args, PyObject* kwargs) {
  ++moment();
  Given given;
  if (!read(args, kwargs, given)) return nullptr;
  Ref recorder = Ref::borrowed(g_recorder);
  if (!recorder) return run(given.func, given).release();
  const int is = is_for_c(recorder.get());
  if (is <= 0) return is < 0 ? nullptr : run_by_python(recorder.get(), given, Py_None);
  FunctionsOff off;
  if (!off) return nullptr;
  Recorder* self = of(recorder.get());
  const Operator* facts = facts_of(given.func);
  Ref call(facts ? begin_operator(self, *facts, given.args, given.kwargs, off.left()) : nullptr);
  if (!call) return nullptr;
  return run_recorded(facts->run, given, [&](PyObject* result, PyObject* error) {
    return end_operator(self, call.get(), *facts, given.args, given.kwargs, result, error, off.left());
  });
}

// PyTorch asks a mode three times at every call for its method: to have it, whose it is, for a class's is refused, and
// to run it. It has the name in C, of which Python makes a str that none of its caches knows, and then a method: 2500
// instructions a call. A mode is its own method, and these answers come first.
constexpr char kFunctionMethod[] = "__torch_function__", kOperatorMethod[] = "__torch_dispatch__";
template <const char* kMethod> PyObject* attribute(PyObject* mode, PyObject* name) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name, &size);
  if (!text) PyErr_Clear();
  const std::string_view asked(text ? text : "", static_cast<size_t>(size));
  if (asked == kMethod || asked == "__self__") return Ref::borrowed(mode).release();
  return PyObject_GenericGetAttr(mode, name);
}

// A base of modes with the method that PyTorch calls.
template <PyObject* (*kRun)(PyObject* mode, PyObject* args, PyObject* kwargs), const char* kMethod>
PyTypeObject* add_mode(PyObject* module, const char* qualified_name, const char* doc) {
  static PyMethodDef methods[] = {
      {kMethod, as_method(kRun), METH_VARARGS | METH_KEYWORDS,
       "Takes (func, types, args, kwargs=None): runs and records a call."},
      {},
  };
  PyType_Slot slots[] = {
      {Py_tp_methods, methods},
      {Py_tp_getattro, reinterpret_cast<void*>(attribute<kMethod>)},
      {Py_tp_call, reinterpret_cast<void*>(kRun)},
      {Py_tp_doc, const_cast<char*>(doc)},
      {0, nullptr},
  };
  return add_type(module, {qualified_name, sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots});
}

}  // namespace

PyObject* set_recorder(PyObject*, PyObject* recorder) {
  if (!is_configured()) return nullptr;
  Ref old(g_recorder);
  g_recorder = recorder == Py_None ? nullptr : Ref::borrowed(recorder).release();
  Py_RETURN_NONE;
}

bool add_recording_modes(PyObject* module) {
  g_functions_type = add_mode<torch_function, kFunctionMethod>(
      module, "libmaca_ffi._recorder.RecordedFunctions",
      "The base of a TorchFunctionMode that gives calls to the recorder that is set.");
  return g_functions_type && add_mode<torch_dispatch, kOperatorMethod>(
                                 module, "libmaca_ffi._recorder.RecordedOperators",
                                 "The base of a TorchDispatchMode that gives calls to the recorder that is set.");
}

}  // namespace maca::recorder
