// What DLPack's exchange API (version 1, https://dmlc.github.io/dlpack) lays down: a tensor's structure in one
// question, by functions that a capsule of PyTorch's hands out. Only the parts that are read here have names.
#pragma once
#include <cstdint>

#include "launcher.h"

namespace maca_launcher {

struct DlTensor {
  void* data;  // the first element; with byte_offset 0 in PyTorch
  struct {
    int32_t type, index;
  } device;
  int32_t rank;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *sizes, *strides;  // in elements; the tensor's own
  uint64_t byte_offset;
};

constexpr int32_t kDlHost = 1, kDlExtension = 12;  // of device.type
constexpr uint8_t kDlUint = 1, kDlComplex = 5;     // of dtype.code

struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*release)(DlManaged* self);
};
constexpr char kDlUnused[] = "dltensor", kDlUsed[] = "used_dltensor";  // a capsule's name before and after it is taken

inline DlManaged* unused(PyObject* capsule) {
  return PyCapsule_IsValid(capsule, kDlUnused) ? static_cast<DlManaged*>(PyCapsule_GetPointer(capsule, kDlUnused))
                                               : nullptr;
}
// The end of a capsule whose tensor nobody took over.
inline void release_unused(PyObject* capsule) {
  if (DlManaged* managed = unused(capsule)) managed->release(managed);
}

struct DlExchange {
  uint32_t major, minor;
  const DlExchange* previous;
  void *allocate, *to_managed, *from_managed;
  int (*read)(void* tensor, DlTensor* out);  // may be null; not 0: an exception is set
  void* stream;
};

constexpr char kDlExchange[] = "dlpack_exchange_api";  // the capsule's name

}  // namespace maca_launcher
