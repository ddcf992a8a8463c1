//! cuBLASLt's calls of products whose sizes are in device memory, which the bindings' header (13.0) does not have: as
//! `cublasLt.h` of 13.10 declares them. A library may lack them.

use std::ffi::{c_int, c_void};

use super::blas::{cublasLtMatrixLayout_t, cublasStatus_t, cudaDataType};
use crate::libs::{Library, symbol};

/// `CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS`, `..._COLS`, and `CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM`: i64,
/// as the library itself says (`cublasLtMatmulPreferenceGetAttribute` of 13.10; its header's comment says uint32_t, which it
/// refuses).
pub const AVERAGES: [u32; 3] = [14, 15, 13];

super::calls! { CublasLt:
    fn cublasLtGroupedMatrixLayoutCreate(
        mat_layout: *mut cublasLtMatrixLayout_t, type_: cudaDataType, group_count: c_int, rows_array: *const c_void,
        cols_array: *const c_void, ld_array: *const c_void
    ) -> cublasStatus_t;
}

/// Whether the library has them.
pub fn are_there() -> bool {
    symbol(Library::CublasLt, "cublasLtGroupedMatrixLayoutCreate").is_ok()
}
