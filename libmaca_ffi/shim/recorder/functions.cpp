// Functions of PyTorch's Python interface, and modules, as they begin and end.
#include "recorder.h"

namespace maca::recorder {
namespace {

bool api_begins(Recorder* self, const ThreadState& thread, Call* call, PyObject* args, PyObject* kwargs, bool is_unit) {
  if (!look_at_pending(self)) return false;
  Ref serial(PyIter_Next(self->serials)), parent = last_of(thread);
  if (!serial) return false;
  call->serial = PyLong_AsLongLong(serial.get());
  if (is_function(parent)) {  // no node begins to run within a function
    call->in_backward = as_call(parent)->in_backward;
  } else {
    Ref node = ask_torch(recording.current_node);
    if (!node) return false;
    call->in_backward = node.get() != Py_None;
  }
  if (parent) take_over(call, as_call(parent), !call->module || call->module == Py_None);
  if (PyList_Append(thread.open, object_of(call))) return false;
  put(call->thread, thread.text);
  const bool is_taken = decide(self, call, parent.get(), is_unit);
  Items items;
  if (PyErr_Occurred() || !flatten_call(args, kwargs, items)) return false;
  call->parts->tensors.reserve(items.size());
  call->parts->met.reserve(items.size());
  for (const Item& item : items)
    if (item.is_tensor) call->parts->tensors.push_back({item.place, Ref::borrowed(item.value.get()), true});
  return note_versions(call) && note_nodes(call) &&
         (!is_taken || (note_stack(self, call) && describe_inputs(self, call, items, &call->parts->met, Use::kNote)));
}

// Hooks the nodes that a call has made, where one of its results, or of what it wrote, requires a gradient.
bool attach_to(Recorder* self, Call* call, const Items& items, const Items& written, PyObject* module) {
  const int is_enabled = call->has_modules ? 0 : is_true(recording.is_grad_enabled);
  if (is_enabled <= 0) return is_enabled == 0;
  Items tensors;
  for (const Items* some : {&items, &written})
    for (const Item& item : *some) {
      if (!item.is_tensor) continue;
      const int needs = requires_grad(item.value.get());
      if (needs < 0) return false;
      if (needs) tensors.push_back({item.place, Ref::borrowed(item.value.get()), true});
    }
  if (tensors.empty()) return true;
  Ref pairs(pairs_of(tensors));
  return pairs && ask(reinterpret_cast<PyObject*>(self), "attach", object_of(call), pairs.get(), module);
}

bool api_ends(Recorder* self, Call* call, PyObject* result, PyObject* error, PyObject* module) {
  if (!self->active) return true;
  Items items, written;
  if (!written_since(call, written)) return false;
  if (error == Py_None && (!flatten_result(result, items) || !attach_to(self, call, items, written, module)))
    return false;
  if (call->number < 0) return true;
  if (error == Py_None && call->received && PyObject_IsTrue(call->received) == 1) {
    Ref pairs(pairs_of(items));
    return pairs && ask(reinterpret_cast<PyObject*>(self), "started", object_of(call), pairs.get());
  }
  MetTensors* met = call->parts->ended == moment() ? &call->parts->met : nullptr;
  return describe_results(self, call, std::move(items), written, met) && write(self, call, error);
}

}  // namespace

PyObject* begin_function(Recorder* self, PyObject* op, PyObject* args, PyObject* kwargs, long modes) {
  Aside aside(self, modes);
  if (!aside) return nullptr;
  const ThreadState& thread = thread_of(self);
  Ref call = thread ? begin_call(self, kFunction, op, op, true) : Ref();
  if (!call) return nullptr;
  as_call(call)->parts->begun = moment();
  return api_begins(self, thread, as_call(call), args, kwargs, true) ? call.release() : nullptr;
}

bool end_function(Recorder* self, PyObject* call, PyObject* result, PyObject* error, long modes) {
  Aside aside(self, modes);
  if (!aside) return false;
  const ThreadState& thread = thread_of(self);
  if (!thread) return false;
  const Py_ssize_t size = PyList_Size(thread.open);
  if (size > 0 && PyList_GetItem(thread.open, size - 1) == call) {
    if (PyList_SetSlice(thread.open, size - 1, size, nullptr)) return false;
  } else if (!ask(reinterpret_cast<PyObject*>(self), "left", thread.open, call)) {
    return false;
  }
  return api_ends(self, reinterpret_cast<Call*>(call), result, error, Py_None);
}

PyObject* api_begins_method(PyObject* object, PyObject* given) {
  PyObject *call, *args, *kwargs;
  int is_unit;
  if (!PyArg_ParseTuple(given, "OOOp:api_begins", &call, &args, &kwargs, &is_unit) || !check_call(call) ||
      !is_ready(of(object)))
    return nullptr;
  ++moment();
  const ThreadState& thread = thread_of(of(object));
  return none_if(thread && api_begins(of(object), thread, reinterpret_cast<Call*>(call), args, kwargs, is_unit));
}

PyObject* api_ends_method(PyObject* object, PyObject* given) {
  PyObject *call, *result, *error, *module;
  if (!PyArg_ParseTuple(given, "OOOO:api_ends", &call, &result, &error, &module) || !check_call(call) ||
      !is_ready(of(object)))
    return nullptr;
  ++moment();
  return none_if(api_ends(of(object), reinterpret_cast<Call*>(call), result, error, module));
}

}  // namespace maca::recorder
