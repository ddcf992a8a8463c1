//! Programs and their kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUfunction_attribute as Attribute, CUmodule, CUresult, CUstream};

use super::{give, outside_capture, within};
use crate::compiler::{Grid, Program};
use crate::device::{Function, complain, state, submit};

/// Dynamic shared memory that a kernel has by default, and the most that it can request on sm_90.
const SHARED: u32 = 48 << 10;
const MOST_SHARED: u32 = 227 << 10;

fn invalid<T>(call: &str, why: impl std::fmt::Display) -> Result<T, CUresult> {
    complain(call, why);
    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    within("cuModuleLoadData", |_| {
        outside_capture("cuModuleLoadData")?;
        // SAFETY: the image was made by the rehearsal's compiler, or is refused by its first bytes.
        let program = match unsafe { Program::load(image.cast()) } {
            Ok(program) => Arc::new(program),
            Err(why) => {
                complain("cuModuleLoadData", why);
                return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
            }
        };
        let mut now = state();
        let handle = now.handle();
        now.modules.insert(handle, program);
        // SAFETY: the header's contract.
        unsafe { give("cuModuleLoadData", module, std::ptr::without_provenance_mut(handle as usize)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    within("cuModuleUnload", |_| match state().modules.remove(&(module.addr() as u64)) {
        Some(_) => Ok(()),
        None => invalid("cuModuleUnload", "no such module"),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    let call = "cuModuleGetFunction";
    within(call, |_| {
        let mut now = state();
        let Some(program) = now.modules.get(&(module.addr() as u64)).cloned() else {
            return invalid(call, "no such module");
        };
        // SAFETY: the header's contract.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        if program.kernel(&name).is_none() {
            complain(call, format!("no kernel {name}"));
            return Err(CUresult::CUDA_ERROR_NOT_FOUND);
        }
        let handle = now.handle();
        now.functions.insert(handle, Function { program, name: name.into(), shared_bytes: SHARED });
        // SAFETY: the header's contract.
        unsafe { give(call, function, std::ptr::without_provenance_mut(handle as usize)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: CUfunction, attribute: Attribute, value: c_int) -> CUresult {
    let call = "cuFuncSetAttribute";
    within(call, |_| {
        let mut now = state();
        let Some(found) = now.functions.get_mut(&(function.addr() as u64)) else {
            return invalid(call, "no such function");
        };
        if attribute != Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
            return invalid(call, "an attribute that the rehearsal does not have");
        }
        if !(0..=MOST_SHARED as c_int).contains(&value) {
            return invalid(call, format!("{value} bytes of shared memory, {MOST_SHARED} is the most"));
        }
        found.shared_bytes = value as u32;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    x: c_uint,
    y: c_uint,
    z: c_uint,
    threads_x: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let call = "cuLaunchKernel";
    within(call, |_| {
        let Some(found) = state().functions.get(&(function.addr() as u64)).cloned() else {
            return invalid(call, "no such function");
        };
        let name = found.name.clone();
        let Some(kernel) = found.program.kernel(&name) else { return invalid(call, "no such kernel") };
        if x == 0 || y == 0 || z != 1 || y > 65_535 || x > i32::MAX as u32 {
            return invalid(call, format!("{name}: a grid of {x} x {y} x {z} blocks"));
        }
        if threads_y != 1 || threads_z != 1 || threads_x == 0 || threads_x > kernel.threads {
            let why = format!("{name}: {threads_x} threads, compiled for {}", kernel.threads);
            return invalid(call, why);
        }
        if shared_bytes > found.shared_bytes {
            let why =
                format!("{name}: {shared_bytes} bytes of shared memory, allowed {}", found.shared_bytes);
            return invalid(call, why);
        }
        if params.is_null() || !extra.is_null() {
            return invalid(call, format!("{name}: parameters are taken as a list of addresses"));
        }
        // SAFETY: as many addresses as the kernel has parameters, each with the parameter's bytes.
        let args = unsafe { kernel.read(params) };
        let grid = Grid { blocks: [x, y], threads: threads_x, shared_bytes };
        let (program, own) = (found.program, name.clone());
        submit(stream.addr() as u64, &name, Arc::new(move || program.run(&own, grid, &args)))
    })
}
