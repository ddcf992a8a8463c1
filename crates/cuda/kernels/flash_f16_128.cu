// Attention on tensor cores: heads of 65 to 128 columns in f16.
#include "flash.cuh"
ENTRIES(f16_128, F16, 128)
