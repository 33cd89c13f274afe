#include "extensions.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "runtime.h"
#include "shim.h"

namespace maca_shim {
namespace {

std::vector<Extension*>& all() {  // in the order in which they were joined; guarded by the interpreter's lock
  static auto* const the = new std::vector<Extension*>;
  return *the;
}

Extension* extension_of(int32_t number) {
  return number >= 1 && static_cast<size_t>(number) <= all().size() ? all()[static_cast<size_t>(number) - 1] : nullptr;
}

}  // namespace

int plan_of_extension(const maca_plan_request* request, maca_plan** plan, maca_reason* reason, Extension** extension) {
  std::string declined;
  for (auto e = all().rbegin(); e != all().rend(); ++e) {
    if (!(*e)->is_joined || !(*e)->library.names(request->kernel)) continue;
    *reason = {sizeof *reason, ""};
    const int status = (*e)->library.plan_create(request, plan, reason);
    if (status == MACA_OK) *extension = *e;
    if (status != MACA_DECLINED) return status;
    const char* const why = *reason->text ? reason->text : "without a reason";
    declined += (declined.empty() ? "" : "; ") + std::string("the extension ") + (*e)->library.extension() +
                " declines: " + why;
  }
  std::snprintf(reason->text, sizeof reason->text, "%s", declined.c_str());
  return MACA_DECLINED;
}

int take_extension_error(maca_error* error) {
  for (Extension* e : all())
    if (const int status = e->library.error_take(error); status != MACA_OK || error->status != MACA_OK) return status;
  *error = {sizeof *error};
  return MACA_OK;
}

int64_t extension_launches() {
  int64_t launches = 0;
  for (const Extension* e : all()) launches += e->launches;
  return launches;
}

}  // namespace maca_shim

using namespace maca_shim;

extern "C" {

int maca_extensions_join(const char* path, const char* name, int32_t* number, char* message, int capacity) {
  auto made = std::make_unique<Extension>();
  const std::string problem = made->library.open_extension(path, name, runtime().library);
  std::snprintf(message, static_cast<size_t>(capacity), "%s", problem.c_str());
  if (!problem.empty()) return 1;
  made->number = *number = static_cast<int32_t>(all().size()) + 1;
  all().push_back(made.release());
  return 0;
}

void maca_extensions_leave(int32_t number) {
  if (Extension* const e = extension_of(number)) e->is_joined = false;
}

const char* maca_extensions_kernel(int32_t number, int32_t index) {
  const Extension* const e = extension_of(number);
  return e ? e->library.kernel_name(index) : nullptr;
}

int32_t maca_extensions_queue(int32_t number) {
  const Extension* const e = extension_of(number);
  return e && e->library.is_asynchronous();
}

int64_t maca_extensions_launches(int32_t number) {
  const Extension* const e = extension_of(number);
  return e ? e->launches.load() : 0;
}

}  // extern "C"
