//! Kernels as text. Compiled at run time to machine code for one chip; no header of CUDA is read.
