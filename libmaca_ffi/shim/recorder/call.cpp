// RecordedCall: a call while it runs, and what its line says.
#include "recording.h"

#include <structmember.h>

#include <cstddef>

namespace maca::recorder {
namespace {

using Type = Collected<Call>;

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *name, *op, *direction;
  int level;
  std::string text;
  if (!PyArg_ParseTuple(args, "iUUU:RecordedCall", &level, &name, &op, &direction) || !append_text(text, name))
    return nullptr;
  return reinterpret_cast<PyObject*>(new_call(level, std::move(text), op, direction));
}

bool is_given(PyObject* value) { return value && value != Py_None; }

bool append_member(std::string& out, const char* name, PyObject* value) {
  if (!is_given(value)) return true;
  out += name;
  return append_value(out, value);
}

void append_member(std::string& out, const char* name, long long number) {
  if (number >= 0) append_number(out += name, number);
}

bool append_as_it_is(std::string& out, const char* name, PyObject* text, const char* end = "") {
  if (!is_given(text)) return true;
  out += name;
  if (!append_text(out, text)) return false;
  out += end;
  return true;
}

Call* as_call(PyObject* object) { return reinterpret_cast<Call*>(object); }

PyObject* line(PyObject* object, PyObject* args) {
  PyObject* error = Py_None;
  std::string out;
  if (!PyArg_ParseTuple(args, "|O:line", &error) || !append_line(out, as_call(object), error)) return nullptr;
  return PyBytes_FromStringAndSize(out.data(), static_cast<Py_ssize_t>(out.size()));
}

PyObject* tensors(PyObject* self, void*) { return pairs_of(as_call(self)->parts->tensors); }

template <std::string CallParts::* kText> PyObject* text(PyObject* self, void*) {
  const std::string& held = as_call(self)->parts->*kText;
  return held.empty() ? Ref::borrowed(Py_None).release() : new_text(held);
}

template <std::string CallParts::* kText> int set_text(PyObject* self, PyObject* value, void*) {
  std::string held;
  if (value && value != Py_None && !append_text(held, value)) return -1;
  as_call(self)->parts->*kText = std::move(held);
  return 0;
}

PyMethodDef g_methods[] = {
    {"line", line, METH_VARARGS, "line(error=None): the call as a line of the record, in bytes."},
    {},
};

PyMemberDef g_members[] = {
    {"level", T_INT, offsetof(Call, level), READONLY, "0: a function of Python's interface, 1: an aten operator."},
    {"files", T_INT, offsetof(Call, files), 0, "Files of tensors written after that of the inputs."},
    {"number", T_LONGLONG, offsetof(Call, number), 0, "-1: not recorded."},
    {"serial", T_LONGLONG, offsetof(Call, serial), 0, "Of functions and modules, those that are not recorded too."},
    {"parent", T_LONGLONG, offsetof(Call, parent), 0, "The number of the call it runs in, or -1."},
    {"forward", T_LONGLONG, offsetof(Call, forward), 0, "Of a backward call the number of the forward one, or -1."},
    {"stack", T_LONGLONG, offsetof(Call, stack), 0, "The number of the Python stack, or -1."},
    {"owner", T_ULONGLONG, offsetof(Call, owner), 0, "The id of the module, of a module's call."},
    {"random", T_BOOL, offsetof(Call, is_random), 0, "A generator's state was written."},
    {"matched", T_BOOL, offsetof(Call, matched), 0, "op_list takes it."},
    {"has_modules", T_BOOL, offsetof(Call, has_modules), 0, "Modules ran within it."},
    {"op", T_OBJECT, offsetof(Call, op), READONLY, "The name without count and direction."},
    {"direction", T_OBJECT, offsetof(Call, direction), READONLY, "fwd or bwd."},
    {"module", T_OBJECT, offsetof(Call, module), 0, "The path of the module it runs in."},
    {"node", T_OBJECT, offsetof(Call, node), 0, "The autograd node that it belongs to."},
    {"grad_fns", T_OBJECT, offsetof(Call, grad_fns), READONLY,
     "Nodes that made arguments, which of a node's results each is, its place; or None."},
    {"thread", T_OBJECT, offsetof(Call, thread), 0, "The thread, as a member of a JSON object."},
    {"received", T_OBJECT, offsetof(Call, received), 0, "Ids of tensors that collectives it has started were given."},
    {"unit", T_OBJECT, offsetof(Call, unit), 0, "Does skip take the operator that it is or belongs to? None: of none."},
    {},
};

PyGetSetDef g_properties[] = {
    {"name", text<&CallParts::name>, nullptr, "As in torch.relu.3.fwd.", nullptr},
    {"inputs", text<&CallParts::inputs>, set_text<&CallParts::inputs>, "JSON, or None.", nullptr},
    {"outputs", text<&CallParts::outputs>, set_text<&CallParts::outputs>, "JSON, or None.", nullptr},
    {"tensors", tensors, nullptr, "Places and tensors among its arguments.", nullptr},
    {},
};

}  // namespace

bool is_call(PyObject* object) { return Py_TYPE(object) == Type::type; }

Call* new_call(int level, std::string name, PyObject* op, PyObject* direction) {
  Ref object(is_level(level) ? allocate(Type::type) : nullptr);
  if (!object) return nullptr;
  auto* self = as_call(object.get());
  self->parts = new CallParts;
  self->level = level;
  self->parts->name = std::move(name);
  put(self->op, op);
  put(self->direction, direction);
  self->number = self->serial = self->parent = self->forward = self->stack = -1;
  self->matched = 1;
  return as_call(object.release());
}

bool append_line(std::string& out, Call* self, PyObject* error) {
  const CallParts& parts = *self->parts;
  out.reserve(out.size() + parts.inputs.size() + parts.outputs.size() + 512);
  append_number(out += "{\"call\":{\"number\":", self->number);
  out += self->level ? ",\"level\":\"aten\",\"name\":\"" : ",\"level\":\"api\",\"name\":\"";
  (out += parts.name) += '"';
  if (!append_as_it_is(out, ",\"op\":\"", self->op, "\"") ||
      !append_as_it_is(out, ",\"direction\":\"", self->direction, "\"") ||
      !append_member(out, ",\"module\":", self->module))
    return false;
  append_member(out, ",\"parent\":", self->parent);
  append_member(out, ",\"forward\":", self->forward);
  if (!append_as_it_is(out, ",\"node\":\"", self->node, "\"") || !append_as_it_is(out, "", self->thread)) return false;
  if (!parts.inputs.empty()) (out += ",\"inputs\":") += parts.inputs;
  if (!parts.outputs.empty()) (out += ",\"outputs\":") += parts.outputs;
  append_member(out, ",\"stack\":", self->stack);
  if (self->is_random) out += ",\"random\":\"random\"";
  if (!append_member(out, ",\"error\":", error)) return false;
  out += "}}\n";
  return true;
}

bool add_recording_call(PyObject* module) {
  return Type::add(module, "libmaca_ffi._recorder.RecordedCall",
                   "RecordedCall(level, name, op, direction)\n\nA call that has begun.", 0,
                   {{Py_tp_new, reinterpret_cast<void*>(create)},
                    {Py_tp_getset, g_properties},
                    {Py_tp_methods, g_methods},
                    {Py_tp_members, g_members}});
}

}  // namespace maca::recorder
