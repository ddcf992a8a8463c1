//! The driver's calls.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

pub use cudarc::driver::sys::*;

super::calls! { Driver:
    fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult;
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult;
    fn cuDeviceGetAttribute(pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice) -> CUresult;
    fn cuDeviceGetCount(count: *mut c_int) -> CUresult;
    fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) -> CUresult;
    fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult;
    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> CUresult;
    fn cuDriverGetVersion(driver_version: *mut c_int) -> CUresult;
    fn cuEventCreate(ph_event: *mut CUevent, flags: c_uint) -> CUresult;
    fn cuEventDestroy_v2(h_event: CUevent) -> CUresult;
    fn cuEventElapsedTime_v2(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent) -> CUresult;
    fn cuEventQuery(h_event: CUevent) -> CUresult;
    fn cuEventRecord(h_event: CUevent, h_stream: CUstream) -> CUresult;
    fn cuEventSynchronize(h_event: CUevent) -> CUresult;
    fn cuFuncSetAttribute(hfunc: CUfunction, attrib: CUfunction_attribute, value: c_int) -> CUresult;
    fn cuGetErrorString(error: CUresult, p_str: *mut *const c_char) -> CUresult;
    fn cuGraphDestroy(h_graph: CUgraph) -> CUresult;
    fn cuGraphExecDestroy(h_graph_exec: CUgraphExec) -> CUresult;
    fn cuGraphInstantiateWithFlags(ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: c_ulonglong) -> CUresult;
    fn cuGraphLaunch(h_graph_exec: CUgraphExec, h_stream: CUstream) -> CUresult;
    fn cuInit(flags: c_uint) -> CUresult;
    fn cuLaunchKernel(
        function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
        block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream,
        kernel_params: *mut *mut c_void, extra: *mut *mut c_void
    ) -> CUresult;
    fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CUresult;
    fn cuMemAddressReserve(
        ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong
    ) -> CUresult;
    fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult;
    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong
    ) -> CUresult;
    fn cuMemFreeHost(p: *mut c_void) -> CUresult;
    fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult;
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags
    ) -> CUresult;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult;
    fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: c_uint) -> CUresult;
    fn cuMemMap(
        ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong
    ) -> CUresult;
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult;
    fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) -> CUresult;
    fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult;
    fn cuMemcpy2DAsync_v2(p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream) -> CUresult;
    fn cuMemcpyDtoDAsync_v2(
        dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream
    ) -> CUresult;
    fn cuMemcpyDtoHAsync_v2(
        dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream
    ) -> CUresult;
    fn cuMemcpyHtoDAsync_v2(
        dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream
    ) -> CUresult;
    fn cuMemsetD2D8Async(
        dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize, h_stream: CUstream
    ) -> CUresult;
    fn cuMemsetD8Async(dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream) -> CUresult;
    fn cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) -> CUresult;
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult;
    fn cuModuleUnload(hmod: CUmodule) -> CUresult;
    fn cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode) -> CUresult;
    fn cuStreamCreate(ph_stream: *mut CUstream, flags: c_uint) -> CUresult;
    fn cuStreamDestroy_v2(h_stream: CUstream) -> CUresult;
    fn cuStreamEndCapture(h_stream: CUstream, ph_graph: *mut CUgraph) -> CUresult;
    fn cuStreamIsCapturing(h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus) -> CUresult;
    fn cuStreamSynchronize(h_stream: CUstream) -> CUresult;
    fn cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: c_uint) -> CUresult;
}
