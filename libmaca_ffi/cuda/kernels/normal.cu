// What stands there, as kernels.
#include "pointwise.h"
#include "shared/pointwise/normal.h"
