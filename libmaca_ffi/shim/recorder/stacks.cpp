// RecordedStacks: Python stacks, walked on every call and put into words once for each distinct one.
#include "recording.h"

#include <unordered_map>

namespace maca::recorder {
namespace {

struct Tables {
  std::unordered_map<PyObject*, bool> shown;  // code objects, which are kept so that no other gets their address
  std::unordered_map<std::string, long long> numbers;  // by the code and the place in it of every frame
};

struct Stacks {
  PyObject_HEAD Tables* tables;
};

PyTypeObject* g_type = nullptr;
PyObject *g_is_shown, *g_is_new;
Member g_back, g_place;  // of a frame

bool find_members(PyObject* frame) {
  if (g_place) return true;
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(frame));
  return g_back.find(type, "f_back") && g_place.find(type, "f_lasti");
}

// 1: the code's frames are the program's, 0: ours or PyTorch's between a call and its line, -1: an exception.
int is_shown(PyObject* self, PyObject* code) {
  auto& shown = reinterpret_cast<Stacks*>(self)->tables->shown;
  const auto found = shown.find(code);
  if (found != shown.end()) return found->second;
  Ref answer(PyObject_CallMethodObjArgs(self, g_is_shown, code, nullptr));
  const int is = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (is >= 0 && shown.emplace(code, is == 1).second) Py_INCREF(code);
  return is;
}

void append_bytes(std::string& key, const void* value, size_t size) {
  key.append(static_cast<const char*>(value), size);
}

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = allocate(type);
  if (self) reinterpret_cast<Stacks*>(self)->tables = new Tables;
  return self;
}

void dealloc(PyObject* object) {
  Tables* tables = reinterpret_cast<Stacks*>(object)->tables;
  for (auto& pair : tables->shown) Py_DECREF(pair.first);
  delete tables;
  release_memory(object);
}

PyObject* here(PyObject* self, PyObject*) {
  const long long number = stack_here(self);
  return number < 0 ? nullptr : PyLong_FromLongLong(number);
}

PyMethodDef g_methods[] = {
    {"here", here, METH_NOARGS, "here(): the calling stack's number."},
    {},
};

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, g_methods},
    {Py_tp_doc,
     const_cast<char*>("RecordedStacks()\n\nNumbers of the stacks seen. A subclass has is_shown(code), asked "
                       "once of each code object, and is_new(number, frame), called for each new stack.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._recorder.RecordedStacks", sizeof(Stacks), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, g_slots};

}  // namespace

long long stack_here(PyObject* self) {
  if (!PyObject_TypeCheck(self, g_type)) {
    PyErr_SetString(PyExc_TypeError, "expected RecordedStacks");
    return -1;
  }
  Ref innermost = Ref::borrowed(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  Ref frame = Ref::borrowed(innermost.get());
  std::string key;
  key.reserve(512);
  if (frame && !find_members(frame.get())) return -1;
  while (frame && frame.get() != Py_None) {
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.get()))));
    const int is = is_shown(self, code.get());
    if (is < 0) return -1;
    if (is) {
      Ref number = g_place.of(frame.get());
      const long long place = number ? PyLong_AsLongLong(number.get()) : -1;
      if (place == -1 && PyErr_Occurred()) return -1;
      const void* address = code.get();
      append_bytes(key, &address, sizeof address);
      append_bytes(key, &place, sizeof place);
    }
    frame = g_back.of(frame.get());
  }
  if (PyErr_Occurred()) return -1;
  auto& numbers = reinterpret_cast<Stacks*>(self)->tables->numbers;
  const auto known = numbers.find(key);
  if (known != numbers.end()) return known->second;
  const auto number = static_cast<long long>(numbers.size());
  numbers.emplace(std::move(key), number);
  Ref result(PyLong_FromLongLong(number));
  Ref done(
      result ? PyObject_CallMethodObjArgs(self, g_is_new, result.get(), innermost ? innermost.get() : Py_None, nullptr)
             : nullptr);
  return done ? number : -1;
}

bool add_recording_stacks(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return g_type && intern_names({{&g_is_shown, "is_shown"}, {&g_is_new, "is_new"}}) &&
         PyModule_AddObjectRef(module, "RecordedStacks", reinterpret_cast<PyObject*>(g_type)) == 0;
}

}  // namespace maca::recorder
