//! cuBLASLt products: descriptors are made and heuristics queried once per shape, and the fastest of the candidates is
//! used.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::fastest::{fastest, is_worth};
use super::group_shape::GroupedPlans;
use super::handles::{Candidate, Desc, Matrix, at, data_type, name, operation, pointer};
use super::preference::Preference;
use super::recent::Recent;
use super::{Element, Layout, Operands, Products, Scales, Shape};
use crate::calls::blas::{
    self as sys, cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasStatus_t as Status,
    cudaDataType,
};
use crate::driver::{Driver, Stream};
use crate::{Error, Result};

/// Shapes whose plans are kept: the number of tokens varies between micro-batches, and a plan takes some KiB.
const MOST_PLANS: usize = 1024;
/// Algorithms requested, and measured if that pays off.
const CANDIDATES: usize = 5;

/// Plans by shape; `None` for one that the library refuses.
type Plans = Recent<Shape, Option<Arc<Plan>>>;

/// A handle on the current device, with the plans of recent shapes.
pub struct CublasLt {
    pub(super) handle: usize,
    pub(super) workspace_bytes: u64,
    /// Driver for measuring; `None` if nothing is measured.
    driver: Option<Arc<dyn Driver>>,
    plans: Mutex<Plans>,
    pub(super) grouped: Mutex<GroupedPlans>,
}

/// Descriptors and algorithms, the heuristics' first choice first.
struct Plan {
    desc: Desc,
    first: Matrix,
    second: Matrix,
    result: Matrix,
    /// Algorithms; not empty.
    candidates: Vec<Candidate>,
    /// Index of the fastest, once known.
    chosen: OnceLock<usize>,
}

impl Plan {
    /// The algorithm to run within this much scratch.
    fn candidate(&self, workspace_bytes: u64) -> Option<&Candidate> {
        let chosen = self.chosen.get().and_then(|chosen| self.candidates.get(*chosen));
        chosen.into_iter().chain(&self.candidates).find(|(_, bytes)| *bytes as u64 <= workspace_bytes)
    }
}

/// Converts a failed call's status to an error that names the product.
fn check(call: &'static str, shape: &Shape, status: Status) -> Result<()> {
    if status == Status::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    let Shape { input, output, result, inner, .. } = shape;
    let what = format!("{} x {} x {inner}, {input:?} to {output:?}", result.cols, result.rows);
    Err(Error::Blas { call, what, status: name(status) })
}

impl CublasLt {
    /// Creates a handle on the device that is current on this thread; products may use `workspace_bytes` of scratch.
    /// With a driver, the algorithms for each shape are measured when it first occurs; otherwise the heuristics' first
    /// choice is used.
    ///
    /// # Errors
    /// If the library does not start.
    pub fn new(workspace_bytes: u64, driver: Option<Arc<dyn Driver>>) -> Result<CublasLt> {
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
        let plans = Mutex::new(Recent::new(MOST_PLANS));
        let grouped = Mutex::new(Recent::new(MOST_PLANS));
        Ok(CublasLt { handle: handle.expose_provenance(), workspace_bytes, driver, plans, grouped })
    }

    fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self, shape: &Shape, scales: [u64; 2]) -> Result<Option<Arc<Plan>>> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let mut desc: cublasLtMatmulDesc_t = std::ptr::null_mut();
        // f32 operands are multiplied in f32, not in TF32.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: the library makes a descriptor.
        unsafe {
            let made = sys::cublasLtMatmulDescCreate(&mut desc, compute, cudaDataType::CUDA_R_32F);
            check("cublasLtMatmulDescCreate", shape, made)?;
        }
        let desc = Desc(desc.expose_provenance());
        set(shape, &desc, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(shape.first_trans))?;
        set(shape, &desc, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(shape.second_trans))?;
        if let Some(modes) = shape.scales {
            set_modes(shape, &desc, modes)?;
            set_scales(shape, &desc, scales)?;
        }
        let first = layout(shape, &shape.first, shape.input)?;
        let second = layout(shape, &shape.second, shape.second_input)?;
        let result = layout(shape, &shape.result, shape.output)?;
        let candidates = self.ask(shape, &desc, [&first, &second, &result])?;
        let plan = Plan { desc, first, second, result, candidates, chosen: OnceLock::new() };
        Ok((!plan.candidates.is_empty()).then(|| Arc::new(plan)))
    }

    /// The heuristics' candidates that fit in the available scratch, the best first; empty if there are none.
    fn ask(&self, shape: &Shape, desc: &Desc, matrices: [&Matrix; 3]) -> Result<Vec<Candidate>> {
        let [first, second, result] = matrices.map(|matrix| at(matrix.0));
        let aligns = [shape.first.align, shape.second.align, shape.result.align];
        let about = |call: &'static str, status: Status| check(call, shape, status);
        let preference = Preference::new(self.workspace_bytes, aligns, &about)?;
        // SAFETY: descriptors that live; there is room for as many results as are requested.
        unsafe {
            let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = std::mem::zeroed();
            let mut count: c_int = 0;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                at(self.handle),
                at(desc.0),
                first,
                second,
                result,
                result,
                preference.handle(),
                CANDIDATES as c_int,
                found.as_mut_ptr(),
                &mut count,
            );
            let refused = match status {
                Status::CUBLAS_STATUS_NOT_SUPPORTED => true,
                // The status for unknown scale modes is undocumented.
                Status::CUBLAS_STATUS_INVALID_VALUE | Status::CUBLAS_STATUS_ARCH_MISMATCH => {
                    shape.scales.is_some()
                }
                _ => false,
            };
            if refused {
                return Ok(Vec::new());
            }
            check("cublasLtMatmulAlgoGetHeuristic", shape, status)?;
            let found = found.into_iter().take(count as usize);
            let fits = found.filter(|found| found.state == Status::CUBLAS_STATUS_SUCCESS);
            Ok(fits.map(|found| (found.algo, found.workspaceSize)).collect())
        }
    }

    /// Runs a candidate, with the result at `c`.
    ///
    /// # Safety
    /// See [`Products::product`].
    unsafe fn run(
        &self,
        (shape, plan): (&Shape, &Plan),
        (algo, workspace_bytes): &Candidate,
        operands: &Operands,
        c: u64,
        stream: Stream,
    ) -> Result<()> {
        let (one, beta) = (1f32, if operands.accumulate { 1f32 } else { 0f32 });
        // SAFETY: descriptors live as long as the plan; the addresses are the caller's promise; both factors are read
        // before the call returns.
        let status = unsafe {
            sys::cublasLtMatmul(
                at(self.handle),
                at(plan.desc.0),
                (&raw const one).cast(),
                pointer(operands.b),
                at(plan.first.0),
                pointer(operands.a),
                at(plan.second.0),
                (&raw const beta).cast(),
                pointer(c),
                at(plan.result.0),
                pointer(c),
                at(plan.result.0),
                algo,
                pointer(operands.workspace),
                *workspace_bytes,
                pointer(stream.0).cast(),
            )
        };
        check("cublasLtMatmul", shape, status)
    }

    /// Chooses among the candidates for a shape by running them, once. Results go where the product's will or, if that
    /// is accumulated, into separate memory; without such memory the first choice stays.
    ///
    /// # Safety
    /// See [`Products::product`].
    unsafe fn choose(&self, shape: &Shape, plan: &Plan, operands: &Operands, stream: Stream) -> Result<()> {
        let Some(driver) = self.driver.as_ref().filter(|_| plan.chosen.get().is_none() && is_worth(shape))
        else {
            return Ok(());
        };
        if driver.is_capturing(stream)? {
            return Ok(());
        }
        let bytes = shape.result.cols * shape.result.stride as u64 * shape.output.bytes();
        let own = if operands.accumulate { driver.allocate(bytes).ok() } else { Some(operands.c) };
        let chosen = match own {
            None => Some(0),
            Some(c) => fastest(driver.as_ref(), stream, plan.candidates.len(), |candidate| {
                let candidate = &plan.candidates[candidate];
                if candidate.1 as u64 > operands.workspace_bytes {
                    return Err(refused(shape));
                }
                // SAFETY: the caller's promise, or memory of this function, which has waited before it is released.
                unsafe { self.run((shape, plan), candidate, operands, c, stream) }
            })?,
        };
        if let (true, Some(c)) = (operands.accumulate, own) {
            driver.free(c)?;
        }
        chosen.map(|chosen| plan.chosen.set(chosen));
        Ok(())
    }
}

/// The error for a shape without a plan within the scratch.
fn refused(shape: &Shape) -> Error {
    let status = "no plan with so little scratch".to_string();
    Error::Blas { call: "cublasLtMatmul", what: format!("{shape:?}"), status }
}

/// Sets an attribute of a product.
fn set<T>(
    shape: &Shape,
    desc: &Desc,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: T,
) -> Result<()> {
    let (from, size) = ((&raw const value).cast(), size_of::<T>());
    // SAFETY: a descriptor that lives; the value is copied, with its size.
    let status = unsafe { sys::cublasLtMatmulDescSetAttribute(at(desc.0), attribute, from, size) };
    check("cublasLtMatmulDescSetAttribute", shape, status)
}

/// Sets the scale modes and the accumulation mode.
fn set_modes(shape: &Shape, desc: &Desc, modes: [Scales; 2]) -> Result<()> {
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

/// Sets the device addresses of the scales of A and B.
fn set_scales(shape: &Shape, desc: &Desc, [a, b]: [u64; 2]) -> Result<()> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b)?;
    set(shape, desc, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a)
}

fn layout(shape: &Shape, layout: &Layout, element: Element) -> Result<Matrix> {
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
    Ok(Matrix(made.expose_provenance()))
}

// SAFETY: the layouts are those of the shape, and the workspace is no larger than the operands specify.
unsafe impl Products for CublasLt {
    fn takes(&self, shape: &Shape, operands: &Operands) -> Result<bool> {
        let plan = self.plans().get(*shape, || self.make(shape, operands.scales))?;
        Ok(plan.is_some_and(|plan| plan.candidate(operands.workspace_bytes).is_some()))
    }

    unsafe fn product(&self, shape: &Shape, operands: &Operands, stream: Stream) -> Result<()> {
        // The descriptor belongs to the shape but the scales to the call, so the lock is held: no other thread may call
        // meanwhile.
        let mut plans = self.plans();
        let plan = plans.get(*shape, || self.make(shape, operands.scales))?.ok_or_else(|| refused(shape))?;
        if shape.scales.is_some() {
            set_scales(shape, &plan.desc, operands.scales)?;
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.choose(shape, &plan, operands, stream)?;
            let candidate = plan.candidate(operands.workspace_bytes).ok_or_else(|| refused(shape))?;
            self.run((shape, &plan), candidate, operands, operands.c, stream)
        }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: the handle is of `new`, and is not used again.
        unsafe { sys::cublasLtDestroy(at(self.handle)) };
    }
}
