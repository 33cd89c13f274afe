// Python stacks, walked at every call: by Python a frame would take five times as long.
#include "recording.h"

namespace maca::recorder {

PyObject* stack_key(PyObject*, PyObject*) {
  static Member back, place;  // of a frame
  std::string key;
  Ref frame = Ref::borrowed(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(frame.get()));
  if (frame && !place && !(back.find(type, "f_back") && place.find(type, "f_lasti"))) return nullptr;
  while (frame && frame.get() != Py_None) {
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.get()))));
    Ref number = place.of(frame.get());
    const std::array<long long, 2> one = {reinterpret_cast<intptr_t>(code.get()),
                                          number ? PyLong_AsLongLong(number.get()) : -1};
    key.append(reinterpret_cast<const char*>(one.data()), sizeof one);
    frame = PyErr_Occurred() ? Ref() : back.of(frame.get());
  }
  return PyErr_Occurred() ? nullptr : PyBytes_FromStringAndSize(key.data(), static_cast<Py_ssize_t>(key.size()));
}

}  // namespace maca::recorder
