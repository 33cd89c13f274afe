// In the place of OpenBLAS's, of which device.cpp asks this alone.
#pragma once
extern "C" const char* scipy_openblas_get_corename();
