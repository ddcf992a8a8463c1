//! cuDNN's functions of the graph interface, `cudnn*`, as declared in `cudnn_graph.h`.
//!
//! Any graph is interpreted: each operation separately, in single precision, and each tensor, including virtual ones,
//! is rounded to its own type when computed. Elements beyond the lengths of a tensor's sequences are neither read nor
//! written: they read as NaN, which exposes code that needs them. A reshape is a view of memory, as in NVIDIA's own
//! graphs. The rehearsal does not know which graphs a device has kernels for, except for limitations listed by NVIDIA's
//! frontend.
//!
//! A fully masked row gives NaN, following IEEE: the documentation promises nothing, and cuDNN before 9.25 returns NaN
//! for sequences without keys. Sequences with neither queries nor keys are empty; NVIDIA's own libraries pad packs with
//! them.
#![allow(non_snake_case)]
// Each function is as safe as its declaration in the header.
#![allow(clippy::missing_safety_doc)]

mod compute;
mod descriptors;
mod engines;
mod graph;
mod memory;
mod modes;
mod object;
mod operations;
mod plan;
mod refusal;
mod set;
mod support;
mod table;
mod tensor;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_void};

use cudarc::cudnn::sys::cudnnStatus_t::*;
use cudarc::cudnn::sys::{
    cudaStream_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, cudnnBackendDescriptor_t,
    cudnnBackendDescriptorType_t, cudnnHandle_t, cudnnStatus_t,
};

use crate::device::state;
use descriptors::{Registry, registry};
use plan::{Pack, Plan};
use refusal::{Outcome, answer, refuse, require};

/// The simulated version, 9.19.0.
const VERSION: usize = 91_900;

/// A unique number for an object, which looks like an address.
fn number() -> u64 {
    state().handle()
}

fn pointer<T>(number: u64) -> *mut T {
    std::ptr::without_provenance_mut(number as usize)
}

fn stream_of(registry: &Registry, handle: cudnnHandle_t) -> Outcome<u64> {
    match registry.handles.get(&(handle.addr() as u64)) {
        Some(stream) => Ok(*stream),
        None if handle.is_null() => refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the handle is null"),
        None => refuse(CUDNN_STATUS_BAD_PARAM, "no handle, or destroyed"),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    VERSION
}

/// Returns and clears the message of the last refusal on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetLastErrorString(message: *mut c_char, max_size: usize) {
    if message.is_null() || max_size == 0 {
        return;
    }
    let words = refusal::last();
    let length = words.len().min(max_size - 1);
    // SAFETY: the header's contract: room for as many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(words.as_ptr(), message.cast(), length);
        message.add(length).write(0);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreate(handle: *mut cudnnHandle_t) -> cudnnStatus_t {
    let run = || {
        let why = || "null".to_string();
        require(!handle.is_null(), CUDNN_STATUS_BAD_PARAM_NULL_POINTER, why)?;
        let why = || "no context of a device".to_string();
        require(!state().contexts.is_empty(), CUDNN_STATUS_NOT_INITIALIZED, why)?;
        let number = number();
        registry().handles.insert(number, 0);
        // SAFETY: the header's contract.
        unsafe { handle.write(pointer(number)) };
        Ok(())
    };
    answer("cudnnCreate", run())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroy(handle: cudnnHandle_t) -> cudnnStatus_t {
    let run = || {
        let mut registry = registry();
        stream_of(&registry, handle)?;
        registry.handles.remove(&(handle.addr() as u64));
        Ok(())
    };
    answer("cudnnDestroy", run())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetStream(handle: cudnnHandle_t, stream_id: cudaStream_t) -> cudnnStatus_t {
    let run = || {
        let stream = stream_id.addr() as u64;
        let there = stream == 0 || state().streams.contains_key(&stream);
        require(there, CUDNN_STATUS_BAD_PARAM, || format!("{stream:#x} is no stream, or destroyed"))?;
        let mut registry = registry();
        stream_of(&registry, handle)?;
        registry.handles.insert(handle.addr() as u64, stream);
        Ok(())
    };
    answer("cudnnSetStream", run())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendCreateDescriptor(
    descriptor_type: cudnnBackendDescriptorType_t,
    descriptor: *mut cudnnBackendDescriptor_t,
) -> cudnnStatus_t {
    let run = || {
        let why = || "null".to_string();
        require(!descriptor.is_null(), CUDNN_STATUS_BAD_PARAM_NULL_POINTER, why)?;
        let number = number();
        registry().create(number, descriptor_type)?;
        // SAFETY: the header's contract.
        unsafe { descriptor.write(pointer(number)) };
        Ok(())
    };
    answer("cudnnBackendCreateDescriptor", run())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendDestroyDescriptor(descriptor: cudnnBackendDescriptor_t) -> cudnnStatus_t {
    answer("cudnnBackendDestroyDescriptor", registry().destroy(descriptor.addr() as u64))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendFinalize(descriptor: cudnnBackendDescriptor_t) -> cudnnStatus_t {
    answer("cudnnBackendFinalize", registry().finalize(descriptor.addr() as u64))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendSetAttribute(
    descriptor: cudnnBackendDescriptor_t,
    attribute_name: cudnnBackendAttributeName_t,
    attribute_type: cudnnBackendAttributeType_t,
    element_count: i64,
    array_of_elements: *const c_void,
) -> cudnnStatus_t {
    let descriptor = descriptor.addr() as u64;
    // SAFETY: the header's contract.
    let run = || unsafe {
        registry().set(descriptor, attribute_name, attribute_type, element_count, array_of_elements)
    };
    answer("cudnnBackendSetAttribute", run())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendGetAttribute(
    descriptor: cudnnBackendDescriptor_t,
    attribute_name: cudnnBackendAttributeName_t,
    attribute_type: cudnnBackendAttributeType_t,
    requested_element_count: i64,
    element_count: *mut i64,
    array_of_elements: *mut c_void,
) -> cudnnStatus_t {
    let (descriptor, requested) = (descriptor.addr() as u64, requested_element_count);
    // SAFETY: the header's contract.
    let run = || unsafe {
        let mut registry = registry();
        registry.get(descriptor, attribute_name, attribute_type, requested, element_count, array_of_elements)
    };
    answer("cudnnBackendGetAttribute", run())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendExecute(
    handle: cudnnHandle_t,
    execution_plan: cudnnBackendDescriptor_t,
    variant_pack: cudnnBackendDescriptor_t,
) -> cudnnStatus_t {
    let run = || {
        let (stream, plan, pack) = {
            let mut registry = registry();
            let stream = stream_of(&registry, handle)?;
            let plan = registry.object(execution_plan.addr() as u64)?.get::<Plan>()?;
            (stream, plan, registry.object(variant_pack.addr() as u64)?.get::<Pack>()?)
        };
        require(plan.graph.handle == handle.addr() as u64, CUDNN_STATUS_BAD_PARAM, || {
            "documents are silent, and the plan was made for another handle".to_string()
        })?;
        plan.execute(&pack, stream)
    };
    answer("cudnnBackendExecute", run())
}
