// The type RecordedCalls, and what beginnings and ends of all calls have in common.
#include "recorder.h"

#include <structmember.h>

#include <cstddef>

namespace maca::recorder {

namespace {

unsigned long long g_epochs = 0;

using Type = Collected<Recorder>;

PyObject* name_method(PyObject* object, PyObject* given) {
  PyObject* op;
  const char* direction;
  std::string name;
  if (!PyArg_ParseTuple(given, "Us:name", &op, &direction) || !is_ready(of(object)) ||
      !name_of(of(object), op, std::string(direction) == "fwd", name))
    return nullptr;
  return new_text(name);
}

PyObject* forget_method(PyObject* object, PyObject*) {
  of(object)->epoch = ++g_epochs;
  Py_RETURN_NONE;
}

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = allocate(type);
  if (!object) return nullptr;
  of(object)->epoch = ++g_epochs;
  return object;
}

PyMethodDef g_methods[] = {
    {"api_begins", api_begins_method, METH_VARARGS,
     "api_begins(call, args, kwargs, is_unit): what beginnings of functions and modules have in common."},
    {"api_ends", api_ends_method, METH_VARARGS,
     "api_ends(call, result, error, module): what their ends have in common."},
    {"operator_begins", operator_begins, METH_VARARGS,
     "operator_begins(func, args, kwargs): an operator is about to run below autograd; returns the call, or None."},
    {"operator_ends", operator_ends, METH_VARARGS,
     "operator_ends(call, func, args, kwargs, result, error): the operator has run, or raised."},
    {"forget", forget_method, METH_NOARGS, "forget(): threads that were met are another process's."},
    {"name", name_method, METH_VARARGS,
     "name(op, direction): the name of an operator's next call: with how many came before."},
    {},
};

#define OBJECT(member) {#member, T_OBJECT, offsetof(Recorder, member), 0, nullptr}
#define FLAG(member) {#member, T_BOOL, offsetof(Recorder, member), 0, nullptr}
PyMemberDef g_members[] = {
    OBJECT(lock),
    OBJECT(numbers),
    OBJECT(serials),
    OBJECT(counts_forward),
    OBJECT(counts_backward),
    OBJECT(pending),
    OBJECT(describer),
    OBJECT(writer),
    OBJECT(stacks),
    FLAG(active),
    FLAG(takes_all),
    FLAG(has_stacks),
    FLAG(has_inputs),
    FLAG(has_outputs),
    FLAG(has_tensors),
    {"threads", T_INT, offsetof(Recorder, threads), 0, "Threads of the program that have been met."},
    {"written", T_LONGLONG, offsetof(Recorder, written), 0, "Lines of calls."},
    {},
};
#undef OBJECT
#undef FLAG

}  // namespace

bool is_recorder(PyObject* object) { return PyObject_TypeCheck(object, Type::type); }

bool is_ready(Recorder* self) {
  for (auto member : Recorder::kObjects)
    if (!(self->*member)) {
      PyErr_SetString(PyExc_RuntimeError, "a recorder's members are not all set");
      return false;
    }
  if (!is_entries(self->describer) || !PyList_Check(self->pending) || !PyDict_Check(self->counts_forward) ||
      !PyDict_Check(self->counts_backward)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a recorder's members are of other types");
    return false;
  }
  return is_configured();
}

Aside::Locked::Locked(PyObject* lock)
    : held(Ref::borrowed(lock)), is_taken(Ref(PyObject_CallMethodObjArgs(lock, names.acquire, nullptr))) {}

Aside::Locked::~Locked() {
  if (!is_taken) return;
  const KeptError kept;
  if (!Ref(PyObject_CallMethodObjArgs(held.get(), names.release, nullptr))) PyErr_WriteUnraisable(held.get());
}

ThreadState& thread_of(Recorder* self) {
  thread_local ThreadState known;
  if (known.epoch == self->epoch && known.thread) return known;
  known = ThreadState();
  Ref thread = ask(reinterpret_cast<PyObject*>(self), "thread");
  Ref open(thread ? PyObject_GetAttrString(thread.get(), "open") : nullptr);
  Ref text(open ? PyObject_GetAttrString(thread.get(), "text") : nullptr);
  if (!text) return known;
  if (!PyList_Check(open.get())) {
    PyErr_SetString(PyExc_TypeError, "a thread's open calls are a list");
    return known;
  }
  known = {self->epoch, thread.get(), open.get(), text.get()};  // the recorder holds the thread
  return known;
}

unsigned long long& moment() {
  thread_local unsigned long long now = 1;  // a call that came by no mode has 0
  return now;
}

Ref last_of(const ThreadState& thread) {
  const Py_ssize_t size = PyList_Size(thread.open);
  PyObject* last = size > 0 ? PyList_GetItem(thread.open, size - 1) : nullptr;
  return last && is_call(last) ? Ref::borrowed(last) : Ref();
}

bool is_function(const Ref& call) { return call && as_call(call)->level == kFunction && as_call(call)->owner == 0; }

Call* as_call(const Ref& object) { return reinterpret_cast<Call*>(object.get()); }

bool name_of(Recorder* self, PyObject* op, bool is_forward, std::string& name) {
  PyObject* counts = is_forward ? self->counts_forward : self->counts_backward;
  PyObject* count = PyDict_GetItemWithError(counts, op);
  if (!count && PyErr_Occurred()) return false;
  const long long number = count ? PyLong_AsLongLong(count) : 0;
  Ref next(PyLong_FromLongLong(number + 1));
  if (PyErr_Occurred() || PyDict_SetItem(counts, op, next.get())) return false;
  constexpr size_t kUsual = 48;  // bytes
  name.reserve(kUsual);
  if (!append_text(name, op)) return false;
  append_number(name += '.', number);
  name += is_forward ? ".fwd" : ".bwd";
  return true;
}

Ref begin_call(Recorder* self, Level level, PyObject* op, PyObject* full_op, bool is_forward) {
  std::string name;
  if (!name_of(self, op, is_forward, name)) return Ref();
  return Ref(object_of(new_call(level, std::move(name), full_op, is_forward ? names.fwd : names.bwd)));
}

bool decide(Recorder* self, Call* call, PyObject* parent, bool is_unit) {
  if (self->takes_all) {
    Ref number(PyIter_Next(self->numbers));
    if (!number) return false;
    call->number = PyLong_AsLongLong(number.get());
    return true;
  }
  Ref is = ask(reinterpret_cast<PyObject*>(self), "decide", object_of(call), parent ? parent : Py_None,
               is_unit ? Py_True : Py_False);
  return is && PyObject_IsTrue(is.get()) == 1;
}

bool note_stack(Recorder* self, Call* call) {
  if (!self->has_stacks) return true;
  Ref key(stack_key(nullptr, nullptr)), number(key ? PyObject_GetItem(self->stacks, key.get()) : nullptr);
  call->stack = number ? PyLong_AsLongLong(number.get()) : -1;
  return !PyErr_Occurred();
}

bool look_at_pending(Recorder* self) {
  return PyList_Size(self->pending) == 0 || ask(reinterpret_cast<PyObject*>(self), "look");
}

bool save(Recorder* self) { return !self->has_tensors || ask(reinterpret_cast<PyObject*>(self), "save"); }

bool describe_inputs(Recorder* self, Call* call, const Items& items, MetTensors* met, Use use) {
  if (self->has_tensors && !ask(reinterpret_cast<PyObject*>(self), "begin_files", object_of(call))) return false;
  if (self->has_inputs && !describe(self->describer, call->parts->inputs, items, {call->level, -1, met, use}))
    return false;
  return save(self);
}

bool describe_results(Recorder* self, Call* call, Items items, const Items& written, MetTensors* met,
                      bool has_numbers) {
  if (!self->has_outputs) return true;
  if (self->has_tensors && !ask(reinterpret_cast<PyObject*>(self), "next_file", object_of(call))) return false;
  const size_t returned = items.size();
  for (const Item& item : written) {
    size_t at = 0;
    while (at < items.size() && items[at].value.get() != item.value.get()) ++at;
    if (at == items.size()) items.push_back({item.place, Ref::borrowed(item.value.get()), true});
    if (at >= returned) items[at].place = item.place;  // given twice: the last place is its
    items[at].is_written = true;
  }
  const Described described = {call->level, call->number, met, Use::kAgain, has_numbers};
  return (items.empty() || describe(self->describer, call->parts->outputs, items, described)) && save(self);
}

bool write(Recorder* self, Call* call, PyObject* error) {
  Ref text = error == Py_None ? Ref::borrowed(error) : ask(reinterpret_cast<PyObject*>(self), "error_text", error);
  if (!text) return false;
  std::string line;
  if (!append_line(line, call, text.get())) return false;
  ++self->written;
  Ref data(PyBytes_FromStringAndSize(line.data(), static_cast<Py_ssize_t>(line.size())));
  Ref map(data ? PyObject_GetAttr(self->writer, names.map) : nullptr);
  if (!map) return false;
  if (map.get() != Py_None && Ref(PyObject_CallMethodObjArgs(map.get(), names.write, data.get(), nullptr))) return true;
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_ValueError)) return false;
  PyErr_Clear();  // the line does not fit
  return static_cast<bool>(ask(self->writer, "line", data.get()));
}

int is_true(PyObject* function) {
  Ref answer = ask_torch(function);
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

int requires_grad(PyObject* tensor) {
  if (!is_tensor_type(Py_TYPE(tensor)) && !Plainly::now()) return -1;
  Ref answer = members.requires_grad.of(tensor);
  if (answer) return PyObject_IsTrue(answer.get());
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

bool note_nodes(Call* call) {
  const Items& tensors = call->parts->tensors;
  if (tensors.empty()) return true;
  const int is_enabled = is_true(recording.is_grad_enabled);
  if (is_enabled <= 0) return is_enabled == 0;
  Ref list;
  for (const Item& item : tensors) {
    const int needs = requires_grad(item.value.get());
    if (needs < 0) return false;
    if (!needs) continue;
    Ref made = members.grad_fn.of(item.value.get());
    if (!made) return false;
    if (made.get() == Py_None) continue;
    Ref number = members.output_nr.of(item.value.get()), place(new_text(item.place));
    if (!list) list = Ref(PyList_New(0));
    Ref entry(number && place && list ? PyTuple_Pack(3, made.get(), number.get(), place.get()) : nullptr);
    if (!entry || PyList_Append(list.get(), entry.get())) return false;
  }
  if (list) put(call->grad_fns, list.get());
  return true;
}

void take_over(Call* call, Call* parent, bool with_module) {
  if (with_module && parent->module) put(call->module, parent->module);
  call->parent = parent->number;
}

PyObject* none_if(bool is_right) { return is_right ? Ref::borrowed(Py_None).release() : nullptr; }

bool check_call(PyObject* call) {
  if (!is_call(call)) PyErr_SetString(PyExc_TypeError, "expected a RecordedCall");
  return is_call(call);
}

bool add_recording_recorder(PyObject* module) {
  return Type::add(
      module, "libmaca_ffi._recorder.RecordedCalls",
      "The base of the recorder: what happens at every call. A subclass sets the members and has the "
      "methods for what is rare; macatensor.accuracy.recording.recorder.",
      Py_TPFLAGS_BASETYPE,
      {{Py_tp_new, reinterpret_cast<void*>(create)}, {Py_tp_methods, g_methods}, {Py_tp_members, g_members}});
}

}  // namespace maca::recorder
