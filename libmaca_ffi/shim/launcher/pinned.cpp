// Pinned memory for PyTorch: a tensor of DLPack, whose end needs no Python, which may be gone by then.
#include "dlpack_exchange.h"
#include "launcher.h"

namespace maca_launcher {
namespace {

struct Bytes : DlManaged {
  int64_t count;
};

void release(DlManaged* self) {
  maca_shim::runtime().pinned.release(self->tensor.data);
  delete static_cast<Bytes*>(self);
}

}  // namespace

PyObject* pin(PyObject*, PyObject* nbytes) {
  const long long count = PyLong_AsLongLong(nbytes);
  if (count == -1 && PyErr_Occurred()) return nullptr;
  void* const address = maca_shim::runtime().pinned.allocate(count);
  if (!address) Py_RETURN_NONE;
  auto* const made =
      new Bytes{{{address, {kDlHost, 0}, 1, {kDlUint, 8, 1}, nullptr, nullptr, 0}, nullptr, release}, count};
  made->tensor.sizes = &made->count;
  PyObject* const capsule = PyCapsule_New(static_cast<DlManaged*>(made), kDlUnused, release_unused);
  if (!capsule) release(made);
  return capsule;
}

}  // namespace maca_launcher
