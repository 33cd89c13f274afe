// Aten operators as they begin and end.
#include "recorder.h"

namespace maca::recorder {
namespace {

// What Python knows of an overload.
bool read(PyObject* given, Operator& facts) {
  if (PyTuple_Check(given))
    return PyArg_ParseTuple(given, "UUO!ppppppO:Operator", &facts.packet, &facts.op, &PyTuple_Type, &facts.written,
                            &facts.is_random, &facts.is_collective, &facts.is_pending, &facts.is_wait,
                            &facts.is_recorded, &facts.is_blank, &facts.run);
  PyErr_SetString(PyExc_TypeError, "expected an Operator");
  return false;
}

bool forward_operator(Recorder* self, ThreadState& thread, Call* call, const Ref& parent) {
  Call* outer = as_call(parent);
  if (outer) take_over(call, outer, true);
  if (decide(self, call, parent.get(), true)) {
    if (outer && !outer->owner && outer->number >= 0) {
      call->stack = outer->stack;  // the line that called the function
    } else if (!note_stack(self, call)) {
      return false;
    }
  }
  if (PyErr_Occurred()) return false;
  const int is_enabled = is_true(recording.is_grad_enabled);
  if (is_enabled <= 0) return is_enabled == 0;
  Ref count = ask_torch(recording.sequence);
  const long long nodes = count ? PyLong_AsLongLong(count.get()) : -1;
  if (nodes < 0 || nodes == thread.nodes) return nodes >= 0;  // autograd makes a node before it lets an operator run
  thread.nodes = nodes;
  Ref serial(PyLong_FromLongLong(outer ? outer->serial : -1));
  return serial && Ref(PyObject_CallMethodObjArgs(thread.thread, names.node_made, count.get(), object_of(call),
                                                  serial.get(), nullptr));
}

// The tensors that an operator writes, with their places.
bool written_by(const Operator& facts, PyObject* args, PyObject* kwargs, Items& items) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(facts.written); ++i) {
    Py_ssize_t position;
    PyObject* name;
    if (!PyArg_ParseTuple(PyTuple_GetItem(facts.written, i), "nU:written", &position, &name)) return false;
    PyObject* value = nullptr;
    std::string place;
    if (position >= 0 && position < PyTuple_Size(args)) {
      value = PyTuple_GetItem(args, position);
      place = std::to_string(position);
    } else if (kwargs && PyDict_Check(kwargs)) {
      value = PyDict_GetItemWithError(kwargs, name);
      if (!append_text(place, name)) return false;
    }
    if (PyErr_Occurred() || (value && !flatten(value, place, items))) return false;
  }
  std::erase_if(items, [](const Item& item) { return !item.is_tensor; });
  return true;
}

// The tensors of the function around an operator that is the first thing it has come to, or null.
MetTensors* met_by(const Ref& function) {
  if (!is_function(function) || as_call(function)->parts->begun + 1 != moment()) return nullptr;
  return &as_call(function)->parts->met;
}

bool operator_returned(Recorder* self, const ThreadState& thread, const Operator& facts, Call* call, PyObject* args,
                       PyObject* kwargs, PyObject* result, const Items& written) {
  auto* object = reinterpret_cast<PyObject*>(self);
  Ref function = last_of(thread);
  if (facts.is_collective)
    return static_cast<bool>(
        ask(object, "collective", object_of(call), function ? function.get() : Py_None, args, kwargs, result));
  if (facts.is_blank && is_tensor_object(result) && !note_blank(self->describer, result)) return false;
  if (facts.is_wait && is_tensor_object(result) && !wrote(self->describer, result)) return false;
  Items items;
  if (!flatten_result(result, items)) return false;
  MetTensors* met = met_by(function);
  const bool is_described = describe_results(self, call, std::move(items), written, met, !facts.is_pending);
  if (met) as_call(function)->parts->ended = moment();
  return is_described && write(self, call, Py_None);
}

}  // namespace

const Operator* facts_of(PyObject* func) {
  static auto& known = *new std::unordered_map<PyObject*, Operator>;  // by the overload, which is kept
  const auto found = known.find(func);
  if (found != known.end()) return &found->second;
  Operator facts;
  Ref given(PyObject_CallFunctionObjArgs(recording.read_operator, func, nullptr));
  if (!given || !read(given.get(), facts)) return nullptr;
  given.release();  // what the facts point to is kept, too
  const auto [place, is_new] = known.emplace(func, std::move(facts));
  if (is_new) Py_INCREF(func);
  return &place->second;
}

PyObject* begin_operator(Recorder* self, const Operator& facts, PyObject* args, PyObject* kwargs, long modes) {
  if (!facts.is_recorded) Py_RETURN_NONE;
  Aside aside(self, modes);
  if (!aside || !look_at_pending(self)) return nullptr;
  ThreadState& thread = thread_of(self);
  if (!thread) return nullptr;
  auto* object = reinterpret_cast<PyObject*>(self);
  Ref parent = last_of(thread), call, node;
  const bool is_within = is_function(parent) || (parent && as_call(parent)->in_backward);
  if (!is_within && !(node = ask_torch(recording.current_node))) return nullptr;
  if (node && node.get() != Py_None) {
    call = begin_call(self, kOperator, facts.packet, facts.op, false);
    if (!call || !Ref(PyObject_CallMethodObjArgs(object, names.backward_operator, thread.thread, node.get(), call.get(),
                                                 nullptr)))
      return nullptr;
  } else {
    call = begin_call(self, kOperator, facts.packet, facts.op, true);
    if (!call || !forward_operator(self, thread, as_call(call), parent)) return nullptr;
  }
  put(as_call(call)->thread, thread.text);
  if (as_call(call)->number < 0) return call.release();
  if (self->has_tensors && facts.is_random && !ask(object, "keep_random", call.get(), args, kwargs)) return nullptr;
  Items items;
  if (self->has_inputs && !flatten_call(args, kwargs, items)) return nullptr;
  return describe_inputs(self, as_call(call), items, met_by(parent), Use::kSame) ? call.release() : nullptr;
}

bool end_operator(Recorder* self, PyObject* call, const Operator& facts, PyObject* args, PyObject* kwargs,
                  PyObject* result, PyObject* error, long modes) {
  Aside aside(self, modes);
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
  const Operator* facts = facts_of(func);
  return facts ? begin_operator(of(object), *facts, args, kwargs, Plainly::kUnknown) : nullptr;
}

PyObject* operator_ends(PyObject* object, PyObject* given) {
  PyObject *call, *func, *args, *kwargs, *result, *error;
  if (!PyArg_ParseTuple(given, "OOO!OOO:operator_ends", &call, &func, &PyTuple_Type, &args, &kwargs, &result, &error) ||
      (call != Py_None && !check_call(call)) || !is_ready(of(object)))
    return nullptr;
  const Operator* facts = facts_of(func);
  return none_if(facts && end_operator(of(object), call, *facts, args, kwargs, result, error, Plainly::kUnknown));
}

}  // namespace maca::recorder
