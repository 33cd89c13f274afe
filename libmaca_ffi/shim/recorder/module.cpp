// The module `libmaca_ffi._recorder`: its types, and what it is told once.
#include <algorithm>
#include <iterator>

#include "recording.h"

namespace maca::recorder {

Names names;

namespace {

constexpr Fact<KnownOfRecording> kFacts[] = {
    {"tensor", &KnownOfRecording::tensor},
    {"parameter", &KnownOfRecording::parameter},
    {"storage", &KnownOfRecording::storage},
    {"exchange", &KnownOfRecording::exchange_capsule},
    {"plain_values", &KnownOfRecording::plain_values},
    {"taken_apart", &KnownOfRecording::taken_apart},
    {"value_text", &KnownOfRecording::value_text},
    {"escaped", &KnownOfRecording::escaped},
    {"plainly", &KnownOfRecording::plainly},
    {"modes", &KnownOfRecording::modes},
    {"current_node", &KnownOfRecording::current_node},
    {"sequence", &KnownOfRecording::sequence},
    {"is_grad_enabled", &KnownOfRecording::is_grad_enabled},
    {"read_operator", &KnownOfRecording::read_operator},
    {"is_tracing", &KnownOfRecording::is_tracing},
    {"names", &KnownOfRecording::names},
    {"read_name", &KnownOfRecording::read_name},
    {"begin_and_end", &KnownOfRecording::begin_and_end},
    {"pop_mode", &KnownOfRecording::pop_mode},
    {"push_mode", &KnownOfRecording::push_mode},
};

bool g_is_configured = false;

bool name_all() {
  return intern_names({{&names.fwd, "fwd"},
                       {&names.bwd, "bwd"},
                       {&names.acquire, "acquire"},
                       {&names.release, "release"},
                       {&names.enter, "__enter__"},
                       {&names.leave, "__exit__"},
                       {&names.node_made, "node_made"},
                       {&names.backward_operator, "backward_operator"},
                       {&names.map, "map"},
                       {&names.write, "write"}});
}

// False with an exception. Of another version nothing is used.
bool take_exchange(PyObject* capsule) {
  if (capsule == Py_None) return true;
  const auto* exchange = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule, kDlExchange));
  if (exchange && exchange->major == 1 && exchange->read) recording.exchange = exchange;
  return exchange != nullptr;
}

PyObject* configure(PyObject*, PyObject* args, PyObject* kwargs) {
  const auto is_said = [](const Fact<KnownOfRecording>& fact) { return recording.*fact.slot != nullptr; };
  if (!take_facts(recording, kFacts, args, kwargs, false)) return nullptr;
  if (!std::all_of(std::begin(kFacts), std::end(kFacts), is_said)) Py_RETURN_NONE;
  if (!PyDict_Check(recording.names)) return PyErr_Format(PyExc_TypeError, "names is a dict, got %R", recording.names);
  if (!members.find(recording.tensor, recording.storage) || !take_exchange(recording.exchange_capsule)) return nullptr;
  g_is_configured = true;
  Py_RETURN_NONE;
}

PyMethodDef g_functions[] = {
    {"configure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure)), METH_VARARGS | METH_KEYWORDS,
     "configure(**facts): what the recorder's types have to know, all at once or piece by piece."},
    {"set_recorder", set_recorder, METH_O, "set_recorder(recorder): who is given all calls from now on; None: nobody."},
    {"flatten_call", flatten_call_function, METH_VARARGS,
     "flatten_call(args, kwargs): pairs of place and value of everything in a call's arguments."},
    {"stack_key", stack_key, METH_NOARGS,
     "stack_key(): addresses of the code objects and places in them of all frames."},
    {},
};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "libmaca_ffi._recorder",
                        "What the recorder of macatensor.accuracy does at every call.",
                        -1,
                        g_functions,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace

bool is_level(int level) {
  if (level >= 0 && level < kLevels) return true;
  PyErr_Format(PyExc_ValueError, "level is 0 or 1, got %d", level);
  return false;
}

bool is_configured() {
  if (!g_is_configured) PyErr_SetString(PyExc_RuntimeError, "configure() has not been told everything");
  return g_is_configured;
}

}  // namespace maca::recorder

PyMODINIT_FUNC PyInit__recorder() {
  using namespace maca::recorder;
  Ref module(PyModule_Create(&g_module));
  const auto adders = {add_recording_entries, add_recording_call, add_recording_recorder, add_recording_modes};
  if (!name_all()) return nullptr;
  for (const auto add : adders)
    if (!module || !add(module.get())) return nullptr;
  return module.release();
}
