// RecordedCalls: the base of the recorder. A call as it begins and ends, where it is what most are.
#pragma once
#include <unordered_map>

#include "recording.h"

namespace maca::recorder {

enum Level { kFunction = 0, kOperator = 1 };

// macatensor.accuracy.recording.operators.Operator: it lives as long as the process.
struct Operator {
  PyObject *packet, *op, *run;
  PyObject* written;  // positions and names of arguments
  int is_random, is_collective, is_pending, is_wait, is_recorded, is_blank;
};

struct Recorder {
  PyObject_HEAD PyObject *lock, *numbers, *serials, *counts_forward, *counts_backward, *pending, *describer, *writer,
      *stacks;
  unsigned long long epoch;  // no other recorder's, and a new one when all is forgotten
  long long written;
  int threads;  // of the program that have been met
  char active, takes_all, has_stacks, has_inputs, has_outputs, has_tensors;

  static constexpr PyObject* Recorder::* kObjects[] = {
      &Recorder::lock,           &Recorder::numbers,         &Recorder::serials,
      &Recorder::counts_forward, &Recorder::counts_backward, &Recorder::pending,
      &Recorder::describer,      &Recorder::writer,          &Recorder::stacks};
  int traverse(visitproc visit, void* arg) {
    for (auto member : kObjects) Py_VISIT(this->*member);
    return 0;
  }
  void clear() {
    for (auto member : kObjects) Py_CLEAR(this->*member);
  }
  void release() { clear(); }
};

inline Recorder* of(PyObject* object) { return reinterpret_cast<Recorder*>(object); }
inline PyObject* object_of(Call* call) { return reinterpret_cast<PyObject*>(call); }

// The recorder's lock, and nothing of what it asks of tensors is a call of the program, until the end of the scope.
class Aside {
 public:
  explicit Aside(Recorder* self, long modes = Plainly::kUnknown) : lock_(self->lock), plainly_(modes) {}
  explicit operator bool() const { return lock_.is_taken && plainly_; }  // false with an exception

 private:
  struct Locked {
    explicit Locked(PyObject* lock);
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    ~Locked();
    Ref held;  // a threading.RLock
    bool is_taken;
  };
  Locked lock_;
  Plainly plainly_;
};

bool is_recorder(PyObject* object);
bool is_ready(Recorder* self);
// What the calling thread is doing: a macatensor.accuracy.recording.threads.Thread and what it holds, while the
// recorder lives. Without a thread: an exception.
struct ThreadState {
  unsigned long long epoch = 0;
  PyObject *thread = nullptr, *open = nullptr, *text = nullptr;
  long long nodes = 0;  // of the autograd graph that the thread had made when the last operator began
  explicit operator bool() const { return thread != nullptr; }
};
ThreadState& thread_of(Recorder* self);
// How much of the program this thread's modes and hooks have seen: nothing else ran while it stays the same.
unsigned long long& moment();
// The innermost call that is open, or null.
Ref last_of(const ThreadState& thread);
Call* as_call(const Ref& object);
bool is_function(const Ref& call);  // of PyTorch's interface; false of null
// The name of an operator's next call: with how many came before. False with an exception.
bool name_of(Recorder* self, PyObject* op, bool is_forward, std::string& name);
// A call of the operator; null with an exception.
Ref begin_call(Recorder* self, Level level, PyObject* op, PyObject* full_op, bool is_forward);
// Is the call recorded? It gets its number if so. False with an exception, too.
bool decide(Recorder* self, Call* call, PyObject* parent, bool is_unit);
bool note_stack(Recorder* self, Call* call);
bool look_at_pending(Recorder* self);
bool save(Recorder* self);
bool describe_inputs(Recorder* self, Call* call, const Items& items, MetTensors* met, Use use);
// What was returned and, of what was written, the rest.
bool describe_results(Recorder* self, Call* call, Items items, const Items& written, MetTensors* met,
                      bool has_numbers = true);
bool write(Recorder* self, Call* call, PyObject* error);
// 1, 0, or -1 with an exception
int is_true(PyObject* function);
// Nodes that made the arguments, which of a node's results each is, its place.
bool note_nodes(Call* call);
void take_over(Call* call, Call* parent, bool with_module);
PyObject* none_if(bool is_right);
bool check_call(PyObject* call);

// `error` is what was raised, or None; `modes` are as Plainly's. A call, or None when the operator is none that is
// recorded; null with an exception.
PyObject* begin_function(Recorder* self, PyObject* op, PyObject* args, PyObject* kwargs, long modes);
bool end_function(Recorder* self, PyObject* call, PyObject* result, PyObject* error, long modes);
PyObject* begin_operator(Recorder* self, const Operator& facts, PyObject* args, PyObject* kwargs, long modes);
bool end_operator(Recorder* self, PyObject* call, const Operator& facts, PyObject* args, PyObject* kwargs,
                  PyObject* result, PyObject* error, long modes);
const Operator* facts_of(PyObject* func);  // of an overload; nullptr with an exception

// Methods of RecordedCalls.
PyObject* api_begins_method(PyObject* object, PyObject* given);
PyObject* api_ends_method(PyObject* object, PyObject* given);
PyObject* operator_begins(PyObject* object, PyObject* given);
PyObject* operator_ends(PyObject* object, PyObject* given);

}  // namespace maca::recorder
