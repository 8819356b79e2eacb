"""Bugs to plant in kernels/common.cuh."""

BUGS = {
    ("rms_norm", "common.cuh"): (
        (
            "no barrier before the partial sums are read",
            "partial[threadIdx.x >> 5] = v;\n  __syncthreads();",
            "partial[threadIdx.x >> 5] = v;",
        ),
        (
            "the first warp's sum is left out",
            "for (int w = 0; w < kThreads / 32",
            "for (int w = 1; w < kThreads / 32",
        ),
        ("half of the lanes", "int offset = kLanes / 2; offset", "int offset = kLanes / 4; offset"),
        (
            "one step of the lanes' sum is missing",
            "offset > 0; offset >>= 1) {\n    v +=",
            "offset > 1; offset >>= 1) {\n    v +=",
        ),
        (
            "no barrier after the partial sums are read",
            "total += partial[w];\n  __syncthreads();",
            "total += partial[w];",
        ),
        (
            "warps added in the order of their arrival",
            "  __shared__ float partial[kThreads / 32];\n"
            "  v = lanes_sum<32>(v);\n"
            "  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = v;\n"
            "  __syncthreads();\n"
            "  float total = 0.0f;\n"
            "  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];\n",
            "  __shared__ float total;\n"
            "  if (threadIdx.x == 0) total = 0.0f;\n"
            "  v = lanes_sum<32>(v);\n"
            "  __syncthreads();\n"
            "  if ((threadIdx.x & 31) == 0) atomicAdd(&total, v);\n"
            "  __syncthreads();\n",
        ),
    ),
    ("paged_decode_attention", "common.cuh"): (
        ("a digit of a coefficient of 2^x", "5.55041087e-2f", "5.55014087e-2f"),
        ("2^x of far below 0 is not 0", "  if (x < -126.0f) return 0.0f;\n", ""),
        (
            "exponent of 2^x not biased by 127",
            "(static_cast<int>(whole) + 127)",
            "(static_cast<int>(whole) + 126)",
        ),
    ),
}
