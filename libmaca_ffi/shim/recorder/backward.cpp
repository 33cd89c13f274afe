// Backward calls of Python functions and modules, and parameters' gradients.
//
// When a function returns, its autograd nodes are those between its results and its arguments. Hooks on them tell what
// gradient came in and what went out. No hook holds a node or a tensor: they would keep each other alive.
#include "backward.h"

#include <algorithm>
#include <cstring>

namespace maca::recorder {

namespace {

constexpr char kAutograd[] = "torch::autograd::";

// A hook before or after a node, or of a leaf.
struct Hook {
  PyObject_HEAD PyObject* owner;  // Gradients; of a leaf's hook the recorder
  PyObject* node;                 // the name of the node
  When when;
  std::vector<Edge>* edges;  // which of the gradients given belongs where
};

PyTypeObject *g_gradients_type = nullptr, *g_hook_type = nullptr;
PyObject *g_name, *g_sequence, *g_task_begins, *g_nodes_of, *g_parameter_path, *g_accumulate, *g_accumulate_node;

Gradients* as_gradients(PyObject* object) { return reinterpret_cast<Gradients*>(object); }

// --- a backward call --------------------------------------------------------------------------------------------
// Stands for the forward call's choice.
Ref stand_in(char matched, PyObject* unit) {
  Ref empty(PyUnicode_FromString(""));
  Ref parent(empty ? object_of(new_call(kFunction, "", empty.get(), names.bwd)) : nullptr);
  if (!parent) return parent;
  as_call(parent)->matched = matched;
  put(as_call(parent)->unit, unit ? unit : Py_None);
  return parent;
}

bool decide_as(Recorder* self, Call* call, char matched, PyObject* unit) {
  if (self->takes_all) return decide(self, call, nullptr, true);
  Ref parent = stand_in(matched, unit);
  return parent && decide(self, call, parent.get(), true);
}

// The stack of a recorded call whose forward call has none. False with an exception.
bool complete_stack(Recorder* self, Call* call) {
  if (PyErr_Occurred()) return false;
  return call->number < 0 || call->stack >= 0 || note_stack(self, call);
}

bool note_task(Recorder* self, Gradients* gradients) {
  Ref number = ask_torch(recording.graph_task);
  if (!number) return false;
  gradients->task = PyLong_AsLongLong(number.get());
  if (!self->backward->tasks.insert(gradients->task).second) return true;
  return static_cast<bool>(ask(reinterpret_cast<PyObject*>(self), g_task_begins, number.get()));
}

// The call's first node runs.
bool begin(Recorder* self, Gradients* gradients) {
  const ThreadState& thread = thread_of(self);
  Ref made(thread ? object_of(new_call(kFunction, *gradients->stem + ".bwd", gradients->op, names.bwd)) : nullptr);
  if (!made) return false;
  Call* call = as_call(made);
  call->serial = gradients->serial;
  if (gradients->module) put(call->module, gradients->module);
  call->stack = gradients->stack;
  call->forward = gradients->number;
  call->parts->inputs = call->parts->outputs = "[]";
  put(call->thread, thread.text);
  decide_as(self, call, gradients->matched, gradients->unit);
  if (!complete_stack(self, call)) return false;
  put(gradients->running, made.get());
  auto& running = self->backward->running;
  if (running.emplace(gradients->serial, gradients).second) Py_INCREF(reinterpret_cast<PyObject*>(gradients));
  return note_task(self, gradients);
}

// All nodes of the call have run, or backward is over.
bool end(Recorder* self, Gradients* gradients) {
  Ref call(std::exchange(gradients->running, nullptr));
  gradients->left = gradients->nodes;
  auto& running = self->backward->running;
  const auto found = running.find(gradients->serial);
  Ref held;
  if (found != running.end()) {
    held = Ref(reinterpret_cast<PyObject*>(found->second));
    running.erase(found);
  }
  if (!call || as_call(call)->number < 0) return true;
  if (!self->has_inputs) as_call(call)->parts->inputs.clear();
  if (!self->has_outputs) as_call(call)->parts->outputs.clear();
  return write(self, as_call(call), Py_None);
}

// What comes piece by piece: a list of JSON goes on with another.
void join(std::string& list, const std::string& more) {
  if (more.empty() || more == "[]") return;
  if (list.empty() || list == "[]") {
    list = more;
    return;
  }
  list.back() = ',';
  list.append(more, 1);
}

Items items_of(const std::vector<Edge>& edges, PyObject* gradients) {
  Items items;
  for (const Edge& edge : edges) {
    PyObject* held = edge.index < PyTuple_Size(gradients) ? PyTuple_GetItem(gradients, edge.index) : nullptr;
    if (held && held != Py_None) items.push_back({edge.place, Ref::borrowed(held), true});
  }
  return items;
}

bool came_in(Recorder* self, Hook* hook, Call* call, PyObject* gradients) {
  if (!call->node || call->node == Py_None) put(call->node, hook->node);
  if (call->number < 0 || !self->has_inputs) return true;
  std::string more;
  if (self->has_tensors && !ask(reinterpret_cast<PyObject*>(self), names.next_file, object_of(call))) return false;
  if (!describe_arguments(self->describer, more, items_of(*hook->edges, gradients), call->level)) return false;
  join(call->parts->inputs, more);
  return save(self);
}

bool went_out(Recorder* self, Hook* hook, Gradients* owner, PyObject* gradients) {
  Call* call = reinterpret_cast<Call*>(owner->running);
  Items items = items_of(*hook->edges, gradients);
  if (call->number >= 0 && !items.empty()) {
    std::string before = std::move(call->parts->outputs);
    call->parts->outputs.clear();
    const bool is_described = describe_results(self, call, std::move(items), {});
    join(before, call->parts->outputs);
    call->parts->outputs = std::move(before);
    if (!is_described) return false;
  }
  return --owner->left > 0 || end(self, owner);
}

// A leaf has its gradient.
bool accumulated(Recorder* self, PyObject* leaf) {
  const ThreadState& thread = thread_of(self);
  Ref made = thread ? begin_call(self, kFunction, g_accumulate, g_accumulate, false) : Ref();
  Ref path = made ? ask(reinterpret_cast<PyObject*>(self), g_parameter_path, leaf) : Ref();
  if (!path) return false;
  Call* call = as_call(made);
  put(call->thread, thread.text);
  put(call->node, g_accumulate_node);
  put(call->module, path.get());
  if (!decide(self, call, nullptr, true)) return !PyErr_Occurred();
  Items variable, results, written;
  variable.push_back({"variable", Ref::borrowed(leaf), true});
  if (!describe_inputs(self, call, variable)) return false;
  Ref gradient = members.grad.of(leaf);
  if (!gradient) return false;
  const bool is_tensor = gradient.get() != Py_None;
  results.push_back({"grad", Ref::borrowed(gradient.get()), is_tensor});
  if (is_tensor) written.push_back({"grad", std::move(gradient), true});
  return describe_results(self, call, std::move(results), written) && write(self, call, Py_None);
}

PyObject* call_hook(PyObject* object, PyObject* args, PyObject*) {
  ++moment();
  auto* hook = reinterpret_cast<Hook*>(object);
  const bool is_of_leaf = hook->when == When::kAccumulated;
  Ref held = Ref::borrowed(object), owner = Ref::borrowed(hook->owner);
  Recorder* self = of(is_of_leaf ? owner.get() : as_gradients(owner.get())->recorder);
  if (!self->active) Py_RETURN_NONE;
  PyObject* given = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : nullptr;
  if (!given || (!is_of_leaf && !PyTuple_Check(given))) {
    PyErr_SetString(PyExc_TypeError, "a hook is given gradients");
    return nullptr;
  }
  Ref recorder = Ref::borrowed(reinterpret_cast<PyObject*>(self));
  Aside aside(self);
  if (!aside || !is_ready(self)) return nullptr;
  if (is_of_leaf) return none_if(accumulated(self, given));
  Gradients* gradients = as_gradients(owner.get());
  if (!gradients->running && !begin(self, gradients)) return nullptr;
  if (hook->when == When::kAfter) return none_if(went_out(self, hook, gradients, given));
  Ref call = Ref::borrowed(gradients->running);
  return none_if(came_in(self, hook, as_call(call), given));
}

// --- types ------------------------------------------------------------------------------------------------------
constexpr PyObject* Gradients::* kObjects[] = {&Gradients::recorder, &Gradients::op, &Gradients::module,
                                               &Gradients::unit, &Gradients::running};

int traverse_gradients(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  for (auto member : kObjects) Py_VISIT(as_gradients(object)->*member);
  return 0;
}

int clear_gradients(PyObject* object) {
  for (auto member : kObjects) Py_CLEAR(as_gradients(object)->*member);
  return 0;
}

void dealloc_gradients(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear_gradients(object);
  delete as_gradients(object)->stem;
  release_memory(object);
}

int traverse_hook(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<Hook*>(object)->owner);
  return 0;
}

int clear_hook(PyObject* object) {
  Py_CLEAR(reinterpret_cast<Hook*>(object)->owner);
  return 0;
}

void dealloc_hook(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear_hook(object);
  Py_CLEAR(reinterpret_cast<Hook*>(object)->node);
  delete reinterpret_cast<Hook*>(object)->edges;
  release_memory(object);
}

PyType_Slot g_gradients_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_gradients)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_gradients)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_gradients)},
    {Py_tp_doc, const_cast<char*>("The gradients that pass the nodes of one call.")},
    {0, nullptr},
};
PyType_Slot g_hook_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(call_hook)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_hook)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_hook)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_hook)},
    {Py_tp_doc, const_cast<char*>("A hook of a node or a leaf of the autograd graph.")},
    {0, nullptr},
};
constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
PyType_Spec g_gradients_spec = {"libmaca_ffi._recorder.RecordedGradients", sizeof(Gradients), 0, kFlags,
                                g_gradients_slots};
PyType_Spec g_hook_spec = {"libmaca_ffi._recorder.RecordedHook", sizeof(Hook), 0, kFlags, g_hook_slots};

bool name_all() {
  return intern_names({{&g_name, "name"},
                       {&g_sequence, "_sequence_nr"},
                       {&g_task_begins, "task_begins"},
                       {&g_nodes_of, "nodes_of"},
                       {&g_parameter_path, "parameter_path"},
                       {&g_accumulate, "torch.autograd.AccumulateGrad"},
                       {&g_accumulate_node, "AccumulateGrad"}});
}

}  // namespace

bool name_of_node(PyObject* node, std::string& name) {
  Ref text(PyObject_CallMethodObjArgs(node, g_name, nullptr));
  if (!text || !append_text(name, text.get())) return false;
  if (name.rfind(kAutograd, 0) == 0) name.erase(0, std::strlen(kAutograd));
  return true;
}

Ref new_hook(PyObject* owner, When when, std::vector<Edge> edges, PyObject* node) {
  Ref object(allocate(g_hook_type));
  if (!object) return object;
  auto* hook = reinterpret_cast<Hook*>(object.get());
  hook->owner = Ref::borrowed(owner).release();
  hook->node = Ref::borrowed(node).release();
  hook->when = when;
  hook->edges = new std::vector<Edge>(std::move(edges));
  return object;
}

bool is_hook_of(PyObject* hook, PyObject* owner) {
  return Py_TYPE(hook) == g_hook_type && reinterpret_cast<Hook*>(hook)->owner == owner;
}

Ref new_gradients(Recorder* self, Call* call, size_t nodes) {
  std::string stem = call->parts->name;
  if (stem.size() > 4 && stem.compare(stem.size() - 4, 4, ".fwd") == 0) stem.resize(stem.size() - 4);
  Ref object(allocate(g_gradients_type));
  if (!object) return object;
  Gradients* made = as_gradients(object.get());
  made->recorder = Ref::borrowed(reinterpret_cast<PyObject*>(self)).release();
  made->stem = new std::string(std::move(stem));
  made->op = Ref::borrowed(call->op).release();
  made->module = Ref::borrowed(call->module).release();
  made->stack = call->stack;
  made->unit = Ref::borrowed(call->unit).release();
  made->number = call->number;
  made->serial = call->serial;
  made->matched = call->matched;
  made->nodes = made->left = static_cast<int>(nodes);
  made->task = -1;
  return object;
}

Ref begin_backward_operator(Recorder* self, const ThreadState& thread, PyObject* node, PyObject* packet, PyObject* op) {
  Ref made = begin_call(self, kOperator, packet, op, false);
  std::string text;
  if (!made || !name_of_node(node, text)) return Ref();
  Call* call = as_call(made);
  Ref node_name(new_text(text)), number(PyObject_CallMethodObjArgs(node, g_sequence, nullptr));
  if (!node_name || !number) return Ref();
  put(call->node, node_name.get());
  // numbers are counted in each thread
  Ref nodes = self->threads <= 1 ? Ref::borrowed(thread.nodes)
                                 : ask(reinterpret_cast<PyObject*>(self), g_nodes_of, thread.thread, node);
  if (!nodes) return Ref();
  int is_too_large = 0;  // as of nodes that gather a leaf's gradient
  const long long sequence = PyLong_AsLongLongAndOverflow(number.get(), &is_too_large);
  const NodeFacts* facts = is_too_large || !is_nodes(nodes.get()) ? nullptr : node_facts(nodes.get(), sequence);
  if (PyErr_Occurred()) return Ref();
  if (facts) {
    call->forward = facts->call;
    call->stack = facts->stack;
    const auto outer = self->backward->running.find(facts->function);
    if (outer != self->backward->running.end() && outer->second->running)
      take_over(call, reinterpret_cast<Call*>(outer->second->running), true);
    decide_as(self, call, facts->matched, facts->is_unit ? Py_True : Py_False);
  } else {
    decide(self, call, nullptr, true);
  }
  return complete_stack(self, call) ? std::move(made) : Ref();
}

bool flush_backward(Recorder* self, long long task) {
  std::vector<Ref> left;
  for (const auto& [serial, gradients] : self->backward->running)
    if (task < 0 || gradients->task == task) left.push_back(Ref::borrowed(reinterpret_cast<PyObject*>(gradients)));
  std::sort(left.begin(), left.end(),
            [](const Ref& a, const Ref& b) { return as_gradients(a.get())->serial > as_gradients(b.get())->serial; });
  for (const Ref& gradients : left)
    if (!end(self, as_gradients(gradients.get()))) return false;
  return true;
}

void forget_backward(Recorder* self) {
  std::unordered_map<long long, Gradients*> gone;
  gone.swap(self->backward->running);
  self->backward->tasks.clear();
  for (const auto& [serial, gradients] : gone) Py_DECREF(reinterpret_cast<PyObject*>(gradients));
}

bool add_recording_backward(PyObject*) {
  g_gradients_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_gradients_spec));
  g_hook_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_hook_spec));
  return g_gradients_type && g_hook_type && name_all();
}

}  // namespace maca::recorder
