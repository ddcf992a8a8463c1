//! cuBLASLt's calls for products whose sizes are in device memory, missing from the bindings' header (13.0), as
//! declared in `cublasLt.h` of 13.10. A library may lack them.

use std::ffi::{c_int, c_void};

use super::blas::{cublasLtMatrixLayout_t, cublasStatus_t, cudaDataType};
use crate::libs::{Library, symbol};

/// `CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS`, `..._COLS`, and
/// `CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM`: i64, as the library itself reports
/// (`cublasLtMatmulPreferenceGetAttribute` of 13.10; its header's comment says uint32_t, which it refuses).
pub const AVERAGES: [u32; 3] = [14, 15, 13];

super::calls! { CublasLt:
    fn cublasLtGroupedMatrixLayoutCreate(
        mat_layout: *mut cublasLtMatrixLayout_t, type_: cudaDataType, group_count: c_int, rows_array: *const c_void,
        cols_array: *const c_void, ld_array: *const c_void
    ) -> cublasStatus_t;
}

/// True if the library has these functions.
pub fn are_there() -> bool {
    symbol(Library::CublasLt, "cublasLtGroupedMatrixLayoutCreate").is_ok()
}
