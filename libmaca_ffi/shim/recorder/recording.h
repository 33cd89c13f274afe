// What the accuracy recorder (macatensor/accuracy/recording) does at every call, as types of Python:
// `libmaca_ffi._recorder`.
//
// A GPT's training step is 2500 calls and 8000 entries of tensors. Here are the common cases:
// plain tensors and MacaTensors that were met before, numbers, lists of these.
// All else is asked of Python, of the functions that configure() is told.
//
// The bars are 1.3 times the plain step at level 0 and 2.0 at level 1, and two empty modes of PyTorch take 1.18 of a
// step on the CPU: 5 us are left for a call, of which one that Python does takes as much.
//   modes, recorder, functions, operators, call: every call as it begins and ends, and its line
//   containers, entries, text: what is said of it, of lists of tensors and plain values, numbers and strings
//   find, memories, members: which value a tensor has. That most functions are one operator with the same arguments is
//     some tenth of the recorder's own time at level 0 on the CPU (Met), and so is asking once whether
//     torch.jit.trace runs (Call::is_untraced)
//   stacks: what tells stacks apart, 0.1 us a frame; their numbers are Python's
// Python's are hooks of autograd nodes, measuring host tensors, which forward call an operator in backward belongs to,
// numbers of stacks, the file of lines, other containers and values, and what forms of tensors say. Against the plain
// step on one thread, in time of the processor, old and new in turn, a step takes on maca 1.11 at level 0 and 1.48 at
// level 1, on the CPU 1.18 and 1.56, where it took 1.09 and 1.42, 1.16 and 1.52 with all but the first two in C.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "launcher/dlpack_exchange.h"
#include "launcher/collected.h"

namespace maca::recorder {

using namespace maca_launcher;

// What configure() says: PyTorch's types and the recorder's functions.
struct KnownOfRecording : NamedObjects {
  PyObject* tensor = named("tensor", tensor);                        // torch.Tensor
  PyObject* parameter = named("parameter", parameter);               // torch.nn.Parameter
  PyObject* storage = named("storage", storage);                     // torch.UntypedStorage
  PyObject* exchange_capsule = named("exchange", exchange_capsule);  // torch.Tensor's, of DLPack, or None
  PyObject* plain_values = named("plain_values", plain_values);      // types whose values hold nothing
  PyObject* taken_apart = named("taken_apart", taken_apart);         // places and what is there of a container, or None
  PyObject* value_text = named("value_text", value_text);            // a value that is no tensor, as JSON
  PyObject* escaped = named("escaped", escaped);                     // a str as JSON
  PyObject* plainly = named("plainly", plainly);                     // torch._C.DisableTorchFunction
  PyObject* modes = named("modes", modes);                           // how many function modes are active
  PyObject* current_node = named("current_node", current_node);  // the autograd node that runs in this thread, or None
  PyObject* sequence = named("sequence", sequence);              // how many nodes this thread has made
  PyObject* is_grad_enabled = named("is_grad_enabled", is_grad_enabled);  // torch.is_grad_enabled
  PyObject* read_operator = named("read_operator", read_operator);        // the Operator of an overload
  PyObject* is_tracing = named("is_tracing", is_tracing);                 // torch.jit's tracing state, or None
  PyObject* names = named("names", names);  // a dict from a function to its name, or None: it computes nothing
  PyObject* read_name = named("read_name", read_name);  // the name of a function that is not among them
  // (recorder, func, name or None, args, kwargs): calls that are not C's
  PyObject* begin_and_end = named("begin_and_end", begin_and_end);
  PyObject* pop_mode = named("pop_mode", pop_mode);     // takes the last of this thread's function modes off
  PyObject* push_mode = named("push_mode", push_mode);  // puts one on
  const DlExchange* exchange = nullptr;                 // where there is one
};
extern KnownOfRecording recording;
bool is_configured();  // everything has been said; false with an exception

// What a function of C that takes no arguments does, or nullptr: it takes some, or is Python's.
inline PyCFunction plain_function(PyObject* function) {
  const bool is_one = Py_TYPE(function) == &PyCFunction_Type && PyCFunction_GetFlags(function) == METH_NOARGS;
  return is_one ? PyCFunction_GetFunction(function) : nullptr;
}

// Asks one of PyTorch's functions, without Python's way to it: that takes longer than most answers.
inline Ref ask_torch(PyObject* function) {
  const PyCFunction plain = plain_function(function);
  return Ref(plain ? plain(PyCFunction_GetSelf(function), nullptr) : PyObject_CallNoArgs(function));
}

// An attribute or a method that takes no arguments of a type that is not Python's, found once: with a model's memory in
// the caches finding one takes longer than what it does.
class Member {
 public:
  bool find(PyObject* type, const char* name);  // false with an exception
  explicit operator bool() const { return get_ != nullptr; }
  Ref of(PyObject* object) const {
    return Ref(get_(descriptor_, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
  }
  Ref call(PyObject* object);

 private:
  PyObject* descriptor_ = nullptr;
  descrgetfunc get_ = nullptr;
  PyCFunction plain_ = nullptr;  // what the method does, of one that has been called
};

struct TensorMembers {
  Member shape, dtype, device, version, requires_grad, grad_fn, output_nr;
  Member stride, is_neg, is_conj, untyped_storage, data_ptr;
  Member resizable;  // of the storage
  bool find(PyObject* tensor, PyObject* storage);
};
extern TensorMembers members;

inline bool is_tensor_type(PyTypeObject* type) {  // whose operators no subclass sees
  auto* object = reinterpret_cast<PyObject*>(type);
  return object == recording.tensor || object == known.tensor || object == recording.parameter;
}

// What is raised goes on after the scope, whatever is called in it.
class KeptError {
 public:
  KeptError() { PyErr_Fetch(&type_, &value_, &trace_); }
  KeptError(const KeptError&) = delete;
  KeptError& operator=(const KeptError&) = delete;
  ~KeptError() { PyErr_Restore(type_, value_, trace_); }

 private:
  PyObject *type_, *value_, *trace_;
};

// A scope in which nothing that is asked of tensors may be a call of the program. The guard is entered when the first
// question comes that a mode or a subclass could see, which most calls do not have: it takes as long as ten of them.
class Plainly {
 public:
  // `modes`: how many function modes are active, where the caller has asked; false with an exception
  explicit Plainly(long modes = kUnknown);
  Plainly(const Plainly&) = delete;
  Plainly& operator=(const Plainly&) = delete;
  ~Plainly();
  explicit operator bool() const { return is_right_; }
  static bool now();    // false with an exception; nothing outside of a scope, whose caller has a guard of its own
  static long modes();  // that are active; -1 with an exception
  static constexpr long kUnknown = -1;

 private:
  Plainly* outer_;
  Ref guard_;
  bool is_right_ = true;
};

// Names of what is asked of Python at most calls.
struct Names : NamedObjects {
  PyObject *fwd = named("fwd", fwd), *bwd = named("bwd", bwd);
  PyObject *acquire = named("acquire", acquire), *release = named("release", release);
  PyObject *enter = named("__enter__", enter), *leave = named("__exit__", leave);
  PyObject *node_made = named("node_made", node_made), *map = named("map", map), *write = named("write", write);
  PyObject* backward_operator = named("backward_operator", backward_operator);
};
extern Names names;

// What is done in Python.
template <class... Given> Ref ask(PyObject* object, const char* method, Given... given) {
  Ref bound(Plainly::now() ? PyObject_GetAttrString(object, method) : nullptr);
  return Ref(bound ? PyObject_CallFunctionObjArgs(bound.get(), given..., nullptr) : nullptr);
}

// --- text -----------------------------------------------------------------------------------------------------
// These return false with an exception set when Python raised one.
bool append_text(std::string& out, PyObject* text);             // as it is
bool append_string(std::string& out, const std::string& text);  // as a string of JSON
bool append_value(std::string& out, PyObject* value);           // as macatensor.accuracy.recording.describe.value_text
void append_number(std::string& out, long long number);
PyObject* new_text(const std::string& text);

// --- values ---------------------------------------------------------------------------------------------------
constexpr int kLevels = 2;                     // of calls: functions of Python's interface, and aten operators
using Calls = std::array<long long, kLevels>;  // their numbers; -1: none that was recorded
constexpr Calls kNoCalls = {-1, -1};
bool is_level(int level);  // false with an exception

// What is known of the elements that a view shows.
struct Value {
  Ref form;             // what tells views at one offset apart: sizes, strides and dtype
  long long version;    // how often PyTorch had counted a write
  bool is_unsettled;    // an in-place operator's result is met before PyTorch counts the write
  Calls made;           // the call whose result it is
  Ref numbers;          // of its elements and where these are kept, as text; null: not asked yet
  Ref text, grad_text;  // all that an entry says of it but who made it; of a tensor that requires a gradient
};

// An allocation that tensors share.
struct Memory {
  Ref reference;            // a weak one to the owner; none: that has gone
  long long writes = 0;     // as a Buffer counts them
  bool is_written = false;  // since the program's own counter was seen last
  bool is_blank = false;    // not written since it was allocated
  Calls last = kNoCalls;    // the call that wrote it last

  bool is_there() const { return static_cast<bool>(reference); }
  void forget();                               // nothing known of the elements holds any more
  void note_write();                           // unseen by PyTorch's own counter
  void written_by(int level, long long call);  // which no result tells of
  // The value of a view that begins at a place, as it is at this version; none with an exception.
  std::shared_ptr<Value> value_at(long long place, PyObject* form, long long version);

 private:
  struct View {
    long long place;
    std::shared_ptr<Value> value;
  };
  std::vector<View> views_;
};

// The allocations that were met and are still there, by the owner: what stands for an allocation as long as that is
// there, a Buffer or a storage of PyTorch's.
class Memories {
 public:
  Memories() : tables_(std::make_shared<Tables>()) {}
  std::shared_ptr<Memory> find(PyObject* owner) const;                  // none: it was not met
  std::shared_ptr<Memory> meet(PyObject* owner, long long writes = 0);  // now if it was not; none with an exception
  void clear();

 private:
  struct Tables {
    std::unordered_map<PyObject*, std::shared_ptr<Memory>> memories;
    std::unordered_map<PyObject*, PyObject*> owners;  // not held; by the weak reference
  };
  static PyObject* owner_gone(PyObject* tables, PyObject* reference);
  std::shared_ptr<Tables> tables_;
  Ref owner_gone_;  // as Python calls it
};

// --- containers -----------------------------------------------------------------------------------------------
struct Item {
  std::string place;  // "0", "weight", "0.1" inside of nesting
  Ref value;
  bool is_tensor;
  bool is_written = false;  // of results: it was there before
};
using Items = std::vector<Item>;
// Of a subclass, too; by its type, since what a mock says of its class is not what C may ask it.
inline bool is_tensor_object(PyObject* value) {
  return PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(recording.tensor));
}
bool append_pairs(PyObject* pairs, Items& items);  // of a list, [(place, value)]
bool flatten(PyObject* value, const std::string& place, Items& items);
bool flatten_call(PyObject* args, PyObject* kwargs, Items& items);
bool flatten_result(PyObject* result, Items& items);

// --- entries --------------------------------------------------------------------------------------------------
// What is known of a tensor's elements: nothing where nothing can be.
struct KnownValue {
  std::shared_ptr<Memory> memory;
  std::shared_ptr<Value> value;
  long long place = 0;        // in the memory, as value_at() is told
  bool has_gradient = false;  // requires one
};

// The tensors that a function was given, which it holds, and what was found of them. Most functions are one operator
// with the same arguments: while nothing else of the program runs, what was found holds.
struct Met {
  PyObject* tensor;
  KnownValue known;
};
using MetTensors = std::vector<Met>;

enum class Use {
  kNote,  // a function begins: what is found is noted
  kSame,  // its operator begins: nothing has changed
  kAgain  // the operator ends, which may have changed anything, or the function: what is found is noted anew
};

// A call whose arguments or results are described.
struct Described {
  int level = 0;
  long long call = -1;        // the call's number, of results
  MetTensors* met = nullptr;  // of a function, and what they are for
  Use use = Use::kNote;
  bool has_numbers = true;  // none yet of what is still computed
};

// `entries` is a RecordedEntries.
bool is_entries(PyObject* object);  // and has been initialized; an exception may be set when not
// These return false with an exception.
bool describe(PyObject* entries, std::string& out, const Items& items, const Described& described);
bool wrote(PyObject* entries, PyObject* tensor);
bool note_blank(PyObject* entries, PyObject* tensor);  // of memory that nobody has written

// --- calls ----------------------------------------------------------------------------------------------------
// What a call holds that is no object of Python's.
struct CallParts {
  Items tensors;  // among its arguments
  std::vector<long long> versions;
  MetTensors met;                           // of a function
  unsigned long long begun = 0, ended = 0;  // the moments when a function began, and when an operator of its own ended
  std::string name;                         // as in torch.relu.3.fwd
  std::string inputs, outputs;              // JSON; empty: not there
};
struct Call {  // RecordedCall
  PyObject_HEAD int level;
  int files;
  long long number, serial, parent, forward, stack;  // -1: none
  unsigned long long owner;
  char is_random, matched, has_modules;
  char in_backward;  // it began while a node of the graph ran in its thread
  char is_untraced;  // a function's, begun while torch.jit.trace does not run
  // None or what RecordedCall's members say
  PyObject *op, *direction, *module, *node, *thread, *unit, *grad_fns, *received;
  CallParts* parts;

  static constexpr PyObject* Call::* kObjects[] = {&Call::op,     &Call::direction, &Call::module,   &Call::node,
                                                   &Call::thread, &Call::unit,      &Call::grad_fns, &Call::received};
  int traverse(visitproc visit, void* arg) {
    for (auto member : kObjects) Py_VISIT(this->*member);
    if (!parts) return 0;
    for (const Item& item : parts->tensors) Py_VISIT(item.value.get());
    return 0;
  }
  void clear() {
    for (auto member : kObjects) Py_CLEAR(this->*member);
    const Items gone = parts ? std::exchange(parts->tensors, {}) : Items();
  }
  void release() {
    clear();
    delete parts;
  }
};
bool is_call(PyObject* object);
Call* new_call(int level, std::string name, PyObject* op, PyObject* direction);
// The call's line with its end; `error` is what was raised, as text, or None. False with an exception.
bool append_line(std::string& out, Call* call, PyObject* error);

// How often PyTorch counted a write to the tensor's memory: -1 of an inference tensor, which counts none.
bool version_of(PyObject* tensor, long long& version);
// 1, 0, or -1 with an exception; of a subclass that does not say, 0: what it forbids must not stop the program.
int requires_grad(PyObject* tensor);
bool note_versions(Call* call);                // of its tensors, as they are now
bool written_since(Call* call, Items& items);  // the tensors that were written since then
PyObject* pairs_of(const Items& items);        // [(place, value)]

bool add_recording_modes(PyObject* module);
bool add_recording_recorder(PyObject* module);
PyObject* stack_key(PyObject* module, PyObject*);

PyObject* flatten_call_function(PyObject* module, PyObject* args);

bool add_recording_entries(PyObject* module);
bool add_recording_call(PyObject* module);
PyObject* set_recorder(PyObject* module, PyObject* recorder);

}  // namespace maca::recorder
