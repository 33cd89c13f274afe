// What a launch is given, taken from Python objects.
#include "launcher.h"

namespace maca_launcher {
namespace {

template <size_t kInline> PyObject* list_of(Few<PyObject*, kInline>& held) {
  return new_list(static_cast<Py_ssize_t>(held.size()), [&](Py_ssize_t i) {
    PyObject* one = held[static_cast<size_t>(i)];
    return Ref::borrowed(one ? one : known.absent).release();
  });
}

}  // namespace

Operands::~Operands() {
  for (size_t i = 0; i < held_.size(); ++i) Py_XDECREF(held_[i]);
  for (size_t i = 0; i < numbers_.size(); ++i) Py_DECREF(numbers_[i]);
}

void Operands::add_absent() {
  references.push({nullptr, 0});
  held_.push(nullptr);
}

bool Operands::add(Ref payload) {
  if (payload.get() == known.absent) {
    add_absent();
    return true;
  }
  maca_buffer* memory = memory_of(payload.get());
  if (!memory) return false;
  PyObject* const offset = PyTuple_GetItem(payload.get(), 1);
  const int64_t elements = offset == known.zero ? 0 : PyLong_AsLongLong(offset);
  if (elements == -1 && PyErr_Occurred()) return false;
  references.push({memory, elements});
  held_.push(payload.release());
  return true;
}

bool Operands::add_number(Ref number) {
  PyObject* value = number.get();
  maca_scalar scalar = {MACA_SCALAR_FLOAT, 0, {0}, 0.0};
  if (PyFloat_Check(value)) {
    scalar.value.real = PyFloat_AsDouble(value);
  } else if (PyBool_Check(value)) {
    scalar.tag = MACA_SCALAR_BOOL;
    scalar.value.integer = value == Py_True;
  } else if (PyLong_Check(value)) {
    int overflow = 0;
    scalar.tag = MACA_SCALAR_INT;
    scalar.value.integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow > 0) {  // uint64 travels by its bits
      has_wrapped = true;
      scalar.value.integer = static_cast<int64_t>(PyLong_AsUnsignedLongLong(value));
      if (PyErr_Occurred()) return false;
    } else if (overflow < 0) {
      PyErr_SetString(PyExc_OverflowError, "int too big to convert");
      return false;
    }
  } else if (PyComplex_Check(value)) {
    scalar.tag = MACA_SCALAR_COMPLEX;
    scalar.value.real = PyComplex_RealAsDouble(value);
    scalar.imaginary = PyComplex_ImagAsDouble(value);
  } else {
    scalar.value.real = PyFloat_AsDouble(value);
    if (scalar.value.real == -1.0 && PyErr_Occurred()) return false;
  }
  scalars.push(scalar);
  numbers_.push(number.release());
  return true;
}

void Operands::repeat_first() {
  references.push(references[0]);
  PyObject* first = held_[0];
  Py_XINCREF(first);
  held_.push(first);
}

PyObject* Operands::payloads() { return list_of(held_); }

PyObject* Operands::numbers() { return list_of(numbers_); }

}  // namespace maca_launcher
