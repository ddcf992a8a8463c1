//! cuBLASLt's functions, `cublasLt*`, as `cublasLt.h` declares them.
