// FixedAttribute: an attribute of a type that no instance can shadow.
//
// PyTorch looks __torch_function__ up in each operand. What is no data descriptor may be shadowed, so that Python looks
// into the instance's dict first (15 ns each).
#include "collected.h"

namespace maca_launcher {
namespace {

struct FixedAttribute {
  PyObject_HEAD PyObject* value;

  int traverse(visitproc visit, void* arg) {
    Py_VISIT(value);
    return 0;
  }
  void clear() { Py_CLEAR(value); }
  void release() { clear(); }
};

using Type = Collected<FixedAttribute>;

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* value;
  if (!PyArg_ParseTuple(args, "O:FixedAttribute", &value)) return nullptr;
  PyObject* self = allocate(type);
  if (self) Type::of(self).value = Ref::borrowed(value).release();
  return self;
}

PyObject* get(PyObject* self, PyObject*, PyObject*) { return Ref::borrowed(Type::of(self).value).release(); }

int set(PyObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_AttributeError, "this attribute belongs to the type and cannot be set");
  return -1;
}

}  // namespace

bool add_fixed_attribute_type(PyObject* module) {
  return Type::add(module, "libmaca_ffi._launcher.FixedAttribute",
                   "FixedAttribute(value): `value`, of a type and of its instances.", 0,
                   {{Py_tp_new, reinterpret_cast<void*>(create)},
                    {Py_tp_descr_get, reinterpret_cast<void*>(get)},
                    {Py_tp_descr_set, reinterpret_cast<void*>(set)}});
}

}  // namespace maca_launcher
