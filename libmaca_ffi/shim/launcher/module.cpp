// The module `libmaca_ffi._launcher`: its types, what it is told once, and MacaTensor's __torch_dispatch__.
#include <algorithm>

#include "launcher.h"

namespace maca_launcher {

Known known;

bool NamedObjects::take(PyObject* args, PyObject* kwargs, bool is_all) {
  PyObject *name, *value;
  const auto has_name = [&](const auto& object) { return PyUnicode_CompareWithASCIIString(name, object.first) == 0; };
  for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &name, &value);) {
    const auto found = std::find_if(objects_.begin(), objects_.end(), has_name);
    if (found == objects_.end()) return PyErr_Format(PyExc_TypeError, "configure() takes no %R", name);
    put(*found->second, value);
  }
  for (const auto& [said, slot] : objects_)
    if (PyTuple_Size(args) > 0 || (is_all && !*slot))
      return PyErr_Format(PyExc_TypeError, "configure() takes names only, and %s is one of them", said);
  return true;
}

bool NamedObjects::are_all_there() const {
  return std::all_of(objects_.begin(), objects_.end(), [](const auto& object) { return *object.second != nullptr; });
}

bool NamedObjects::intern() {
  for (const auto& [name, slot] : objects_) *slot = PyUnicode_InternFromString(name);
  return are_all_there();
}

namespace {

// Is there another type with a __torch_dispatch__ of its own, as DTensor? It knows what its tensors are, we do not.
bool has_foreign(PyObject* types) {
  const Py_ssize_t count = PyTuple_Check(types) ? PyTuple_Size(types) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const type = PyTuple_GetItem(types, i);
    if (type != known.tensor && PyType_Check(type) &&
        !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), reinterpret_cast<PyTypeObject*>(known.tensor)))
      return true;
  }
  return false;
}

// __torch_dispatch__(func, types, args=(), kwargs=None)
PyObject* dispatch(PyObject*, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  PyObject* func = nullptr;
  PyObject* types = nullptr;
  PyObject* args = nullptr;
  PyObject* kwargs = nullptr;
  PyObject** slots[] = {&func, &types, &args, &kwargs};
  for (Py_ssize_t i = 0; i < count && i < 4; ++i) *slots[i] = given[i];
  for (Py_ssize_t i = 0; names && i < PyTuple_Size(names); ++i) {  // a subclass of ours may name them
    static const char* const known_names[] = {"func", "types", "args", "kwargs"};
    for (size_t j = 0; j < 4; ++j)
      if (PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, i), known_names[j]) == 0)
        *slots[j] = given[count + i];
  }
  if (!func || !types || count > 4) {
    PyErr_SetString(PyExc_TypeError, "__torch_dispatch__ takes (func, types, args=(), kwargs=None)");
    return nullptr;
  }
  if (has_foreign(types)) return Ref::borrowed(Py_NotImplemented).release();
  Ref empty(args ? nullptr : PyTuple_New(0));
  if (!args) args = empty.get();
  return args ? launch(func, args, kwargs) : nullptr;
}

PyObject* configure(PyObject*, PyObject* args, PyObject* kwargs) {
  if (!known.take(args, kwargs, true)) return nullptr;
  if (!PyTuple_Check(known.plain_types))
    return PyErr_Format(PyExc_TypeError, "plain_types is a tuple, got %R", known.plain_types);
  maca_shim::runtime().queue.ask_whether_profiled(known.is_profiled);
  Py_RETURN_NONE;
}

PyObject* set_finisher(PyObject*, PyObject* function) {
  maca_shim::set_finisher(function);
  Py_RETURN_NONE;
}

PyMethodDef g_functions[] = {
    {"dispatch", as_method(dispatch), METH_FASTCALL | METH_KEYWORDS,
     "dispatch(func, types, args=(), kwargs=None): MacaTensor's __torch_dispatch__."},
    {"configure", as_method(configure), METH_VARARGS | METH_KEYWORDS,
     "configure(**facts): what the module has to know of macatensor and PyTorch."},
    {"launcher_of", launcher_of, METH_O, "launcher_of(func): what is called for an OpOverload, or None."},
    {"set_launcher", set_launcher, METH_VARARGS,
     "set_launcher(func, launcher): launcher(args, kwargs) is called for func from now on."},
    {"forget_launchers", forget_launchers, METH_NOARGS, "forget_launchers(): every OpOverload is bound anew."},
    {"allocate", allocate, METH_O, "allocate(nbytes): a Buffer, or None when there is no memory."},
    {"observe", observe, METH_O,
     "observe(f): f(operator, kernel, implementation) is called before each launch; None: nothing is."},
    {"is_observed", is_observed, METH_NOARGS, "is_observed(): is somebody told of each launch?"},
    {"lend", lend, METH_VARARGS,
     "lend(tensor, address, code, bits, sizes, strides): a capsule of DLPack that holds the tensor."},
    {"lender", lender, METH_O,
     "lender(capsule): the tensor of an unused capsule that lend() made, which is used then; None."},
    {"set_finisher", set_finisher, METH_O,
     "set_finisher(f): f(number) is called before anything uses a Buffer that has that number as `awaited`."},
    {"plan_memory", plan_memory, METH_VARARGS, "plan_memory(values, heirs): where values of a tape lie."},
    {"pin", pin, METH_O, "pin(nbytes): a capsule of DLPack over pinned bytes, or None when there are none."},
    {},
};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT, "libmaca_ffi._launcher",
                        "The way of an operator from __torch_dispatch__ to a kernel and back.", -1, g_functions};

}  // namespace
}  // namespace maca_launcher

PyMODINIT_FUNC PyInit__launcher() {
  using namespace maca_launcher;
  known.payload_name = PyUnicode_InternFromString("_payload");
  known.is_inference_name = PyUnicode_InternFromString("is_inference");
  known.zero = PyLong_FromLong(0);
  if (!known.payload_name || !known.is_inference_name || !known.zero) return nullptr;
  return new_module(g_module, {add_buffer_type, add_program_type, add_tape_type, add_kernel_call_type,
                               add_view_call_type, add_blank_call_type, add_fixed_attribute_type,
                               add_assigned_attribute_type, add_kept_error_type, add_cast_call_type});
}
