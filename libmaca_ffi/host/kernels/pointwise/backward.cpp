// What stands there, as loops.
#include "pointwise.h"
#include "shared/pointwise/backward.h"
