// Matrix products of f16, plain and grouped.
#include "gemm.cuh"
ENTRIES(f16, F16)
