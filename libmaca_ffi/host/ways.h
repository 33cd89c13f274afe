// The ways in which requests may be computed, beside the choice by rule.
#pragma once
#include <vector>

#include "kernel.h"

namespace maca {

// The attribute by which a caller names the way; empty: the library's own choice.
inline std::string way_of(const Request& r) { return r.text("implementation", ""); }

// The names that it may have for this request, of products and convolutions. A plan may still be Declined.
std::vector<const char*> ways_for(const Request& r);

}  // namespace maca
