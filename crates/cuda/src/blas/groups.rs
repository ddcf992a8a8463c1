//! Grouped products: many products of one kind in one call, whose sizes and addresses are in device memory and read
//! when it runs (cuBLAS manual, "cublasLtMatmul()", grouped matrices; experimental there).
//!
//! Factors are in device memory, too: host factors give wrong results on Hopper up to 13.7.0, and only one of each kind
//! for all groups is supported there (the same page; release notes of CUDA 13.4 update 1). A group without rows has all
//! sizes zero, so that nothing depends on how a library handles a product with an empty sum: up to cuBLAS 13.2 that was
//! wrong (TransformerEngine, pull request 2765).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{MutexGuard, PoisonError};

use super::Element;
use super::group_shape::{GroupedPlans, Groups};
use super::handles::{Candidate, Desc, Matrix, at, data_type, name, operation, pointer};
use super::lt::CublasLt;
use super::preference::Preference;
use crate::calls::blas::{
    self as sys, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasStatus_t as Status, cudaDataType,
};
use crate::calls::groups as grouped;
use crate::driver::Stream;
use crate::{Error, Result};

/// The lowest version used for grouped products, in the library's encoding. Hopper has them from 13.4.0 on, but up to
/// 13.6.0 several that share one workspace may hang (release notes of CUDA 13.2 update 1 to 13.3 update 1, issue
/// 6456362).
const LEAST: usize = 130_700;
/// `CUBLASLT_POINTER_MODE_DEVICE`.
const ON_DEVICE: i32 = 1;
/// Alignment in bytes of the addresses of all matrices.
const ALIGN: u32 = 16;

/// Addresses of the tables of a grouped product in device memory; one entry per group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupOperands {
    /// Addresses of the first operands, the second ones, and the results, which are accumulated: u64, at multiples of
    /// 16.
    pub pointers: [u64; 3],
    /// m, n, k: i32.
    pub sizes: [u64; 3],
    /// Leading dimensions of the operands and the results: i32.
    pub strides: [u64; 3],
    /// Factors of the products and of the previous results: one f32 each, for all groups.
    pub factors: [u64; 2],
    /// Address of the scratch.
    pub workspace: u64,
    /// Bytes of the scratch.
    pub workspace_bytes: u64,
}

/// A library that computes grouped products on a stream.
///
/// # Safety
/// Reads and writes only what the tables describe, and the workspace.
pub unsafe trait GroupedProducts: Send + Sync {
    /// True if the library supports such groups within the available scratch.
    fn takes(&self, groups: &Groups, operands: &GroupOperands) -> Result<bool>;
    /// Issues products for which [`GroupedProducts::takes`] is true.
    /// # Safety
    /// When the stream reaches the call, the tables describe such groups; all that they refer to lives until it has
    /// run.
    unsafe fn product(&self, groups: &Groups, operands: &GroupOperands, stream: Stream) -> Result<()>;
}

/// Checks whether the opened library is used for grouped products on a chip of this capability.
///
/// # Errors
/// The reason that it is not; empty on chips other than Hopper, where there is nothing to report.
pub fn why_no_groups(capability: (u32, u32)) -> std::result::Result<(), String> {
    if capability != (9, 0) {
        return Err(String::new());
    }
    // SAFETY: the function takes no arguments and returns a number.
    let version = unsafe { sys::cublasLtGetVersion() };
    if version >= LEAST && grouped::are_there() {
        return Ok(());
    }
    let said = |number: usize| format!("{}.{}", number / 10_000, number % 10_000 / 100);
    let (found, wanted) = (said(version), said(LEAST));
    Err(format!(
        "products by expert are those of kernels of our own: cuBLAS is {found}, groups want {wanted}"
    ))
}

fn check(call: &'static str, groups: &Groups, status: Status) -> Result<()> {
    match status {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        _ => Err(Error::Blas { call, what: format!("{groups:?}"), status: name(status) }),
    }
}

/// Descriptors of one call; layouts contain the addresses of tables.
struct Call {
    desc: Desc,
    /// Layouts of the operands and the result.
    layouts: [Matrix; 3],
}

impl Call {
    fn new(groups: &Groups, operands: &GroupOperands) -> Result<Call> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let mut desc: cublasLtMatmulDesc_t = std::ptr::null_mut();
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: the library makes a descriptor.
        let made = unsafe { sys::cublasLtMatmulDescCreate(&mut desc, compute, cudaDataType::CUDA_R_32F) };
        check("cublasLtMatmulDescCreate", groups, made)?;
        let desc = Desc(desc.expose_provenance());
        for (attribute, value) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(groups.first_trans)),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(groups.second_trans)),
            (Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, ON_DEVICE),
        ] {
            // SAFETY: a descriptor that lives; the value is copied, with its size.
            let set = unsafe {
                sys::cublasLtMatmulDescSetAttribute(at(desc.0), attribute, (&raw const value).cast(), 4)
            };
            check("cublasLtMatmulDescSetAttribute", groups, set)?;
        }
        let [m, n, k] = operands.sizes;
        let turned = |trans: bool, [rows, cols]: [u64; 2]| if trans { [cols, rows] } else { [rows, cols] };
        let first = turned(groups.first_trans, [m, k]);
        let second = turned(groups.second_trans, [k, n]);
        let [of_first, of_second, of_result] = operands.strides;
        let layouts = [
            layout(groups, groups.input, first, of_first)?,
            layout(groups, groups.input, second, of_second)?,
            layout(groups, groups.output, [m, n], of_result)?,
        ];
        Ok(Call { desc, layouts })
    }

    fn handles(&self) -> [cublasLtMatrixLayout_t; 3] {
        self.layouts.each_ref().map(|layout| at(layout.0))
    }
}

fn layout(groups: &Groups, element: Element, [rows, cols]: [u64; 2], stride: u64) -> Result<Matrix> {
    let mut made: cublasLtMatrixLayout_t = std::ptr::null_mut();
    let [rows, cols, stride] = [rows, cols, stride].map(|table| pointer(table).cast_const());
    let (kind, count) = (data_type(element), groups.count as c_int);
    // SAFETY: the library makes a descriptor, and keeps the addresses.
    let status =
        unsafe { grouped::cublasLtGroupedMatrixLayoutCreate(&mut made, kind, count, rows, cols, stride) };
    check("cublasLtGroupedMatrixLayoutCreate", groups, status)?;
    Ok(Matrix(made.expose_provenance()))
}

impl CublasLt {
    fn grouped(&self) -> MutexGuard<'_, GroupedPlans> {
        self.grouped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The heuristics' first choice, if they have one.
    fn ask_groups(&self, groups: &Groups, operands: &GroupOperands) -> Result<Option<Candidate>> {
        let call = Call::new(groups, operands)?;
        let about = |call: &'static str, status: Status| check(call, groups, status);
        let preference = Preference::new(self.workspace_bytes, [ALIGN; 3], &about)?;
        for (attribute, average) in grouped::AVERAGES.into_iter().zip(groups.likely) {
            preference.set(attribute, average, &about)?;
        }
        let [first, second, result] = call.handles();
        let mut count: c_int = 0;
        // SAFETY: descriptors that live, and room for the one result that is asked for.
        let (status, found) = unsafe {
            let mut found: sys::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                at(self.handle),
                at(call.desc.0),
                first,
                second,
                result,
                result,
                preference.handle(),
                1,
                &mut found,
                &mut count,
            );
            (status, found)
        };
        match status {
            Status::CUBLAS_STATUS_NOT_SUPPORTED
            | Status::CUBLAS_STATUS_INVALID_VALUE
            | Status::CUBLAS_STATUS_ARCH_MISMATCH => return Ok(None),
            status => check("cublasLtMatmulAlgoGetHeuristic", groups, status)?,
        }
        let is_good = count > 0 && found.state == Status::CUBLAS_STATUS_SUCCESS;
        Ok(is_good.then_some((found.algo, found.workspaceSize)))
    }

    /// The choice for such groups, if it fits in the available scratch.
    fn choice(&self, groups: &Groups, operands: &GroupOperands) -> Result<Option<Candidate>> {
        let choice = self.grouped().get(*groups, || self.ask_groups(groups, operands))?;
        Ok(choice.filter(|(_, bytes)| *bytes as u64 <= operands.workspace_bytes))
    }
}

// SAFETY: layouts and addresses are those of the tables, and the workspace is no larger than the operands specify.
unsafe impl GroupedProducts for CublasLt {
    fn takes(&self, groups: &Groups, operands: &GroupOperands) -> Result<bool> {
        Ok(self.choice(groups, operands)?.is_some())
    }

    unsafe fn product(&self, groups: &Groups, operands: &GroupOperands, stream: Stream) -> Result<()> {
        let (algo, workspace_bytes) = self.choice(groups, operands)?.ok_or_else(|| Error::Blas {
            call: "cublasLtMatmul",
            what: format!("{groups:?}"),
            status: "no plan with so little scratch".into(),
        })?;
        let call = Call::new(groups, operands)?;
        let [of_first, of_second, of_result] = call.handles();
        let [first, second, result] = operands.pointers.map(pointer);
        let [one, beta] = operands.factors.map(pointer);
        // SAFETY: descriptors are read before the call returns; tables and factors are the caller's promise.
        let status = unsafe {
            sys::cublasLtMatmul(
                at(self.handle),
                at(call.desc.0),
                one,
                first,
                of_first,
                second,
                of_second,
                beta,
                result,
                of_result,
                result,
                of_result,
                &raw const algo,
                pointer(operands.workspace),
                workspace_bytes,
                pointer(stream.0).cast(),
            )
        };
        check("cublasLtMatmul", groups, status)
    }
}
