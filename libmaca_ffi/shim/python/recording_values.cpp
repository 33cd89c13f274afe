// Which values are the same: an allocation, how often it was written, and the view of it.
#include "recording.h"

#include <structmember.h>

#include <cstddef>

namespace maca_launcher {

struct View {
  long long offset;
  Value* value;
};

struct Memory {
  PyObject_HEAD PyObject* held;  // keeps the allocation's identity from being another's
  long long writes;              // as a Buffer counts them
  char is_written;               // since the program's own counter was seen last
  char is_blank;                 // not written since it was allocated
  long long last[kLevels];       // the call that wrote it last
  std::vector<View>* views;
};

namespace {

constexpr size_t kViews = 256;  // of one allocation that are remembered
constexpr long long kNoCall = -1;

PyTypeObject* g_value_type = nullptr;
PyTypeObject* g_memory_type = nullptr;
PyTypeObject* g_form_type = nullptr;

void free_object(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_Free(object);
  Py_DECREF(type);
}

// --- Value ----------------------------------------------------------------------------------------------------
void value_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Value*>(object);
  Py_CLEAR(self->form);
  Py_CLEAR(self->numbers);
  Py_CLEAR(self->text);
  Py_CLEAR(self->grad_text);
  free_object(object);
}

Value* new_value(PyObject* form, long long version, bool is_unsettled, const long long* made, PyObject* numbers) {
  Value* self = PyObject_New(Value, g_value_type);
  if (!self) return nullptr;
  self->form = Ref::borrowed(form).release();
  self->version = version;
  self->is_unsettled = is_unsettled;
  for (int level = 0; level < kLevels; ++level) self->made[level] = made[level];
  self->numbers = Ref::borrowed(numbers).release();
  self->text = Ref::borrowed(Py_None).release();
  self->grad_text = Ref::borrowed(Py_None).release();
  return self;
}

PyMemberDef g_value_members[] = {
    {"form", T_OBJECT, offsetof(Value, form), READONLY, "What tells views at one offset apart."},
    {"numbers", T_OBJECT, offsetof(Value, numbers), 0, "The elements' numbers as text; None: not asked yet."},
    {"text", T_OBJECT, offsetof(Value, text), 0, "What an entry says but who made it, or None."},
    {"grad_text", T_OBJECT, offsetof(Value, grad_text), 0, "The same of a tensor that requires a gradient, or None."},
    {},
};

PyType_Slot g_value_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(value_dealloc)},
    {Py_tp_members, g_value_members},
    {Py_tp_doc, const_cast<char*>("What is known of the elements that a view shows.")},
    {0, nullptr},
};

PyType_Spec g_value_spec = {"libmaca_ffi._launcher.RecordedValue", sizeof(Value), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, g_value_slots};

// --- Form -----------------------------------------------------------------------------------------------------
PyObject* form_create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *text, *grad_text, *summary = Py_None;
  int is_plain;
  if (!PyArg_ParseTuple(args, "UUp|O:RecordedForm", &text, &grad_text, &is_plain, &summary)) return nullptr;
  if (summary != Py_None && !is_summary(summary)) {
    PyErr_SetString(PyExc_TypeError, "expected a RecordedSummary");
    return nullptr;
  }
  Form* self = PyObject_New(Form, type);
  if (!self) return nullptr;
  self->text = Ref::borrowed(text).release();
  self->grad_text = Ref::borrowed(grad_text).release();
  self->summary = Ref::borrowed(summary).release();
  self->is_plain = is_plain;
  return reinterpret_cast<PyObject*>(self);
}

void form_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Form*>(object);
  Py_CLEAR(self->summary);
  Py_CLEAR(self->text);
  Py_CLEAR(self->grad_text);
  free_object(object);
}

PyMemberDef g_form_members[] = {
    {"text", T_OBJECT, offsetof(Form, text), READONLY, "What entries say of a tensor of this form."},
    {"grad_text", T_OBJECT, offsetof(Form, grad_text), READONLY, "The same of one that requires a gradient."},
    {},
};

PyType_Slot g_form_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(form_create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(form_dealloc)},
    {Py_tp_members, g_form_members},
    {Py_tp_doc, const_cast<char*>("RecordedForm(text, grad_text, is_plain, summary=None)\n\nWhat entries say of all "
                                  "tensors with these sizes, strides, dtype and device; a RecordedSummary of those "
                                  "on the host.")},
    {0, nullptr},
};

PyType_Spec g_form_spec = {"libmaca_ffi._launcher.RecordedForm", sizeof(Form), 0, Py_TPFLAGS_DEFAULT, g_form_slots};

// --- Memory ---------------------------------------------------------------------------------------------------
void drop_views(Memory* self) {
  std::vector<View> gone;
  gone.swap(*self->views);  // first: what is freed may run Python's code
  for (View& view : gone) Py_DECREF(reinterpret_cast<PyObject*>(view.value));
}

PyObject* memory_create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* held;
  long long writes;
  return PyArg_ParseTuple(args, "OL:RecordedMemory", &held, &writes) ? new_memory(held, writes) : nullptr;
}

int memory_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<Memory*>(object)->held);
  return 0;
}

int memory_clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<Memory*>(object)->held);
  return 0;
}

void memory_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Memory*>(object);
  PyObject_GC_UnTrack(object);
  memory_clear(object);
  if (self->views) drop_views(self);
  delete self->views;
  release_memory(object);
}

PyObject* forget_method(PyObject* self, PyObject*) {
  forget(reinterpret_cast<Memory*>(self));
  Py_RETURN_NONE;
}

PyObject* written_by_method(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Memory*>(object);
  int level;
  long long call;
  if (!PyArg_ParseTuple(args, "iL:written_by", &level, &call)) return nullptr;
  if (level < 0 || level >= kLevels) return PyErr_Format(PyExc_ValueError, "level is 0 or 1, got %d", level);
  self->last[level] = call;
  for (View& view : *self->views) view.value->made[level] = call;
  Py_RETURN_NONE;
}

PyMethodDef g_memory_methods[] = {
    {"forget", forget_method, METH_NOARGS, "forget(): nothing known of the elements holds any more."},
    {"written_by", written_by_method, METH_VARARGS,
     "written_by(level, call): a call that no result tells of wrote it."},
    {},
};

PyMemberDef g_memory_members[] = {
    {"is_written", T_BOOL, offsetof(Memory, is_written), 0, "Written since PyTorch's own counter was seen last."},
    {"is_blank", T_BOOL, offsetof(Memory, is_blank), 0, "Not written since it was allocated."},
    {},
};

PyType_Slot g_memory_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(memory_create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(memory_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(memory_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(memory_clear)},
    {Py_tp_methods, g_memory_methods},
    {Py_tp_members, g_memory_members},
    {Py_tp_doc, const_cast<char*>("RecordedMemory(held, writes)\n\nAn allocation that tensors share; `held` keeps its "
                                  "identity from being another's.")},
    {0, nullptr},
};

PyType_Spec g_memory_spec = {"libmaca_ffi._launcher.RecordedMemory", sizeof(Memory), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, g_memory_slots};

}  // namespace

PyObject* new_memory(PyObject* held, long long writes) {
  auto* self = reinterpret_cast<Memory*>(allocate(g_memory_type));
  if (!self) return nullptr;
  self->views = new std::vector<View>;
  self->held = Ref::borrowed(held).release();
  self->writes = writes;
  for (long long& call : self->last) call = kNoCall;
  return reinterpret_cast<PyObject*>(self);
}

bool is_memory(PyObject* object) { return Py_TYPE(object) == g_memory_type; }
bool is_form(PyObject* object) { return Py_TYPE(object) == g_form_type; }
void note_write(Memory* memory) {
  forget(memory);
  memory->is_written = true;
}
long long& writes_of(Memory* memory) { return memory->writes; }
void set_last(Memory* memory, int level, long long call) { memory->last[level] = call; }

void forget(Memory* memory) {
  drop_views(memory);
  for (long long& call : memory->last) call = kNoCall;
  memory->is_blank = false;
}

Value* value_at(Memory* memory, long long offset, PyObject* form, long long version) {
  std::vector<View>& views = *memory->views;
  View* found = nullptr;
  for (size_t i = views.size(); i-- > 0 && !found;)
    if (views[i].offset == offset && views[i].value->form == form) found = &views[i];
  if (found) {
    Value* value = found->value;
    if (value->is_unsettled && value->version + 1 == version) {
      value->version = version;
      value->is_unsettled = false;
      memory->is_written = false;
    }
    if (value->version == version) {
      Py_INCREF(reinterpret_cast<PyObject*>(value));
      return value;
    }
  }
  // memory as it was found has numbers that mean nothing: none
  Ref numbers(memory->is_blank ? PyUnicode_FromString("") : Ref::borrowed(Py_None).release());
  Value* value = numbers ? new_value(form, version, memory->is_written, memory->last, numbers.get()) : nullptr;
  if (!value) return nullptr;
  Py_INCREF(reinterpret_cast<PyObject*>(value));  // the table's
  if (found) {
    Ref old(reinterpret_cast<PyObject*>(std::exchange(found->value, value)));
    return value;
  }
  if (views.size() >= kViews) drop_views(memory);
  views.push_back({offset, value});
  return value;
}

bool add_recording_values(PyObject* module) {
  g_value_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_value_spec));
  g_memory_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_memory_spec));
  g_form_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_form_spec));
  return g_value_type && g_memory_type && g_form_type &&
         PyModule_AddObjectRef(module, "RecordedForm", reinterpret_cast<PyObject*>(g_form_type)) == 0 &&
         PyModule_AddObjectRef(module, "RecordedMemory", reinterpret_cast<PyObject*>(g_memory_type)) == 0;
}

}  // namespace maca_launcher
