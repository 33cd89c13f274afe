// RecordedLines: the base of the writer. Lines go into memory that is a part of the record's file.
#include "recording.h"

#include <structmember.h>

#include <cstddef>
#include <cstring>

namespace maca::recorder {
namespace {

struct Lines {
  PyObject_HEAD char* window;  // the part of the file that is mapped; nullptr: none is
  Py_ssize_t size, used;
  char is_ended;
};

PyTypeObject* g_type = nullptr;
PyObject* g_further;

Lines* of(PyObject* object) { return reinterpret_cast<Lines*>(object); }

PyObject* line(PyObject* self, PyObject* data) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(data, &bytes, &size) || !write_line(self, std::string(bytes, static_cast<size_t>(size))))
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* show(PyObject* self, PyObject* args) {
  unsigned long long address;
  Py_ssize_t size, used;
  if (!PyArg_ParseTuple(args, "Knn:show", &address, &size, &used)) return nullptr;
  if (size < 0 || used < 0 || used > size) return PyErr_Format(PyExc_ValueError, "%zd of %zd bytes", used, size);
  of(self)->window = reinterpret_cast<char*>(static_cast<uintptr_t>(address));
  of(self)->size = size;
  of(self)->used = used;
  Py_RETURN_NONE;
}

PyMethodDef g_methods[] = {
    {"line", line, METH_O, "line(data): writes a line, its end included."},
    {"show", show, METH_VARARGS,
     "show(address, size, used): where lines go from now on: so many bytes at an address, of which some are in use. "
     "They must stay there until the next call; (0, 0, 0): there are none."},
    {},
};

PyMemberDef g_members[] = {
    {"used", T_PYSSIZET, offsetof(Lines, used), READONLY, "Bytes in use."},
    {"is_ended", T_BOOL, offsetof(Lines, is_ended), 0, "No line came since this was set."},
    {},
};

PyType_Slot g_slots[] = {
    {Py_tp_methods, g_methods},
    {Py_tp_members, g_members},
    {Py_tp_doc, const_cast<char*>("RecordedLines()\n\nA subclass has further(data), which writes a line that does not "
                                  "fit into what is shown.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._recorder.RecordedLines", sizeof(Lines), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                      g_slots};

}  // namespace

bool is_lines(PyObject* object) { return PyObject_TypeCheck(object, g_type); }

bool write_line(PyObject* object, const std::string& line) {
  Lines* self = of(object);
  self->is_ended = false;
  const auto size = static_cast<Py_ssize_t>(line.size());
  if (self->window && size <= self->size - self->used) {
    std::memcpy(self->window + self->used, line.data(), line.size());
    self->used += size;
    return true;
  }
  Ref data(PyBytes_FromStringAndSize(line.data(), size));
  return data && Plainly::now() && Ref(PyObject_CallMethodObjArgs(object, g_further, data.get(), nullptr));
}

bool add_recording_lines(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return g_type && intern_names({{&g_further, "further"}}) &&
         PyModule_AddObjectRef(module, "RecordedLines", reinterpret_cast<PyObject*>(g_type)) == 0;
}

}  // namespace maca::recorder
