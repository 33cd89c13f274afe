// The module `libmaca_ffi._launcher`: its types, what it is told once, and MacaTensor's __torch_dispatch__.
#include "launcher.h"
#include "recording.h"
#include "recording_lock.h"

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

// configure(**facts): what the module has to know of macatensor and PyTorch.
PyObject* configure(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"tensor",       "make_wrapper",     "strided",  "device",      "bind",
                                "failure",      "static_key",       "true_key", "false_key",   "plain_types",
                                "in_inference", "is_deterministic", "absent",   "is_profiled", nullptr};
  PyObject** slots[] = {&known.tensor,    &known.make_wrapper, &known.strided,      &known.device,
                        &known.bind,      &known.failure,      &known.static_key,   &known.true_key,
                        &known.false_key, &known.plain_types,  &known.in_inference, &known.is_deterministic,
                        &known.absent};
  constexpr size_t kSlots = std::size(slots);
  PyObject* given[kSlots + 1];
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOOOOOOOO!OOOO:configure", const_cast<char**>(names), &given[0],
                                   &given[1], &given[2], &given[3], &given[4], &given[5], &given[6], &given[7],
                                   &given[8], &PyTuple_Type, &given[9], &given[10], &given[11], &given[12], &given[13]))
    return nullptr;
  for (size_t i = 0; i < kSlots; ++i) {
    Ref old(*slots[i]);
    *slots[i] = Ref::borrowed(given[i]).release();
  }
  maca_shim::runtime().queue.ask_whether_profiled(given[kSlots]);
  Py_RETURN_NONE;
}

PyMethodDef g_functions[] = {
    {"dispatch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(dispatch)), METH_FASTCALL | METH_KEYWORDS,
     "dispatch(func, types, args=(), kwargs=None): MacaTensor's __torch_dispatch__."},
    {"configure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure)), METH_VARARGS | METH_KEYWORDS,
     "configure(**facts): what the module has to know of macatensor and PyTorch."},
    {"configure_recording", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure_recording)),
     METH_VARARGS | METH_KEYWORDS, "configure_recording(**facts): what the recorder's types have to know."},
    {"configure_recorded_modes", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure_recorded_modes)),
     METH_VARARGS | METH_KEYWORDS, "configure_recorded_modes(**facts): what the recorder's modes have to know."},
    {"set_recorder", set_recorder, METH_O, "set_recorder(recorder): who is given all calls from now on; None: nobody."},
    {"flatten_call", flatten_call_function, METH_VARARGS,
     "flatten_call(args, kwargs): pairs of place and value of everything in a call's arguments."},
    {"launcher_of", launcher_of, METH_O, "launcher_of(func): what is called for an OpOverload, or None."},
    {"set_launcher", set_launcher, METH_VARARGS,
     "set_launcher(func, launcher): launcher(args, kwargs) is called for func from now on."},
    {"forget_launchers", forget_launchers, METH_NOARGS, "forget_launchers(): every OpOverload is bound anew."},
    {"allocate", allocate, METH_O, "allocate(nbytes): a Buffer, or None when there is no memory."},
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
      !add_blank_call_type(module.get()) || !add_fixed_attribute_type(module.get()) ||
      !add_recording_values(module.get()) || !add_recording_memories(module.get()) ||
      !add_recording_entries(module.get()) || !add_recording_call(module.get()) ||
      !add_recording_stacks(module.get()) || !add_recording_recorder(module.get()) ||
      !add_recording_lines(module.get()) || !add_recording_lock(module.get()) || !add_recording_summary(module.get()) ||
      !add_recording_modes(module.get()) || !add_recording_nodes(module.get()) || !add_recording_attach(module.get()) ||
      !add_recording_backward(module.get()))
    return nullptr;
  return module.release();
}
