// What stands there, as loops.
#include "kernels/pointwise/pointwise.h"
#include "shared/pointwise/bessel.h"
