// RecordedNodes: which forward call made an autograd node, by its sequence number: PyTorch counts nodes in each thread.
#include "recorder.h"

#include <algorithm>

namespace maca::recorder {
namespace {

struct Nodes {
  PyObject_HEAD long long last;  // the number of nodes when the last one was added
  std::vector<NodeFacts>* made;  // by their sequence numbers; a dictionary would take five times the memory
};

PyTypeObject* g_type = nullptr;

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

const NodeFacts* node_facts(PyObject* object, long long sequence) {
  const std::vector<NodeFacts>& made = *reinterpret_cast<Nodes*>(object)->made;
  const auto found = std::lower_bound(made.begin(), made.end(), sequence,
                                      [](const NodeFacts& facts, long long wanted) { return facts.sequence < wanted; });
  return found == made.end() ? nullptr : &*found;
}

bool add_recording_nodes(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return g_type && PyModule_AddObjectRef(module, "RecordedNodes", reinterpret_cast<PyObject*>(g_type)) == 0;
}

}  // namespace maca::recorder
