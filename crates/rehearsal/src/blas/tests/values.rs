//! Handles, names and attributes.

use super::*;
use crate::blas::{cublasLtGetStatusName, cublasLtGetVersion};

const INVALID: Status = Status::CUBLAS_STATUS_INVALID_VALUE;

#[test]
fn statuses_have_the_names_of_the_header() {
    let check = |status: u32, name: &str| {
        // SAFETY: a constant text.
        let found = unsafe { std::ffi::CStr::from_ptr(cublasLtGetStatusName(status)) };
        assert_eq!(found.to_str().unwrap(), name);
    };
    check(OK as u32, "CUBLAS_STATUS_SUCCESS");
    check(INVALID as u32, "CUBLAS_STATUS_INVALID_VALUE");
    check(15, "CUBLAS_STATUS_NOT_SUPPORTED");
    check(13, "CUBLAS_STATUS_EXECUTION_FAILED");
    assert_eq!(cublasLtGetVersion(), 131_000);
}

#[test]
fn attributes_have_exactly_their_sizes() {
    let mut product = null_mut();
    let value = 0u64;
    // SAFETY: a valid address, and eight bytes.
    unsafe {
        assert_eq!(cublasLtMatmulDescCreate(&mut product, Compute::CUBLAS_COMPUTE_32F as u32, 0), OK);
        let set = |attribute: u32, bytes| {
            cublasLtMatmulDescSetAttribute(product, attribute, (&raw const value).cast(), bytes)
        };
        let sizes =
            [(3, 4), (4, 4), (2, 4), (7, 4), (17, 8), (20, 8), (21, 8), (25, 1), (31, 4), (37, 4), (36, 8)];
        for (attribute, size) in sizes {
            for bytes in [1, 2, 4, 8] {
                let expected = if bytes == size { OK } else { INVALID };
                assert_eq!(set(attribute, bytes), expected, "attribute {attribute} of {bytes} bytes");
            }
        }
        for none in [9, 16, 27, 30, 39, 1000] {
            assert_eq!(set(none, 4), INVALID);
        }
        assert_eq!(cublasLtMatmulDescSetAttribute(product, 3, null(), 4), INVALID);
        assert_eq!(cublasLtMatmulDescDestroy(product), OK);
        assert_eq!(cublasLtMatmulDescSetAttribute(product, 3, (&raw const value).cast(), 4), INVALID);
        assert_eq!(cublasLtMatmulDescDestroy(product), INVALID);
        // A scale type in place of a compute type.
        assert_eq!(cublasLtMatmulDescCreate(&mut product, 0, 68), INVALID);
        assert_eq!(cublasLtMatmulDescCreate(null_mut(), 68, 0), INVALID);
    }
}

#[test]
fn preferences_have_exactly_their_sizes() {
    let mut wishes = null_mut();
    // SAFETY: a valid address, and eight bytes.
    unsafe {
        assert_eq!(cublasLtMatmulPreferenceCreate(&mut wishes), OK);
        for (attribute, value, size) in
            [(0, 0, 4), (1, 77, 8), (3, 7, 4), (5, 16, 4), (8, 1, 4), (12, u64::MAX, 8)]
        {
            for bytes in [4, 8] {
                let expected = if bytes == size { OK } else { INVALID };
                let from = (&raw const value).cast();
                assert_eq!(cublasLtMatmulPreferenceSetAttribute(wishes, attribute, from, bytes), expected);
            }
        }
        let odd = 48u32;
        assert_eq!(cublasLtMatmulPreferenceSetAttribute(wishes, 5, (&raw const odd).cast(), 4), INVALID);
        assert_eq!(cublasLtMatmulPreferenceDestroy(wishes), OK);
    }
}

#[test]
fn handles_are_of_the_device_that_was_current() {
    let stream = stream();
    let mut random = Random(1);
    let sides: [Side; 4] = std::array::from_fn(|_| Side::new(Kind::F32, [4, 4], 4, &mut random));
    let call = Call::new(sides.each_ref(), [false; 2], stream);
    assert_eq!(call.make(), (OK, OK));
    let mut handle = null_mut();
    // SAFETY: a valid address.
    unsafe {
        assert_eq!(cublasLtCreate(&mut handle), OK);
        assert_eq!(cublasLtCreate(null_mut()), INVALID);
    }
    assert!(check_handle(handle).is_ok());
    cuCtxSetCurrent(null_mut());
    assert!(check_handle(handle).is_err());
    assert_eq!(cublasLtDestroy(handle), OK);
    assert_eq!(check_handle(handle).unwrap_err().status, Status::CUBLAS_STATUS_NOT_INITIALIZED);
}
