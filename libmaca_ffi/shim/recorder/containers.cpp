// The tensors and values of a call by their places: "0", "weight", "0.1" inside of nesting. What is in a container that
// is not exactly a list, tuple or dict Python says.
#include "recording.h"

namespace maca::recorder {
namespace {

constexpr int kDepth = 6;  // of nested arguments that are looked into

bool is_plain_type(PyTypeObject* type) {
  if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || type == &PyUnicode_Type) return true;
  const int found = PySet_Contains(recording.plain_values, reinterpret_cast<PyObject*>(type));
  if (found < 0) PyErr_Clear();  // a metaclass that cannot be hashed
  return found > 0;
}

std::string within(const std::string& place, const std::string& name) {
  return place.empty() ? name : place + "." + name;
}

bool flatten(PyObject* value, const std::string& place, Items& items, int depth);

// What is in a list or tuple that is not whole itself; `size` is read again: Python's code may change a list.
bool flatten_sequence(PyObject* values, const std::string& place, Items& items, int depth) {
  const bool is_list = PyList_CheckExact(values);
  for (Py_ssize_t i = 0; i < (is_list ? PyList_Size(values) : PyTuple_Size(values)); ++i) {
    Ref value = Ref::borrowed(is_list ? PyList_GetItem(values, i) : PyTuple_GetItem(values, i));
    std::string inner = within(place, std::to_string(i));
    if (is_tensor_type(Py_TYPE(value.get())))
      items.push_back({std::move(inner), std::move(value), true});
    else if (!flatten(value.get(), inner, items, depth + 1))
      return false;
  }
  return true;
}

// The name of a key, which may be any object: one that has none goes by its type.
Ref name_of(PyObject* key) {
  Ref name(PyObject_Str(key));
  if (name || !PyErr_ExceptionMatches(PyExc_Exception)) return name;
  PyErr_Clear();
  return Ref(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(key)), "__name__"));
}

// `pairs` is a list of nobody else's.
bool flatten_pairs(PyObject* pairs, const std::string& place, Items& items, int depth) {
  for (Py_ssize_t i = 0; i < PyList_Size(pairs); ++i) {
    PyObject* pair = PyList_GetItem(pairs, i);
    Ref name = name_of(PyTuple_GetItem(pair, 0));
    std::string text;
    if (!name || !append_text(text, name.get())) return false;
    if (!flatten(PyTuple_GetItem(pair, 1), within(place, text), items, depth + 1)) return false;
  }
  return true;
}

bool flatten_dict(PyObject* values, const std::string& place, Items& items, int depth) {
  Ref pairs(PyDict_Items(values));
  return pairs && flatten_pairs(pairs.get(), place, items, depth);
}

// What Python finds in a container of another kind, which it may be.
bool flatten_other(PyObject* value, const std::string& place, Items& items, int depth) {
  Ref pairs(Plainly::now() ? PyObject_CallFunctionObjArgs(recording.held_by, value, nullptr) : nullptr);
  return pairs && (!PyList_CheckExact(pairs.get()) || flatten_pairs(pairs.get(), place, items, depth));
}

// The size is read again: the hash of a type may be Python's code.
bool has_only_plain(PyObject* values) {
  const bool is_list = PyList_CheckExact(values);
  for (Py_ssize_t i = 0; i < (is_list ? PyList_Size(values) : PyTuple_Size(values)); ++i)
    if (!is_plain_type(Py_TYPE(is_list ? PyList_GetItem(values, i) : PyTuple_GetItem(values, i)))) return false;
  return true;
}

bool flatten(PyObject* value, const std::string& place, Items& items, int depth) {
  PyTypeObject* type = Py_TYPE(value);
  const bool is_sequence = PyList_CheckExact(value) || PyTuple_CheckExact(value), is_dict = PyDict_CheckExact(value);
  bool is_tensor = is_tensor_type(type);
  const bool is_plain = is_tensor || is_plain_type(type);
  if (!is_plain && !is_sequence && !is_dict) is_tensor = is_tensor_object(value);
  if (is_tensor || is_plain) {
    items.push_back({place, Ref::borrowed(value), is_tensor});
    return true;
  }
  if (depth < kDepth && !(is_sequence && has_only_plain(value))) {
    const size_t before = items.size();
    const auto take_apart = is_sequence ? flatten_sequence : is_dict ? flatten_dict : flatten_other;
    if (!take_apart(value, place, items, depth)) return false;
    for (size_t i = before; i < items.size(); ++i)
      if (items[i].is_tensor) return true;
    items.resize(before);
  }
  items.push_back({place, Ref::borrowed(value), false});
  return true;
}

// How often PyTorch counted a write to the tensor's memory: -1 of an inference tensor, which counts none.
bool version_of(PyObject* tensor, long long& version) {
  if (!is_tensor_type(Py_TYPE(tensor)) && !Plainly::now()) return false;
  Ref found = members.version.of(tensor);
  version = found ? PyLong_AsLongLong(found.get()) : -1;
  if (version != -1 || !PyErr_Occurred()) return true;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();  // a subclass may forbid to ask
  return true;
}

}  // namespace

bool read_pair(PyObject* pair, std::string& place, PyObject*& held) {
  if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2 || !PyUnicode_Check(PyTuple_GetItem(pair, 0))) {
    PyErr_SetString(PyExc_TypeError, "expected pairs of a place, a str, and what is there");
    return false;
  }
  held = PyTuple_GetItem(pair, 1);
  return append_text(place, PyTuple_GetItem(pair, 0));
}

bool flatten_call(PyObject* args, PyObject* kwargs, Items& items) {
  const Py_ssize_t size = PyTuple_Check(args) ? PyTuple_Size(args) : -1;
  if (size < 0) {
    PyErr_SetString(PyExc_TypeError, "arguments are a tuple");
    return false;
  }
  items.reserve(items.size() + static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i)
    if (!flatten(PyTuple_GetItem(args, i), std::to_string(i), items, 0)) return false;
  return !kwargs || !PyDict_Check(kwargs) || PyDict_Size(kwargs) == 0 || flatten_dict(kwargs, "", items, -1);
}

bool flatten_result(PyObject* result, Items& items) {
  if (result == Py_None) return true;
  static const std::string first = "0";
  PyTypeObject* type = Py_TYPE(result);
  if (is_tensor_type(type) || is_plain_type(type)) return flatten(result, first, items, 0);
  const bool is_tensor = is_tensor_object(result);
  if (!is_tensor && !flatten(result, "", items, 0)) return false;
  for (const Item& item : items)
    if (item.is_tensor) return true;
  items.clear();
  items.push_back({first, Ref::borrowed(result), is_tensor});
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
