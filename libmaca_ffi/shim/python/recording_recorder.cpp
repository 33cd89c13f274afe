// RecordedCalls: the base of the recorder. A call as it begins and ends, where it is what most are.
#include "recording.h"

#include <structmember.h>

#include <cstddef>

namespace maca_launcher {
namespace {

enum Level { kFunction = 0, kOperator = 1 };

// The members of macatensor.accuracy.recording.operators.Operator, in their order.
enum Fact {
  kPacket,
  kOp,
  kWritten,
  kWrittenNames,
  kIsRandom,
  kIsCollective,
  kIsPending,
  kIsWait,
  kIsRecorded,
  kIsBlank
};

struct Recorder {
  PyObject_HEAD PyObject *lock, *local, *numbers, *serials, *counts_forward, *counts_backward, *pending, *describer,
      *writer, *stacks;
  long long written;
  char active, takes_all, has_stacks, has_inputs, has_outputs, has_tensors;
};

constexpr PyObject* Recorder::* kObjects[] = {&Recorder::lock,    &Recorder::local,          &Recorder::numbers,
                                              &Recorder::serials, &Recorder::counts_forward, &Recorder::counts_backward,
                                              &Recorder::pending, &Recorder::describer,      &Recorder::writer,
                                              &Recorder::stacks};

struct {
  PyObject *acquire, *release, *enter, *leave, *thread, *open, *text, *nodes, *last, *look, *decide, *fwd,
      *requires_grad, *grad_fn, *output_nr, *attach, *started, *line, *error_text, *begin_files, *next_file, *save,
      *keep_random, *backward_operator, *add, *blank, *collective, *left;
} names;

Recorder* of(PyObject* object) { return reinterpret_cast<Recorder*>(object); }
PyObject* object_of(Call* call) { return reinterpret_cast<PyObject*>(call); }

template <class... Given> Ref ask(PyObject* object, PyObject* method, Given... given) {
  return Ref(PyObject_CallMethodObjArgs(object, method, given..., nullptr));
}

Ref ask_torch(PyObject* function) { return Ref(PyObject_CallFunctionObjArgs(function, nullptr)); }

// The recorder's lock, and nothing of what it asks of tensors is a call of the program, until the end of the scope.
class Aside {
 public:
  explicit Aside(Recorder* self) : lock_(Ref::borrowed(self->lock)) {
    Ref guard(ask_torch(recording.plainly));
    Ref entered = guard ? ask(guard.get(), names.enter) : Ref();
    if (!entered) return;
    guard_ = std::move(guard);
    Ref taken = ask(lock_.get(), names.acquire);
    is_locked_ = static_cast<bool>(taken);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  ~Aside() {
    if (!guard_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);  // what is raised goes on
    if (is_locked_ && !ask(lock_.get(), names.release)) PyErr_WriteUnraisable(lock_.get());
    if (!ask(guard_.get(), names.leave, Py_None, Py_None, Py_None)) PyErr_WriteUnraisable(guard_.get());
    PyErr_Restore(type, value, trace);
  }
  explicit operator bool() const { return is_locked_; }

 private:
  Ref lock_, guard_;
  bool is_locked_ = false;
};

bool is_ready(Recorder* self) {
  for (auto member : kObjects)
    if (!(self->*member)) {
      PyErr_SetString(PyExc_RuntimeError, "a recorder's members are not all set");
      return false;
    }
  if (!is_entries(self->describer) || !PyList_Check(self->pending) || !PyDict_Check(self->counts_forward) ||
      !PyDict_Check(self->counts_backward)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a recorder's members are of other types");
    return false;
  }
  return recording.tensor != nullptr;
}

// The state of the calling thread: a macatensor.accuracy.recording.calls.Thread.
Ref thread_of(Recorder* self) {
  Ref found(PyObject_GetAttr(self->local, names.thread));
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  return ask(reinterpret_cast<PyObject*>(self), names.thread);
}

// The calls that are open in a thread; null with an exception.
Ref open_calls(PyObject* thread) {
  Ref open(PyObject_GetAttr(thread, names.open));
  if (open && !PyList_Check(open.get())) {
    PyErr_SetString(PyExc_TypeError, "a thread's open calls are a list");
    return Ref();
  }
  return open;
}

Ref last_of(PyObject* open) {
  const Py_ssize_t size = PyList_Size(open);
  PyObject* last = size > 0 ? PyList_GetItem(open, size - 1) : nullptr;
  return last && is_call(last) ? Ref::borrowed(last) : Ref();
}

Call* as_call(const Ref& object) { return reinterpret_cast<Call*>(object.get()); }

// The name of an operator's next call: with how many came before.
Ref name_of(Recorder* self, PyObject* op, bool is_forward) {
  PyObject* counts = is_forward ? self->counts_forward : self->counts_backward;
  PyObject* count = PyDict_GetItemWithError(counts, op);
  if (!count && PyErr_Occurred()) return Ref();
  const long long number = count ? PyLong_AsLongLong(count) : 0;
  Ref next(PyLong_FromLongLong(number + 1));
  if (PyErr_Occurred() || PyDict_SetItem(counts, op, next.get())) return Ref();
  std::string name;
  if (!append_text(name, op)) return Ref();
  name += '.';
  name += std::to_string(number);
  name += is_forward ? ".fwd" : ".bwd";
  return Ref(new_text(name));
}

// Is the call recorded? It gets its number if so. False with an exception, too.
bool decide(Recorder* self, Call* call, PyObject* parent, bool is_unit) {
  if (self->takes_all) {
    Ref number(PyIter_Next(self->numbers));
    if (!number) return false;
    call->number = PyLong_AsLongLong(number.get());
    return true;
  }
  Ref is = ask(reinterpret_cast<PyObject*>(self), names.decide, object_of(call), parent ? parent : Py_None,
               is_unit ? Py_True : Py_False);
  return is && PyObject_IsTrue(is.get()) == 1;
}

bool note_stack(Recorder* self, Call* call) {
  if (!self->has_stacks) return true;
  Ref number(stack_here(self->stacks));
  if (!number) return false;
  put(call->stack, number.get());
  return true;
}

bool look_at_pending(Recorder* self) {
  return PyList_Size(self->pending) == 0 || ask(reinterpret_cast<PyObject*>(self), names.look);
}

bool save(Recorder* self) { return !self->has_tensors || ask(reinterpret_cast<PyObject*>(self), names.save); }

bool describe_inputs(Recorder* self, Call* call, const Items& items) {
  if (self->has_tensors && !ask(reinterpret_cast<PyObject*>(self), names.begin_files, object_of(call))) return false;
  if (self->has_inputs) {
    Ref text(text_of_arguments(self->describer, items, call->level));
    if (!text) return false;
    put(call->inputs, text.get());
  }
  return save(self);
}

bool describe_results(Recorder* self, Call* call, Items items, const Items& written) {
  if (!self->has_outputs) return true;
  if (self->has_tensors && !ask(reinterpret_cast<PyObject*>(self), names.next_file, object_of(call))) return false;
  Ref text(text_of_results(self->describer, std::move(items), written, call->level, call->number));
  if (!text) return false;
  put(call->outputs, text.get());
  return save(self);
}

bool write(Recorder* self, Call* call, PyObject* error) {
  Ref text = error == Py_None ? Ref::borrowed(error) : ask(reinterpret_cast<PyObject*>(self), names.error_text, error);
  Ref line(text ? line_of(call, text.get()) : nullptr);
  if (!line) return false;
  ++self->written;
  return static_cast<bool>(ask(self->writer, names.line, line.get()));
}

// 1, 0, or -1 with an exception
int is_true(PyObject* function) {
  Ref answer = ask_torch(function);
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

int requires_grad(PyObject* tensor) {
  Ref answer(PyObject_GetAttr(tensor, names.requires_grad));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

// Nodes that made the arguments, which of a node's results each is, its place.
bool note_nodes(Call* call) {
  if (call->tensors->empty()) return true;
  const int is_enabled = is_true(recording.is_grad_enabled);
  if (is_enabled <= 0) return is_enabled == 0;
  Ref list;
  for (const Item& item : *call->tensors) {
    const int needs = requires_grad(item.value.get());
    if (needs < 0) return false;
    if (!needs) continue;
    Ref made(PyObject_GetAttr(item.value.get(), names.grad_fn));
    if (!made) return false;
    if (made.get() == Py_None) continue;
    Ref number(PyObject_GetAttr(item.value.get(), names.output_nr)), place(new_text(item.place));
    if (!list) list = Ref(PyList_New(0));
    Ref entry(number && place && list ? PyTuple_Pack(3, made.get(), number.get(), place.get()) : nullptr);
    if (!entry || PyList_Append(list.get(), entry.get())) return false;
  }
  if (list) put(call->grad_fns, list.get());
  return true;
}

bool take_over(Call* call, Call* parent, bool with_module) {
  if (with_module && parent->module) put(call->module, parent->module);
  if (parent->number < 0) return true;
  Ref number(PyLong_FromLongLong(parent->number));
  if (!number) return false;
  put(call->parent, number.get());
  return true;
}

bool note_thread(Call* call, PyObject* thread) {
  Ref text(PyObject_GetAttr(thread, names.text));
  if (text) put(call->thread, text.get());
  return static_cast<bool>(text);
}

// --- functions and modules ------------------------------------------------------------------------------------
bool api_begins(Recorder* self, PyObject* thread, Call* call, PyObject* args, PyObject* kwargs, bool is_unit) {
  if (!look_at_pending(self)) return false;
  Ref serial(PyIter_Next(self->serials)), node = ask_torch(recording.current_node);
  Ref open = serial && node ? open_calls(thread) : Ref();
  if (!open) return false;
  call->serial = PyLong_AsLongLong(serial.get());
  call->in_backward = node.get() != Py_None;
  Ref parent = last_of(open.get());
  if (parent && !take_over(call, as_call(parent), !call->module || call->module == Py_None)) return false;
  if (PyList_Append(open.get(), object_of(call)) || !note_thread(call, thread)) return false;
  const bool is_taken = decide(self, call, parent.get(), is_unit);
  Items items;
  if (PyErr_Occurred() || !flatten_call(args, kwargs, items)) return false;
  for (const Item& item : items)
    if (item.is_tensor) call->tensors->push_back({item.place, Ref::borrowed(item.value.get()), true});
  return note_versions(call) && note_nodes(call) &&
         (!is_taken || (note_stack(self, call) && describe_inputs(self, call, items)));
}

// Hooks the nodes that a call has made, where one of its results, or of what it wrote, requires a gradient.
bool attach(Recorder* self, Call* call, const Items& items, const Items& written, PyObject* module) {
  const int is_enabled = call->has_modules ? 0 : is_true(recording.is_grad_enabled);
  if (is_enabled <= 0) return is_enabled == 0;
  Items tensors;
  bool is_needed = false;
  for (const Items* some : {&items, &written})
    for (const Item& item : *some) {
      if (!item.is_tensor) continue;
      const int needs = requires_grad(item.value.get());
      if (needs < 0) return false;
      is_needed = is_needed || needs;
      tensors.push_back({item.place, Ref::borrowed(item.value.get()), true});
    }
  if (!is_needed) return true;
  Ref pairs(pairs_of(tensors));
  return pairs && ask(reinterpret_cast<PyObject*>(self), names.attach, object_of(call), pairs.get(), module);
}

bool api_ends(Recorder* self, Call* call, PyObject* result, PyObject* error, PyObject* module) {
  if (!self->active) return true;
  Items items, written;
  if (!written_since(call, written)) return false;
  if (error == Py_None && (!flatten_result(result, items) || !attach(self, call, items, written, module))) return false;
  if (call->number < 0) return true;
  if (error == Py_None && call->received && PyObject_Size(call->received) > 0) {
    Ref pairs(pairs_of(items));
    return pairs && ask(reinterpret_cast<PyObject*>(self), names.started, object_of(call), pairs.get());
  }
  return describe_results(self, call, std::move(items), written) && write(self, call, error);
}

PyObject* none_if(bool is_right) { return is_right ? Ref::borrowed(Py_None).release() : nullptr; }

bool check_call(PyObject* call) {
  if (!is_call(call)) PyErr_SetString(PyExc_TypeError, "expected a RecordedCall");
  return is_call(call);
}

PyObject* function_begins(PyObject* object, PyObject* given) {
  PyObject *op, *args, *kwargs;
  Recorder* self = of(object);
  if (!PyArg_ParseTuple(given, "UOO:function_begins", &op, &args, &kwargs) || !is_ready(self)) return nullptr;
  Aside aside(self);
  if (!aside) return nullptr;
  Ref thread = thread_of(self), name = thread ? name_of(self, op, true) : Ref();
  Ref call(name ? object_of(new_call(kFunction, name.get(), op, names.fwd)) : nullptr);
  return call && api_begins(self, thread.get(), as_call(call), args, kwargs, true) ? call.release() : nullptr;
}

PyObject* api_begins_method(PyObject* object, PyObject* given) {
  PyObject *thread, *call, *args, *kwargs;
  int is_unit;
  if (!PyArg_ParseTuple(given, "OOOOp:api_begins", &thread, &call, &args, &kwargs, &is_unit) || !check_call(call) ||
      !is_ready(of(object)))
    return nullptr;
  return none_if(api_begins(of(object), thread, reinterpret_cast<Call*>(call), args, kwargs, is_unit));
}

PyObject* function_ends(PyObject* object, PyObject* given) {
  PyObject *call, *result, *error;
  Recorder* self = of(object);
  if (!PyArg_ParseTuple(given, "OOO:function_ends", &call, &result, &error) || !check_call(call) || !is_ready(self))
    return nullptr;
  Aside aside(self);
  if (!aside) return nullptr;
  Ref thread = thread_of(self), open = thread ? open_calls(thread.get()) : Ref();
  if (!open) return nullptr;
  const Py_ssize_t size = PyList_Size(open.get());
  if (size > 0 && PyList_GetItem(open.get(), size - 1) == call) {
    if (PyList_SetSlice(open.get(), size - 1, size, nullptr)) return nullptr;
  } else if (!ask(object, names.left, open.get(), call)) {
    return nullptr;
  }
  return none_if(api_ends(self, reinterpret_cast<Call*>(call), result, error, Py_None));
}

PyObject* api_ends_method(PyObject* object, PyObject* given) {
  PyObject *call, *result, *error, *module;
  if (!PyArg_ParseTuple(given, "OOOO:api_ends", &call, &result, &error, &module) || !check_call(call) ||
      !is_ready(of(object)))
    return nullptr;
  return none_if(api_ends(of(object), reinterpret_cast<Call*>(call), result, error, module));
}

// --- aten operators -------------------------------------------------------------------------------------------
// The Operator of an overload; null with an exception.
Ref facts_of(PyObject* func) {
  Ref id(PyLong_FromVoidPtr(func));
  Ref facts = id ? Ref::borrowed(PyDict_GetItemWithError(recording.operators, id.get())) : Ref();
  if (!facts && !PyErr_Occurred()) facts = Ref(PyObject_CallFunctionObjArgs(recording.read_operator, func, nullptr));
  if (facts && (!PyTuple_Check(facts.get()) || PyTuple_Size(facts.get()) <= kIsBlank)) {
    PyErr_SetString(PyExc_TypeError, "expected an Operator");
    return Ref();
  }
  return facts;
}

PyObject* fact(const Ref& facts, Fact which) { return PyTuple_GetItem(facts.get(), which); }
bool is(const Ref& facts, Fact which) { return fact(facts, which) == Py_True; }

bool forward_operator(Recorder* self, PyObject* thread, Call* call, const Ref& parent) {
  Call* outer = as_call(parent);
  if (outer && !take_over(call, outer, true)) return false;
  if (decide(self, call, parent.get(), true)) {
    if (outer && !outer->owner && outer->number >= 0) {
      if (outer->stack) put(call->stack, outer->stack);  // the line that called the function
    } else if (!note_stack(self, call)) {
      return false;
    }
  }
  if (PyErr_Occurred()) return false;
  Ref made = ask_torch(recording.sequence), nodes(made ? PyObject_GetAttr(thread, names.nodes) : nullptr);
  Ref last(nodes ? PyObject_GetAttr(nodes.get(), names.last) : nullptr);
  if (!last) return false;
  const int is_same = PyObject_RichCompareBool(made.get(), last.get(), Py_EQ);
  // else autograd made the operator's node before it let it run
  return is_same == 1 ||
         (is_same == 0 && ask(nodes.get(), names.add, made.get(), object_of(call), parent ? parent.get() : Py_None));
}

PyObject* operator_begins(PyObject* object, PyObject* given) {
  PyObject *func, *args, *kwargs;
  Recorder* self = of(object);
  if (!PyArg_ParseTuple(given, "OOO:operator_begins", &func, &args, &kwargs) || !is_ready(self)) return nullptr;
  Ref facts = facts_of(func);
  if (!facts) return nullptr;
  if (!is(facts, kIsRecorded)) Py_RETURN_NONE;
  Aside aside(self);
  if (!aside || !look_at_pending(self)) return nullptr;
  Ref thread = thread_of(self), open = thread ? open_calls(thread.get()) : Ref();
  Ref node = open ? ask_torch(recording.current_node) : Ref();
  if (!node) return nullptr;
  Ref parent = last_of(open.get()), call;
  if (node.get() != Py_None && !(parent && as_call(parent)->in_backward)) {
    call = ask(object, names.backward_operator, thread.get(), node.get(), facts.get());
    if (!call || !check_call(call.get())) return nullptr;
  } else {
    Ref name = name_of(self, fact(facts, kPacket), true);
    call = Ref(name ? object_of(new_call(kOperator, name.get(), fact(facts, kOp), names.fwd)) : nullptr);
    if (!call || !forward_operator(self, thread.get(), as_call(call), parent)) return nullptr;
  }
  if (!note_thread(as_call(call), thread.get())) return nullptr;
  if (as_call(call)->number < 0) return call.release();
  if (self->has_tensors && is(facts, kIsRandom) && !ask(object, names.keep_random, call.get(), args, kwargs))
    return nullptr;
  Items items;
  if (self->has_inputs && !flatten_call(args, kwargs, items)) return nullptr;
  return describe_inputs(self, as_call(call), items) ? call.release() : nullptr;
}

bool add_tensor(Items& items, const std::string& place, PyObject* value) {
  const int is_tensor = PyObject_IsInstance(value, recording.tensor);
  if (is_tensor == 1) items.push_back({place, Ref::borrowed(value), true});
  return is_tensor >= 0;
}

// The tensors that an operator writes, with their places.
bool written_by(const Ref& facts, PyObject* args, PyObject* kwargs, Items& items) {
  PyObject *positions = fact(facts, kWritten), *argument_names = fact(facts, kWrittenNames);
  for (Py_ssize_t i = 0; i < PyTuple_Size(positions); ++i) {
    const Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GetItem(positions, i));
    PyObject* name = PyTuple_GetItem(argument_names, i);
    if (!name || (position < 0 && PyErr_Occurred())) return false;
    PyObject* value = nullptr;
    std::string place;
    if (position < PyTuple_Size(args)) {
      value = PyTuple_GetItem(args, position);
      place = std::to_string(position);
    } else if (kwargs && PyDict_Check(kwargs)) {
      value = PyDict_GetItemWithError(kwargs, name);
      if (!append_text(place, name)) return false;
    }
    if (!value && PyErr_Occurred()) return false;
    if (!value) continue;
    if (!PyList_Check(value) && !PyTuple_Check(value)) {
      if (!add_tensor(items, place, value)) return false;
      continue;
    }
    const bool is_list = PyList_Check(value);
    for (Py_ssize_t k = 0; k < (is_list ? PyList_Size(value) : PyTuple_Size(value)); ++k) {
      PyObject* held = is_list ? PyList_GetItem(value, k) : PyTuple_GetItem(value, k);
      if (!add_tensor(items, place + "." + std::to_string(k), held)) return false;
    }
  }
  return true;
}

bool operator_returned(Recorder* self, PyObject* thread, const Ref& facts, Call* call, PyObject* args, PyObject* kwargs,
                       PyObject* result, const Items& written) {
  auto* object = reinterpret_cast<PyObject*>(self);
  if (is(facts, kIsCollective)) {
    Ref open = open_calls(thread), function = open ? last_of(open.get()) : Ref();
    return open &&
           ask(object, names.collective, object_of(call), function ? function.get() : Py_None, args, kwargs, result);
  }
  if (is(facts, kIsBlank) && !ask(object, names.blank, result)) return false;
  if (is(facts, kIsWait) && !wrote(self->describer, result)) return false;
  Items items;
  if (!flatten_result(result, items)) return false;
  const bool has_numbers = set_numbers(self->describer, false);
  set_numbers(self->describer, has_numbers && !is(facts, kIsPending));  // what is pending has none yet
  const bool is_described = describe_results(self, call, std::move(items), written);
  set_numbers(self->describer, has_numbers);
  if (!is_described) return false;
  return write(self, call, Py_None);
}

PyObject* operator_ends(PyObject* object, PyObject* given) {
  PyObject *call, *func, *args, *kwargs, *result, *error;
  Recorder* self = of(object);
  if (!PyArg_ParseTuple(given, "OOO!OOO:operator_ends", &call, &func, &PyTuple_Type, &args, &kwargs, &result, &error) ||
      (call != Py_None && !check_call(call)) || !is_ready(self))
    return nullptr;
  Ref facts = facts_of(func);
  if (!facts) return nullptr;
  Aside aside(self);
  Items written;
  if (!aside || !written_by(facts, args, kwargs, written)) return nullptr;
  for (const Item& item : written)
    if (!wrote(self->describer, item.value.get())) return nullptr;
  auto* begun = reinterpret_cast<Call*>(call);
  if (call == Py_None || begun->number < 0 || !self->active) Py_RETURN_NONE;
  if (error != Py_None) return none_if(write(self, begun, error));
  Ref thread = thread_of(self);
  return none_if(thread && operator_returned(self, thread.get(), facts, begun, args, kwargs, result, written));
}

PyObject* name_method(PyObject* object, PyObject* given) {
  PyObject* op;
  const char* direction;
  if (!PyArg_ParseTuple(given, "Us:name", &op, &direction) || !is_ready(of(object))) return nullptr;
  return name_of(of(object), op, std::string(direction) == "fwd").release();
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  for (auto member : kObjects) Py_VISIT(of(object)->*member);
  return 0;
}

int clear(PyObject* object) {
  for (auto member : kObjects) Py_CLEAR(of(object)->*member);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  auto release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(object);
  Py_DECREF(type);
}

PyMethodDef g_methods[] = {
    {"function_begins", function_begins, METH_VARARGS,
     "function_begins(op, args, kwargs): a function of PyTorch's Python interface is called; returns the call."},
    {"function_ends", function_ends, METH_VARARGS,
     "function_ends(call, result, error): the function has returned, or raised."},
    {"api_begins", api_begins_method, METH_VARARGS,
     "api_begins(thread, call, args, kwargs, is_unit): what beginnings of functions and modules have in common."},
    {"api_ends", api_ends_method, METH_VARARGS,
     "api_ends(call, result, error, module): what their ends have in common."},
    {"operator_begins", operator_begins, METH_VARARGS,
     "operator_begins(func, args, kwargs): an operator is about to run below autograd; returns the call, or None."},
    {"operator_ends", operator_ends, METH_VARARGS,
     "operator_ends(call, func, args, kwargs, result, error): the operator has run, or raised."},
    {"name", name_method, METH_VARARGS,
     "name(op, direction): the name of an operator's next call: with how many came before."},
    {},
};

#define OBJECT(member) {#member, T_OBJECT, offsetof(Recorder, member), 0, nullptr}
#define FLAG(member) {#member, T_BOOL, offsetof(Recorder, member), 0, nullptr}
PyMemberDef g_members[] = {
    OBJECT(lock),
    OBJECT(local),
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
    {"written", T_LONGLONG, offsetof(Recorder, written), 0, "Lines of calls."},
    {},
};
#undef OBJECT
#undef FLAG

PyType_Slot g_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_methods, g_methods},
    {Py_tp_members, g_members},
    {Py_tp_doc, const_cast<char*>("The base of the recorder: what happens at every call. A subclass sets the members "
                                  "and has the methods for what is rare; macatensor.accuracy.recording.recorder.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._launcher.RecordedCalls", sizeof(Recorder), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, g_slots};

bool name_all() {
  const std::pair<PyObject**, const char*> all[] = {
      {&names.acquire, "acquire"},
      {&names.release, "release"},
      {&names.enter, "__enter__"},
      {&names.leave, "__exit__"},
      {&names.thread, "thread"},
      {&names.open, "open"},
      {&names.text, "text"},
      {&names.nodes, "nodes"},
      {&names.last, "last"},
      {&names.look, "look"},
      {&names.decide, "decide"},
      {&names.fwd, "fwd"},
      {&names.requires_grad, "requires_grad"},
      {&names.grad_fn, "grad_fn"},
      {&names.output_nr, "output_nr"},
      {&names.attach, "attach"},
      {&names.started, "started"},
      {&names.line, "line"},
      {&names.error_text, "error_text"},
      {&names.begin_files, "begin_files"},
      {&names.next_file, "next_file"},
      {&names.save, "save"},
      {&names.keep_random, "keep_random"},
      {&names.backward_operator, "backward_operator"},
      {&names.add, "add"},
      {&names.blank, "blank"},
      {&names.collective, "collective"},
      {&names.left, "left"},
  };
  for (const auto& [slot, name] : all) {
    *slot = PyUnicode_InternFromString(name);
    if (!*slot) return false;
  }
  return true;
}

}  // namespace

bool add_recording_recorder(PyObject* module) {
  Ref type(PyType_FromSpec(&g_spec));
  return type && name_all() && PyModule_AddObjectRef(module, "RecordedCalls", type.get()) == 0;
}

}  // namespace maca_launcher
