// CastCall: an operator whose operands autocast brings to one dtype. What is of it already, or no tensor, stays as it
// is without a look from Python.
#include "collected.h"

namespace maca_launcher {
namespace {

struct CastCall {
  PyObject_HEAD PyObject* func;
  PyObject* rest;   // rest(True) keeps autocast away from inner operators, until rest(False)
  PyObject* dtype;  // or what says it at each call
  PyObject* cast;   // cast(value, dtype)

  int traverse(visitproc visit, void* arg) {
    for (PyObject* held : {func, rest, dtype, cast}) Py_VISIT(held);
    return 0;
  }
  void clear() {
    for (PyObject** held : {&func, &rest, &dtype, &cast}) Py_CLEAR(*held);
  }
  void release() { clear(); }
};

using Type = Collected<CastCall>;

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *func, *rest, *dtype, *cast;
  if (!PyArg_ParseTuple(args, "OOOO:CastCall", &func, &rest, &dtype, &cast)) return nullptr;
  PyObject* self = allocate(type);
  if (!self) return nullptr;
  CastCall& call = Type::of(self);
  call.func = Ref::borrowed(func).release();
  call.rest = Ref::borrowed(rest).release();
  call.dtype = Ref::borrowed(dtype).release();
  call.cast = Ref::borrowed(cast).release();
  return self;
}

bool is_plain(PyObject* value) {
  return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyUnicode_CheckExact(value);
}

bool are_plain(PyObject* values) {
  if (!PyList_CheckExact(values)) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(values); ++i)
    if (!is_plain(PyList_GetItem(values, i))) return false;
  return true;
}

// Is it a tensor of ours that has the dtype? False also with an exception.
bool has_dtype(PyObject* value, PyObject* dtype) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != known.tensor) return false;
  const Ref payload(PyObject_GetAttr(value, known.payload_name));
  if (!payload || !memory_of(payload.get())) return false;
  return Ref(PyObject_GetAttrString(PyTuple_GetItem(payload.get(), 2), "dtype")).get() == dtype;
}

PyObject* converted(const CastCall& call, PyObject* value, PyObject* dtype) {
  if (is_plain(value) || are_plain(value) || has_dtype(value, dtype)) return Ref::borrowed(value).release();
  return PyErr_Occurred() ? nullptr : PyObject_CallFunctionObjArgs(call.cast, value, dtype, nullptr);
}

PyObject* called(const CastCall& call, PyObject* args, PyObject* kwargs) {
  const Ref dtype(PyCallable_Check(call.dtype) ? PyObject_CallNoArgs(call.dtype) : Ref::borrowed(call.dtype).release());
  if (!dtype) return nullptr;
  const Ref operands(new_tuple(PyTuple_Size(args),
                               [&](Py_ssize_t i) { return converted(call, PyTuple_GetItem(args, i), dtype.get()); }));
  if (!operands) return nullptr;
  if (is_empty(kwargs)) return PyObject_Call(call.func, operands.get(), nullptr);
  const Ref named(PyDict_New());
  PyObject *name, *value;
  for (Py_ssize_t at = 0; named && PyDict_Next(kwargs, &at, &name, &value);) {
    const Ref operand(converted(call, value, dtype.get()));
    if (!operand || PyDict_SetItem(named.get(), name, operand.get())) return nullptr;
  }
  return named ? PyObject_Call(call.func, operands.get(), named.get()) : nullptr;
}

PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const CastCall& call = Type::of(self);
  if (!Ref(PyObject_CallFunctionObjArgs(call.rest, Py_True, nullptr))) return nullptr;
  Ref result(called(call, args, kwargs));
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const Ref ended(PyObject_CallFunctionObjArgs(call.rest, Py_False, nullptr));
  if (type) PyErr_Restore(type, value, traceback);  // in the place of what ending it may have raised
  return ended ? result.release() : nullptr;
}

}  // namespace

bool add_cast_call_type(PyObject* module) {
  return Type::add(module, "libmaca_ffi._launcher.CastCall",
                   "CastCall(func, rest, dtype, cast)\n\nCalled with the arguments of `func`, gives it cast(value, "
                   "dtype) of each, between rest(True) and rest(False). `dtype` may be what returns it.",
                   0, {{Py_tp_new, reinterpret_cast<void*>(create)}, {Py_tp_call, reinterpret_cast<void*>(call)}});
}

}  // namespace maca_launcher
