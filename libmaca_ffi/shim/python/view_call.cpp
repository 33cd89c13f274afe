// ViewCall: the base of the launchers of views. A view that was made before is one look-up and one new wrapper.
#include "launcher.h"

namespace maca_launcher {
namespace {

struct ViewCall {
  PyObject_HEAD PyObject*
      cache;  // from a signature to a view (Meta, offset from the base's, sizes, strides, dtype, is it plain?), or to
              // ([views], None, None, None, None, are all plain?)
  int is_direct;  // no subclass has a __call__ of its own
};

PyTypeObject* g_type = nullptr;

// The signature (Meta, *arguments); lists, of sizes and dimensions, become tuples.
PyObject* signature(PyObject* meta, PyObject* args) {
  const Py_ssize_t n = PyTuple_Size(args);
  Ref key(PyTuple_New(n));
  if (!key) return nullptr;
  PyTuple_SetItem(key.get(), 0, Ref::borrowed(meta).release());
  for (Py_ssize_t i = 1; i < n; ++i) {
    PyObject* value = PyTuple_GetItem(args, i);
    PyObject* part = PyList_CheckExact(value) ? PyList_AsTuple(value) : Ref::borrowed(value).release();
    if (!part) return nullptr;
    PyTuple_SetItem(key.get(), i, part);
  }
  return key.release();
}

// A view of what `payload` lies in.
PyObject* make_view(PyObject* payload, PyObject* view) {
  Ref offset(PyNumber_Add(PyTuple_GetItem(payload, 1), PyTuple_GetItem(view, 1)));
  if (!offset) return nullptr;
  Ref make(PyTuple_Pack(8, known.tensor, PyTuple_GetItem(view, 2), PyTuple_GetItem(view, 3), offset.get(), Py_None,
                        PyTuple_GetItem(view, 4), known.strided, known.device));
  if (!make) return nullptr;
  return new_tensor(make.get(), Ref::borrowed(PyTuple_GetItem(payload, 0)).release(), offset.get(),
                    PyTuple_GetItem(view, 0));
}

PyObject* make_views(PyObject* payload, PyObject* views) {
  const Py_ssize_t n = PyList_Size(views);
  Ref list(PyList_New(n));
  for (Py_ssize_t i = 0; list && i < n; ++i) {
    PyObject* view = make_view(payload, PyList_GetItem(views, i));
    if (!view) return nullptr;
    PyList_SetItem(list.get(), i, view);
  }
  return list.release();
}

// Must a view be made outside of inference mode? There a view of a normal tensor could not have a version counter.
bool is_normal_in_inference(PyObject* base) {
  Ref inference(PyObject_CallFunctionObjArgs(known.in_inference, nullptr));
  if (!inference || inference.get() != Py_True) return false;
  Ref same(PyObject_CallMethodObjArgs(base, known.is_inference_name, nullptr));
  return same && same.get() != Py_True;
}

// The view, when it was made before and nothing about it is special; nullptr, maybe without an exception, otherwise.
PyObject* known_view(ViewCall* self, PyObject* args) {
  PyObject* base = PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : nullptr;
  if (!base || reinterpret_cast<PyObject*>(Py_TYPE(base)) != known.tensor) return nullptr;
  Ref payload(PyObject_GetAttr(base, known.payload_name));
  if (!payload || !memory_of(payload.get())) return nullptr;
  Ref key(signature(PyTuple_GetItem(payload.get(), 2), args));
  if (!key) return nullptr;
  Ref found = Ref::borrowed(PyDict_GetItemWithError(self->cache, key.get()));
  if (!found) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear();  // an argument that cannot be part of a key
    return nullptr;
  }
  if (PyTuple_GetItem(found.get(), 5) != Py_True) return nullptr;
  if (is_normal_in_inference(base) || PyErr_Occurred()) return nullptr;
  PyObject* views = PyTuple_GetItem(found.get(), 0);
  return PyList_Check(views) ? make_views(payload.get(), views) : make_view(payload.get(), found.get());
}

PyObject* run(ViewCall* self, PyObject* args, PyObject* kwargs) {
  if (is_empty(kwargs) && PyTuple_Check(args)) {
    PyObject* view = known_view(self, args);
    if (view || PyErr_Occurred()) return view;
  }
  return PyObject_CallMethod(reinterpret_cast<PyObject*>(self), "general", "OO", args, kwargs ? kwargs : Py_None);
}

PyObject* call(PyObject* self, PyObject* args, PyObject*) {
  PyObject *arguments, *options = nullptr;
  if (!PyArg_ParseTuple(args, "O|O:ViewCall", &arguments, &options)) return nullptr;
  return run(reinterpret_cast<ViewCall*>(self), arguments, options);
}

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = allocate(type);
  if (self)
    reinterpret_cast<ViewCall*>(self)->is_direct = PyType_GetSlot(type, Py_tp_call) == reinterpret_cast<void*>(call);
  return self;
}

int initialize(PyObject* object, PyObject* args, PyObject*) {
  auto* self = reinterpret_cast<ViewCall*>(object);
  PyObject* cache;
  if (!PyArg_ParseTuple(args, "O!:ViewCall", &PyDict_Type, &cache)) return -1;
  Ref old(self->cache);
  self->cache = Ref::borrowed(cache).release();
  return 0;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<ViewCall*>(object)->cache);
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<ViewCall*>(object)->cache);
  return 0;
}

void dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  release_memory(object);
}

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_init, reinterpret_cast<void*>(initialize)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {Py_tp_doc,
     const_cast<char*>("ViewCall(cache)\n\nCalled with (args, kwargs) of an operator. A subclass has general(args, "
                       "kwargs) for what the cache does not know.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._launcher.ViewCall", sizeof(ViewCall), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, g_slots};

}  // namespace

bool add_view_call_type(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return g_type && PyModule_AddObjectRef(module, "ViewCall", reinterpret_cast<PyObject*>(g_type)) == 0;
}

PyObject* try_view_call(PyObject* launcher, PyObject* args, PyObject* kwargs, bool& is_one) {
  is_one = PyObject_TypeCheck(launcher, g_type) && reinterpret_cast<ViewCall*>(launcher)->is_direct;
  return is_one ? run(reinterpret_cast<ViewCall*>(launcher), args, kwargs) : nullptr;
}

}  // namespace maca_launcher
