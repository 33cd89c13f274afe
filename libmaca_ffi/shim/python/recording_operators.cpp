// Aten operators as they begin and end.
#include "recording_recorder.h"

namespace maca_launcher {
namespace {

PyObject* fact(const Ref& facts, Fact which) { return PyTuple_GetItem(facts.get(), which); }
bool is(const Ref& facts, Fact which) { return fact(facts, which) == Py_True; }

bool forward_operator(Recorder* self, const ThreadState& thread, Call* call, const Ref& parent) {
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
  const int is_enabled = is_true(recording.is_grad_enabled);
  if (is_enabled <= 0) return is_enabled == 0;
  Ref made = ask_torch(recording.sequence);
  if (!made) return false;
  note_node(thread.nodes, PyLong_AsLongLong(made.get()), call, outer);
  return !PyErr_Occurred();
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

// The tensors of the function around an operator that is the first thing it has come to, or null.
MetTensors* met_by(const Ref& function) {
  if (!is_function(function) || as_call(function)->parts->begun + 1 != moment()) return nullptr;
  return &as_call(function)->parts->met;
}

bool operator_returned(Recorder* self, const ThreadState& thread, const Ref& facts, Call* call, PyObject* args,
                       PyObject* kwargs, PyObject* result, const Items& written) {
  auto* object = reinterpret_cast<PyObject*>(self);
  Ref function = last_of(thread);
  if (is(facts, kIsCollective))
    return static_cast<bool>(
        ask(object, names.collective, object_of(call), function ? function.get() : Py_None, args, kwargs, result));
  if (is(facts, kIsBlank) && !ask(object, names.blank, result)) return false;
  if (is(facts, kIsWait) && !wrote(self->describer, result)) return false;
  Items items;
  if (!flatten_result(result, items)) return false;
  const bool has_numbers = set_numbers(self->describer, false);
  set_numbers(self->describer, has_numbers && !is(facts, kIsPending));  // what is pending has none yet
  MetTensors* met = met_by(function);
  const bool is_described = describe_results(self, call, std::move(items), written, met, Use::kRenew);
  if (met) as_call(function)->parts->ended = moment();
  set_numbers(self->describer, has_numbers);
  if (!is_described) return false;
  return write(self, call, Py_None);
}

}  // namespace

Ref facts_of(PyObject* func) {
  Ref id(PyLong_FromVoidPtr(func));
  Ref facts = id ? Ref::borrowed(PyDict_GetItemWithError(recording.operators, id.get())) : Ref();
  if (!facts && !PyErr_Occurred()) facts = Ref(PyObject_CallFunctionObjArgs(recording.read_operator, func, nullptr));
  if (facts && (!PyTuple_Check(facts.get()) || PyTuple_Size(facts.get()) <= kRun)) {
    PyErr_SetString(PyExc_TypeError, "expected an Operator");
    return Ref();
  }
  return facts;
}

PyObject* begin_operator(Recorder* self, const Ref& facts, PyObject* args, PyObject* kwargs) {
  if (!is(facts, kIsRecorded)) Py_RETURN_NONE;
  Aside aside(self);
  if (!aside || !look_at_pending(self)) return nullptr;
  const ThreadState& thread = thread_of(self);
  if (!thread) return nullptr;
  auto* object = reinterpret_cast<PyObject*>(self);
  Ref parent = last_of(thread), call, node;
  const bool is_within = is_function(parent) || (parent && as_call(parent)->in_backward);
  if (!is_within && !(node = ask_torch(recording.current_node))) return nullptr;
  if (node && node.get() != Py_None) {
    call = begin_backward_operator(self, thread, node.get(), fact(facts, kPacket), fact(facts, kOp));
    if (!call) return nullptr;
  } else {
    Ref name = name_of(self, fact(facts, kPacket), true);
    call = Ref(name ? object_of(new_call(kOperator, name.get(), fact(facts, kOp), names.fwd)) : nullptr);
    if (!call || !forward_operator(self, thread, as_call(call), parent)) return nullptr;
  }
  put(as_call(call)->thread, thread.text);
  if (as_call(call)->number < 0) return call.release();
  if (self->has_tensors && is(facts, kIsRandom) && !ask(object, names.keep_random, call.get(), args, kwargs))
    return nullptr;
  Items items;
  if (self->has_inputs && !flatten_call(args, kwargs, items)) return nullptr;
  return describe_inputs(self, as_call(call), items, met_by(parent), Use::kSame) ? call.release() : nullptr;
}

bool end_operator(Recorder* self, PyObject* call, const Ref& facts, PyObject* args, PyObject* kwargs, PyObject* result,
                  PyObject* error) {
  Aside aside(self);
  Items written;
  if (!aside || !written_by(facts, args, kwargs, written)) return false;
  for (const Item& item : written)
    if (!wrote(self->describer, item.value.get())) return false;
  auto* begun = reinterpret_cast<Call*>(call);
  if (call == Py_None || begun->number < 0 || !self->active) return true;
  if (error != Py_None) return write(self, begun, error);
  const ThreadState& thread = thread_of(self);
  return thread && operator_returned(self, thread, facts, begun, args, kwargs, result, written);
}

PyObject* operator_begins(PyObject* object, PyObject* given) {
  PyObject *func, *args, *kwargs;
  if (!PyArg_ParseTuple(given, "OOO:operator_begins", &func, &args, &kwargs) || !is_ready(of(object))) return nullptr;
  Ref facts = facts_of(func);
  return facts ? begin_operator(of(object), facts, args, kwargs) : nullptr;
}

PyObject* operator_ends(PyObject* object, PyObject* given) {
  PyObject *call, *func, *args, *kwargs, *result, *error;
  if (!PyArg_ParseTuple(given, "OOO!OOO:operator_ends", &call, &func, &PyTuple_Type, &args, &kwargs, &result, &error) ||
      (call != Py_None && !check_call(call)) || !is_ready(of(object)))
    return nullptr;
  Ref facts = facts_of(func);
  return none_if(facts && end_operator(of(object), call, facts, args, kwargs, result, error));
}

}  // namespace maca_launcher
