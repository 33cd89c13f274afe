// Tensors of the device through DLPack: a capsule that holds the tensor, which only this process takes back.
#include <vector>

#include "dlpack_exchange.h"
#include "launcher.h"

namespace maca_launcher {
namespace {

struct Lent : DlManaged {
  PyObject* lender;
  std::vector<int64_t> sizes, strides;
};

void release(DlManaged* self) {
  auto* const lent = static_cast<Lent*>(self);
  if (Py_IsInitialized()) {  // who took the capsule over may end later than Python
    const PyGILState_STATE lock = PyGILState_Ensure();
    Py_DECREF(lent->lender);
    PyGILState_Release(lock);
  }
  delete lent;
}

bool read(PyObject* numbers, std::vector<int64_t>& into) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(numbers); ++i) into.push_back(PyLong_AsLongLong(PyTuple_GetItem(numbers, i)));
  return !PyErr_Occurred();
}

}  // namespace

PyObject* lend(PyObject*, PyObject* args) {
  PyObject *tensor, *sizes, *strides;
  unsigned long long address;
  unsigned char code, bits;
  if (!PyArg_ParseTuple(args, "OKbbO!O!", &tensor, &address, &code, &bits, &PyTuple_Type, &sizes, &PyTuple_Type,
                        &strides))
    return nullptr;
  auto* const lent = new Lent{};
  lent->lender = Ref::borrowed(tensor).release();
  lent->release = release;
  PyObject* capsule = nullptr;
  if (read(sizes, lent->sizes) && read(strides, lent->strides)) {
    lent->tensor = {reinterpret_cast<void*>(address),
                    {kDlExtension, 0},
                    static_cast<int32_t>(lent->sizes.size()),
                    {code, bits, 1},
                    lent->sizes.data(),
                    lent->strides.data(),
                    0};
    capsule = PyCapsule_New(static_cast<DlManaged*>(lent), kDlUnused, release_unused);
  }
  if (!capsule) release(lent);
  return capsule;
}

PyObject* lender(PyObject*, PyObject* capsule) {
  DlManaged* const managed = unused(capsule);
  if (!managed || managed->release != release) Py_RETURN_NONE;
  PyObject* const found = Ref::borrowed(static_cast<Lent*>(managed)->lender).release();
  PyCapsule_SetName(capsule, kDlUsed);
  release(managed);
  return found;
}

}  // namespace maca_launcher
