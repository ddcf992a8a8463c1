// Attention on tensor cores: heads of at most 64 columns in bf16.
#include "flash.cuh"
ENTRIES(bf16_64, BF16, 64)
