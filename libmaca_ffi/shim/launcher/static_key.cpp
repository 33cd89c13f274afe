// The hashable stand-in for an argument that is part of a plan: macatensor.dispatch.launcher.static_key for what is
// common.
#include "launcher.h"

namespace maca_launcher {
namespace {

PyObject* keys_of(PyObject* values) {
  return new_tuple(PySequence_Size(values), [&](Py_ssize_t i) {
    Ref value(PySequence_GetItem(values, i));
    return value ? static_key(value.get()) : nullptr;
  });
}

}  // namespace

PyObject* static_key(PyObject* value) {
  if (value == Py_True) return Ref::borrowed(known.true_key).release();
  if (value == Py_False) return Ref::borrowed(known.false_key).release();
  if (value == Py_None || PyLong_CheckExact(value)) return Ref::borrowed(value).release();
  if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) return keys_of(value);
  if (PyFloat_CheckExact(value) && PyFloat_AsDouble(value) == PyFloat_AsDouble(value))  // no NaN
    return PyTuple_Pack(2, reinterpret_cast<PyObject*>(&PyFloat_Type), value);
  const int is_plain = PySequence_Contains(known.plain_types, reinterpret_cast<PyObject*>(Py_TYPE(value)));
  if (is_plain) return is_plain < 0 ? nullptr : Ref::borrowed(value).release();
  return PyObject_CallFunctionObjArgs(known.static_key, value, nullptr);
}

}  // namespace maca_launcher
