//! Streams, events and graphs.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{
    CUevent, CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::{give, outside_capture, within};
use crate::device::{
    Capture, EventState, Mark, Op, State, StreamState, after_submit, complain, drive, drive_event, nudge,
    state,
};

fn pointer<T>(handle: u64) -> *mut T {
    std::ptr::without_provenance_mut(handle as usize)
}

fn no_handle<T>(call: &str) -> Result<T, CUresult> {
    complain(call, "no such stream, event or graph, or it was destroyed");
    Err(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

fn stream_of<'a>(
    state: &'a mut State,
    call: &str,
    stream: CUstream,
) -> Result<&'a mut StreamState, CUresult> {
    match state.streams.get_mut(&(stream.addr() as u64)) {
        Some(found) => Ok(found),
        None => no_handle(call),
    }
}

/// The point at which an event was last recorded; `None` if never.
fn last(call: &str, event: CUevent) -> Result<Option<Arc<Mark>>, CUresult> {
    match state().events.get(&(event.addr() as u64)) {
        Some(found) => Ok(found.last.clone()),
        None => no_handle(call),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult {
    within("cuStreamCreate", |_| {
        if flags > 1 {
            complain("cuStreamCreate", "flags that are none");
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut now = state();
        let handle = now.handle();
        now.streams.insert(handle, StreamState::default());
        // SAFETY: the header's contract.
        unsafe { give("cuStreamCreate", stream, pointer(handle)) }
    })
}

/// A driver would let remaining work finish; here the stream is run first.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    within("cuStreamDestroy", |_| {
        stream_of(&mut state(), "cuStreamDestroy", stream)?;
        drive(stream.addr() as u64);
        state().streams.remove(&(stream.addr() as u64));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    within("cuStreamSynchronize", |_| {
        if let Some(capture) = &mut stream_of(&mut state(), "cuStreamSynchronize", stream)?.capture {
            capture.broken = true;
            complain("cuStreamSynchronize", "the stream is captured");
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        drive(stream.addr() as u64);
        state().alive()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult {
    within("cuStreamWaitEvent", |_| {
        if flags != 0 {
            complain("cuStreamWaitEvent", "flags");
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        stream_of(&mut state(), "cuStreamWaitEvent", stream)?;
        // An event that was never recorded counts as passed.
        let Some(mark) = last("cuStreamWaitEvent", event)? else { return Ok(()) };
        state().push(stream.addr() as u64, Op::Wait(mark))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    within("cuEventCreate", |_| {
        if flags & !3 != 0 {
            complain("cuEventCreate", "flags that the rehearsal does not have");
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut now = state();
        let handle = now.handle();
        now.events.insert(handle, EventState { timed: flags & 2 == 0, last: None });
        // SAFETY: the header's contract.
        unsafe { give("cuEventCreate", event, pointer(handle)) }
    })
}

/// Operations that wait for the event continue to wait.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    within("cuEventDestroy", |_| {
        let removed = state().events.remove(&(event.addr() as u64));
        removed.map_or_else(|| no_handle("cuEventDestroy"), |_| Ok(()))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    within("cuEventRecord", |_| {
        last("cuEventRecord", event)?;
        let mut now = state();
        let stream = stream.addr() as u64;
        let mark = Arc::new(Mark { stream, over: OnceLock::new() });
        now.push(stream, Op::Record(mark.clone()))?;
        if let Some(found) = now.events.get_mut(&(event.addr() as u64)) {
            found.last = Some(mark);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    within("cuEventQuery", |_| {
        let Some(mark) = last("cuEventQuery", event)?.filter(|mark| mark.over.get().is_none()) else {
            return Ok(());
        };
        nudge(&mark);
        Err(CUresult::CUDA_ERROR_NOT_READY)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    within("cuEventSynchronize", |_| {
        outside_capture("cuEventSynchronize")?;
        last("cuEventSynchronize", event)?.iter().for_each(|mark| drive_event(mark));
        state().alive()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    let call = "cuEventElapsedTime";
    within(call, |_| {
        let mut at = Vec::new();
        for event in [start, end] {
            let timed = state().events.get(&(event.addr() as u64)).is_some_and(|event| event.timed);
            let mark = last(call, event)?.filter(|_| timed);
            let Some(mark) = mark else {
                complain(call, "an event without a time, or that was never recorded");
                return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
            };
            at.push(*mark.over.get().ok_or(CUresult::CUDA_ERROR_NOT_READY)?);
        }
        let since = |from: usize, to: usize| at[to].saturating_duration_since(at[from]).as_secs_f32();
        // SAFETY: the header's contract.
        unsafe { give(call, milliseconds, (since(0, 1) - since(1, 0)) * 1e3) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, _mode: CUstreamCaptureMode) -> CUresult {
    within("cuStreamBeginCapture", |_| {
        let mut now = state();
        let found = stream_of(&mut now, "cuStreamBeginCapture", stream)?;
        if found.capture.is_some() {
            complain("cuStreamBeginCapture", "captured already");
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let owner = std::thread::current().id();
        found.capture = Some(Capture { ops: Vec::new(), owner, broken: false });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> CUresult {
    within("cuStreamIsCapturing", |_| {
        use CUstreamCaptureStatus as Status;
        let found = match &stream_of(&mut state(), "cuStreamIsCapturing", stream)?.capture {
            None => Status::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.broken => Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            Some(_) => Status::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        };
        // SAFETY: the header's contract.
        unsafe { give("cuStreamIsCapturing", status, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    within("cuStreamEndCapture", |_| {
        let mut now = state();
        let found = stream_of(&mut now, "cuStreamEndCapture", stream)?;
        let Some(capture) = found.capture.take() else {
            complain("cuStreamEndCapture", "not captured");
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        };
        if capture.owner != std::thread::current().id() {
            complain("cuStreamEndCapture", "another thread began it");
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.broken {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let handle = now.handle();
        now.graphs.insert(handle, capture.ops);
        // SAFETY: the header's contract.
        unsafe { give("cuStreamEndCapture", graph, pointer(handle)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    made: *mut CUgraphExec,
    graph: CUgraph,
    _flags: c_ulonglong,
) -> CUresult {
    within("cuGraphInstantiate", |_| {
        let mut now = state();
        let Some(ops) = now.graphs.get(&(graph.addr() as u64)).cloned() else {
            return no_handle("cuGraphInstantiate");
        };
        let handle = now.handle();
        now.runnable.insert(handle, ops);
        // SAFETY: the header's contract.
        unsafe { give("cuGraphInstantiate", made, pointer(handle)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    within("cuGraphDestroy", |_| {
        let removed = state().graphs.remove(&(graph.addr() as u64));
        removed.map_or_else(|| no_handle("cuGraphDestroy"), |_| Ok(()))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) -> CUresult {
    within("cuGraphLaunch", |_| {
        let mut now = state();
        let Some(ops) = now.runnable.get(&(graph.addr() as u64)).cloned() else {
            return no_handle("cuGraphLaunch");
        };
        ops.into_iter().try_for_each(|op| now.push(stream.addr() as u64, op))?;
        drop(now);
        after_submit();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(graph: CUgraphExec) -> CUresult {
    within("cuGraphExecDestroy", |_| {
        let removed = state().runnable.remove(&(graph.addr() as u64));
        removed.map_or_else(|| no_handle("cuGraphExecDestroy"), |_| Ok(()))
    })
}
