// The function mode and the dispatch mode that see every call: bases with only the method that PyTorch calls.
#include "recording_recorder.h"

namespace maca_launcher {
namespace {

PyObject* g_recorder = nullptr;  // or nullptr: nobody records

// What configure_recorded_modes() says once.
struct KnownOfModes {
  PyObject* is_tracing = nullptr;     // torch.jit's tracing state, or None
  PyObject* names = nullptr;          // from a function to its name, or None: it computes nothing
  PyObject* read_name = nullptr;      // the name of a function that is not among them
  PyObject* begin_and_end = nullptr;  // (recorder, func, name or None, args, kwargs): calls that are not C's
};
KnownOfModes modes;

struct Given {
  PyObject *func, *types, *args = nullptr, *kwargs = Py_None;
  Ref none;  // no arguments
};

bool read(PyObject* args, PyObject* kwargs, Given& given) {
  static const char* names[] = {"func", "types", "args", "kwargs", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O!O", const_cast<char**>(names), &given.func, &given.types,
                                   &PyTuple_Type, &given.args, &given.kwargs))
    return false;
  if (!given.args) {
    given.none = Ref(PyTuple_New(0));
    given.args = given.none.get();
  }
  return given.args != nullptr;
}

Ref run(const Given& given) {
  return Ref(PyObject_Call(given.func, given.args, PyDict_Check(given.kwargs) ? given.kwargs : nullptr));
}

// What was raised, as an object with its traceback; it is set no more.
Ref raised() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return Ref(value);
}

void raise_again(Ref error) { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get()); }

// Runs what was called; `end` is told the result or what was raised. What the recorder raises has that as its context.
template <class End> PyObject* run_recorded(const Given& given, const End& end) {
  Ref result = run(given);
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
  return PyObject_CallFunctionObjArgs(modes.begin_and_end, recorder, given.func, name, given.args, given.kwargs,
                                      nullptr);
}

// 1: C records the call, 0: Python does, -1: an exception.
int is_for_c(PyObject* recorder) {
  if (!is_recorder(recorder)) return 0;
  Ref tracing = ask_torch(modes.is_tracing);
  return !tracing ? -1 : tracing.get() == Py_None;
}

PyObject* torch_function(PyObject*, PyObject* args, PyObject* kwargs) {
  Given given;
  if (!read(args, kwargs, given)) return nullptr;
  Ref recorder = Ref::borrowed(g_recorder);
  if (!recorder) return run(given).release();
  Ref name = Ref::borrowed(PyDict_GetItemWithError(modes.names, given.func));
  if (!name && !PyErr_Occurred()) {
    name = Ref(PyObject_CallFunctionObjArgs(modes.read_name, given.func, nullptr));
    if (name && PyDict_SetItem(modes.names, given.func, name.get())) return nullptr;
  }
  if (!name) return nullptr;
  if (name.get() == Py_None) return run(given).release();
  const int is = is_for_c(recorder.get());
  if (is <= 0) return is < 0 ? nullptr : run_by_python(recorder.get(), given, name.get());
  Recorder* self = of(recorder.get());
  Ref call(is_ready(self) ? begin_function(self, name.get(), given.args, given.kwargs) : nullptr);
  if (!call) return nullptr;
  return run_recorded(given,
                      [&](PyObject* result, PyObject* error) { return end_function(self, call.get(), result, error); });
}

PyObject* torch_dispatch(PyObject*, PyObject* args, PyObject* kwargs) {
  Given given;
  if (!read(args, kwargs, given)) return nullptr;
  Ref recorder = Ref::borrowed(g_recorder);
  if (!recorder) return run(given).release();
  const int is = is_for_c(recorder.get());
  if (is <= 0) return is < 0 ? nullptr : run_by_python(recorder.get(), given, Py_None);
  Recorder* self = of(recorder.get());
  Ref call(is_ready(self) ? begin_operator(self, given.func, given.args, given.kwargs) : nullptr);
  if (!call) return nullptr;
  return run_recorded(given, [&](PyObject* result, PyObject* error) {
    return end_operator(self, call.get(), given.func, given.args, given.kwargs, result, error);
  });
}

PyMethodDef g_function_methods[] = {
    {"__torch_function__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(torch_function)),
     METH_VARARGS | METH_KEYWORDS, "__torch_function__(func, types, args=(), kwargs=None): runs and records a call."},
    {},
};
PyMethodDef g_operator_methods[] = {
    {"__torch_dispatch__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(torch_dispatch)),
     METH_VARARGS | METH_KEYWORDS, "__torch_dispatch__(func, types, args=(), kwargs=None): runs and records a call."},
    {},
};

PyType_Slot g_function_slots[] = {
    {Py_tp_methods, g_function_methods},
    {Py_tp_doc, const_cast<char*>("The base of a TorchFunctionMode that gives calls to the recorder that is set.")},
    {0, nullptr},
};
PyType_Slot g_operator_slots[] = {
    {Py_tp_methods, g_operator_methods},
    {Py_tp_doc, const_cast<char*>("The base of a TorchDispatchMode that gives calls to the recorder that is set.")},
    {0, nullptr},
};

PyType_Spec g_function_spec = {"libmaca_ffi._launcher.RecordedFunctions", sizeof(PyObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, g_function_slots};
PyType_Spec g_operator_spec = {"libmaca_ffi._launcher.RecordedOperators", sizeof(PyObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, g_operator_slots};

}  // namespace

PyObject* configure_recorded_modes(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"is_tracing", "names", "read_name", "begin_and_end", nullptr};
  PyObject *is_tracing, *known_names, *read_name, *begin_and_end;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OO!OO:configure_recorded_modes", const_cast<char**>(names),
                                   &is_tracing, &PyDict_Type, &known_names, &read_name, &begin_and_end))
    return nullptr;
  put(modes.is_tracing, is_tracing);
  put(modes.names, known_names);
  put(modes.read_name, read_name);
  put(modes.begin_and_end, begin_and_end);
  Py_RETURN_NONE;
}

PyObject* set_recorder(PyObject*, PyObject* recorder) {
  if (!recording.tensor || !modes.names) {
    PyErr_SetString(PyExc_RuntimeError, "configure_recording() or configure_recorded_modes() was not called");
    return nullptr;
  }
  Ref old(g_recorder);
  g_recorder = recorder == Py_None ? nullptr : Ref::borrowed(recorder).release();
  Py_RETURN_NONE;
}

bool add_recording_modes(PyObject* module) {
  Ref functions(PyType_FromSpec(&g_function_spec)), operators(PyType_FromSpec(&g_operator_spec));
  return functions && operators && PyModule_AddObjectRef(module, "RecordedFunctions", functions.get()) == 0 &&
         PyModule_AddObjectRef(module, "RecordedOperators", operators.get()) == 0;
}

}  // namespace maca_launcher
