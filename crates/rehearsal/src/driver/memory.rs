//! Memory, and copies of it.

use std::ffi::{c_uchar, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUdeviceptr, CUmemAccess_flags_enum as Access, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemAllocationType_enum as Kind,
    CUmemGenericAllocationHandle, CUmemLocationType_enum as Location, CUmemorytype, CUresult, CUstream,
};

use super::{give, known, outside_capture, within};
use crate::device::{GRANULE, check_memory, complain, drive_all, state, submit};

fn invalid<T>(call: &str, why: &str) -> Result<T, CUresult> {
    complain(call, why);
    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// The device of allocation properties; only pinned device memory is supported.
///
/// # Safety
/// The address is null or that of properties.
unsafe fn device_of(call: &str, properties: *const CUmemAllocationProp) -> Result<usize, CUresult> {
    // SAFETY: the caller's promise.
    let Some(properties) = (unsafe { properties.as_ref() }) else { return invalid(call, "null") };
    let pinned = properties.type_ == Kind::CU_MEM_ALLOCATION_TYPE_PINNED;
    if !pinned || properties.location.type_ != Location::CU_MEM_LOCATION_TYPE_DEVICE {
        return invalid(call, "not pinned memory of a device");
    }
    known(call, properties.location.id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    _option: CUmemAllocationGranularity_flags,
) -> CUresult {
    let call = "cuMemGetAllocationGranularity";
    // SAFETY: the header's contract.
    within(call, |_| unsafe {
        device_of(call, properties)?;
        give(call, granularity, GRANULE as usize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    within("cuMemGetInfo", |device| {
        let (has, all) = state().info(device);
        // SAFETY: the header's contract.
        unsafe {
            give("cuMemGetInfo", free, has as usize)?;
            give("cuMemGetInfo", total, all as usize)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    hint: CUdeviceptr,
    flags: c_ulonglong,
) -> CUresult {
    within("cuMemAddressReserve", |_| {
        if flags != 0 || hint != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
            return invalid("cuMemAddressReserve", "flags, a hint or an odd alignment");
        }
        let start = state().reserve(size as u64)?;
        // SAFETY: the header's contract.
        unsafe { give("cuMemAddressReserve", address, start) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: CUdeviceptr, size: usize) -> CUresult {
    within("cuMemAddressFree", |_| state().unreserve(address, size as u64))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> CUresult {
    within("cuMemCreate", |_| {
        if flags != 0 {
            return invalid("cuMemCreate", "flags");
        }
        // SAFETY: the header's contract.
        let device = unsafe { device_of("cuMemCreate", properties) }?;
        let made = state().create(device, size as u64)?;
        // SAFETY: the header's contract.
        unsafe { give("cuMemCreate", handle, made) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    within("cuMemRelease", |_| state().release(handle))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    within("cuMemMap", |_| {
        if offset != 0 || flags != 0 {
            return invalid("cuMemMap", "the offset and the flags have to be zero");
        }
        state().map(address, size as u64, handle)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    rights: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    within("cuMemSetAccess", |device| {
        // SAFETY: the header's contract; a single description is supported.
        let Some(right) = (unsafe { rights.as_ref() }).filter(|_| count == 1) else {
            return invalid("cuMemSetAccess", "one description is taken");
        };
        let own = right.location.type_ == Location::CU_MEM_LOCATION_TYPE_DEVICE
            && right.location.id as usize == device;
        if !own || right.flags != Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
            return invalid("cuMemSetAccess", "not for this device to read and write");
        }
        state().open(address, size as u64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: CUdeviceptr, size: usize) -> CUresult {
    within("cuMemUnmap", |_| state().unmap(address, size as u64))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) -> CUresult {
    within("cuMemAlloc", |device| {
        outside_capture("cuMemAlloc")?;
        let start = state().allocate(device, size as u64)?;
        // SAFETY: the header's contract.
        unsafe { give("cuMemAlloc", address, start) }
    })
}

/// Waits for the device, like the driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    within("cuMemFree", |_| {
        outside_capture("cuMemFree")?;
        drive_all();
        state().free(address)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(start: *mut *mut c_void, size: usize, flags: c_uint) -> CUresult {
    within("cuMemHostAlloc", |_| {
        outside_capture("cuMemHostAlloc")?;
        if flags & !7 != 0 {
            return invalid("cuMemHostAlloc", "flags that are none");
        }
        let address = state().pin(size as u64)?;
        // SAFETY: the header's contract.
        unsafe { give("cuMemHostAlloc", start, std::ptr::with_exposed_provenance_mut(address as usize)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(start: *mut c_void) -> CUresult {
    within("cuMemFreeHost", |_| {
        outside_capture("cuMemFreeHost")?;
        drive_all();
        state().unpin(start.expose_provenance() as u64)
    })
}

/// Rows of bytes on one side of a copy.
#[derive(Clone, Copy)]
struct Side {
    address: u64,
    pitch: u64,
    on_device: bool,
}

impl Side {
    fn device(address: u64, pitch: u64) -> Side {
        Side { address, pitch, on_device: true }
    }

    fn host<T>(address: *const T, pitch: u64) -> Side {
        Side { address: address.expose_provenance() as u64, pitch, on_device: false }
    }

    /// Checks that device memory is accessible; host memory is not tracked here.
    fn check(&self, width: u64, rows: u64) -> Result<(), String> {
        let reach = self.pitch * (rows - 1) + width;
        if self.on_device { check_memory(self.address, reach) } else { Ok(()) }
    }

    fn row(&self, row: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut((self.address + row * self.pitch) as usize)
    }
}

/// The copy waits for its turn whether or not host memory is pinned, which exposes code that relies on more.
fn copy(call: &'static str, from: Side, to: Side, [width, rows]: [u64; 2], stream: CUstream) -> CUresult {
    within(call, |_| {
        if width == 0 || rows == 0 {
            return invalid(call, "nothing to copy");
        }
        if rows > 1 && (from.pitch < width || to.pitch < width) {
            return invalid(call, "a pitch that is less than a row");
        }
        for side in [from, to] {
            side.check(width, rows).or_else(|why| invalid(call, &why))?;
        }
        let work = move || {
            from.check(width, rows)?;
            to.check(width, rows)?;
            for row in 0..rows {
                // SAFETY: device memory was checked; host memory is the caller's promise, until the copy is waited for.
                unsafe { std::ptr::copy(from.row(row), to.row(row), width as usize) };
            }
            Ok(())
        };
        submit(stream.addr() as u64, call, Arc::new(work))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let [width, pitch] = [bytes as u64; 2];
    copy("cuMemcpyHtoDAsync", Side::host(from, pitch), Side::device(to, pitch), [width, 1], stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let [width, pitch] = [bytes as u64; 2];
    copy("cuMemcpyDtoHAsync", Side::device(from, pitch), Side::host(to, pitch), [width, 1], stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let [width, pitch] = [bytes as u64; 2];
    copy("cuMemcpyDtoDAsync", Side::device(from, pitch), Side::device(to, pitch), [width, 1], stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(plan: *const CUDA_MEMCPY2D, stream: CUstream) -> CUresult {
    let call = "cuMemcpy2DAsync";
    // SAFETY: the header's contract.
    let Some(plan) = (unsafe { plan.as_ref() }) else { return CUresult::CUDA_ERROR_INVALID_VALUE };
    if [plan.srcXInBytes, plan.srcY, plan.dstXInBytes, plan.dstY] != [0; 4] {
        complain(call, "the rehearsal takes no offsets");
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    let side = |kind: CUmemorytype, host: *const c_void, device: u64, pitch: usize| match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => Some(Side::host(host, pitch as u64)),
        CUmemorytype::CU_MEMORYTYPE_DEVICE => Some(Side::device(device, pitch as u64)),
        _ => None,
    };
    let from = side(plan.srcMemoryType, plan.srcHost, plan.srcDevice, plan.srcPitch);
    let to = side(plan.dstMemoryType, plan.dstHost, plan.dstDevice, plan.dstPitch);
    let (Some(from), Some(to)) = (from, to) else {
        complain(call, "a kind of memory that the rehearsal does not have");
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    };
    copy(call, from, to, [plan.WidthInBytes as u64, plan.Height as u64], stream)
}

fn fill(call: &'static str, to: Side, value: u8, [width, rows]: [u64; 2], stream: CUstream) -> CUresult {
    within(call, |_| {
        if width == 0 || rows == 0 || (rows > 1 && to.pitch < width) {
            return invalid(call, "nothing to set, or a pitch that is less than a row");
        }
        to.check(width, rows).or_else(|why| invalid(call, &why))?;
        let work = move || {
            to.check(width, rows)?;
            for row in 0..rows {
                // SAFETY: checked.
                unsafe { to.row(row).write_bytes(value, width as usize) };
            }
            Ok(())
        };
        submit(stream.addr() as u64, call, Arc::new(work))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, n: usize, stream: CUstream) -> CUresult {
    fill("cuMemsetD8Async", Side::device(to, n as u64), value, [n as u64, 1], stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD2D8Async(
    to: CUdeviceptr,
    pitch: usize,
    value: c_uchar,
    width: usize,
    height: usize,
    stream: CUstream,
) -> CUresult {
    fill("cuMemsetD2D8Async", Side::device(to, pitch as u64), value, [width as u64, height as u64], stream)
}
