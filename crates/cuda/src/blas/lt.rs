//! cuBLASLt: descriptors made and heuristics asked once for each shape.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::calls::blas::{
    self as sys, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatmulPreference_t,
    cublasLtMatrixLayout_t, cublasStatus_t as Status, cudaDataType,
};

use super::{Element, Layout, Operands, Products, Scales, Shape};
use crate::driver::Stream;
use crate::{Error, Result};

/// A handle on the current device, and what is known of the shapes so far.
pub struct CublasLt {
    handle: usize,
    workspace_bytes: u64,
    /// None for a shape that the library refuses.
    plans: Mutex<BTreeMap<Shape, Option<Plan>>>,
}

/// Descriptors and an algorithm; freed with the process, as shapes are few.
#[derive(Clone, Copy)]
struct Plan {
    desc: usize,
    first: usize,
    second: usize,
    result: usize,
    algo: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

/// Names what a failed call was about.
fn check(call: &'static str, shape: &Shape, status: Status) -> Result<()> {
    if status == Status::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    let Shape { input, output, result, inner, .. } = shape;
    let what = format!("{} x {} x {inner}, {input:?} to {output:?}", result.cols, result.rows);
    Err(Error::Blas { call, what, status: name(status) })
}

fn name(status: Status) -> String {
    // SAFETY: the library returns a text of its own.
    let text = unsafe { sys::cublasLtGetStatusName(status) };
    if text.is_null() {
        return format!("{status:?}");
    }
    // SAFETY: as above; it ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn data_type(element: Element) -> cudaDataType {
    match element {
        Element::F32 => cudaDataType::CUDA_R_32F,
        Element::Bf16 => cudaDataType::CUDA_R_16BF,
        Element::F16 => cudaDataType::CUDA_R_16F,
        Element::E4M3 => cudaDataType::CUDA_R_8F_E4M3,
        Element::E5M2 => cudaDataType::CUDA_R_8F_E5M2,
    }
}

/// `cublasOperation_t`, which the bindings leave out: N is 0, T is 1.
fn operation(trans: bool) -> i32 {
    i32::from(trans)
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn at<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}

impl CublasLt {
    /// A handle on the device that is current on this thread; products may use `workspace_bytes` of scratch.
    ///
    /// # Errors
    /// If the library does not start.
    pub fn new(workspace_bytes: u64) -> Result<CublasLt> {
        let mut handle: cublasLtHandle_t = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        let status = unsafe { sys::cublasLtCreate(&mut handle) };
        if status != Status::CUBLAS_STATUS_SUCCESS {
            return Err(Error::Blas {
                call: "cublasLtCreate",
                what: "the device".into(),
                status: name(status),
            });
        }
        Ok(CublasLt { handle: handle.expose_provenance(), workspace_bytes, plans: Mutex::default() })
    }

    fn plan(&self, shape: &Shape, scales: [u64; 2]) -> Result<Option<Plan>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.get(shape) {
            return Ok(*plan);
        }
        let plan = self.make(shape, scales)?;
        plans.insert(*shape, plan);
        Ok(plan)
    }

    fn make(&self, shape: &Shape, scales: [u64; 2]) -> Result<Option<Plan>> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let mut desc: cublasLtMatmulDesc_t = std::ptr::null_mut();
        // f32 operands are multiplied in f32, not in TF32.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: the library makes a descriptor.
        unsafe {
            let made = sys::cublasLtMatmulDescCreate(&mut desc, compute, cudaDataType::CUDA_R_32F);
            check("cublasLtMatmulDescCreate", shape, made)?;
        }
        set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(shape.first_trans))?;
        set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(shape.second_trans))?;
        if let Some(modes) = shape.scales {
            set_modes(shape, desc, modes)?;
            set_scales(shape, desc, scales)?;
        }
        let first = layout(shape, &shape.first, shape.input)?;
        let second = layout(shape, &shape.second, shape.second_input)?;
        let result = layout(shape, &shape.result, shape.output)?;
        let Some((algo, workspace_bytes)) = self.ask(shape, desc, [first, second, result])? else {
            return Ok(None);
        };
        Ok(Some(Plan {
            desc: desc.expose_provenance(),
            first: first.expose_provenance(),
            second: second.expose_provenance(),
            result: result.expose_provenance(),
            algo,
            workspace_bytes,
        }))
    }

    /// The heuristics' first choice that needs no more scratch than there is; `None` if they have none.
    fn ask(
        &self,
        shape: &Shape,
        desc: cublasLtMatmulDesc_t,
        [first, second, result]: [cublasLtMatrixLayout_t; 3],
    ) -> Result<Option<(cublasLtMatmulAlgo_t, usize)>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let mut preference: cublasLtMatmulPreference_t = std::ptr::null_mut();
        // SAFETY: the library makes a preference; numbers are copied, with their sizes; one result fits.
        unsafe {
            check(
                "cublasLtMatmulPreferenceCreate",
                shape,
                sys::cublasLtMatmulPreferenceCreate(&mut preference),
            )?;
            let set = |attribute: Attribute, value: *const c_void, size: usize| {
                let status = sys::cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size);
                check("cublasLtMatmulPreferenceSetAttribute", shape, status)
            };
            let number = |attribute: Attribute, value: u32| set(attribute, (&raw const value).cast(), 4);
            let bytes = self.workspace_bytes;
            set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const bytes).cast(), 8)?;
            // No split over the summed index.
            number(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 0)?;
            number(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.first.align)?;
            number(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.second.align)?;
            number(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.result.align)?;
            number(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.result.align)?;
            let mut found: sys::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let mut count: c_int = 0;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                at(self.handle),
                desc,
                first,
                second,
                result,
                result,
                preference,
                1,
                &mut found,
                &mut count,
            );
            sys::cublasLtMatmulPreferenceDestroy(preference);
            let refused = match status {
                Status::CUBLAS_STATUS_NOT_SUPPORTED => true,
                // What it answers to scales that it does not know is not written down.
                Status::CUBLAS_STATUS_INVALID_VALUE | Status::CUBLAS_STATUS_ARCH_MISMATCH => {
                    shape.scales.is_some()
                }
                _ => status == Status::CUBLAS_STATUS_SUCCESS && count == 0,
            };
            if refused {
                return Ok(None);
            }
            check("cublasLtMatmulAlgoGetHeuristic", shape, status)?;
            let fits = found.state == Status::CUBLAS_STATUS_SUCCESS;
            Ok(fits.then_some((found.algo, found.workspaceSize)))
        }
    }
}

/// Sets an attribute of a product.
fn set<T>(
    shape: &Shape,
    desc: cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: T,
) -> Result<()> {
    let (from, size) = ((&raw const value).cast(), size_of::<T>());
    // SAFETY: the descriptor lives as long as the process; the value is copied, with its size.
    let status = unsafe { sys::cublasLtMatmulDescSetAttribute(desc, attribute, from, size) };
    check("cublasLtMatmulDescSetAttribute", shape, status)
}

/// How scales are meant, and how sums are made.
fn set_modes(shape: &Shape, desc: cublasLtMatmulDesc_t, modes: [Scales; 2]) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    use sys::cublasLtMatmulMatrixScale_t as Mode;
    let [first, second] = modes.map(|mode| match mode {
        Scales::Tensor => Mode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        Scales::Lines32 => Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
        Scales::Lines128 => Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
        Scales::Tiles128 => Mode::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
    });
    set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, first as i32)?;
    set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, second as i32)?;
    set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, i8::from(shape.fast))
}

/// Where the scales of A and B are: on the device, what elements are multiplied by.
fn set_scales(shape: &Shape, desc: cublasLtMatmulDesc_t, [a, b]: [u64; 2]) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b)?;
    set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a)
}

fn layout(shape: &Shape, layout: &Layout, element: Element) -> Result<cublasLtMatrixLayout_t> {
    let mut made: cublasLtMatrixLayout_t = std::ptr::null_mut();
    // SAFETY: the library makes a descriptor.
    let status = unsafe {
        sys::cublasLtMatrixLayoutCreate(
            &mut made,
            data_type(element),
            layout.rows,
            layout.cols,
            layout.stride,
        )
    };
    check("cublasLtMatrixLayoutCreate", shape, status)?;
    Ok(made)
}

// SAFETY: the layouts are those of the shape, and the workspace is no larger than what the operands say.
unsafe impl Products for CublasLt {
    fn takes(&self, shape: &Shape, operands: &Operands) -> Result<bool> {
        let plan = self.plan(shape, operands.scales)?;
        Ok(plan.is_some_and(|plan| plan.workspace_bytes as u64 <= operands.workspace_bytes))
    }

    unsafe fn product(&self, shape: &Shape, operands: &Operands, stream: Stream) -> Result<()> {
        let plan = self.plan(shape, operands.scales)?;
        let plan = plan.filter(|plan| plan.workspace_bytes as u64 <= operands.workspace_bytes);
        let Some(plan) = plan else {
            let (what, status) = (format!("{shape:?}"), "no plan with so little scratch".to_string());
            return Err(Error::Blas { call: "cublasLtMatmul", what, status });
        };
        // The descriptor is of the shape, the scales are of the call: nobody else may call meanwhile.
        let turn = shape.scales.map(|_| self.plans.lock().unwrap_or_else(PoisonError::into_inner));
        if turn.is_some() {
            set_scales(shape, at(plan.desc), operands.scales)?;
        }
        let (one, beta) = (1f32, if operands.accumulate { 1f32 } else { 0f32 });
        // SAFETY: descriptors live as long as the process; the addresses are the caller's promise; both factors are read
        // before the call returns.
        let status = unsafe {
            sys::cublasLtMatmul(
                at(self.handle),
                at(plan.desc),
                (&raw const one).cast(),
                pointer(operands.b),
                at(plan.first),
                pointer(operands.a),
                at(plan.second),
                (&raw const beta).cast(),
                pointer(operands.c),
                at(plan.result),
                pointer(operands.c),
                at(plan.result),
                &plan.algo,
                pointer(operands.workspace),
                plan.workspace_bytes,
                pointer(stream.0).cast(),
            )
        };
        check("cublasLtMatmul", shape, status)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: the handle is of `new`, and is not used again.
        unsafe { sys::cublasLtDestroy(at(self.handle)) };
    }
}
