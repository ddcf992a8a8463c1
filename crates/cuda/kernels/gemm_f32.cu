// Matrix products of f32, plain and grouped.
#include "gemm.cuh"
ENTRIES(f32, F32)
