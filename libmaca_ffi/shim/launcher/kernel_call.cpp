// KernelCall: the base of the launchers of kernels. Looks a call's signature up among the plans and launches.
#include <algorithm>

#include "cached_call.h"

namespace maca_launcher {
namespace {

// A signature, part by part.
class Parts {
 public:
  Parts() = default;
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    for (size_t i = 0; i < parts_.size(); ++i) Py_XDECREF(parts_[i]);
  }
  bool push(PyObject* owned) {  // false when there is none
    parts_.push(owned);
    return owned != nullptr;
  }
  // Has `key`, a tuple of as many, the same objects?
  bool are(PyObject* key) {
    for (size_t i = 0; i < parts_.size(); ++i)
      if (PyTuple_GetItem(key, static_cast<Py_ssize_t>(i)) != parts_[i]) return false;
    return true;
  }
  Py_ssize_t size() const { return static_cast<Py_ssize_t>(parts_.size()); }
  PyObject* tuple() {  // which takes them over
    return new_tuple(size(), [&](Py_ssize_t i) { return std::exchange(parts_[static_cast<size_t>(i)], nullptr); });
  }

 private:
  Few<PyObject*, 8> parts_;
};

// The cache: from a signature to a Program, or to a function of (arguments, payloads, numbers).
struct KernelCall : CachedCall {
  PyObject* roles_object;  // bytes, which hold
  char* roles;             // one letter an argument
  Py_ssize_t role_count;
  Py_ssize_t tensors_end;      // past the last argument that takes tensors
  int is_sized_by_numbers;     // the result's size may follow from the numbers: they are part of the signature
  PyObject *names, *defaults;  // tuples, of the arguments; None is a name under which C takes none
  PyObject* only;              // by the names of some arguments: the value that says nothing and is left out
  // The signature that was found last, and what for: most are the same objects again, which costs less to see than a
  // look-up. It holds while the cache has that size: whoever empties it leaves it to grow here.
  PyObject *last_key, *last_found;
  Py_ssize_t last_size;

  bool initialize(PyObject* args);
  int traverse(visitproc visit, void* arg) {
    Py_VISIT(last_key);
    Py_VISIT(last_found);
    return CachedCall::traverse(visit, arg);
  }
  void clear() {
    forget_last();
    CachedCall::clear();
  }
  void release() {
    Py_CLEAR(roles_object);
    Py_CLEAR(names);
    Py_CLEAR(defaults);
    Py_CLEAR(only);
    role_count = 0;
    clear();
  }
  void forget_last() {
    Py_CLEAR(last_key);
    Py_CLEAR(last_found);
  }
  Ref find_last(Parts& parts) {
    const bool is_last =
        last_key && PyDict_Size(cache) == last_size && PyTuple_Size(last_key) == parts.size() && parts.are(last_key);
    return is_last ? Ref::borrowed(last_found) : Ref();
  }
  void set_last(Ref key, PyObject* found) {
    Ref old_key(std::exchange(last_key, key.release()));
    put(last_found, found);
    last_size = PyDict_Size(cache);
  }
  PyObject* run(PyObject* args, PyObject* kwargs);
};

// What an argument is to a plan: the letters are the values of macatensor.dispatch.signature.Role.
enum Role : char { kTensor = 'T', kTensors = 'L', kOut = 'O', kScalar = 'N', kScalars = 'M', kStatic = 'S' };

bool is_number(PyObject* value) {
  return PyFloat_Check(value) || PyLong_Check(value) || PyComplex_Check(value);  // a bool is an int
}

PyObject* type_of(PyObject* value) { return Ref::borrowed(reinterpret_cast<PyObject*>(Py_TYPE(value))).release(); }

// A tensor that is not one of ours, or something that is none: Python says its key and its number, or the error.
PyObject* odd_operand(KernelCall* self, PyObject* value, PyObject* args, Operands& operands) {
  Ref pair(PyObject_CallMethod(self->object(), "odd_operand", "OO", value, args));
  if (!pair) return nullptr;
  PyObject* key = PyTuple_GetItem(pair.get(), 0);
  PyObject* number = key ? PyTuple_GetItem(pair.get(), 1) : nullptr;
  if (!number || !operands.add_number(Ref::borrowed(number))) return nullptr;
  return Ref::borrowed(key).release();
}

PyObject* maca_operand(PyObject* tensor, Operands& operands) {
  Ref payload(PyObject_GetAttr(tensor, known.payload_name));
  PyObject* const read = payload.get();
  if (!read || !operands.add(std::move(payload))) return nullptr;
  return Ref::borrowed(PyTuple_GetItem(read, 2)).release();
}

bool is_maca(PyObject* value) { return reinterpret_cast<PyObject*>(Py_TYPE(value)) == known.tensor; }

PyObject* tensor_operand(KernelCall* self, PyObject* value, PyObject* args, Operands& operands) {
  operands.add_absent();
  if (value == Py_None) return Ref::borrowed(value).release();
  if (!is_number(value)) return odd_operand(self, value, args, operands);
  return operands.add_number(Ref::borrowed(value)) ? type_of(value) : nullptr;
}

PyObject* list_operand(KernelCall* self, PyObject* values, PyObject* args, Operands& operands) {
  if (values == Py_None) {
    operands.add_absent();
    return Ref::borrowed(values).release();
  }
  return new_tuple(PySequence_Size(values), [&](Py_ssize_t i) -> PyObject* {
    Ref value(PySequence_GetItem(values, i));
    if (!value) return nullptr;
    if (is_maca(value.get())) return maca_operand(value.get(), operands);
    operands.add_absent();
    return value.get() == Py_None ? value.release() : odd_operand(self, value.get(), args, operands);
  });
}

PyObject* number_operand(KernelCall* self, PyObject* value, Operands& operands) {
  Ref key(self->is_sized_by_numbers ? static_key(value) : type_of(value));
  if (!key || value == Py_None) return key.release();
  // a 0-dim tensor where PyTorch takes a number
  Ref number(is_number(value) ? Ref::borrowed(value).release() : PyObject_CallMethod(value, "item", nullptr));
  return number && operands.add_number(std::move(number)) ? key.release() : nullptr;
}

PyObject* numbers_operand(PyObject* values, Operands& operands) {
  return new_tuple(PySequence_Size(values), [&](Py_ssize_t i) -> PyObject* {
    Ref value(PySequence_GetItem(values, i));
    if (!value) return nullptr;
    Ref kind(type_of(value.get()));
    return operands.add_number(std::move(value)) ? kind.release() : nullptr;
  });
}

PyObject* operand(KernelCall* self, char role, PyObject* value, PyObject* args, Operands& operands) {
  if (is_maca(value)) return maca_operand(value, operands);
  switch (role) {
    case kTensor:
    case kOut: return tensor_operand(self, value, args, operands);
    case kTensors: return list_operand(self, value, args, operands);
    case kScalar: return number_operand(self, value, operands);
    case kScalars: return numbers_operand(value, operands);
    default: return static_key(value);
  }
}

// Reads the signature of a call; fills in `operands`. False and an exception when it has none.
bool read(KernelCall* self, PyObject* args, Operands& operands, Parts& parts) {
  const char* const roles = self->roles;
  const Py_ssize_t role_count = self->role_count;
  const Py_ssize_t given = PyTuple_Size(args);
  for (Py_ssize_t i = 0; i < given; ++i)
    if (!parts.push(operand(self, i < role_count ? roles[i] : char{kStatic}, PyTuple_GetItem(args, i), args, operands)))
      return false;
  // PyTorch leaves out trailing arguments that have their default: absent tensors still take their place
  for (Py_ssize_t i = given; i < self->tensors_end; ++i)
    if (roles[i] == kTensor || roles[i] == kTensors) operands.add_absent();
  return true;
}

// A number that the result's element type may have no room for: Python asks PyTorch, once for each such number.
bool is_accepted(KernelCall* self, PyObject* program, PyObject* args, Operands& operands) {
  if (has_room(program, operands)) return true;
  Ref numbers(operands.numbers());
  if (!numbers) return false;
  return static_cast<bool>(Ref(PyObject_CallMethod(self->object(), "weigh", "OOO", program, args, numbers.get())));
}

PyObject* run_all(KernelCall* self, PyObject* args) {
  Operands operands;
  Parts parts;
  if (!read(self, args, operands, parts)) return nullptr;
  Ref found = self->find_last(parts);
  if (!found) {
    Ref key(parts.tuple());
    if (!key) return nullptr;
    found = Ref::borrowed(PyDict_GetItemWithError(self->cache, key.get()));
    if (found) {
      self->set_last(std::move(key), found.get());
    } else {
      if (PyErr_Occurred()) return nullptr;
      self->forget_last();
      found = Ref(PyObject_CallMethod(self->object(), "miss", "OO", key.get(), args));
      if (!found) return nullptr;
    }
  }
  if (is_program(found.get()))
    return is_accepted(self, found.get(), args, operands) ? run_program(found.get(), operands, args) : nullptr;
  Ref payloads(operands.payloads()), numbers(operands.numbers());
  if (!payloads || !numbers) return nullptr;
  return PyObject_CallFunctionObjArgs(found.get(), args, payloads.get(), numbers.get(), nullptr);
}

// Where an argument of that name stands; -1 where there is none that C takes by name. PyTorch makes the name anew for
// each call, so it is seldom the same object.
Py_ssize_t position_of(PyObject* names, PyObject* name) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(names); ++i) {
    PyObject* const known_name = PyTuple_GetItem(names, i);
    if (known_name == name || (known_name != Py_None && PyUnicode_Compare(known_name, name) == 0)) return i;
  }
  return -1;
}

// Is it what the result is anyway, such as its device? False also with an exception.
bool says_nothing(PyObject* wanted, PyObject* value) {
  return wanted == value || (Py_TYPE(wanted) == Py_TYPE(value) && PyObject_RichCompareBool(wanted, value, Py_EQ) == 1);
}

// Every argument in the schema's order, those left out with their default; none, maybe without an exception, where
// there is another name than those that C takes, or another value than the one that it takes there.
Ref filled(const KernelCall& self, PyObject* args, PyObject* kwargs) {
  const Py_ssize_t given = PyTuple_Size(args), count = PyTuple_Size(self.names);
  if (given > count || !PyDict_Check(kwargs)) return Ref();
  Ref full(new_tuple(count, [&](Py_ssize_t i) {
    return Ref::borrowed(PyTuple_GetItem(i < given ? args : self.defaults, i)).release();
  }));
  PyObject *name, *value;
  for (Py_ssize_t at = 0; full && PyDict_Next(kwargs, &at, &name, &value);) {
    PyObject* const wanted = self.only ? PyDict_GetItemWithError(self.only, name) : nullptr;
    if (wanted && says_nothing(wanted, value)) continue;
    if (wanted || PyErr_Occurred()) return Ref();
    const Py_ssize_t position = position_of(self.names, name);
    if (position < 0) return Ref();
    PyTuple_SetItem(full.get(), position, Ref::borrowed(value).release());
  }
  return full;
}

PyObject* KernelCall::run(PyObject* args, PyObject* kwargs) {
  if (!PyTuple_Check(args)) return general(args, kwargs);
  if (is_empty(kwargs)) return run_all(this, args);
  Ref full = filled(*this, args, kwargs);
  if (full) return run_all(this, full.get());
  return PyErr_Occurred() ? nullptr : general(args, kwargs);
}

bool KernelCall::initialize(PyObject* args) {
  PyObject *letters, *given, *taken, *left_out, *idle;
  if (!PyArg_ParseTuple(args, "SO!npO!O!O!:KernelCall", &letters, &PyDict_Type, &given, &tensors_end,
                        &is_sized_by_numbers, &PyTuple_Type, &taken, &PyTuple_Type, &left_out, &PyDict_Type, &idle))
    return false;
  if (PyTuple_Size(taken) != PyTuple_Size(left_out)) {
    PyErr_SetString(PyExc_ValueError, "every argument has a name and a default");
    return false;
  }
  put(roles_object, letters);
  put(names, taken);
  put(defaults, left_out);
  put(only, PyDict_Size(idle) ? idle : nullptr);
  if (PyBytes_AsStringAndSize(letters, &roles, &role_count)) return false;
  tensors_end = std::min(tensors_end, role_count);
  forget_last();
  return keep(given);
}

}  // namespace

bool add_kernel_call_type(PyObject* module) {
  return CachedCallType<KernelCall>::add(
      module, "libmaca_ffi._launcher.KernelCall",
      "KernelCall(roles, cache, tensors_end, is_sized_by_numbers, names, defaults, only)\n\nCalled with (args, "
      "kwargs) of an operator. A subclass has miss(key, args), which makes, remembers and returns what runs a "
      "signature; "
      "general(args, kwargs), for names that are not among `names`; odd_operand(value, args), the key and the number "
      "of what is no MacaTensor; and "
      "weigh(program, args, numbers), which raises where PyTorch has no room for a number in the result.");
}

Run direct_kernel_call(PyObject* launcher) { return CachedCallType<KernelCall>::direct(launcher); }

}  // namespace maca_launcher
