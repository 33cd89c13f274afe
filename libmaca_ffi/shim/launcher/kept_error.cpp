// KeptError: a constant that C++ may ask for while an exception of Python's is pending.
//
// PyTorch asks the device guard for its device's type several times for each node of a backward pass, also from a
// destructor that runs while an operator's exception unwinds the engine. What returns something then must leave no
// exception behind, and the engine loses the one there was.
#include "collected.h"

namespace maca_launcher {
namespace {

struct KeptError {
  PyObject_HEAD PyObject *value, *taken;

  int traverse(visitproc visit, void* arg) {
    Py_VISIT(value);
    Py_VISIT(taken);
    return 0;
  }
  void clear() {
    Py_CLEAR(value);
    Py_CLEAR(taken);
  }
  void release() { clear(); }
};

using Type = Collected<KeptError>;

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *value, *taken;
  if (!PyArg_ParseTuple(args, "OO!:KeptError", &value, &PyList_Type, &taken)) return nullptr;
  PyObject* self = allocate(type);
  if (!self) return nullptr;
  Type::of(self).value = Ref::borrowed(value).release();
  Type::of(self).taken = Ref::borrowed(taken).release();
  return self;
}

PyObject* call(PyObject* self, PyObject*, PyObject*) {
  KeptError& kept = Type::of(self);
  if (PyErr_Occurred()) {
    const Ref error = raised();
    if (error && PyList_Append(kept.taken, error.get())) PyErr_Clear();
  }
  return Ref::borrowed(kept.value).release();
}

}  // namespace

bool add_kept_error_type(PyObject* module) {
  return Type::add(module, "libmaca_ffi._launcher.KeptError",
                   "KeptError(value, taken)\n\nCalled with anything: `value`. An exception that is pending is appended "
                   "to the list `taken`.",
                   0, {{Py_tp_new, reinterpret_cast<void*>(create)}, {Py_tp_call, reinterpret_cast<void*>(call)}});
}

}  // namespace maca_launcher
