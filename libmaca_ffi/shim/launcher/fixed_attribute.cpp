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

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_descr_get, reinterpret_cast<void*>(get)},
    {Py_tp_descr_set, reinterpret_cast<void*>(set)},
    {Py_tp_traverse, reinterpret_cast<void*>(Type::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Type::clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Type::dealloc)},
    {Py_tp_doc, const_cast<char*>("FixedAttribute(value): `value`, of a type and of its instances.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._launcher.FixedAttribute", sizeof(FixedAttribute), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, g_slots};

}  // namespace

bool add_fixed_attribute_type(PyObject* module) {
  auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return type && PyModule_AddType(module, type) == 0;
}

}  // namespace maca_launcher
