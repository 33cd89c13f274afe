// Program: a plan of the library that can be called, with what its results are in Python.
#include "launcher.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "program.h"
#include "shim.h"

namespace maca_launcher {
namespace {

struct Result {
  Ref make;  // arguments of _make_wrapper_subclass; none: the result is None
  Ref meta;
};

// Which numbers surely fit into every element type that a program writes; macatensor.dispatch.plan.room_for_scalars.
struct Room {
  double low = -HUGE_VAL, high = HUGE_VAL;
  int is_integral = 0;  // no room for NaN and infinities
  int is_real = 0;      // none for imaginary parts

  bool fits(double value) const { return (value >= low && value <= high) || (!is_integral && !std::isfinite(value)); }
  bool fits(const maca_scalar& scalar) const {
    switch (scalar.tag) {
      case MACA_SCALAR_BOOL: return true;
      case MACA_SCALAR_INT: return fits(static_cast<double>(scalar.value.integer));
      case MACA_SCALAR_COMPLEX:
        return fits(scalar.value.real) && fits(scalar.imaginary) && (!is_real || scalar.imaginary == 0);
      default: return fits(scalar.value.real);
    }
  }
};

struct Facts {
  maca_program* program = nullptr;
  Room room;
  Ref keep;  // what destroys it
  Ref operator_name;
  std::vector<Result> results;  // that each launch allocates, and those that are None
  std::vector<int64_t> lists;   // for each result of the operator: -1 for a tensor, else the length of the list
  size_t wanted = 0;            // results that are in `lists`; nobody sees the others
  bool is_one = false;          // one tensor and nothing else
  bool repeats_first = false;   // the first operand is the result as well
  bool writes_only = false;
  std::vector<Py_ssize_t> returned;  // positions of the arguments that are the operator's results
  std::vector<size_t> order;         // which of the given operands the plan takes, in its order; empty: as they come
};

struct Program {
  PyObject_HEAD Facts* facts;
};

PyTypeObject* g_type = nullptr;
PyObject* g_observer = Py_None;

Facts& facts_of(PyObject* program) { return *reinterpret_cast<Program*>(program)->facts; }

void dealloc(PyObject* object) {
  delete reinterpret_cast<Program*>(object)->facts;
  release_memory(object);
}

PyObject* fail(const Facts& f, int status) {
  Ref number(PyLong_FromLong(status));
  if (!number) return nullptr;
  Ref error(PyObject_CallFunctionObjArgs(known.failure, number.get(), f.operator_name.get(), nullptr));
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return nullptr;
}

// The arguments of _make_wrapper_subclass for a tensor at offset 0: None, since reading a number takes it 0.15 us.
PyObject* make_arguments(PyObject* meta) {
  Ref size(PyObject_GetAttrString(meta, "size"));
  Ref stride(PyObject_GetAttrString(meta, "stride"));
  Ref dtype(PyObject_GetAttrString(meta, "dtype"));
  if (!size || !stride || !dtype) return nullptr;
  return PyTuple_Pack(8, known.tensor, size.get(), stride.get(), Py_None, Py_None, dtype.get(), known.strided,
                      known.device);
}

template <class Number> bool read_numbers(PyObject* values, std::vector<Number>& numbers) {
  for (Py_ssize_t i = 0; i < PySequence_Size(values); ++i) {
    Ref value(PySequence_GetItem(values, i));
    if (!value) return false;
    numbers.push_back(static_cast<Number>(PyLong_AsLongLong(value.get())));
  }
  return !PyErr_Occurred();
}

// Sets what the operator returns: written arguments, or new tensors in the shape of `lists`.
bool read_results(Facts& f, PyObject* metas, PyObject* lists, PyObject* returned) {
  for (Py_ssize_t i = 0; i < PySequence_Size(metas); ++i) {
    Ref meta(PySequence_GetItem(metas, i));
    if (!meta) return false;
    const bool is_none = meta.get() == Py_None;
    Ref make(is_none ? nullptr : make_arguments(meta.get()));
    if (!is_none && !make) return false;
    f.results.push_back({std::move(make), std::move(meta)});
  }
  f.writes_only = returned != Py_None;
  if (!read_numbers(lists, f.lists) || (f.writes_only && !read_numbers(returned, f.returned))) return false;
  for (const int64_t n : f.lists) f.wanted += n < 0 ? 1 : static_cast<size_t>(n);
  f.wanted = std::min(f.wanted, f.results.size());
  f.is_one = f.wanted == 1 && f.results[0].make && f.lists.size() == 1 && f.lists[0] == -1;
  return !PyErr_Occurred();
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *keep, *handle, *name, *metas, *lists, *returned, *order;
  int repeats_first = 0;
  Room room;
  if (!PyArg_ParseTuple(args, "OOOOOOpO(ddpp):Program", &keep, &handle, &name, &metas, &lists, &returned,
                        &repeats_first, &order, &room.low, &room.high, &room.is_integral, &room.is_real))
    return nullptr;
  void* program = PyLong_AsVoidPtr(handle);
  if (!program && PyErr_Occurred()) return nullptr;
  Program* self = PyObject_New(Program, type);
  if (!self) return nullptr;
  self->facts = new Facts;
  Ref made(reinterpret_cast<PyObject*>(self));
  Facts& f = *self->facts;
  f.program = static_cast<maca_program*>(program);
  f.keep = Ref::borrowed(keep);
  f.operator_name = Ref::borrowed(name);
  f.repeats_first = repeats_first != 0;
  f.room = room;
  return read_results(f, metas, lists, returned) && read_numbers(order, f.order) ? made.release() : nullptr;
}

int other_operands() { return maca_shim::misuse("the launch brings other operands than its plan was made for"); }

int hand_over(const Facts& f, Operands& operands, Few<maca_reference, 8>& references) {
  size_t next = 0;
  const int32_t count = f.program->operands;
  const size_t given = f.order.empty() ? operands.references.size() : f.order.size();
  for (int32_t i = 0; i < count; ++i) {
    const bool is_given = !f.program->allocates(i) && next < given;
    const size_t at = is_given && !f.order.empty() ? f.order[next] : next;
    if (is_given && at >= operands.references.size()) return other_operands();
    next += is_given;
    references.push(is_given ? operands.references[at] : maca_reference{nullptr, 0});
  }
  if (next != given) return other_operands();
  for (const maca_scalar& scalar : f.program->defaults) operands.scalars.push(scalar);
  return maca_shim::launch_program(*f.program, references.data(), operands.scalars.data(), operands.scalars.size());
}

// Tells whoever watches launches: the operator, the kernel, the algorithm that the library chose.
bool tell(const Facts& f) {
  const char* const chosen = f.program->info.implementation ? f.program->info.implementation : "";
  return static_cast<bool>(Ref(
      PyObject_CallFunction(g_observer, "OsN", f.operator_name.get(), f.program->kernel,
                            PyUnicode_DecodeUTF8(chosen, static_cast<Py_ssize_t>(std::strlen(chosen)), "replace"))));
}

// Launches with `operands`; `references` then has the memory of every operand. False and an exception where it failed.
bool launch(const Facts& f, Operands& operands, Few<maca_reference, 8>& references) {
  if (g_observer != Py_None && !tell(f)) return false;
  const int status = hand_over(f, operands, references);
  return status == MACA_OK || fail(f, status);
}

// The memory of allocated results, in order; what nobody takes is released.
class Made {
 public:
  Made(const Facts& f, Few<maca_reference, 8>& references) : f_(f), references_(references) {}
  ~Made() {
    while (maca_buffer* buffer = next()) maca_buffer_release(buffer);
  }
  maca_buffer* next() {
    while (at_ < static_cast<int32_t>(references_.size())) {
      const int32_t i = at_++;
      if (f_.program->allocates(i)) return references_[static_cast<size_t>(i)].buffer;
    }
    return nullptr;
  }

 private:
  const Facts& f_;
  Few<maca_reference, 8>& references_;
  int32_t at_ = 0;
};

PyObject* new_result(const Result& result, Made& made) {
  if (!result.make) return Ref::borrowed(Py_None).release();
  maca_buffer* memory = made.next();
  PyObject* buffer = memory ? new_buffer(memory) : nullptr;
  return buffer ? new_tensor(result.make.get(), buffer, known.zero, result.meta.get()) : nullptr;
}

// The first `count` new tensors in a flat list.
PyObject* flat_results(const Facts& f, Made& made, size_t count) {
  return new_list(static_cast<Py_ssize_t>(count),
                  [&](Py_ssize_t i) { return new_result(f.results[static_cast<size_t>(i)], made); });
}

PyObject* shaped_results(const Facts& f, Made& made) {
  if (f.is_one) return new_result(f.results[0], made);
  Ref flat(flat_results(f, made, f.wanted));
  if (!flat) return nullptr;
  Py_ssize_t at = 0;
  Ref shaped(new_tuple(static_cast<Py_ssize_t>(f.lists.size()), [&](Py_ssize_t i) {
    const auto n = static_cast<Py_ssize_t>(f.lists[static_cast<size_t>(i)]);
    const Py_ssize_t begin = std::exchange(at, at + (n < 0 ? 1 : n));
    return n < 0 ? Ref::borrowed(PyList_GetItem(flat.get(), begin)).release() : PyList_GetSlice(flat.get(), begin, at);
  }));
  if (!shaped || f.lists.size() > 1) return shaped.release();
  return Ref::borrowed(f.lists.empty() ? Py_None : PyTuple_GetItem(shaped.get(), 0)).release();
}

PyObject* returned_arguments(const Facts& f, PyObject* args) {
  const auto at = [&](Py_ssize_t i) {
    return Ref::borrowed(PyTuple_GetItem(args, f.returned[static_cast<size_t>(i)])).release();
  };
  if (f.returned.empty()) return Ref::borrowed(Py_None).release();
  return f.returned.size() == 1 ? at(0) : new_tuple(static_cast<Py_ssize_t>(f.returned.size()), at);
}

// Reads the two lists that Python brings.
bool read_operands(PyObject* payloads, PyObject* numbers, Operands& operands) {
  for (Py_ssize_t i = 0, n = PySequence_Size(payloads); i < n; ++i) {
    Ref payload(PySequence_GetItem(payloads, i));
    if (!payload || !operands.add(std::move(payload))) return false;
  }
  for (Py_ssize_t i = 0, n = PySequence_Size(numbers); i < n; ++i) {
    Ref number(PySequence_GetItem(numbers, i));
    if (!number || !operands.add_number(std::move(number))) return false;
  }
  return !PyErr_Occurred();
}

PyObject* call(PyObject* self, PyObject* args, PyObject*) {
  PyObject *arguments, *payloads, *numbers;
  Operands operands;
  if (!PyArg_ParseTuple(args, "O!OO:Program", &PyTuple_Type, &arguments, &payloads, &numbers) ||
      !read_operands(payloads, numbers, operands))
    return nullptr;
  return run_program(self, operands, arguments);
}

// launch(payloads, numbers) -> [tensor or None, ...]
PyObject* launch_method(PyObject* self, PyObject* args) {
  PyObject *payloads, *numbers;
  Operands operands;
  if (!PyArg_ParseTuple(args, "OO:launch", &payloads, &numbers) || !read_operands(payloads, numbers, operands))
    return nullptr;
  const Facts& f = facts_of(self);
  Few<maca_reference, 8> references;
  if (!launch(f, operands, references)) return nullptr;
  Made made(f, references);
  return flat_results(f, made, f.results.size());
}

// launch_into_buffer(payload) -> Buffer
PyObject* launch_into_buffer(PyObject* self, PyObject* payload) {
  const Facts& f = facts_of(self);
  Operands operands;
  if (!operands.add(Ref::borrowed(payload))) return nullptr;
  Few<maca_reference, 8> references;
  if (!launch(f, operands, references)) return nullptr;
  Made made(f, references);
  maca_buffer* memory = made.next();
  return memory ? new_buffer(memory) : fail(f, maca_shim::misuse("the plan has no result"));
}

PyMethodDef g_methods[] = {
    {"launch", launch_method, METH_VARARGS, "launch(payloads, numbers): the new tensors, in a flat list."},
    {"launch_into_buffer", launch_into_buffer, METH_O, "launch_into_buffer(payload): the first result's memory."},
    {},
};

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {Py_tp_methods, g_methods},
    {Py_tp_doc, const_cast<char*>("Program(keep, handle, operator, metas, lists, returned, repeats_first, order, "
                                  "room)\n\nCalled with (arguments, "
                                  "payloads, numbers): launches and returns what the operator returns.")},
    {0, nullptr},
};

}  // namespace

bool add_program_type(PyObject* module) {
  g_type = add_type(module, {"libmaca_ffi._launcher.Program", sizeof(Program), 0, Py_TPFLAGS_DEFAULT, g_slots});
  return g_type != nullptr;
}

PyObject* observe(PyObject*, PyObject* observer) {
  return std::exchange(g_observer, Ref::borrowed(observer).release());
}

PyObject* is_observed(PyObject*, PyObject*) { return PyBool_FromLong(g_observer != Py_None); }

bool is_program(PyObject* object) { return Py_TYPE(object) == g_type; }

bool has_room(PyObject* program, Operands& operands) {
  const Room& room = facts_of(program).room;
  for (size_t i = 0; i < operands.scalars.size(); ++i)
    if (!room.fits(operands.scalars[i])) return false;
  return !operands.has_wrapped;
}

PyObject* run_program(PyObject* program, Operands& operands, PyObject* args) {
  const Facts& f = facts_of(program);
  if (f.repeats_first) operands.repeat_first();
  Few<maca_reference, 8> references;
  if (!launch(f, operands, references)) return nullptr;
  if (f.writes_only) return returned_arguments(f, args);
  Made made(f, references);
  return shaped_results(f, made);
}

PyObject* new_tensor(PyObject* make, PyObject* buffer, PyObject* offset, PyObject* meta) {
  Ref memory(buffer);
  Ref tensor(PyObject_Call(known.make_wrapper, make, nullptr));
  if (!tensor) return nullptr;
  Ref payload(PyTuple_Pack(3, memory.get(), offset, meta));
  if (!payload || PyObject_SetAttr(tensor.get(), known.payload_name, payload.get())) return nullptr;
  return tensor.release();
}

}  // namespace maca_launcher
