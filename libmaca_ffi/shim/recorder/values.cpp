// RecordedValue and RecordedForm: what is known of the elements that a view shows, and of its sizes.
#include "recording.h"

#include <structmember.h>

#include <cstddef>

namespace maca::recorder {

namespace {

PyTypeObject* g_value_type = nullptr;
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

PyType_Spec g_value_spec = {"libmaca_ffi._recorder.RecordedValue", sizeof(Value), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, g_value_slots};

// --- Form -----------------------------------------------------------------------------------------------------
PyObject* form_create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *text, *grad_text;
  int is_plain;
  if (!PyArg_ParseTuple(args, "UUp:RecordedForm", &text, &grad_text, &is_plain)) return nullptr;
  Form* self = PyObject_New(Form, type);
  if (!self) return nullptr;
  self->text = Ref::borrowed(text).release();
  self->grad_text = Ref::borrowed(grad_text).release();
  self->is_plain = is_plain;
  return reinterpret_cast<PyObject*>(self);
}

void form_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Form*>(object);
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
    {Py_tp_doc,
     const_cast<char*>("RecordedForm(text, grad_text, is_plain)\n\nWhat entries say of all tensors with these sizes, "
                       "strides, dtype and device.")},
    {0, nullptr},
};

PyType_Spec g_form_spec = {"libmaca_ffi._recorder.RecordedForm", sizeof(Form), 0, Py_TPFLAGS_DEFAULT, g_form_slots};

}  // namespace

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

bool is_form(PyObject* object) { return Py_TYPE(object) == g_form_type; }

bool add_recording_values(PyObject* module) {
  g_value_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_value_spec));
  g_form_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_form_spec));
  return g_value_type && g_form_type &&
         PyModule_AddObjectRef(module, "RecordedForm", reinterpret_cast<PyObject*>(g_form_type)) == 0;
}

}  // namespace maca::recorder
