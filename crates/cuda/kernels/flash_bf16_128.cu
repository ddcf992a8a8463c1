// Attention on tensor cores: heads of 65 to 128 columns in bf16.
#include "flash.cuh"
ENTRIES(bf16_128, BF16, 128)
