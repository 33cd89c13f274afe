// Aten operators as they begin and end.
#include "recording_recorder.h"

namespace maca_launcher {
namespace {

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

}  // namespace

PyObject* begin_operator(Recorder* self, PyObject* func, PyObject* args, PyObject* kwargs) {
  Ref facts = facts_of(func);
  if (!facts) return nullptr;
  if (!is(facts, kIsRecorded)) Py_RETURN_NONE;
  Aside aside(self);
  if (!aside || !look_at_pending(self)) return nullptr;
  Ref thread = thread_of(self), open = thread ? open_calls(thread.get()) : Ref();
  Ref node = open ? ask_torch(recording.current_node) : Ref();
  if (!node) return nullptr;
  auto* object = reinterpret_cast<PyObject*>(self);
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

bool end_operator(Recorder* self, PyObject* call, PyObject* func, PyObject* args, PyObject* kwargs, PyObject* result,
                  PyObject* error) {
  Ref facts = facts_of(func);
  if (!facts) return false;
  Aside aside(self);
  Items written;
  if (!aside || !written_by(facts, args, kwargs, written)) return false;
  for (const Item& item : written)
    if (!wrote(self->describer, item.value.get())) return false;
  auto* begun = reinterpret_cast<Call*>(call);
  if (call == Py_None || begun->number < 0 || !self->active) return true;
  if (error != Py_None) return write(self, begun, error);
  Ref thread = thread_of(self);
  return thread && operator_returned(self, thread.get(), facts, begun, args, kwargs, result, written);
}

PyObject* operator_begins(PyObject* object, PyObject* given) {
  PyObject *func, *args, *kwargs;
  if (!PyArg_ParseTuple(given, "OOO:operator_begins", &func, &args, &kwargs) || !is_ready(of(object))) return nullptr;
  return begin_operator(of(object), func, args, kwargs);
}

PyObject* operator_ends(PyObject* object, PyObject* given) {
  PyObject *call, *func, *args, *kwargs, *result, *error;
  if (!PyArg_ParseTuple(given, "OOO!OOO:operator_ends", &call, &func, &PyTuple_Type, &args, &kwargs, &result, &error) ||
      (call != Py_None && !check_call(call)) || !is_ready(of(object)))
    return nullptr;
  return none_if(end_operator(of(object), call, func, args, kwargs, result, error));
}

}  // namespace maca_launcher
