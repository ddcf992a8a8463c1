// Attention on tensor cores: heads of at most 64 columns in f16.
#include "flash.cuh"
ENTRIES(f16_64, F16, 64)
