// What CUDA's headers ask of <crt/host_defines.h>, which not every CUDA wheel brings: the words that
// only a CUDA compiler knows, as nothing or as g++ writes them.
#pragma once
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __forceinline__ inline __attribute__((always_inline))
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define CUDARTAPI
#define CUDARTAPI_CDECL
