// Which ways there are to compute a request, for callers that measure them. How each is gone, and what declines it,
// stands where the choice by rule does: kernels/matmul/matmul.cpp, kernels/convolution/convolution.cpp and
// backward.cpp.
#include "ways.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "kernels/convolution/convolution.h"
#include "kernels/matmul/matmul.h"

namespace maca {
namespace {

// "input gathered, weight onednn": names live as long as the library.
const char* kept(const std::string& name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  std::lock_guard lock(mutex);
  return names->insert(name).first->c_str();
}

std::vector<const char*> of_gradients(const Request& r) {
  const bool input = r.out(0).present(), weight = r.out(1).present();
  std::vector<const char*> found;
  if (!input || !weight) {
    if (input)
      for (const char* way : convolution::kInputWays) found.push_back(kept(std::string("input ") + way));
    if (weight)
      for (const char* way : convolution::kWeightWays) found.push_back(kept(std::string("weight ") + way));
    return found;
  }
  for (const char* first : convolution::kInputWays)
    for (const char* second : convolution::kWeightWays)
      found.push_back(kept(std::string("input ") + first + ", weight " + second));
  return found;
}

}  // namespace

std::vector<const char*> ways_for(const Request& r) {
  static constexpr std::string_view kProducts[] = {"mm",      "bmm",    "addmm", "_addmm_activation",
                                                   "baddbmm", "addbmm", "mv",    "addmv"};
  if (std::ranges::find(kProducts, r.kernel()) != std::end(kProducts))
    return {matmul::kWays.begin(), matmul::kWays.end()};
  if (r.kernel() == "convolution") return {convolution::kWays.begin(), convolution::kWays.end()};
  return r.kernel() == "convolution_backward" ? of_gradients(r) : std::vector<const char*>{};
}

}  // namespace maca
