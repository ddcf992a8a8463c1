//! The real driver, with one context per device, the primary one that CUDA's libraries also use.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::Once;

use crate::calls::driver::{
    self as sys, CUdevice, CUdevice_attribute as Attribute, CUmemAllocationProp, CUmemLocation, CUresult,
};

use super::{Backing, Driver, Event, Facts, Function, Graph, Module, Rows, Stream, Way};
use crate::kernels::Launch;
use crate::{Error, Result};

/// One device.
pub struct Real {
    device: CUdevice,
    /// Address of the primary context.
    context: usize,
    facts: Facts,
    chunk_bytes: u64,
}

/// Converts a status into an error that names the call.
fn check(call: &'static str, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Driver { call, name: format!("{status:?}"), code: status as u32, detail: description(status) })
}

/// The driver's description of a status, after a colon.
fn description(status: CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver sets the pointer to a static string, or leaves null.
    unsafe {
        if sys::cuGetErrorString(status, &mut text) != CUresult::CUDA_SUCCESS || text.is_null() {
            return String::new();
        }
        format!(": {}", CStr::from_ptr(text).to_string_lossy())
    }
}

thread_local! {
    /// Address of the context that is current on this thread.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Guards the message that pools allocate their budgets at once, printed once however many ranks open a device.
static SAID: Once = Once::new();

/// The driver's properties of device memory.
fn properties(device: CUdevice) -> CUmemAllocationProp {
    // SAFETY: a C struct of numbers and pointers, for which zeros are valid.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    properties
}

fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

impl Real {
    /// Number of devices.
    ///
    /// # Errors
    /// If the driver does not start, or reports that there is none.
    pub fn count() -> Result<usize> {
        let mut count: c_int = 0;
        // SAFETY: plain calls; the driver has been found and opened (`libs::probe`).
        unsafe {
            let started = sys::cuInit(0);
            let counted =
                if started == CUresult::CUDA_SUCCESS { sys::cuDeviceGetCount(&mut count) } else { started };
            if counted == CUresult::CUDA_ERROR_NO_DEVICE || (counted == CUresult::CUDA_SUCCESS && count == 0)
            {
                return Err(Error::NoDevice(format!("the driver sees none{}", description(counted))));
            }
            check(if started == CUresult::CUDA_SUCCESS { "cuDeviceGetCount" } else { "cuInit" }, counted)?;
        }
        Ok(count as usize)
    }

    /// Describes a device without taking any of its memory.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn describe(ordinal: usize) -> Result<Facts> {
        facts(device(ordinal)?)
    }

    /// Opens a device. The libraries must have been found ([`crate::libs::probe`]), else the loader panics.
    ///
    /// # Errors
    /// If there is no such device, or the driver refuses it.
    pub fn open(ordinal: usize) -> Result<Real> {
        let device = device(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver writes a context to the given address.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        let facts = facts(device)?;
        let context = context.expose_provenance();
        let mut real = Real { device, context, facts, chunk_bytes: 2 << 20 };
        context_is_current(real.context)?;
        if real.facts.virtual_memory {
            let mut least = 0usize;
            let flag = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
            // SAFETY: the driver reads the properties and writes a number.
            let status = unsafe { sys::cuMemGetAllocationGranularity(&mut least, &properties(device), flag) };
            check("cuMemGetAllocationGranularity", status)?;
            real.chunk_bytes = (least as u64).max(1);
            if let Err(error) = real.try_backing() {
                let why = format!("the driver has no memory for reserved addresses ({error})");
                SAID.call_once(|| log::warn!("{why}: a pool takes its whole budget at once"));
                real.facts.virtual_memory = false;
            }
        }
        Ok(real)
    }

    /// Backs a chunk and releases it: drivers in sandboxes may report support and then refuse.
    fn try_backing(&self) -> Result<()> {
        let bytes = self.chunk_bytes;
        let at = self.reserve(bytes)?;
        let tried = self.back(at, bytes).and_then(|backing| self.unback(at, bytes, backing));
        self.release(at, bytes)?;
        tried
    }

    fn bind(&self) -> Result<()> {
        context_is_current(self.context)
    }
}

/// The handle of a device.
fn device(ordinal: usize) -> Result<CUdevice> {
    let count = Real::count()?;
    if ordinal >= count {
        return Err(Error::NoDevice(format!("number {ordinal} of {count} (from 0)")));
    }
    let mut device: CUdevice = 0;
    // SAFETY: the driver writes a device to the given address.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as c_int) })?;
    Ok(device)
}

fn context_is_current(context: usize) -> Result<()> {
    if CURRENT.get() != context {
        // SAFETY: the context is retained for as long as the process lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(pointer(context as u64).cast()) })?;
        CURRENT.set(context);
    }
    Ok(())
}

/// A handle or a host address, as the driver takes it.
fn pointer(value: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(value as usize)
}

fn number<T>(pointer: *mut T) -> u64 {
    pointer.expose_provenance() as u64
}

fn facts(device: CUdevice) -> Result<Facts> {
    let mut name = [0 as std::ffi::c_char; 128];
    let (mut bytes, mut driver) = (0usize, 0 as c_int);
    // SAFETY: the driver writes at most the given number of characters, and two numbers.
    unsafe {
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int - 1, device))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut bytes, device))?;
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut driver))?;
    }
    let attribute = |attribute: Attribute| -> Result<u32> {
        let mut value: c_int = 0;
        // SAFETY: the driver writes one number.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
        Ok(value as u32)
    };
    // SAFETY: the array is zero-terminated, as one character less was offered.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(Facts {
        name,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        memory_bytes: bytes as u64,
        driver: driver as u32,
        virtual_memory: attribute(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? != 0,
        pci: [
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ],
    })
}

// SAFETY: each method makes the driver call that it stands for, with the given arguments.
unsafe impl Driver for Real {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn space(&self) -> u64 {
        self.context as u64
    }

    fn enter(&self) -> Result<()> {
        self.bind()
    }

    fn memory(&self) -> Result<(u64, u64)> {
        self.bind()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the driver writes two numbers.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    fn reserve(&self, bytes: u64) -> Result<u64> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: a fresh range at an address of the driver's choice.
        let status = unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0) };
        check("cuMemAddressReserve", status)?;
        Ok(address)
    }

    fn release(&self, address: u64, bytes: u64) -> Result<()> {
        self.bind()?;
        // SAFETY: the range was reserved with this size, and no memory is behind it any more.
        check("cuMemAddressFree", unsafe { sys::cuMemAddressFree(address, bytes as usize) })
    }

    fn back(&self, address: u64, bytes: u64) -> Result<Backing> {
        self.bind()?;
        let (mut handle, bytes) = (0, bytes as usize);
        let access = sys::CUmemAccessDesc {
            location: location(self.device),
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: device memory is created, mapped to an unbacked part of a reserved range, and made writable; on
        // failure, earlier steps are undone.
        unsafe {
            check("cuMemCreate", sys::cuMemCreate(&mut handle, bytes, &properties(self.device), 0))?;
            let mapped = check("cuMemMap", sys::cuMemMap(address, bytes, 0, handle, 0));
            if let Err(error) = mapped {
                sys::cuMemRelease(handle);
                return Err(error);
            }
            if let Err(error) = check("cuMemSetAccess", sys::cuMemSetAccess(address, bytes, &access, 1)) {
                sys::cuMemUnmap(address, bytes);
                sys::cuMemRelease(handle);
                return Err(error);
            }
        }
        Ok(Backing(handle))
    }

    fn unback(&self, address: u64, bytes: u64, backing: Backing) -> Result<()> {
        self.bind()?;
        // SAFETY: the part was backed by this memory, and the caller promises that nothing uses it any more.
        unsafe {
            check("cuMemUnmap", sys::cuMemUnmap(address, bytes as usize))?;
            check("cuMemRelease", sys::cuMemRelease(backing.0))
        }
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: fresh memory at an address of the driver's choice.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) })?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        self.bind()?;
        // SAFETY: the address is from `allocate`.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }

    fn pin(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: fresh memory of the host. Portable, and not write-combined: the host reads it too.
        check("cuMemHostAlloc", unsafe {
            sys::cuMemHostAlloc(&mut start, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)
        })?;
        Ok(number(start))
    }

    fn unpin(&self, address: u64) -> Result<()> {
        self.bind()?;
        // SAFETY: the address is from `pin`.
        check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(pointer(address)) })
    }

    fn stream(&self) -> Result<Stream> {
        self.bind()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes a handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Stream(number(stream)))
    }

    fn end_stream(&self, stream: Stream) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream is from `stream`, and is not used again.
        check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(pointer(stream.0).cast()) })
    }

    fn synchronise(&self, stream: Stream) -> Result<()> {
        self.bind()?;
        // SAFETY: a stream that lives.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(pointer(stream.0).cast()) })
    }

    fn event(&self, timed: bool) -> Result<Event> {
        self.bind()?;
        let mut event = std::ptr::null_mut();
        let untimed = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the driver writes a handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, if timed { 0 } else { untimed }) })?;
        Ok(Event(number(event)))
    }

    fn end_event(&self, event: Event) -> Result<()> {
        self.bind()?;
        // SAFETY: the event is from `event`, and is not used again.
        check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(pointer(event.0).cast()) })
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        self.bind()?;
        // SAFETY: both live.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(pointer(event.0).cast(), pointer(stream.0).cast())
        })
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.bind()?;
        // SAFETY: both live.
        check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(pointer(stream.0).cast(), pointer(event.0).cast(), 0)
        })
    }

    fn join(&self, event: Event) -> Result<()> {
        self.bind()?;
        // SAFETY: the event lives.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(pointer(event.0).cast()) })
    }

    fn is_over(&self, event: Event) -> Result<bool> {
        self.bind()?;
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(pointer(event.0).cast()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check("cuEventQuery", status).map(|()| true),
        }
    }

    fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        self.bind()?;
        let mut milliseconds = 0f32;
        // SAFETY: both live; the driver writes a number.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&mut milliseconds, pointer(from.0).cast(), pointer(to.0).cast())
        })?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    unsafe fn copy(&self, way: Way, from: Rows, to: Rows, stream: Stream) -> Result<()> {
        if from.bytes() == 0 {
            return Ok(());
        }
        self.bind()?;
        let queue = pointer(stream.0).cast();
        if from.is_flat() && to.is_flat() {
            let bytes = from.bytes();
            // SAFETY: the caller's promise; there are no gaps on either side.
            return unsafe {
                match way {
                    Way::Up => check(
                        "cuMemcpyHtoDAsync",
                        sys::cuMemcpyHtoDAsync_v2(to.address, pointer(from.address), bytes, queue),
                    ),
                    Way::Down => check(
                        "cuMemcpyDtoHAsync",
                        sys::cuMemcpyDtoHAsync_v2(pointer(to.address), from.address, bytes, queue),
                    ),
                    Way::Across => check(
                        "cuMemcpyDtoDAsync",
                        sys::cuMemcpyDtoDAsync_v2(to.address, from.address, bytes, queue),
                    ),
                }
            };
        }
        let plan = rectangle(way, from, to);
        // SAFETY: the caller's promise; the rectangle is `rows` of `row_bytes` on both sides.
        check("cuMemcpy2DAsync", unsafe { sys::cuMemcpy2DAsync_v2(&plan, queue) })
    }

    unsafe fn clear(&self, rows: Rows, stream: Stream) -> Result<()> {
        if rows.bytes() == 0 {
            return Ok(());
        }
        self.bind()?;
        let queue = pointer(stream.0).cast();
        // SAFETY: the caller's promise.
        unsafe {
            if rows.is_flat() {
                return check("cuMemsetD8Async", sys::cuMemsetD8Async(rows.address, 0, rows.bytes(), queue));
            }
            let Rows { address, stride_bytes, row_bytes, rows } = rows;
            check(
                "cuMemsetD2D8Async",
                sys::cuMemsetD2D8Async(address, stride_bytes, 0, row_bytes, rows, queue),
            )
        }
    }

    fn load(&self, cubin: &[u8]) -> Result<Module> {
        self.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image was made by NVRTC; the driver reads it before it returns.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) })?;
        Ok(Module(number(module)))
    }

    fn unload(&self, module: Module) -> Result<()> {
        self.bind()?;
        // SAFETY: the module is from `load`, and none of its kernels is used again.
        check("cuModuleUnload", unsafe { sys::cuModuleUnload(pointer(module.0).cast()) })
    }

    fn function(&self, module: Module, name: &str) -> Result<Function> {
        self.bind()?;
        let text = CString::new(name).unwrap_or_default();
        let mut function = std::ptr::null_mut();
        // SAFETY: the module lives; the driver writes a handle.
        let status =
            unsafe { sys::cuModuleGetFunction(&mut function, pointer(module.0).cast(), text.as_ptr()) };
        check("cuModuleGetFunction", status).map_err(|error| about(error, name))?;
        Ok(Function(number(function)))
    }

    fn allow_shared(&self, function: Function, bytes: u32) -> Result<()> {
        self.bind()?;
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a kernel that lives.
        let status =
            unsafe { sys::cuFuncSetAttribute(pointer(function.0).cast(), attribute, bytes as c_int) };
        check("cuFuncSetAttribute", status)
    }

    unsafe fn launch(&self, function: Function, launch: &Launch, stream: Stream) -> Result<()> {
        self.bind()?;
        let (grid, mut args) = (launch.grid, launch.args);
        let [x, y] = grid.blocks;
        // SAFETY: the caller's promise; the driver reads each argument before it returns.
        let status = args.with_pointers(|cells| unsafe {
            sys::cuLaunchKernel(
                pointer(function.0).cast(),
                x,
                y,
                1,
                grid.threads,
                1,
                1,
                grid.shared_bytes,
                pointer(stream.0).cast(),
                cells.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        });
        check("cuLaunchKernel", status).map_err(|error| about(error, launch.entry.name))
    }

    fn begin_capture(&self, stream: Stream) -> Result<()> {
        self.bind()?;
        // Other threads continue with their own streams, and with calls that a global capture would forbid.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream that lives.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(pointer(stream.0).cast(), mode) })
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool> {
        self.bind()?;
        let mut state = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a stream that lives; the driver writes a state.
        check("cuStreamIsCapturing", unsafe {
            sys::cuStreamIsCapturing(pointer(stream.0).cast(), &mut state)
        })?;
        Ok(state != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph> {
        self.bind()?;
        let (mut graph, mut made) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a stream that lives; the driver writes a graph, or null if the capture failed, and instantiates an
        // executable from the graph.
        unsafe {
            check("cuStreamEndCapture", sys::cuStreamEndCapture(pointer(stream.0).cast(), &mut graph))?;
            let status = sys::cuGraphInstantiateWithFlags(&mut made, graph, 0);
            sys::cuGraphDestroy(graph);
            check("cuGraphInstantiate", status)?;
        }
        Ok(Graph(number(made)))
    }

    unsafe fn replay(&self, graph: Graph, stream: Stream) -> Result<()> {
        self.bind()?;
        // SAFETY: both live; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(pointer(graph.0).cast(), pointer(stream.0).cast())
        })
    }

    fn end_graph(&self, graph: Graph) -> Result<()> {
        self.bind()?;
        // SAFETY: the graph is from `end_capture`, and is not used again.
        check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(pointer(graph.0).cast()) })
    }
}

/// Adds the subject of a failed call to its error.
fn about(error: Error, what: &str) -> Error {
    match error {
        Error::Driver { call, name, code, detail } => {
            Error::Driver { call, name, code, detail: format!("{detail}: {what}") }
        }
        other => other,
    }
}

fn rectangle(way: Way, from: Rows, to: Rows) -> sys::CUDA_MEMCPY2D {
    use sys::CUmemorytype_enum::{CU_MEMORYTYPE_DEVICE as DEVICE, CU_MEMORYTYPE_HOST as HOST};
    let (from_type, to_type) = match way {
        Way::Up => (HOST, DEVICE),
        Way::Down => (DEVICE, HOST),
        Way::Across => (DEVICE, DEVICE),
    };
    let host = |kind, rows: Rows| if kind == HOST { pointer(rows.address) } else { std::ptr::null_mut() };
    let device = |kind, rows: Rows| if kind == HOST { 0 } else { rows.address };
    // A single row has no pitch of its own, and a pitch smaller than the row is refused.
    let pitch = |rows: Rows| rows.stride_bytes.max(rows.row_bytes);
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: from_type,
        srcHost: host(from_type, from),
        srcDevice: device(from_type, from),
        srcArray: std::ptr::null_mut(),
        srcPitch: pitch(from),
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: to_type,
        dstHost: host(to_type, to),
        dstDevice: device(to_type, to),
        dstArray: std::ptr::null_mut(),
        dstPitch: pitch(to),
        WidthInBytes: from.row_bytes,
        Height: from.rows,
    }
}
