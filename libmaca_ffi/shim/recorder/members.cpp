// What the recorder asks of tensors, and the scope in which nobody sees that it does.
#include "recording.h"

namespace maca::recorder {

KnownOfRecording recording;
TensorMembers members;

namespace {

thread_local Plainly* innermost = nullptr;

}  // namespace

bool Member::find(PyObject* type, const char* name) {
  Ref old(descriptor_);
  descriptor_ = PyObject_GetAttrString(type, name);
  if (!descriptor_) return false;
  get_ = reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(descriptor_), Py_tp_descr_get));
  if (get_) return true;
  PyErr_Format(PyExc_TypeError, "%s is neither an attribute nor a method", name);
  return false;
}

Ref Member::call(PyObject* object) {
  if (plain_) return Ref(plain_(object, nullptr));
  Ref bound = of(object);
  if (!bound) return bound;
  plain_ = plain_function(bound.get());
  return ask_torch(bound.get());
}

bool TensorMembers::find(PyObject* tensor, PyObject* storage) {
  return shape.find(tensor, "shape") && dtype.find(tensor, "dtype") && device.find(tensor, "device") &&
         version.find(tensor, "_version") && requires_grad.find(tensor, "requires_grad") &&
         grad_fn.find(tensor, "grad_fn") && output_nr.find(tensor, "output_nr") && stride.find(tensor, "stride") &&
         is_neg.find(tensor, "is_neg") && is_conj.find(tensor, "is_conj") &&
         untyped_storage.find(tensor, "untyped_storage") && data_ptr.find(tensor, "data_ptr") &&
         resizable.find(storage, "resizable");
}

Plainly::Plainly(long modes) : outer_(innermost) {
  innermost = this;
  if (modes == kUnknown) modes = Plainly::modes();
  is_right_ = modes == 0 || (modes > 0 && now());
}

Plainly::~Plainly() {
  innermost = outer_;
  if (!guard_) return;
  const KeptError kept;
  if (!Ref(PyObject_CallMethodObjArgs(guard_.get(), names.leave, Py_None, Py_None, Py_None, nullptr)))
    PyErr_WriteUnraisable(guard_.get());
}

long Plainly::modes() {
  Ref count = ask_torch(recording.modes);
  return count ? PyLong_AsLong(count.get()) : -1;
}

bool Plainly::now() {
  if (!innermost || innermost->guard_) return true;
  Ref guard(PyObject_CallFunctionObjArgs(recording.plainly, nullptr));
  if (!guard || !Ref(PyObject_CallMethodObjArgs(guard.get(), names.enter, nullptr))) return false;
  innermost->guard_ = std::move(guard);
  return true;
}

}  // namespace maca::recorder
