// The vendors' libraries, opened when a plan first asks for one. Nothing is linked, and no header of theirs is needed:
// the files that call one declare what they call, with the vendor's names and numbers.
//
// Looked for are, in this order: the folder MACA_VENDOR_FOLDER, a copy that the process has already (a PyTorch for GPUs
// brings one), the loader's paths, and the folders where the vendors' Python wheels put them. With
// MACA_VENDOR_LIBRARIES=0 there are none.
#pragma once
#include <string>

#include "device.h"

namespace maca_cuda {

enum class VendorLibrary { Products, Convolutions };

// One library that is open, for as long as the process runs.
class Vendor {
 public:
  // NULL where there is none. Opened once, by whichever thread comes first.
  static const Vendor* find(VendorLibrary which);

  const char* name() const { return name_; }      // "cuBLAS": as people know it
  const char* prefix() const { return prefix_; }  // of its functions: "cublas"
  // A function, by what its name is without the prefix; NULL where the library has none.
  template <class Function> void get(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;
  friend const Vendor* open_vendor(VendorLibrary);
  void* handle_ = nullptr;
  const char *name_ = nullptr, *prefix_ = nullptr;
};

// Scratch memory as those libraries take it: cuBLAS refuses an address between two multiples of 256, where a plan's
// workspace may well begin. A plan asks for kScratchSlack bytes more than it hands on.
constexpr uint64_t kScratchAlignment = 256, kScratchSlack = kScratchAlignment - 1;
inline void* scratch_from(const void* workspace, uint64_t offset) {
  const auto at = reinterpret_cast<uintptr_t>(workspace) + offset;
  return reinterpret_cast<void*>((at + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment);
}

// For device_info: those that are open, with versions. "" where there are none.
std::string vendor_libraries();

}  // namespace maca_cuda
