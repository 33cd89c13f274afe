// Backward calls: what recording_attach.cpp, which hooks nodes, and recording_backward.cpp, the hooks, share.
#pragma once
#include "recorder.h"

namespace maca::recorder {

// One of the gradients that a node is given or returns, and what it is the gradient of.
struct Edge {
  long long index;
  std::string place;
};

// The gradients that pass the nodes of one call, and what the backward call takes over from that forward call.
struct Gradients {
  PyObject_HEAD PyObject *recorder, *op, *module, *unit;
  PyObject* running;  // the backward call, or null
  std::string* stem;  // of the call's name
  long long number, serial, stack, task;
  char matched;
  int nodes, left;  // left: those that have not run yet
};

enum class When { kBefore, kAfter, kAccumulated };

// `node`: its name, of a hook before it. Null with an exception.
Ref new_hook(PyObject* owner, When when, std::vector<Edge> edges, PyObject* node);
bool is_hook_of(PyObject* hook, PyObject* owner);
Ref new_gradients(Recorder* self, Call* call, size_t nodes);
// A node's name without the namespace of PyTorch's own.
bool name_of_node(PyObject* node, std::string& name);

}  // namespace maca::recorder
