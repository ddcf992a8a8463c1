//! cuBLASLt's calls.

use std::ffi::{c_char, c_int, c_void};

pub use cudarc::cublaslt::sys::*;

super::calls! { CublasLt:
    fn cublasLtCreate(light_handle: *mut cublasLtHandle_t) -> cublasStatus_t;
    fn cublasLtDestroy(light_handle: cublasLtHandle_t) -> cublasStatus_t;
    fn cublasLtGetVersion() -> usize;
    fn cublasLtGetStatusName(status: cublasStatus_t) -> *const c_char;
    fn cublasLtMatmul(
        light_handle: cublasLtHandle_t, compute_desc: cublasLtMatmulDesc_t, alpha: *const c_void, a: *const c_void,
        adesc: cublasLtMatrixLayout_t, b: *const c_void, bdesc: cublasLtMatrixLayout_t, beta: *const c_void,
        c: *const c_void, cdesc: cublasLtMatrixLayout_t, d: *mut c_void, ddesc: cublasLtMatrixLayout_t,
        algo: *const cublasLtMatmulAlgo_t, workspace: *mut c_void, workspace_size_in_bytes: usize,
        stream: cudaStream_t
    ) -> cublasStatus_t;
    fn cublasLtMatmulAlgoGetHeuristic(
        light_handle: cublasLtHandle_t, operation_desc: cublasLtMatmulDesc_t, adesc: cublasLtMatrixLayout_t,
        bdesc: cublasLtMatrixLayout_t, cdesc: cublasLtMatrixLayout_t, ddesc: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t, requested_algo_count: c_int,
        heuristic_results_array: *mut cublasLtMatmulHeuristicResult_t, return_algo_count: *mut c_int
    ) -> cublasStatus_t;
    fn cublasLtMatmulDescCreate(
        matmul_desc: *mut cublasLtMatmulDesc_t, compute_type: cublasComputeType_t, scale_type: cudaDataType_t
    ) -> cublasStatus_t;
    fn cublasLtMatmulDescDestroy(matmul_desc: cublasLtMatmulDesc_t) -> cublasStatus_t;
    fn cublasLtMatmulDescSetAttribute(
        matmul_desc: cublasLtMatmulDesc_t, attr: cublasLtMatmulDescAttributes_t, buf: *const c_void,
        size_in_bytes: usize
    ) -> cublasStatus_t;
    fn cublasLtMatmulPreferenceCreate(pref: *mut cublasLtMatmulPreference_t) -> cublasStatus_t;
    fn cublasLtMatmulPreferenceDestroy(pref: cublasLtMatmulPreference_t) -> cublasStatus_t;
    fn cublasLtMatmulPreferenceSetAttribute(
        pref: cublasLtMatmulPreference_t, attr: u32, buf: *const c_void, size_in_bytes: usize
    ) -> cublasStatus_t;
    fn cublasLtMatrixLayoutCreate(
        mat_layout: *mut cublasLtMatrixLayout_t, type_: cudaDataType, rows: u64, cols: u64, ld: i64
    ) -> cublasStatus_t;
    fn cublasLtMatrixLayoutDestroy(mat_layout: cublasLtMatrixLayout_t) -> cublasStatus_t;
}
