//! The driver's calls as a program would make them.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUevent, CUgraph, CUgraphExec, CUmemorytype, CUresult, CUstream, CUstreamCaptureMode,
};

use super::memory::*;
use super::streams::*;
use super::*;

const OK: CUresult = CUresult::CUDA_SUCCESS;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A stream and device memory, on a thread with a current context.
fn begin(bytes: usize) -> (CUstream, u64) {
    let (mut context, mut stream, mut memory) = (null_mut(), null_mut(), 0);
    // SAFETY: addresses of this function.
    unsafe {
        assert_eq!(cuInit(0), OK);
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), OK);
        assert_eq!(cuCtxSetCurrent(context), OK);
        assert_eq!(cuStreamCreate(&mut stream, 1), OK);
        assert_eq!(cuMemAlloc_v2(&mut memory, bytes), OK);
    }
    (stream, memory)
}

fn event(flags: u32) -> CUevent {
    let mut event = null_mut();
    // SAFETY: an address of this function.
    assert_eq!(unsafe { cuEventCreate(&mut event, flags) }, OK);
    event
}

#[test]
fn copies_wait_until_somebody_waits_for_them() {
    let (stream, memory) = begin(64);
    let (mut from, mut to) = (vec![1u8; 64], vec![0u8; 64]);
    assert_eq!(cuMemcpyHtoDAsync_v2(memory, from.as_ptr().cast(), 64, stream), OK);
    // Writing to the source before the copy has run changes the copy.
    from.fill(2);
    let after = event(2);
    assert_eq!(cuEventRecord(after, stream), OK);
    let (other, _) = begin(1);
    assert_eq!(cuStreamWaitEvent(other, after, 0), OK);
    assert_eq!(cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), memory, 64, other), OK);
    assert_eq!(to, [0; 64]);
    assert_eq!(cuEventQuery(after), CUresult::CUDA_ERROR_NOT_READY);
    assert_eq!(cuStreamSynchronize(other), OK);
    assert_eq!((to, cuEventQuery(after)), (vec![2; 64], OK));
    assert_eq!(cuMemFree_v2(memory), OK);
}

#[test]
fn a_captured_stream_is_a_graph_that_runs_when_launched() {
    let (stream, memory) = begin(64);
    assert_eq!(cuMemsetD8Async(memory, 7, 64, stream), OK);
    assert_eq!(cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), OK);
    assert_eq!(cuMemsetD2D8Async(memory, 16, 9, 4, 4, stream), OK);
    let (mut graph, mut made): (CUgraph, CUgraphExec) = (null_mut(), null_mut());
    let mut found = vec![0u8; 64];
    // SAFETY: addresses of this function.
    unsafe {
        assert_eq!(cuStreamEndCapture(stream, &mut graph), OK);
        assert_eq!(cuGraphInstantiateWithFlags(&mut made, graph, 0), OK);
    }
    assert_eq!(cuGraphDestroy(graph), OK);
    let mut look = || {
        assert_eq!(cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast(), memory, 64, stream), OK);
        assert_eq!(cuStreamSynchronize(stream), OK);
        found.clone()
    };
    assert_eq!(look(), [7; 64]);
    assert_eq!(cuGraphLaunch(made, stream), OK);
    let expected: Vec<u8> = (0..64).map(|i| if i % 16 < 4 { 9 } else { 7 }).collect();
    assert_eq!(look(), expected);
    assert_eq!(cuGraphExecDestroy(made), OK);
}

#[test]
fn what_cannot_be_captured_breaks_the_capture() {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let calls: [fn(CUstream) -> CUresult; 3] = [
        |stream| cuStreamSynchronize(stream),
        |_| {
            let mut memory = 0;
            // SAFETY: an address of this function.
            unsafe { cuMemAlloc_v2(&mut memory, 16) }
        },
        |stream| cuEventRecord(event(2), stream),
    ];
    for call in calls {
        let (stream, _) = begin(64);
        assert_eq!(cuStreamBeginCapture_v2(stream, mode), OK);
        assert_ne!(call(stream), OK);
        let mut graph = null_mut();
        // SAFETY: an address of this function.
        let ended = unsafe { cuStreamEndCapture(stream, &mut graph) };
        assert_eq!(ended, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
}

#[test]
fn what_the_manual_forbids_is_refused() {
    let (stream, memory) = begin(100);
    let mut host = [0u8; 64];
    let host: *mut c_void = host.as_mut_ptr().cast();
    let rectangle = |pitch| CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null_mut(),
        srcDevice: memory,
        srcArray: null_mut(),
        srcPitch: pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: host,
        dstDevice: 0,
        dstArray: null_mut(),
        dstPitch: 8,
        WidthInBytes: 8,
        Height: 2,
    };
    // SAFETY: addresses of this function.
    unsafe {
        assert_eq!(cuMemcpy2DAsync_v2(&rectangle(7), stream), INVALID);
        assert_eq!(cuMemcpy2DAsync_v2(&rectangle(16), stream), OK);
    }
    assert_eq!(cuMemcpyDtoHAsync_v2(host, memory + 64, 64, stream), INVALID, "beyond the end");
    assert_eq!(cuMemsetD8Async(memory, 0, 0, stream), INVALID);
    assert_eq!(cuMemsetD8Async(0x1000, 0, 8, stream), INVALID);
    assert_eq!(cuMemFree_v2(memory + 1), INVALID);
    assert_eq!(cuStreamSynchronize(stream), OK);
    assert_eq!(cuEventQuery(null_mut()), CUresult::CUDA_ERROR_INVALID_HANDLE);
    let untimed = event(2);
    assert_eq!(cuEventRecord(untimed, stream), OK);
    let mut milliseconds = 0.0;
    // SAFETY: an address of this function.
    let asked = unsafe { cuEventElapsedTime_v2(&mut milliseconds, untimed, untimed) };
    assert_eq!(asked, CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(cuStreamDestroy_v2(stream), OK);
    assert_eq!(cuMemsetD8Async(memory, 0, 8, stream), CUresult::CUDA_ERROR_INVALID_HANDLE);
    let elsewhere = std::thread::spawn(move || cuMemFree_v2(memory)).join();
    assert_eq!(elsewhere.ok(), Some(CUresult::CUDA_ERROR_INVALID_CONTEXT));
}

#[test]
fn addresses_have_memory_when_it_is_mapped_and_opened() {
    let (stream, _) = begin(1);
    let bytes = 4 << 20;
    let mut now = state();
    let start = now.reserve(bytes).unwrap();
    assert!(now.check(start, 8).is_err());
    let half = now.create(0, bytes / 2).unwrap();
    now.map(start, bytes / 2, half).unwrap();
    assert!(now.check(start, 8).is_err(), "mapped, and not open yet");
    now.open(start, bytes / 2).unwrap();
    assert!(now.check(start, bytes / 2).is_ok() && now.check(start, bytes / 2 + 1).is_err());
    assert!(now.release(half).is_err() && now.unreserve(start, bytes).is_err());
    drop(now);
    let mut found = [0u8; 4];
    assert_eq!(cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast(), start, 4, stream), OK);
    assert_eq!(cuStreamSynchronize(stream), OK);
    assert_eq!(f32::from_ne_bytes(found).to_bits(), u32::MAX, "fresh memory is no number");
    let mut now = state();
    now.unmap(start, bytes / 2).unwrap();
    now.release(half).unwrap();
    now.unreserve(start, bytes).unwrap();
}
