// Tape: what a compiled program runs, with what its results are in Python.
#include "tape.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "launcher.h"
#include "program.h"
#include "shim.h"

namespace maca_launcher {
namespace {

// A result of the program.
struct Output {
  enum Kind : int { kNew, kArgument, kViewOfArgument, kConstant } kind;
  size_t index;    // of the memory that is made, or of the argument
  int64_t offset;  // elements from where that begins
  Ref make, meta;  // arguments of _make_wrapper_subclass; the constant
};

struct Argument {
  Ref meta;  // of a tensor; nullptr: a number, which is `number`, or varies
  Ref number;
  int64_t item;      // bytes of an element
  double low, high;  // between which it varies

  bool varies() const { return !meta && !number; }
  // Multiples of 1/2 mean something to some operators (powers, a factor of 1, a probability of 0): each has its own
  // tape.
  bool takes(double value) const { return low < value && value < high && value * 2 != std::rint(value * 2); }
};

struct Facts {
  maca_shim::Tape tape;
  std::vector<Argument> arguments;
  std::vector<Output> outputs;
  size_t varying = 0;  // numbers that each call gives
};

struct Tape {
  PyObject_HEAD Facts* facts;
};

PyTypeObject* g_type = nullptr;

Facts& facts_of(PyObject* self) { return *reinterpret_cast<Tape*>(self)->facts; }

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<Tape*>(allocate(type));
  if (self) self->facts = new Facts;
  return reinterpret_cast<PyObject*>(self);
}

void dealloc(PyObject* self) {
  delete reinterpret_cast<Tape*>(self)->facts;
  release_memory(self);
}

PyObject* input(PyObject* self, PyObject* nbytes) {
  const long long n = PyLong_AsLongLong(nbytes);
  if (n < 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an input has 0 bytes or more");
    return nullptr;
  }
  return new_buffer(facts_of(self).tape.input(n));
}

PyObject* begin(PyObject* self, PyObject*) {
  if (!facts_of(self).tape.begin()) {
    PyErr_SetString(PyExc_RuntimeError, "this thread's launches are captured already");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* end(PyObject* self, PyObject*) {
  facts_of(self).tape.end();
  Py_RETURN_NONE;
}

bool read_argument(PyObject* given, Argument& argument) {
  Ref item(PyObject_GetAttrString(given, "itemsize"));
  if (!item) {
    PyErr_Clear();
    if (PyTuple_CheckExact(given)) return PyArg_ParseTuple(given, "dd:range", &argument.low, &argument.high);
    argument.number = Ref::borrowed(given);
    return true;
  }
  argument.meta = Ref::borrowed(given);
  argument.item = PyLong_AsLongLong(item.get());
  return !PyErr_Occurred();
}

// give(memory): the payloads of stand-ins that each call makes anew and gives back
PyObject* give(PyObject* self, PyObject* memory) {
  std::vector<maca_buffer*> buffers;
  for (Py_ssize_t i = 0; i < PySequence_Size(memory); ++i) {
    Ref one(PySequence_GetItem(memory, i));
    maca_buffer* const buffer = one ? memory_of(one.get()) : nullptr;
    if (!buffer) return nullptr;
    buffers.push_back(buffer);
  }
  facts_of(self).tape.give(buffers.data(), buffers.size());
  Py_RETURN_NONE;
}

// steps() -> [(program's number or 0, scalars, [(stand-in, begin, end, writes), ...]), ...]
PyObject* steps(PyObject* self, PyObject*) {
  const maca_shim::Tape& tape = facts_of(self).tape;
  return new_list(static_cast<Py_ssize_t>(tape.steps()), [&](Py_ssize_t i) -> PyObject* {
    const auto step = static_cast<size_t>(i);
    const auto touched = tape.touched_by(step);
    PyObject* touches = new_list(static_cast<Py_ssize_t>(touched.size()), [&](Py_ssize_t k) {
      const auto& t = touched[static_cast<size_t>(k)];
      return Py_BuildValue("iLLO", static_cast<int>(t.place.stand_in), static_cast<long long>(t.place.offset),
                           static_cast<long long>(t.place.offset + t.bytes), t.writes ? Py_True : Py_False);
    });
    if (!touches) return nullptr;
    const maca_program* const program = tape.program_of(step);
    return Py_BuildValue("KIN", static_cast<unsigned long long>(program ? program->id : 0),
                         static_cast<unsigned int>(tape.scalars_of(step)), touches);
  });
}

PyObject* new_number(const maca_scalar& s) {
  switch (s.tag) {
    case MACA_SCALAR_BOOL: return PyBool_FromLong(s.value.integer != 0);
    case MACA_SCALAR_INT: return PyLong_FromLongLong(s.value.integer);
    case MACA_SCALAR_COMPLEX: return PyComplex_FromDoubles(s.value.real, s.imaginary);
    default: return PyFloat_FromDouble(s.value.real);
  }
}

// scalars() -> those of all steps
PyObject* scalars(PyObject* self, PyObject*) {
  const auto& all = facts_of(self).tape.scalars();
  return new_list(static_cast<Py_ssize_t>(all.size()),
                  [&](Py_ssize_t i) { return new_number(all[static_cast<size_t>(i)]); });
}

// vary(scalar, number)
PyObject* vary(PyObject* self, PyObject* args) {
  maca_shim::Tape& tape = facts_of(self).tape;
  Py_ssize_t scalar, number;
  if (!PyArg_ParseTuple(args, "nn:vary", &scalar, &number)) return nullptr;
  const auto i = static_cast<size_t>(scalar);
  if (scalar < 0 || i >= tape.scalars().size() || tape.scalars()[i].tag != MACA_SCALAR_FLOAT || number < 0) {
    PyErr_SetString(PyExc_IndexError, "a tape has no such scalar that is a float");
    return nullptr;
  }
  facts_of(self).varying = std::max(facts_of(self).varying, static_cast<size_t>(number) + 1);
  tape.vary(i, static_cast<size_t>(number));
  Py_RETURN_NONE;
}

PyObject* is_scratch(PyObject* self, PyObject* stand_in) {
  const long long index = PyLong_AsLongLong(stand_in);
  return index == -1 && PyErr_Occurred() ? nullptr : PyBool_FromLong(facts_of(self).tape.is_scratch(index));
}

bool read_fused(PyObject* given, const maca_shim::Tape& tape, maca_shim::Tape::Fused& fused) {
  PyObject *indices, *places;
  unsigned long long program;
  if (!PyArg_ParseTuple(given, "O!KO!:fused", &PyList_Type, &indices, &program, &PyList_Type, &places)) return false;
  fused.program = reinterpret_cast<maca_program*>(program);
  for (Py_ssize_t i = 0; i < PyList_Size(indices); ++i) {
    const long long index = PyLong_AsLongLong(PyList_GetItem(indices, i));
    if (index < 0 || static_cast<size_t>(index) >= tape.steps()) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "a tape has no such step");
      return false;
    }
    fused.steps.push_back(static_cast<size_t>(index));
  }
  for (Py_ssize_t i = 0; i < PyList_Size(places); ++i) {
    int stand_in;
    long long offset;
    if (!PyArg_ParseTuple(PyList_GetItem(places, i), "iL:place", &stand_in, &offset)) return false;
    fused.places.push_back({stand_in, offset});
  }
  if (fused.steps.empty() || static_cast<int32_t>(fused.places.size()) != fused.program->operands) {
    PyErr_SetString(PyExc_ValueError, "a fused launch has steps, and a place for each operand");
    return false;
  }
  return true;
}

// fuse([(steps, program's address, places), ...])
PyObject* fuse(PyObject* self, PyObject* list) {
  maca_shim::Tape& tape = facts_of(self).tape;
  std::vector<maca_shim::Tape::Fused> fused;
  for (Py_ssize_t i = 0; i < PySequence_Size(list); ++i) {
    Ref one(PySequence_GetItem(list, i));
    if (!one || !read_fused(one.get(), tape, fused.emplace_back())) return nullptr;
  }
  tape.fuse(fused);
  Py_RETURN_NONE;
}

// [(first, second), ...] of numbers below `count`
bool read_pairs(PyObject* list, size_t count, std::vector<std::pair<int32_t, int32_t>>& pairs) {
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    int first, second;
    if (!PyArg_ParseTuple(PyList_GetItem(list, i), "ii:heirs", &first, &second)) return false;
    const auto is_one = [&](int value) { return value >= 0 && static_cast<size_t>(value) < count; };
    if (!is_one(first) || !is_one(second)) {
      PyErr_SetString(PyExc_IndexError, "heirs are pairs of values");
      return false;
    }
    pairs.emplace_back(first, second);
  }
  return true;
}

// finish(arguments, outputs, heirs): see _launcher.pyi
PyObject* finish(PyObject* self, PyObject* args) {
  PyObject *arguments, *outputs, *pairs;
  if (!PyArg_ParseTuple(args, "O!O!O!:finish", &PyList_Type, &arguments, &PyList_Type, &outputs, &PyList_Type, &pairs))
    return nullptr;
  Facts& f = facts_of(self);
  std::vector<std::pair<int32_t, int32_t>> heirs;
  if (!read_pairs(pairs, f.tape.stand_ins(), heirs)) return nullptr;
  size_t tensors = 0;
  for (Py_ssize_t i = 0; i < PyList_Size(arguments); ++i) {
    Argument argument{};
    if (!read_argument(PyList_GetItem(arguments, i), argument)) return nullptr;
    tensors += static_cast<bool>(argument.meta);
    f.arguments.push_back(std::move(argument));
  }
  const auto varying =
      std::count_if(f.arguments.begin(), f.arguments.end(), [](const Argument& a) { return a.varies(); });
  if (tensors != f.tape.inputs() || static_cast<size_t>(varying) < f.varying) {
    PyErr_SetString(PyExc_ValueError,
                    "a tape has an input for each tensor among its arguments, and a number for each that varies");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyList_Size(outputs); ++i) {
    int kind;
    Py_ssize_t index;
    long long offset;
    PyObject *make, *meta;
    if (!PyArg_ParseTuple(PyList_GetItem(outputs, i), "inLOO:output", &kind, &index, &offset, &make, &meta))
      return nullptr;
    const auto limit = kind == Output::kNew ? f.tape.results() : f.arguments.size();
    if (kind != Output::kConstant && (index < 0 || static_cast<size_t>(index) >= limit)) {
      PyErr_SetString(PyExc_IndexError, "an output of a tape names memory or an argument that it does not have");
      return nullptr;
    }
    f.outputs.push_back({static_cast<Output::Kind>(kind), static_cast<size_t>(index), offset, Ref::borrowed(make),
                         Ref::borrowed(meta)});
  }
  std::vector<bool> kept;
  for (size_t i = 0; i < f.arguments.size(); ++i)
    if (f.arguments[i].meta)
      kept.push_back(std::any_of(f.outputs.begin(), f.outputs.end(), [&](const Output& o) {
        return o.index == i && (o.kind == Output::kArgument || o.kind == Output::kViewOfArgument);
      }));
  f.tape.finish(kept, heirs);
  Py_RETURN_NONE;
}

// Numbers bit by bit: -0.0 is another than 0.0, and a NaN is itself.
bool is_same_number(PyObject* one, PyObject* other) {
  if (one == other || Py_TYPE(one) != Py_TYPE(other)) return one == other;
  if (!PyFloat_CheckExact(one)) return PyObject_RichCompareBool(one, other, Py_EQ) == 1;
  return std::bit_cast<uint64_t>(PyFloat_AsDouble(one)) == std::bit_cast<uint64_t>(PyFloat_AsDouble(other));
}

// The arguments as a run takes them: false, maybe without an exception, where they are others than those recorded.
class Given {
 public:
  bool read(const Facts& f, PyObject* args) {
    if (PyList_Size(args) != static_cast<Py_ssize_t>(f.arguments.size())) return false;
    for (size_t i = 0; i < f.arguments.size(); ++i) {
      PyObject* const value = PyList_GetItem(args, static_cast<Py_ssize_t>(i));
      const Argument& wanted = f.arguments[i];
      if (wanted.varies()) {
        if (!PyFloat_CheckExact(value) || !wanted.takes(PyFloat_AsDouble(value))) return false;
        numbers.push_back(PyFloat_AsDouble(value));
        payloads.emplace_back();
        continue;
      }
      if (!wanted.meta) {
        if (!is_same_number(value, wanted.number.get())) return false;
        payloads.emplace_back();
        continue;
      }
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != known.tensor) return false;
      Ref payload(PyObject_GetAttr(value, known.payload_name));
      maca_buffer* const memory = payload ? memory_of(payload.get()) : nullptr;
      if (!memory || PyTuple_GetItem(payload.get(), 2) != wanted.meta.get()) return false;
      PyObject* const offset = PyTuple_GetItem(payload.get(), 1);
      const int64_t elements = offset == known.zero ? 0 : PyLong_AsLongLong(offset);
      if (elements == -1 && PyErr_Occurred()) return false;
      references.push_back({memory, elements * wanted.item});
      positions.push_back(static_cast<Py_ssize_t>(i));
      payloads.push_back(std::move(payload));
    }
    return true;
  }

  std::vector<maca_reference> references;  // offsets in bytes
  std::vector<double> numbers;             // those that vary
  // Lets go of a tensor: the list's reference may be the last one.
  void drop(PyObject* args, size_t tensor) {
    const Py_ssize_t i = positions[tensor];
    payloads[static_cast<size_t>(i)] = Ref();
    PyList_SetItem(args, i, Ref::borrowed(Py_None).release());
  }

  std::vector<Py_ssize_t> positions;  // of the tensors among the arguments
  std::vector<Ref> payloads;          // which hold the memory; of numbers none
};

// A tensor `offset` elements into memory, which it takes over.
PyObject* tensor_at(const Output& output, PyObject* buffer, int64_t offset) {
  if (offset == 0) return new_tensor(output.make.get(), buffer, known.zero, output.meta.get());
  Ref memory(buffer);
  Ref number(PyLong_FromLongLong(offset));
  if (!number) return nullptr;
  Ref make(new_tuple(PyTuple_Size(output.make.get()), [&](Py_ssize_t i) {
    return Ref::borrowed(i == 3 ? number.get() : PyTuple_GetItem(output.make.get(), i)).release();
  }));
  return make ? new_tensor(make.get(), memory.release(), number.get(), output.meta.get()) : nullptr;
}

PyObject* new_output(const Output& output, PyObject* args, const Given& given, const std::vector<Ref>& buffers) {
  switch (output.kind) {
    case Output::kArgument: return Ref::borrowed(PyList_GetItem(args, static_cast<Py_ssize_t>(output.index))).release();
    case Output::kConstant: return Ref::borrowed(output.make.get()).release();
    case Output::kViewOfArgument: {
      PyObject* const payload = given.payloads[output.index].get();
      const int64_t begins = PyLong_AsLongLong(PyTuple_GetItem(payload, 1));
      return tensor_at(output, Ref::borrowed(PyTuple_GetItem(payload, 0)).release(), begins + output.offset);
    }
    default: return tensor_at(output, Ref::borrowed(buffers[output.index].get()).release(), output.offset);
  }
}

// tape(arguments): empties the list as it goes. The results, or NotImplemented where the arguments are others than
// those that were recorded.
PyObject* call(PyObject* self, PyObject* args, PyObject*) {
  PyObject* arguments;
  if (!PyArg_ParseTuple(args, "O!:Tape", &PyList_Type, &arguments)) return nullptr;
  Facts& f = facts_of(self);
  Given given;
  if (!given.read(f, arguments)) return PyErr_Occurred() ? nullptr : Ref::borrowed(Py_NotImplemented).release();
  std::vector<maca_buffer*> results(f.tape.results());
  const char* kernel = "a compiled program";
  const int status = f.tape.run(
      given.references.data(), given.numbers.data(), results.data(),
      [&](size_t tensor) { given.drop(arguments, tensor); }, &kernel);
  std::vector<Ref> buffers;
  for (maca_buffer* memory : results) buffers.emplace_back(memory ? new_buffer(memory) : nullptr);
  if (status != MACA_OK) {
    Ref error(PyObject_CallFunction(known.failure, "is", status, kernel));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
    return nullptr;
  }
  return new_list(static_cast<Py_ssize_t>(f.outputs.size()), [&](Py_ssize_t i) {
    return new_output(f.outputs[static_cast<size_t>(i)], arguments, given, buffers);
  });
}

// owns(payload): is that memory a stand-in of this tape's?
PyObject* owns(PyObject* self, PyObject* payload) {
  maca_buffer* const memory = memory_of(payload);
  return memory ? PyBool_FromLong(facts_of(self).tape.owns(*memory)) : nullptr;
}

PyObject* launches(PyObject* self, void*) { return PyLong_FromLongLong(facts_of(self).tape.launches()); }
PyObject* scratch_bytes(PyObject* self, void*) { return PyLong_FromLongLong(facts_of(self).tape.scratch_bytes()); }

PyMethodDef g_methods[] = {
    {"input", input, METH_O, "input(nbytes): the stand-in of the next input's memory."},
    {"begin", begin, METH_NOARGS, "begin(): this thread's launches are recorded from here on."},
    {"end", end, METH_NOARGS, "end(): they run again."},
    {"owns", owns, METH_O, "owns(payload): is that memory a stand-in?"},
    {"give", give, METH_O, "give(memory): payloads of stand-ins that each call makes anew and gives back."},
    {"steps", steps, METH_NOARGS, "steps(): what was recorded."},
    {"scalars", scalars, METH_NOARGS, "scalars(): of all steps."},
    {"vary", vary, METH_VARARGS, "vary(scalar, number): each call gives it, as its number."},
    {"is_scratch", is_scratch, METH_O, "is_scratch(stand_in): is it neither an input nor given back?"},
    {"fuse", fuse, METH_O, "fuse(fused): steps become one launch."},
    {"finish", finish, METH_VARARGS, "finish(arguments, outputs, heirs): what a call takes and gives."},
    {},
};

PyGetSetDef g_properties[] = {
    {"launches", launches, nullptr, "Kernels that a call launches.", nullptr},
    {"scratch_bytes", scratch_bytes, nullptr, "Bytes that a call needs beside inputs and results.", nullptr},
    {},
};

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {Py_tp_methods, g_methods},
    {Py_tp_getset, g_properties},
    {Py_tp_doc, const_cast<char*>("Launches that are recorded once and run again in other memory.")},
    {0, nullptr},
};

}  // namespace

// plan_memory(values, heirs): see _launcher.pyi
PyObject* plan_memory(PyObject*, PyObject* args) {
  PyObject *given, *pairs;
  if (!PyArg_ParseTuple(args, "O!O!:plan_memory", &PyList_Type, &given, &PyList_Type, &pairs)) return nullptr;
  std::vector<maca_shim::MemoryPlan::Value> values;
  for (Py_ssize_t i = 0; i < PyList_Size(given); ++i) {
    long long bytes, born, died;
    int is_result;
    if (!PyArg_ParseTuple(PyList_GetItem(given, i), "LLLp:value", &bytes, &born, &died, &is_result)) return nullptr;
    values.push_back({bytes, born, died, is_result != 0});
  }
  std::vector<std::pair<int32_t, int32_t>> heirs;
  if (!read_pairs(pairs, values.size(), heirs)) return nullptr;
  const maca_shim::MemoryPlan plan(values, heirs);
  Ref homes(new_list(static_cast<Py_ssize_t>(plan.homes.size()), [&](Py_ssize_t i) {
    const auto& home = plan.homes[static_cast<size_t>(i)];
    return Py_BuildValue("iL", static_cast<int>(home.piece), static_cast<long long>(home.offset));
  }));
  Ref pieces(new_list(static_cast<Py_ssize_t>(plan.pieces.size()), [&](Py_ssize_t i) {
    const auto& piece = plan.pieces[static_cast<size_t>(i)];
    return Py_BuildValue("LLLi", static_cast<long long>(piece.bytes), static_cast<long long>(piece.born),
                         static_cast<long long>(piece.died), static_cast<int>(piece.result));
  }));
  if (!homes || !pieces) return nullptr;
  return Py_BuildValue("OOL", homes.get(), pieces.get(), static_cast<long long>(plan.scratch_bytes));
}

bool add_tape_type(PyObject* module) {
  g_type = add_type(module, {"libmaca_ffi._launcher.Tape", sizeof(Tape), 0, Py_TPFLAGS_DEFAULT, g_slots});
  return g_type != nullptr;
}

}  // namespace maca_launcher
