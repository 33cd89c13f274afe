// Buffer: device memory that is released with its last reference.
#include "launcher.h"

#include <structmember.h>

#include <cstddef>

#include "shim.h"

namespace maca_launcher {
namespace {

struct Buffer {
  PyObject_HEAD maca_buffer* buffer;
  PyObject* weak_references;
};

PyTypeObject* g_type = nullptr;

void dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Buffer*>(object);
  if (self->weak_references) PyObject_ClearWeakRefs(object);
  maca_buffer_release(self->buffer);
  release_memory(object);
}

maca_buffer* buffer_of(PyObject* self) { return reinterpret_cast<Buffer*>(self)->buffer; }

PyObject* nbytes(PyObject* self, void*) { return PyLong_FromLongLong(buffer_of(self)->bytes); }
PyObject* writes(PyObject* self, void*) { return PyLong_FromLongLong(buffer_of(self)->writes()); }
PyObject* address(PyObject* self, void*) { return PyLong_FromVoidPtr(buffer_of(self)->block->address); }
PyObject* handle(PyObject* self, void*) { return PyLong_FromVoidPtr(buffer_of(self)); }

PyObject* awaited(PyObject* self, void*) { return PyLong_FromLongLong(buffer_of(self)->block->awaited); }
int set_awaited(PyObject* self, PyObject* number, void*) {
  const long long n = number ? PyLong_AsLongLong(number) : 0;
  if (n == -1 && PyErr_Occurred()) return -1;
  buffer_of(self)->block->awaited = n;
  return 0;
}

PyObject* is_lazy(PyObject* self, void*) { return PyBool_FromLong(buffer_of(self)->is_lazy); }

PyObject* share(PyObject* self, PyObject*) {
  maca_buffer* shared = maca_buffer_share(buffer_of(self));
  if (!shared) Py_RETURN_NONE;
  return new_buffer(shared);
}

PyGetSetDef g_properties[] = {
    {"nbytes", nbytes, nullptr, "Bytes.", nullptr},
    {"writes", writes, nullptr, "Moves with every launch or copy that writes the buffer.", nullptr},
    {"address", address, nullptr, "The opaque device address.", nullptr},
    {"handle", handle, nullptr, "The address of the runtime's maca_buffer, valid while this object lives.", nullptr},
    {"awaited", awaited, set_awaited, "Work of the host that writes it yet (see set_finisher); 0: none.", nullptr},
    {"is_lazy", is_lazy, nullptr, "Does it get memory of its own before it is written?", nullptr},
    {},
};

PyMethodDef g_methods[] = {
    {"share", share, METH_NOARGS,
     "share(): another Buffer over the same memory, which the one that is written first copies. None where a graph "
     "knows the memory by its address."},
    {},
};

PyMemberDef g_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Buffer, weak_references), READONLY, nullptr},
    {},
};

PyType_Slot g_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_getset, g_properties},
    {Py_tp_methods, g_methods},
    {Py_tp_members, g_members},
    {Py_tp_doc, const_cast<char*>("Device memory that is released with its last reference.")},
    {0, nullptr},
};

}  // namespace

bool add_buffer_type(PyObject* module) {
  constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  g_type = add_type(module, {"libmaca_ffi._launcher.Buffer", sizeof(Buffer), 0, kFlags, g_slots});
  return g_type != nullptr;
}

PyObject* new_buffer(maca_buffer* buffer) {
  Buffer* self = PyObject_New(Buffer, g_type);
  if (!self) {
    maca_buffer_release(buffer);
    return nullptr;
  }
  self->buffer = buffer;
  self->weak_references = nullptr;
  return reinterpret_cast<PyObject*>(self);
}

maca_buffer* memory_of(PyObject* payload) {
  if (PyTuple_CheckExact(payload) && PyTuple_Size(payload) == 3) {
    PyObject *const buffer = PyTuple_GetItem(payload, 0), *const offset = PyTuple_GetItem(payload, 1);
    if (Py_TYPE(buffer) == g_type && (offset == known.zero || PyLong_Check(offset))) return buffer_of(buffer);
  }
  PyErr_SetString(PyExc_TypeError, "the payload of a MacaTensor is (Buffer, offset in elements, Meta)");
  return nullptr;
}

PyObject* allocate(PyObject*, PyObject* nbytes) {
  const long long n = PyLong_AsLongLong(nbytes);
  if (n == -1 && PyErr_Occurred()) return nullptr;
  maca_buffer* buffer = maca_buffer_allocate(n);
  if (!buffer) Py_RETURN_NONE;
  return new_buffer(buffer);
}

}  // namespace maca_launcher
