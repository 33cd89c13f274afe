// The module `libmaca_ffi._launcher`: its types, what it is told once, and MacaTensor's __torch_dispatch__.
#include "launcher.h"

namespace maca_launcher {

Known known;

namespace {

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
  Ref empty(args ? nullptr : PyTuple_New(0));
  if (!args) args = empty.get();
  return args ? launch(func, args, kwargs) : nullptr;
}

constexpr Fact<Known> kFacts[] = {
    {"tensor", &Known::tensor},
    {"make_wrapper", &Known::make_wrapper},
    {"strided", &Known::strided},
    {"device", &Known::device},
    {"bind", &Known::bind},
    {"failure", &Known::failure},
    {"static_key", &Known::static_key},
    {"true_key", &Known::true_key},
    {"false_key", &Known::false_key},
    {"plain_types", &Known::plain_types},
    {"in_inference", &Known::in_inference},
    {"is_deterministic", &Known::is_deterministic},
    {"absent", &Known::absent},
    {"is_profiled", &Known::is_profiled},
};

PyObject* configure(PyObject*, PyObject* args, PyObject* kwargs) {
  if (!take_facts(known, kFacts, args, kwargs, true)) return nullptr;
  if (!PyTuple_Check(known.plain_types))
    return PyErr_Format(PyExc_TypeError, "plain_types is a tuple, got %R", known.plain_types);
  maca_shim::runtime().queue.ask_whether_profiled(known.is_profiled);
  Py_RETURN_NONE;
}

PyMethodDef g_functions[] = {
    {"dispatch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(dispatch)), METH_FASTCALL | METH_KEYWORDS,
     "dispatch(func, types, args=(), kwargs=None): MacaTensor's __torch_dispatch__."},
    {"configure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure)), METH_VARARGS | METH_KEYWORDS,
     "configure(**facts): what the module has to know of macatensor and PyTorch."},
    {"launcher_of", launcher_of, METH_O, "launcher_of(func): what is called for an OpOverload, or None."},
    {"set_launcher", set_launcher, METH_VARARGS,
     "set_launcher(func, launcher): launcher(args, kwargs) is called for func from now on."},
    {"forget_launchers", forget_launchers, METH_NOARGS, "forget_launchers(): every OpOverload is bound anew."},
    {"allocate", allocate, METH_O, "allocate(nbytes): a Buffer, or None when there is no memory."},
    {"observe", observe, METH_O,
     "observe(f): f(operator, kernel, implementation) is called before each launch; None: nothing is."},
    {"pin", pin, METH_O, "pin(nbytes): a capsule of DLPack over pinned bytes, or None when there are none."},
    {},
};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "libmaca_ffi._launcher",
                        "The way of an operator from __torch_dispatch__ to a kernel and back.",
                        -1,
                        g_functions,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace
}  // namespace maca_launcher

PyMODINIT_FUNC PyInit__launcher() {
  using namespace maca_launcher;
  Ref module(PyModule_Create(&g_module));
  known.payload_name = PyUnicode_InternFromString("_payload");
  known.is_inference_name = PyUnicode_InternFromString("is_inference");
  known.zero = PyLong_FromLong(0);
  if (!module || !known.payload_name || !known.is_inference_name || !known.zero || !add_buffer_type(module.get()) ||
      !add_program_type(module.get()) || !add_kernel_call_type(module.get()) || !add_view_call_type(module.get()) ||
      !add_blank_call_type(module.get()) || !add_fixed_attribute_type(module.get()))
    return nullptr;
  return module.release();
}
