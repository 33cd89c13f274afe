// What stands there, as kernels. Polar and complex numbers have none here.
#include "pointwise.h"
#include "shared/pointwise/trigonometric.h"
