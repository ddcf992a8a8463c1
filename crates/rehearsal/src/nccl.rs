//! NCCL's functions, `nccl*`, as `nccl.h` declares them.
