// Prints the instruction set that MACA_ISAS=native stands for.
#include "processor.h"

#include <cstdio>

int main() { std::puts(maca::isa_name(maca::processor_isa())); }
