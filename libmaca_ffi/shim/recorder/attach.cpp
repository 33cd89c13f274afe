// A call that has returned: hooks on the nodes between its results and its arguments.
#include <algorithm>

#include "backward.h"

namespace maca::recorder {
namespace {

constexpr size_t kLimit = 1 << 14;  // nodes of one call; a longer one has no backward call of its own

PyObject *g_next_functions, *g_register_prehook, *g_register_hook, *g_metadata, *g_thread_key, *g_number, *g_variable,
    *g_parameters, *g_hooks_of_leaf, *g_watch;

bool is_watched(Recorder* self, PyObject* leaf, bool& is) {
  Ref hooks(PyObject_GetAttr(leaf, g_hooks_of_leaf));
  is = false;
  if (!hooks) return false;
  if (!PyDict_Check(hooks.get())) return true;
  PyObject *key, *hook;
  for (Py_ssize_t at = 0; PyDict_Next(hooks.get(), &at, &key, &hook);)
    is = is || is_hook_of(hook, reinterpret_cast<PyObject*>(self));
  return true;
}

// Records the gradient of a leaf each time it has been accumulated.
bool watch(Recorder* self, PyObject* leaf) {
  bool is = false;
  if (!is_watched(self, leaf, is)) return false;
  if (is) return true;
  auto* object = reinterpret_cast<PyObject*>(self);
  Ref hook = new_hook(object, When::kAccumulated, {}, Py_None);
  return hook && ask(object, g_watch, leaf, hook.get());
}

// The name by which a module or a call knows a leaf, or "".
bool place_of_leaf(Call* call, PyObject* parameters, PyObject* leaf, std::string& place) {
  PyObject *name, *held;
  for (Py_ssize_t at = 0; parameters && PyDict_Next(parameters, &at, &name, &held);)
    if (held == leaf) return append_text(place, name);
  const Items& tensors = call->parts->tensors;
  for (size_t i = tensors.size(); i-- > 0 && place.empty();)
    if (tensors[i].value.get() == leaf) place = tensors[i].place;
  return true;
}

struct Maker {  // a node that made one of the arguments
  PyObject* node;
  long long number;
  std::string place;
};

bool read_known(Call* call, std::vector<Maker>& known) {
  for (Py_ssize_t i = 0; call->grad_fns && i < PyList_Size(call->grad_fns); ++i) {
    PyObject* entry = PyList_GetItem(call->grad_fns, i);
    Maker one{PyTuple_GetItem(entry, 0), PyLong_AsLongLong(PyTuple_GetItem(entry, 1)), ""};
    if (!append_text(one.place, PyTuple_GetItem(entry, 2))) return false;
    known.push_back(std::move(one));
  }
  return !PyErr_Occurred();
}

struct Walk {
  std::vector<Ref> nodes;
  std::vector<std::vector<Edge>> going;   // of each node
  std::vector<std::vector<Edge>> coming;  // of the first ones, which made the results
};

// The nodes that made results and not arguments.
bool start(const Items& tensors, const std::vector<Maker>& known, Walk& walk) {
  std::vector<PyObject*> met;
  for (const Item& item : tensors) {
    PyObject* tensor = item.value.get();
    if (std::find(met.begin(), met.end(), tensor) != met.end()) continue;
    met.push_back(tensor);
    Ref node = members.grad_fn.of(tensor), number = node ? members.output_nr.of(tensor) : Ref();
    if (!number) return false;
    const auto is_same = [&](const Maker& one) { return one.node == node.get(); };
    if (node.get() == Py_None || std::any_of(known.begin(), known.end(), is_same)) continue;
    size_t at = 0;
    while (at < walk.nodes.size() && walk.nodes[at].get() != node.get()) ++at;
    if (at == walk.nodes.size()) {
      walk.nodes.push_back(std::move(node));
      walk.coming.emplace_back();
    }
    walk.coming[at].push_back({PyLong_AsLongLong(number.get()), item.place});
  }
  return !PyErr_Occurred();
}

// Where one edge of a node leads; a node that is not known yet joins the walk. False with an exception, too.
bool follow(Recorder* self, Call* call, PyObject* parameters, bool is_module, const std::vector<Maker>& known,
            Walk& walk, size_t from, PyObject* edge, long long index) {
  PyObject* following = PyTuple_GetItem(edge, 0);
  const auto has_been = [&](const Ref& node) { return node.get() == following; };
  if (!following || following == Py_None || std::any_of(walk.nodes.begin(), walk.nodes.end(), has_been)) return true;
  const long long number = PyLong_AsLongLong(PyTuple_GetItem(edge, 1));
  std::string place;
  bool is_argument = false;
  for (const Maker& one : known) {
    is_argument = is_argument || one.node == following;
    if (one.node == following && one.number == number) place = one.place;
  }
  const bool is_leaf = reinterpret_cast<PyObject*>(Py_TYPE(following)) == recording.accumulate;
  if (!is_argument && !is_leaf) {
    if (walk.nodes.size() < kLimit) walk.nodes.push_back(Ref::borrowed(following));
    return walk.nodes.size() < kLimit;
  }
  if (!is_argument) {
    Ref leaf(PyObject_GetAttr(following, g_variable));
    if (!leaf || !place_of_leaf(call, parameters, leaf.get(), place)) return false;
    if (!is_module && !watch(self, leaf.get())) return false;
  }
  if (place.empty()) {
    if (!name_of_node(walk.nodes[from].get(), place)) return false;
    place += "." + std::to_string(index);
  }
  walk.going[from].push_back({index, std::move(place)});
  return !PyErr_Occurred();
}

// False with an exception, or without one when the call is too long.
bool walk_on(Recorder* self, Call* call, PyObject* module, const std::vector<Maker>& known, Walk& walk) {
  const bool is_module = module != Py_None;
  Ref parameters(is_module ? PyObject_GetAttr(module, g_parameters) : nullptr);
  if (is_module && !parameters) return false;
  for (size_t i = 0; i < walk.nodes.size(); ++i) {
    Ref edges(PyObject_GetAttr(walk.nodes[i].get(), g_next_functions));
    if (!edges || !PyTuple_Check(edges.get())) return false;
    walk.going.emplace_back();
    for (Py_ssize_t k = 0; k < PyTuple_Size(edges.get()); ++k)
      if (!follow(self, call, parameters.get(), is_module, known, walk, i, PyTuple_GetItem(edges.get(), k), k))
        return false;
  }
  return true;
}

bool hook_all(Recorder* self, Gradients* gradients, Walk& walk) {
  auto* owner = reinterpret_cast<PyObject*>(gradients);
  Ref number;
  if (self->threads > 1) {
    const ThreadState& thread = thread_of(self);
    number = Ref(thread ? PyObject_GetAttr(thread.thread, g_number) : nullptr);
    if (!number) return false;
  }
  for (size_t i = 0; i < walk.nodes.size(); ++i) {
    PyObject* node = walk.nodes[i].get();
    if (i < walk.coming.size()) {
      std::string text;
      if (!name_of_node(node, text)) return false;
      Ref name(new_text(text)), hook = name ? new_hook(owner, When::kBefore, walk.coming[i], name.get()) : Ref();
      if (!hook || !Ref(PyObject_CallMethodObjArgs(node, g_register_prehook, hook.get(), nullptr))) return false;
    }
    Ref hook = new_hook(owner, When::kAfter, walk.going[i], Py_None);
    if (!hook || !Ref(PyObject_CallMethodObjArgs(node, g_register_hook, hook.get(), nullptr))) return false;
    if (!number) continue;
    Ref metadata(PyObject_GetAttr(node, g_metadata));
    if (!metadata || PyObject_SetItem(metadata.get(), g_thread_key, number.get())) return false;
  }
  return true;
}

}  // namespace

bool attach(Recorder* self, Call* call, const Items& tensors, PyObject* module) {
  std::vector<Maker> known;
  Walk walk;
  if (!read_known(call, known) || !start(tensors, known, walk)) return false;
  if (walk.nodes.empty()) return true;
  if (!walk_on(self, call, module, known, walk)) return !PyErr_Occurred();
  Ref gradients = new_gradients(self, call, walk.nodes.size());
  return gradients && hook_all(self, reinterpret_cast<Gradients*>(gradients.get()), walk);
}

bool add_recording_attach(PyObject*) {
  return intern_names({{&g_next_functions, "next_functions"},
                       {&g_register_prehook, "register_prehook"},
                       {&g_register_hook, "register_hook"},
                       {&g_metadata, "metadata"},
                       {&g_thread_key, "macatensor.thread"},
                       {&g_number, "number"},
                       {&g_variable, "variable"},
                       {&g_parameters, "_parameters"},
                       {&g_hooks_of_leaf, "_post_accumulate_grad_hooks"},
                       {&g_watch, "watch"}});
}

}  // namespace maca::recorder
