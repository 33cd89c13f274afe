// RecordedNodes: which forward call made an autograd node, by its sequence number: PyTorch counts nodes in each thread.
// And the operators that such a node runs in backward.
#include "recorder.h"

#include <algorithm>
#include <string_view>

namespace maca::recorder {
namespace {

struct Nodes {
  PyObject_HEAD long long last;  // the number of nodes when the last one was added
  std::vector<NodeFacts>* made;  // by their sequence numbers; a dictionary would take five times the memory
};

PyTypeObject* g_type = nullptr;
PyObject *g_name, *g_sequence, *g_nodes_of, *g_decide_backward;

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = allocate(type);
  if (self) reinterpret_cast<Nodes*>(self)->made = new std::vector<NodeFacts>;
  return self;
}

void dealloc(PyObject* object) {
  delete reinterpret_cast<Nodes*>(object)->made;
  release_memory(object);
}

PyObject* size(PyObject* self, void*) { return PyLong_FromSize_t(reinterpret_cast<Nodes*>(self)->made->size()); }

PyGetSetDef g_properties[] = {
    {"size", size, nullptr, "How many there are.", nullptr},
    {},
};

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_getset, g_properties},
    {Py_tp_doc, const_cast<char*>("RecordedNodes()\n\nWhich forward call made an autograd node.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._recorder.RecordedNodes", sizeof(Nodes), 0, Py_TPFLAGS_DEFAULT, g_slots};

}  // namespace

bool is_nodes(PyObject* object) { return Py_TYPE(object) == g_type; }

void note_node(PyObject* object, long long count, const Call* call, const Call* function) {
  auto* self = reinterpret_cast<Nodes*>(object);
  if (count == self->last) return;  // autograd makes an operator's node before it lets it run: it made none
  self->last = count;
  self->made->push_back({count - 1, call->number, function ? function->serial : -1, call->stack, call->matched != 0,
                         call->unit == Py_True});
}

namespace {

const NodeFacts* node_facts(PyObject* object, long long sequence) {
  const std::vector<NodeFacts>& made = *reinterpret_cast<Nodes*>(object)->made;
  const auto found = std::lower_bound(made.begin(), made.end(), sequence,
                                      [](const NodeFacts& facts, long long wanted) { return facts.sequence < wanted; });
  return found == made.end() ? nullptr : &*found;
}

// As the forward operator was. False with an exception, too.
bool decide_as(Recorder* self, Call* call, const NodeFacts& facts) {
  if (self->takes_all) return decide(self, call, nullptr, true);
  return static_cast<bool>(ask(reinterpret_cast<PyObject*>(self), g_decide_backward, object_of(call),
                               facts.matched ? Py_True : Py_False, facts.is_unit ? Py_True : Py_False));
}

}  // namespace

Ref begin_backward_operator(Recorder* self, const ThreadState& thread, PyObject* node, PyObject* packet, PyObject* op) {
  constexpr std::string_view kAutograd = "torch::autograd::";  // of PyTorch's own nodes
  Ref made = begin_call(self, kOperator, packet, op, false), name(PyObject_CallMethodObjArgs(node, g_name, nullptr));
  std::string text;
  if (!made || !name || !append_text(text, name.get())) return Ref();
  if (text.rfind(kAutograd, 0) == 0) name = Ref(new_text(text.substr(kAutograd.size())));
  Call* call = as_call(made);
  Ref number(name ? PyObject_CallMethodObjArgs(node, g_sequence, nullptr) : nullptr);
  if (!number) return Ref();
  put(call->node, name.get());
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
    Ref serial(PyLong_FromLongLong(facts->function));
    PyObject* outer = serial ? PyDict_GetItemWithError(self->running, serial.get()) : nullptr;
    if (outer && is_call(outer)) take_over(call, reinterpret_cast<Call*>(outer), true);
    decide_as(self, call, *facts);
  } else {
    decide(self, call, nullptr, true);
  }
  if (PyErr_Occurred() || (call->number >= 0 && call->stack < 0 && !note_stack(self, call))) return Ref();
  return made;
}

bool add_recording_nodes(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return g_type &&
         intern_names({{&g_name, "name"},
                       {&g_sequence, "_sequence_nr"},
                       {&g_nodes_of, "nodes_of"},
                       {&g_decide_backward, "decide_backward"}}) &&
         PyModule_AddObjectRef(module, "RecordedNodes", reinterpret_cast<PyObject*>(g_type)) == 0;
}

}  // namespace maca::recorder
