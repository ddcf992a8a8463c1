//! cuBLASLt's functions, `cublasLt*`, as declared in `cublasLt.h` of 13.1, and those of grouped matrices as in 13.10,
//! for a device of compute capability 9.0.
//!
//! | file | contents |
//! |---|---|
//! | `objects.rs` | handles, descriptors, and their attributes |
//! | `problem.rs` | a product, assembled from its descriptors |
//! | `rules.rs` | the products documented for this device |
//! | `heuristic.rs` | algorithms, and the products they were chosen for |
//! | `matmul.rs` | a product's call |
//! | `product.rs` | a product's work |
//! | `groups.rs` | grouped matrix products, with sizes in device memory |
//! | `values.rs` | number types |
//!
//! Not supported, and refused with a message: other batches, orders other than column-major, epilogues, integer,
//! complex and double products, products that accumulate in f16, emulation, and scalars as vectors.
#![allow(non_snake_case)]
// Each function is as safe as its declaration in the header.
#![allow(clippy::missing_safety_doc)]

mod buffers;
mod group_shapes;
mod groups;
mod heuristic;
mod matmul;
mod objects;
mod operands;
mod problem;
mod product;
mod rules;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::{CStr, c_char};

use cudarc::cublaslt::sys::cublasStatus_t as Status;

use crate::device::{complain, settings};

/// Failure of a call.
#[derive(Debug)]
struct Refusal {
    status: Status,
    why: String,
}

type Outcome<T> = Result<T, Refusal>;

fn refuse<T>(status: Status, why: impl Into<String>) -> Outcome<T> {
    Err(Refusal { status, why: why.into() })
}

/// Refuses parameters that are inconsistent or invalid.
fn invalid<T>(why: impl Into<String>) -> Outcome<T> {
    refuse(Status::CUBLAS_STATUS_INVALID_VALUE, why)
}

/// Refuses features that are not documented for this device, or that the rehearsal does not support.
fn unsupported<T>(why: impl Into<String>) -> Outcome<T> {
    refuse(Status::CUBLAS_STATUS_NOT_SUPPORTED, why)
}

fn answer(call: &str, result: Outcome<()>) -> Status {
    match result {
        Ok(()) => Status::CUBLAS_STATUS_SUCCESS,
        Err(refusal) => {
            complain(call, refusal.why);
            refusal.status
        }
    }
}

/// Writes a result to the caller's address.
///
/// # Safety
/// The address is null or that of a `T`.
unsafe fn give<T>(to: *mut T, value: T) -> Outcome<()> {
    if to.is_null() {
        return invalid("null, where something was to be written");
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// The version given by the settings.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    settings().cublas
}

/// The status is a number, since a caller's may not be in the header's enumeration.
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
