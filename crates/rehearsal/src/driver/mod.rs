//! The driver's functions, `cu*`, as declared in `cuda.h`.
#![allow(non_snake_case)]
// Each function is as safe as its declaration in the header.
#![allow(clippy::missing_safety_doc)]

mod memory;
mod modules;
mod streams;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute as Attribute, CUresult};

use crate::device::{complain, settings, state};

thread_local! {
    /// The device whose context is current on this thread.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The device whose context is current on this thread.
pub fn current() -> Option<usize> {
    CURRENT.get()
}

/// The status of a call.
fn status(result: Result<(), CUresult>) -> CUresult {
    result.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Runs a call that requires a current context and a device that has not failed.
fn within(call: &str, run: impl FnOnce(usize) -> Result<(), CUresult>) -> CUresult {
    let Some(device) = CURRENT.get() else {
        complain(call, "no context is current on this thread");
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    };
    if settings().refused.iter().any(|refused| refused == call) {
        return CUresult::CUDA_ERROR_NOT_SUPPORTED;
    }
    let alive = state().alive();
    status(alive.and_then(|()| run(device)))
}

/// Refuses calls that may block, on a thread that is capturing.
fn outside_capture(call: &str) -> Result<(), CUresult> {
    let mut now = state();
    let own = std::thread::current().id();
    let mut captures = now.streams.values_mut().filter_map(|stream| stream.capture.as_mut());
    let Some(capture) = captures.find(|capture| capture.owner == own) else { return Ok(()) };
    capture.broken = true;
    complain(call, "this thread captures a stream");
    Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// Writes a result to the caller's address.
///
/// # Safety
/// The address is null or that of a `T`.
unsafe fn give<T>(call: &str, to: *mut T, value: T) -> Result<(), CUresult> {
    if to.is_null() {
        complain(call, "null");
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

fn known(call: &str, device: CUdevice) -> Result<usize, CUresult> {
    let index = usize::try_from(device).ok().filter(|index| *index < settings().devices);
    index.ok_or_else(|| {
        complain(call, format!("device {device} of {}", settings().devices));
        CUresult::CUDA_ERROR_INVALID_DEVICE
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> CUresult {
    if flags == 0 { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: the header's contract.
    status(unsafe { give("cuDriverGetVersion", version, 13_000) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // SAFETY: the header's contract.
    status(unsafe { give("cuDeviceGetCount", count, settings().devices as c_int) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    // SAFETY: the header's contract.
    status(known("cuDeviceGet", ordinal).and_then(|_| unsafe { give("cuDeviceGet", device, ordinal) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CUresult {
    let text = b"NVIDIA H200 (rehearsal)\0";
    if name.is_null() || (len as usize) < text.len() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    status(known("cuDeviceGetName", device).map(|_| {
        // SAFETY: the text fits.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    // SAFETY: the header's contract.
    let give = |_| unsafe { give("cuDeviceTotalMem", bytes, settings().memory as usize) };
    status(known("cuDeviceTotalMem", device).and_then(give))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: Attribute,
    device: CUdevice,
) -> CUresult {
    let found = match attribute {
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 132,
        Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED => 1,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID | Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => 0,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => device,
        other => {
            complain("cuDeviceGetAttribute", format!("the rehearsal does not know {other:?}"));
            return CUresult::CUDA_ERROR_INVALID_VALUE;
        }
    };
    // SAFETY: the header's contract.
    let give = |_| unsafe { give("cuDeviceGetAttribute", value, found) };
    status(known("cuDeviceGetAttribute", device).and_then(give))
}

/// A context is its device's number plus one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    status(known("cuDevicePrimaryCtxRetain", device).and_then(|index| {
        state().contexts.insert(index);
        let handle = std::ptr::without_provenance_mut(index + 1);
        // SAFETY: the header's contract.
        unsafe { give("cuDevicePrimaryCtxRetain", context, handle) }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    let index = context.addr().checked_sub(1);
    if index.is_some_and(|index| !state().contexts.contains(&index)) {
        complain("cuCtxSetCurrent", "no such context");
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    }
    CURRENT.set(index);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    let words = match error {
        CUresult::CUDA_SUCCESS => c"no error",
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => c"out of memory",
        CUresult::CUDA_ERROR_INVALID_VALUE => c"invalid argument",
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        _ => c"an error of the rehearsal: see standard error",
    };
    // SAFETY: the header's contract.
    status(unsafe { give("cuGetErrorString", text, words.as_ptr()) })
}
