// ViewCall: the base of the launchers of views. A view that was made before is one look-up and one new wrapper.
#include "cached_call.h"

namespace maca_launcher {
namespace {

// The cache: from a signature to a view (Meta, offset from the base's, sizes, strides, dtype, is it plain?), or to
// ([views], None, None, None, None, are all plain?).

// The signature (Meta, *arguments); lists, of sizes and dimensions, become tuples.
PyObject* signature(PyObject* meta, PyObject* args) {
  return new_tuple(PyTuple_Size(args), [&](Py_ssize_t i) {
    PyObject* value = i == 0 ? meta : PyTuple_GetItem(args, i);
    return PyList_CheckExact(value) ? PyList_AsTuple(value) : Ref::borrowed(value).release();
  });
}

// A view of what `payload` lies in.
PyObject* make_view(PyObject* payload, PyObject* view) {
  Ref offset(PyNumber_Add(PyTuple_GetItem(payload, 1), PyTuple_GetItem(view, 1)));
  if (!offset) return nullptr;
  Ref make(PyTuple_Pack(8, known.tensor, PyTuple_GetItem(view, 2), PyTuple_GetItem(view, 3),
                        offset.get() == known.zero ? Py_None : offset.get(), Py_None, PyTuple_GetItem(view, 4),
                        known.strided, known.device));
  if (!make) return nullptr;
  return new_tensor(make.get(), Ref::borrowed(PyTuple_GetItem(payload, 0)).release(), offset.get(),
                    PyTuple_GetItem(view, 0));
}

PyObject* make_views(PyObject* payload, PyObject* views) {
  return new_list(PyList_Size(views), [&](Py_ssize_t i) { return make_view(payload, PyList_GetItem(views, i)); });
}

// Must a view be made outside of inference mode? There a view of a normal tensor could not have a version counter.
bool is_normal_in_inference(PyObject* base) {
  Ref inference(PyObject_CallFunctionObjArgs(known.in_inference, nullptr));
  if (!inference || inference.get() != Py_True) return false;
  Ref same(PyObject_CallMethodObjArgs(base, known.is_inference_name, nullptr));
  return same && same.get() != Py_True;
}

// The view, when it was made before and nothing about it is special; nullptr, maybe without an exception, otherwise.
PyObject* known_view(PyObject* cache, PyObject* args) {
  PyObject* base = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : nullptr;
  if (!base || reinterpret_cast<PyObject*>(Py_TYPE(base)) != known.tensor) return nullptr;
  Ref payload(PyObject_GetAttr(base, known.payload_name));
  if (!payload || !memory_of(payload.get())) return nullptr;
  Ref key(signature(PyTuple_GetItem(payload.get(), 2), args));
  if (!key) return nullptr;
  Ref found = Ref::borrowed(PyDict_GetItemWithError(cache, key.get()));
  if (!found) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear();  // an argument that cannot be part of a key
    return nullptr;
  }
  if (PyTuple_GetItem(found.get(), 5) != Py_True) return nullptr;
  if (is_normal_in_inference(base) || PyErr_Occurred()) return nullptr;
  PyObject* views = PyTuple_GetItem(found.get(), 0);
  return PyList_Check(views) ? make_views(payload.get(), views) : make_view(payload.get(), found.get());
}

struct ViewCall : CachedCall {
  PyObject* run(PyObject* args, PyObject* kwargs) {
    if (is_empty(kwargs)) {
      PyObject* view = known_view(cache, args);
      if (view || PyErr_Occurred()) return view;
    }
    return general(args, kwargs);
  }
};

}  // namespace

bool add_view_call_type(PyObject* module) {
  return CachedCallType<ViewCall>::add(module, "libmaca_ffi._launcher.ViewCall",
                                       "ViewCall(cache)\n\nCalled with (args, kwargs) of an operator. A subclass has "
                                       "general(args, kwargs) for what the cache does not know.");
}

Run direct_view_call(PyObject* launcher) { return CachedCallType<ViewCall>::direct(launcher); }

}  // namespace maca_launcher
