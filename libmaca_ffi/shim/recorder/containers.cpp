// The tensors and values of a call by their places: "0", "weight", "0.1" inside of nesting. What is in a container that
// is not exactly a list or tuple of tensors and plain values Python says.
#include "recording.h"

namespace maca::recorder {
namespace {

bool is_plain_type(PyTypeObject* type) {
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || type == &PyUnicode_Type) return true;
  const int found = PySet_Contains(recording.plain_values, reinterpret_cast<PyObject*>(type));
  if (found < 0) PyErr_Clear();  // a metaclass that cannot be hashed
  return found > 0;
}

PyObject* item_of(PyObject* values, Py_ssize_t i) {
  return PyList_CheckExact(values) ? PyList_GetItem(values, i) : PyTuple_GetItem(values, i);
}

// Read again at every item: the hash of a type may be Python's code, which may change a list.
Py_ssize_t size_of(PyObject* values) { return PyList_CheckExact(values) ? PyList_Size(values) : PyTuple_Size(values); }

// What a list or tuple is that holds nothing but tensors of the usual types and plain values.
enum class Holds { kOthers, kPlain, kTensors };
Holds held_in(PyObject* values) {
  Holds held = Holds::kPlain;
  for (Py_ssize_t i = 0; i < size_of(values); ++i) {
    PyTypeObject* type = Py_TYPE(item_of(values, i));
    if (is_tensor_type(type))
      held = Holds::kTensors;
    else if (!is_plain_type(type))
      return Holds::kOthers;
  }
  return held;
}

}  // namespace

bool flatten(PyObject* value, const std::string& place, Items& items) {
  PyTypeObject* type = Py_TYPE(value);
  const bool is_tensor = is_tensor_type(type);
  const bool is_sequence = !is_tensor && (PyList_CheckExact(value) || PyTuple_CheckExact(value));
  const Holds held = is_sequence ? held_in(value) : Holds::kOthers;
  if (is_tensor || held == Holds::kPlain || (!is_sequence && (is_plain_type(type) || is_tensor_object(value)))) {
    items.push_back({place, Ref::borrowed(value), is_tensor || is_tensor_object(value)});
    return true;
  }
  if (held == Holds::kTensors) {
    for (Py_ssize_t i = 0; i < size_of(value); ++i) {
      Ref item = Ref::borrowed(item_of(value, i));
      const bool is = is_tensor_object(item.get());
      items.push_back({place.empty() ? std::to_string(i) : place + "." + std::to_string(i), std::move(item), is});
    }
    return true;
  }
  Ref name(new_text(place));
  Ref pairs(name && Plainly::now() ? PyObject_CallFunctionObjArgs(recording.taken_apart, name.get(), value, nullptr)
                                   : nullptr);
  if (!pairs || PyList_CheckExact(pairs.get())) return pairs && append_pairs(pairs.get(), items);
  items.push_back({place, Ref::borrowed(value), false});
  return true;
}

bool append_pairs(PyObject* pairs, Items& items) {
  for (Py_ssize_t i = 0; i < PyList_Size(pairs); ++i) {
    Ref pair = Ref::borrowed(PyList_GetItem(pairs, i));  // the list may change meanwhile
    const bool is_pair = PyTuple_Check(pair.get()) && PyTuple_Size(pair.get()) == 2;
    PyObject *name = is_pair ? PyTuple_GetItem(pair.get(), 0) : nullptr, *held;
    if (!name || !PyUnicode_Check(name)) {
      PyErr_SetString(PyExc_TypeError, "expected pairs of a place, a str, and what is there");
      return false;
    }
    held = PyTuple_GetItem(pair.get(), 1);
    std::string place;
    if (!append_text(place, name)) return false;
    items.push_back({std::move(place), Ref::borrowed(held), is_tensor_object(held)});
  }
  return true;
}

bool flatten_call(PyObject* args, PyObject* kwargs, Items& items) {
  const Py_ssize_t size = PyTuple_Check(args) ? PyTuple_Size(args) : -1;
  if (size < 0) {
    PyErr_SetString(PyExc_TypeError, "arguments are a tuple");
    return false;
  }
  items.reserve(items.size() + static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i)
    if (!flatten(PyTuple_GetItem(args, i), std::to_string(i), items)) return false;
  Ref named(kwargs && PyDict_Check(kwargs) && PyDict_Size(kwargs) ? PyDict_Copy(kwargs) : nullptr);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; named && PyDict_Next(named.get(), &at, &name, &value);) {
    std::string place;
    Ref text(PyObject_Str(name));
    if (!text || !append_text(place, text.get()) || !flatten(value, place, items)) return false;
  }
  return !PyErr_Occurred();
}

bool flatten_result(PyObject* result, Items& items) {
  if (result == Py_None) return true;
  if (!flatten(result, "", items)) return false;
  if (items.size() == 1 && items[0].place.empty()) items[0].place = "0";  // it is no container
  return true;
}

PyObject* pairs_of(const Items& items) {
  Ref list(PyList_New(0));
  for (size_t i = 0; list && i < items.size(); ++i) {
    Ref place(new_text(items[i].place));
    Ref pair(place ? PyTuple_Pack(2, place.get(), items[i].value.get()) : nullptr);
    if (!pair || PyList_Append(list.get(), pair.get())) return nullptr;
  }
  return list.release();
}

PyObject* flatten_call_function(PyObject*, PyObject* args) {
  PyObject *positional, *named;
  Items items;
  if (!is_configured() || !PyArg_ParseTuple(args, "OO:flatten_call", &positional, &named) ||
      !flatten_call(positional, named, items))
    return nullptr;
  return pairs_of(items);
}

bool version_of(PyObject* tensor, long long& version) {
  if (!is_tensor_type(Py_TYPE(tensor)) && !Plainly::now()) return false;
  Ref found = members.version.of(tensor);
  version = found ? PyLong_AsLongLong(found.get()) : -1;
  if (version != -1 || !PyErr_Occurred()) return true;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();  // a subclass may forbid to ask
  return true;
}

bool note_versions(Call* call) {
  const Items& tensors = call->parts->tensors;
  call->parts->versions.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!version_of(tensors[i].value.get(), call->parts->versions[i])) return false;
  return true;
}

bool written_since(Call* call, Items& items) {
  const CallParts& parts = *call->parts;
  for (size_t i = 0; i < parts.tensors.size() && i < parts.versions.size(); ++i) {
    const Item& item = parts.tensors[i];
    long long version;
    if (!version_of(item.value.get(), version)) return false;
    if (version != parts.versions[i]) items.push_back({item.place, Ref::borrowed(item.value.get()), true});
  }
  return true;
}

}  // namespace maca::recorder
