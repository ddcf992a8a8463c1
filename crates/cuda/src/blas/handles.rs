//! Handles and values of cuBLASLt's interface.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use super::shape::Element;
use crate::calls::blas as sys;
use crate::calls::blas::{cublasLtMatmulAlgo_t, cublasStatus_t as Status, cudaDataType};

/// Descriptor of a product.
pub(super) struct Desc(pub usize);

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made by the library, and not used again.
        unsafe { sys::cublasLtMatmulDescDestroy(at(self.0)) };
    }
}

/// Layout of a matrix in memory.
pub(super) struct Matrix(pub usize);

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: made by the library, and not used again.
        unsafe { sys::cublasLtMatrixLayoutDestroy(at(self.0)) };
    }
}

/// An algorithm and the scratch that it needs.
pub(super) type Candidate = (cublasLtMatmulAlgo_t, usize);

pub(super) fn name(status: Status) -> String {
    // SAFETY: the library returns a static string.
    let text = unsafe { sys::cublasLtGetStatusName(status) };
    if text.is_null() {
        return format!("{status:?}");
    }
    // SAFETY: as above; it is zero-terminated.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

pub(super) fn data_type(element: Element) -> cudaDataType {
    match element {
        Element::F32 => cudaDataType::CUDA_R_32F,
        Element::Bf16 => cudaDataType::CUDA_R_16BF,
        Element::F16 => cudaDataType::CUDA_R_16F,
        Element::E4M3 => cudaDataType::CUDA_R_8F_E4M3,
        Element::E5M2 => cudaDataType::CUDA_R_8F_E5M2,
    }
}

/// `cublasOperation_t`, which the bindings omit: N is 0, T is 1.
pub(super) fn operation(trans: bool) -> i32 {
    i32::from(trans)
}

pub(super) fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

pub(super) fn at<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}
