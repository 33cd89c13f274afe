// The mark of what the host library and the CUDA library share: for the host's compiler, and for the emulator, nothing.
// What is shared stands in namespace maca::MACA_ISA, which every instruction set and the CUDA library have for their
// own.
#pragma once
#if defined(__CUDACC__) || defined(__MACACC__)
#define MACA_DEVICE_FUNCTION __host__ __device__
#define MACA_DEVICE_TABLE static __constant__ const  // an array of numbers that such functions read
#else
#define MACA_DEVICE_FUNCTION
#define MACA_DEVICE_TABLE constexpr
#endif
