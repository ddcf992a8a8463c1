//! Constraints for the heuristics.
#![allow(unsafe_code)]

use crate::Result;
use crate::calls::blas::{
    self as sys, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t as Attribute,
    cublasStatus_t as Status,
};

/// Converts a call's status into an error that names the product.
pub(super) type Check<'a> = &'a dyn Fn(&'static str, Status) -> Result<()>;

/// Requires algorithms that do not split the summed index, within bounds.
pub(super) struct Preference(cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by the library, and not used again.
        unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

impl Preference {
    /// Limits scratch to `workspace_bytes`, for operands and a result with these address alignments in bytes.
    ///
    /// # Errors
    /// If the library fails.
    pub fn new(workspace_bytes: u64, [first, second, result]: [u32; 3], check: Check<'_>) -> Result<Self> {
        let mut made: cublasLtMatmulPreference_t = std::ptr::null_mut();
        // SAFETY: the library makes a preference.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut made) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let preference = Preference(made);
        let most = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        preference.set(most as u32, workspace_bytes, check)?;
        for (attribute, value) in [
            (Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 0),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, first),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, second),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result),
        ] {
            preference.set(attribute as u32, value, check)?;
        }
        Ok(preference)
    }

    /// Sets an attribute by number; the value must have the attribute's type.
    ///
    /// # Errors
    /// If the library does not know it.
    pub fn set<T>(&self, attribute: u32, value: T, check: Check<'_>) -> Result<()> {
        let (from, size) = ((&raw const value).cast(), size_of::<T>());
        // SAFETY: a preference that lives; the value is copied, with its size.
        let status = unsafe { sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, from, size) };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    }

    /// The library's handle.
    pub fn handle(&self) -> cublasLtMatmulPreference_t {
        self.0
    }
}
