// BlankCall: the base of the launchers of operators that make uninitialized memory in the image of another tensor.
// Autograd makes one for every gradient that it keeps.
#include "cached_call.h"

namespace maca_launcher {
namespace {

// The signature (Meta, *arguments, *names and values of options).
PyObject* signature(PyObject* meta, PyObject* args, PyObject* kwargs) {
  const Py_ssize_t given = PyTuple_Size(args), options = is_empty(kwargs) ? 0 : PyDict_Size(kwargs);
  Ref key(PyTuple_New(given + 2 * options));
  if (!key) return nullptr;
  PyTuple_SetItem(key.get(), 0, Ref::borrowed(meta).release());
  for (Py_ssize_t i = 1; i < given; ++i) {
    PyObject* part = static_key(PyTuple_GetItem(args, i));
    if (!part) return nullptr;
    PyTuple_SetItem(key.get(), i, part);
  }
  Py_ssize_t at = given, position = 0;
  PyObject *name, *value;
  while (options && PyDict_Next(kwargs, &position, &name, &value)) {
    PyObject* part = static_key(value);
    if (!part) return nullptr;
    PyTuple_SetItem(key.get(), at++, Ref::borrowed(name).release());
    PyTuple_SetItem(key.get(), at++, part);
  }
  return key.release();
}

// The tensor, when one like it was made before; nullptr, maybe without an exception, otherwise.
PyObject* known_blank(PyObject* cache, PyObject* args, PyObject* kwargs) {
  PyObject* image = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : nullptr;
  if (!image || reinterpret_cast<PyObject*>(Py_TYPE(image)) != known.tensor) return nullptr;
  Ref is_deterministic(PyObject_CallNoArgs(known.is_deterministic));
  if (is_deterministic.get() != Py_False) return nullptr;  // there what is uninitialized is filled
  Ref payload(PyObject_GetAttr(image, known.payload_name));
  if (!payload || !memory_of(payload.get())) return nullptr;
  Ref key(signature(PyTuple_GetItem(payload.get(), 2), args, kwargs));
  if (!key) return nullptr;
  Ref found = Ref::borrowed(PyDict_GetItemWithError(cache, key.get()));  // (Meta, bytes, arguments of the wrapper)
  if (!found) return nullptr;
  Ref buffer(allocate(nullptr, PyTuple_GetItem(found.get(), 1)));
  if (!buffer || buffer.get() == Py_None) return nullptr;  // Python makes room, or tells how much there is
  return new_tensor(PyTuple_GetItem(found.get(), 2), buffer.release(), known.zero, PyTuple_GetItem(found.get(), 0));
}

struct BlankCall : CachedCall {
  PyObject* run(PyObject* args, PyObject* kwargs) {
    PyObject* blank = known_blank(cache, args, kwargs);
    return blank || PyErr_Occurred() ? blank : general(args, kwargs);
  }
};

}  // namespace

bool add_blank_call_type(PyObject* module) {
  return CachedCallType<BlankCall>::add(
      module, "libmaca_ffi._launcher.BlankCall",
      "BlankCall(cache)\n\nCalled with (args, kwargs) of an operator whose result is memory in "
      "the image of its first argument. A subclass has general(args, kwargs) for what the "
      "cache, from signatures to (Meta, bytes, arguments of the wrapper), does not know.");
}

Run direct_blank_call(PyObject* launcher) { return CachedCallType<BlankCall>::direct(launcher); }

}  // namespace maca_launcher
