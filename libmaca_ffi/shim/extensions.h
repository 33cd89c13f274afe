// Libraries of kernels that users join to the device's while it runs: each is asked for the plans of the kernels that
// it names, the latest first, before the device's own. A program remembers whose plan it is, so a launch looks for
// nothing.
#pragma once
#include <atomic>
#include <cstdint>

#include "library.h"
#include "maca.h"

namespace maca_shim {

struct Extension {  // never destroyed: plans of it may live on when it has left
  Library library;
  int32_t number = 0;
  bool is_joined = true;
  std::atomic<int64_t> launches{0};
};

// The plan of the first joined library that does not decline, and which one that is. MACA_DECLINED where none serves
// the request; `reason` then has the reasons of those that name the kernel, and is empty where none does.
int plan_of_extension(const maca_plan_request* request, maca_plan** plan, maca_reason* reason, Extension** extension);
// The oldest error that no one has taken of any library that was ever joined.
int take_extension_error(maca_error* error);
int64_t extension_launches();

}  // namespace maca_shim
