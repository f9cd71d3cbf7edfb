// One spelling for code that compiles for the CPU and for CUDA.
#pragma once

#ifdef __CUDACC__
#define GART_HD __host__ __device__ __forceinline__
#else
#define GART_HD inline __attribute__((always_inline))
#endif
#define GART_RESTRICT __restrict__
