// RecordedCalls: the base of the recorder. A call as it begins and ends, where it is what most are.
#pragma once
#include "recording.h"

namespace maca_launcher {

enum Level { kFunction = 0, kOperator = 1 };

// The members of macatensor.accuracy.recording.operators.Operator, in their order.
enum Fact {
  kPacket,
  kOp,
  kWritten,
  kWrittenNames,
  kIsRandom,
  kIsCollective,
  kIsPending,
  kIsWait,
  kIsRecorded,
  kIsBlank
};

struct Recorder {
  PyObject_HEAD PyObject *acquire, *release, *local, *numbers, *serials, *counts_forward, *counts_backward, *pending,
      *describer, *writer, *stacks;
  long long written;
  char active, takes_all, has_stacks, has_inputs, has_outputs, has_tensors;
};

// Names of attributes and of the recorder's methods in Python.
struct RecorderNames {
  PyObject *thread, *open, *text, *nodes, *last, *look, *decide, *fwd, *attach, *started, *error_text, *begin_files,
      *next_file, *save, *keep_random, *backward_operator, *add, *blank, *collective, *left;
};
extern RecorderNames names;

inline Recorder* of(PyObject* object) { return reinterpret_cast<Recorder*>(object); }
inline PyObject* object_of(Call* call) { return reinterpret_cast<PyObject*>(call); }

// What is done in Python.
template <class... Given> Ref ask(PyObject* object, PyObject* method, Given... given) {
  return Ref(Plainly::now() ? PyObject_CallMethodObjArgs(object, method, given..., nullptr) : nullptr);
}

inline Ref ask_torch(PyObject* function) { return Ref(PyObject_CallFunctionObjArgs(function, nullptr)); }

// The recorder's lock, and nothing of what it asks of tensors is a call of the program, until the end of the scope.
class Aside {
 public:
  explicit Aside(Recorder* self) : release_(Ref::borrowed(self->release)) {
    is_locked_ = plainly_ && Ref(PyObject_CallFunctionObjArgs(self->acquire, nullptr));
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  ~Aside() {
    if (!is_locked_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);  // what is raised goes on
    if (!Ref(PyObject_CallFunctionObjArgs(release_.get(), nullptr))) PyErr_WriteUnraisable(release_.get());
    PyErr_Restore(type, value, trace);
  }
  explicit operator bool() const { return is_locked_; }

 private:
  Ref release_;
  Plainly plainly_;
  bool is_locked_ = false;
};

bool is_recorder(PyObject* object);
bool is_ready(Recorder* self);
// The state of the calling thread: a macatensor.accuracy.recording.calls.Thread.
Ref thread_of(Recorder* self);
// The calls that are open in a thread; null with an exception.
Ref open_calls(PyObject* thread);
Ref last_of(PyObject* open);
Call* as_call(const Ref& object);
// The name of an operator's next call: with how many came before.
Ref name_of(Recorder* self, PyObject* op, bool is_forward);
// Is the call recorded? It gets its number if so. False with an exception, too.
bool decide(Recorder* self, Call* call, PyObject* parent, bool is_unit);
bool note_stack(Recorder* self, Call* call);
bool look_at_pending(Recorder* self);
bool save(Recorder* self);
bool describe_inputs(Recorder* self, Call* call, const Items& items);
bool describe_results(Recorder* self, Call* call, Items items, const Items& written);
bool write(Recorder* self, Call* call, PyObject* error);
// 1, 0, or -1 with an exception
int is_true(PyObject* function);
// Of a subclass that does not say, 0: what it forbids must not stop the program.
int requires_grad(PyObject* tensor);
// Nodes that made the arguments, which of a node's results each is, its place.
bool note_nodes(Call* call);
bool take_over(Call* call, Call* parent, bool with_module);
bool note_thread(Call* call, PyObject* thread);
PyObject* none_if(bool is_right);
bool check_call(PyObject* call);

// `error` is what was raised, or None. A call, or None when the operator is none that is recorded; null with an
// exception.
PyObject* begin_function(Recorder* self, PyObject* op, PyObject* args, PyObject* kwargs);
bool end_function(Recorder* self, PyObject* call, PyObject* result, PyObject* error);
PyObject* begin_operator(Recorder* self, PyObject* func, PyObject* args, PyObject* kwargs);
bool end_operator(Recorder* self, PyObject* call, PyObject* func, PyObject* args, PyObject* kwargs, PyObject* result,
                  PyObject* error);

// Methods of RecordedCalls.
PyObject* function_begins(PyObject* object, PyObject* given);
PyObject* function_ends(PyObject* object, PyObject* given);
PyObject* api_begins_method(PyObject* object, PyObject* given);
PyObject* api_ends_method(PyObject* object, PyObject* given);
PyObject* operator_begins(PyObject* object, PyObject* given);
PyObject* operator_ends(PyObject* object, PyObject* given);

}  // namespace maca_launcher
