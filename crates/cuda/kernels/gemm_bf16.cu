// Matrix products of bf16, plain and grouped.
#include "gemm.cuh"
ENTRIES(bf16, BF16)
