//! cuBLASLt's functions, `cublasLt*`, as `cublasLt.h` of 13.1 declares them, and with grouped matrices as that of 13.10 does, for a
//! device of compute capability 9.0.
//!
//! | file | is |
//! |---|---|
//! | `objects.rs` | handles, descriptors, and what may be set in them |
//! | `problem.rs` | what a product is, put together from its descriptors |
//! | `rules.rs` | which products the documents list for this device |
//! | `heuristic.rs` | algorithms, and what they were chosen for |
//! | `matmul.rs` | a product's call |
//! | `product.rs` | a product's work |
//! | `groups.rs` | products of grouped matrices, whose sizes are a device's |
//! | `values.rs` | types of numbers |
//!
//! What it does not have, and refuses with words: other batches, orders other than by columns, epilogues, integer, complex and double
//! products, products that accumulate in f16, emulation, and scalars as vectors.
#![allow(non_snake_case)]
// Each is as safe as its declaration in the header.
#![allow(clippy::missing_safety_doc)]

mod groups;
mod heuristic;
mod matmul;
mod objects;
mod problem;
mod product;
mod rules;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::{CStr, c_char};

use cudarc::cublaslt::sys::cublasStatus_t as Status;

use crate::device::{complain, settings};

/// Why a call does not do what it was asked for.
#[derive(Debug)]
struct Refusal {
    status: Status,
    why: String,
}

type Checked<T> = Result<T, Refusal>;

fn refuse<T>(status: Status, why: impl Into<String>) -> Checked<T> {
    Err(Refusal { status, why: why.into() })
}

/// Parameters that contradict each other or themselves.
fn invalid<T>(why: impl Into<String>) -> Checked<T> {
    refuse(Status::CUBLAS_STATUS_INVALID_VALUE, why)
}

/// What the documents do not list for this device, or the rehearsal does not have.
fn unsupported<T>(why: impl Into<String>) -> Checked<T> {
    refuse(Status::CUBLAS_STATUS_NOT_SUPPORTED, why)
}

/// The status of a call.
fn answer(call: &str, result: Checked<()>) -> Status {
    match result {
        Ok(()) => Status::CUBLAS_STATUS_SUCCESS,
        Err(refusal) => {
            complain(call, refusal.why);
            refusal.status
        }
    }
}

/// Writes where the caller wants it.
///
/// # Safety
/// The address is null or one of a `T`.
unsafe fn give<T>(to: *mut T, value: T) -> Checked<()> {
    if to.is_null() {
        return invalid("null, where something was to be written");
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// As the settings say.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    settings().cublas
}

/// The status comes as a number, since a caller's may be none of the header's.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusName(status: u32) -> *const c_char {
    let name: &CStr = match status {
        0 => c"CUBLAS_STATUS_SUCCESS",
        1 => c"CUBLAS_STATUS_NOT_INITIALIZED",
        3 => c"CUBLAS_STATUS_ALLOC_FAILED",
        7 => c"CUBLAS_STATUS_INVALID_VALUE",
        8 => c"CUBLAS_STATUS_ARCH_MISMATCH",
        11 => c"CUBLAS_STATUS_MAPPING_ERROR",
        13 => c"CUBLAS_STATUS_EXECUTION_FAILED",
        14 => c"CUBLAS_STATUS_INTERNAL_ERROR",
        15 => c"CUBLAS_STATUS_NOT_SUPPORTED",
        16 => c"CUBLAS_STATUS_LICENSE_ERROR",
        _ => c"CUBLAS_STATUS_UNKNOWN",
    };
    name.as_ptr()
}
