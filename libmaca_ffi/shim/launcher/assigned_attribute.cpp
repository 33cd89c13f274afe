// AssignedAttribute: an attribute of a type whose setting somebody else does where instances of one type are concerned.
//
// torch.Tensor's `data` is read in every program of the host: reading stays what it was, in C.
#include "collected.h"

namespace maca_launcher {
namespace {

struct AssignedAttribute {
  PyObject_HEAD PyObject* plain;  // the descriptor in whose place this is
  PyObject* type;
  PyObject* assign;

  int traverse(visitproc visit, void* arg) {
    Py_VISIT(plain);
    Py_VISIT(type);
    Py_VISIT(assign);
    return 0;
  }
  void clear() {
    Py_CLEAR(plain);
    Py_CLEAR(type);
    Py_CLEAR(assign);
  }
  void release() { clear(); }
};

using Type = Collected<AssignedAttribute>;

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *plain, *concerned, *assign;
  if (!PyArg_ParseTuple(args, "OOO:AssignedAttribute", &plain, &concerned, &assign)) return nullptr;
  if (!PyType_GetSlot(Py_TYPE(plain), Py_tp_descr_get) || !PyType_GetSlot(Py_TYPE(plain), Py_tp_descr_set))
    return PyErr_Format(PyExc_TypeError, "AssignedAttribute() wants a descriptor that can be set, got %R", plain);
  if (!PyType_Check(concerned))
    return PyErr_Format(PyExc_TypeError, "AssignedAttribute() wants a type, got %R", concerned);
  PyObject* self = allocate(type);
  if (!self) return nullptr;
  Type::of(self).plain = Ref::borrowed(plain).release();
  Type::of(self).type = Ref::borrowed(concerned).release();
  Type::of(self).assign = Ref::borrowed(assign).release();
  return self;
}

// Of the type itself it is what it was: programs compare `torch.Tensor.data.__get__`.
PyObject* get(PyObject* self, PyObject* instance, PyObject* owner) {
  PyObject* const plain = Type::of(self).plain;
  if (!instance) return Ref::borrowed(plain).release();
  return reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(plain), Py_tp_descr_get))(plain, instance, owner);
}

int set(PyObject* self, PyObject* instance, PyObject* value) {
  const AssignedAttribute& of = Type::of(self);
  auto* const type = reinterpret_cast<PyTypeObject*>(of.type);
  if (!value || !(PyObject_TypeCheck(instance, type) || PyObject_TypeCheck(value, type)))
    return reinterpret_cast<descrsetfunc>(PyType_GetSlot(Py_TYPE(of.plain), Py_tp_descr_set))(of.plain, instance,
                                                                                              value);
  const Ref done(PyObject_CallFunctionObjArgs(of.assign, instance, value, nullptr));
  return done ? 0 : -1;
}

}  // namespace

bool add_assigned_attribute_type(PyObject* module) {
  return Type::add(module, "libmaca_ffi._launcher.AssignedAttribute",
                   "AssignedAttribute(plain, type, assign): `plain`, but for assign(instance, value) of one `type`.", 0,
                   {{Py_tp_new, reinterpret_cast<void*>(create)},
                    {Py_tp_descr_get, reinterpret_cast<void*>(get)},
                    {Py_tp_descr_set, reinterpret_cast<void*>(set)}});
}

}  // namespace maca_launcher
