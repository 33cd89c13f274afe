// The module `libmaca_ffi._recorder`: its types, and what it is told once.
#include "recording.h"

namespace maca::recorder {

Names names;

namespace {

bool g_is_configured = false;

// False with an exception. Of another version nothing is used.
bool take_exchange(PyObject* capsule) {
  if (capsule == Py_None) return true;
  const auto* exchange = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule, kDlExchange));
  if (exchange && exchange->major == 1 && exchange->read) recording.exchange = exchange;
  return exchange != nullptr;
}

PyObject* configure(PyObject*, PyObject* args, PyObject* kwargs) {
  if (!recording.take(args, kwargs, false)) return nullptr;
  if (!recording.are_all_there()) Py_RETURN_NONE;
  if (!PyDict_Check(recording.names)) return PyErr_Format(PyExc_TypeError, "names is a dict, got %R", recording.names);
  if (!members.find(recording.tensor, recording.storage) || !take_exchange(recording.exchange_capsule)) return nullptr;
  g_is_configured = true;
  Py_RETURN_NONE;
}

PyMethodDef g_functions[] = {
    {"configure", as_method(configure), METH_VARARGS | METH_KEYWORDS,
     "configure(**facts): what the recorder's types have to know, all at once or piece by piece."},
    {"set_recorder", set_recorder, METH_O, "set_recorder(recorder): who is given all calls from now on; None: nobody."},
    {"flatten_call", flatten_call_function, METH_VARARGS,
     "flatten_call(args, kwargs): pairs of place and value of everything in a call's arguments."},
    {"stack_key", stack_key, METH_NOARGS,
     "stack_key(): addresses of the code objects and places in them of all frames."},
    {},
};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT, "libmaca_ffi._recorder",
                        "What the recorder of macatensor.accuracy does at every call.", -1, g_functions};

}  // namespace

bool is_level(int level) {
  if (level >= 0 && level < kLevels) return true;
  PyErr_Format(PyExc_ValueError, "level is 0 or 1, got %d", level);
  return false;
}

bool is_configured() {
  if (!g_is_configured) PyErr_SetString(PyExc_RuntimeError, "configure() has not been told everything");
  return g_is_configured;
}

}  // namespace maca::recorder

PyMODINIT_FUNC PyInit__recorder() {
  using namespace maca::recorder;
  if (!names.intern()) return nullptr;
  return new_module(g_module, {add_recording_entries, add_recording_call, add_recording_recorder, add_recording_modes});
}
