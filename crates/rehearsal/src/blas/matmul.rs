//! A product's call: everything that can be known before it runs.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::sys::{
    cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
    cublasStatus_t as Status, cudaStream_t,
};
use cudarc::driver::sys::CUresult;

use super::groups::{GroupJob, Groups};
use super::heuristic::{Algorithm, choose};
use super::objects::{PREFERENCE, Preference, check_handle, layout, operation};
use super::problem::{Matrix, Problem};
use super::product::{Job, Scalar};
use super::{Checked, answer, invalid, refuse};
use crate::device::{Work, check_memory, settings, state, submit};

/// Bytes of memory: pieces of one length at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Span {
    start: u64,
    piece: u64,
    distance: u64,
    count: u64,
}

impl Span {
    pub(super) fn of(matrix: &Matrix, start: u64) -> Span {
        let size = matrix.kind.size();
        let [rows, ld, cols] = [matrix.rows, matrix.ld, matrix.cols].map(|number| number as u64);
        Span { start, piece: rows * size, distance: ld * size, count: cols }
    }

    pub(super) fn bytes(start: u64, bytes: u64) -> Span {
        Span { start, piece: bytes, distance: bytes, count: 1 }
    }

    /// True if the spans share a byte; pieces of one may lie between those of the other.
    pub(super) fn overlaps(&self, other: &Span) -> bool {
        let (mut one, mut two) = (0, 0);
        while one < self.count && two < other.count {
            let left = self.start + one * self.distance;
            let right = other.start + two * other.distance;
            if left + self.piece <= right {
                one += ((right - left - self.piece) / self.distance).max(1);
            } else if right + other.piece <= left {
                two += ((left - right - other.piece) / other.distance).max(1);
            } else {
                return true;
            }
        }
        false
    }
}

/// Arguments of a call in addition to descriptors.
#[derive(Clone, Copy)]
pub(super) struct Given {
    /// Addresses of A, B, C and D.
    pub addresses: [u64; 4],
    pub workspace: u64,
    pub workspace_bytes: u64,
}

/// Reads a host scalar, or keeps a device scalar's address.
///
/// # Safety
/// The address is null, or that of an f32 on the side given by the product's pointer mode.
pub(super) unsafe fn scalar(name: &str, from: *const c_void, on_device: bool) -> Checked<Scalar> {
    let address = from.expose_provenance() as u64;
    if address == 0 {
        return invalid(format!("{name} is null"));
    }
    let device = check_memory(address, 4);
    if on_device {
        return match device {
            Ok(()) if address.is_multiple_of(4) => Ok(Scalar::Device(address)),
            Ok(()) => invalid(format!("{name} at {address:#x} is not aligned")),
            Err(why) => invalid(format!("{name}, in pointer mode device: {why}")),
        };
    }
    let pinned = state().pinned.range(..=address).next_back().is_some_and(|(at, has)| address < at + has);
    if device.is_ok() && !pinned {
        return invalid(format!("{name} is a device's memory, and the pointer mode is host"));
    }
    // SAFETY: the caller's promise.
    Ok(Scalar::Host(unsafe { from.cast::<f32>().read_unaligned() }))
}

/// The caller's algorithm, if it was chosen for this product; else the heuristic's default.
fn algorithm(
    given: Option<&cublasLtMatmulAlgo_t>,
    problem: &Problem,
    addresses: [u64; 4],
) -> Checked<Algorithm> {
    let Some(packed) = given else {
        let alignments = addresses.map(|address| 1 << address.trailing_zeros().min(8));
        let chosen = choose(problem, &Preference { alignments, ..PREFERENCE })?;
        return match chosen.first() {
            Some(first) => Ok(*first),
            None => refuse(Status::CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm without a workspace"),
        };
    };
    let found = Algorithm::unpack(packed)?;
    if found.key != problem.key {
        return invalid("the algorithm was chosen for another product: types, shapes, or attributes differ");
    }
    Ok(found)
}

/// C may be null if it is not read, as in TransformerEngine's FP8 products.
fn check_pointers(job: &Job, chosen: &Algorithm, given: &Given) -> Checked<()> {
    let sides = ["A", "B", "C", "D"].into_iter().zip(given.addresses).zip(chosen.alignments);
    for ((name, address), alignment) in sides {
        if address == 0 && (name != "C" || job.reads_c()) {
            return invalid(format!("{name} is null"));
        }
        if !address.is_multiple_of(alignment) {
            let why =
                format!("{name} is at {address:#x}, and the preference promised multiples of {alignment}");
            return invalid(why);
        }
    }
    let [_, _, c, d] = given.addresses;
    if c == d && job.problem.c != job.problem.d {
        return invalid("C is D, and their layouts are not the same");
    }
    given.check_workspace(chosen)
}

impl Given {
    /// Checks that the workspace is accessible and as large as the algorithm requires.
    pub(super) fn check_workspace(&self, chosen: &Algorithm) -> Checked<()> {
        let Given { workspace, workspace_bytes, .. } = *self;
        if workspace_bytes < chosen.workspace {
            let why = format!(
                "a workspace of {workspace_bytes} bytes, and the algorithm wants {}",
                chosen.workspace
            );
            return invalid(why);
        }
        if workspace == 0 && workspace_bytes > 0 {
            return invalid(format!("a workspace of {workspace_bytes} bytes at null"));
        }
        if !workspace.is_multiple_of(256) {
            return invalid(format!("the workspace at {workspace:#x} must be 256-byte aligned"));
        }
        if workspace_bytes > 0 {
            check_memory(workspace, workspace_bytes)
                .or_else(|why| invalid(format!("the workspace: {why}")))?;
        }
        Ok(())
    }
}

/// Checks that nothing else uses the memory written.
fn check_overlaps(job: &Job, given: &Given) -> Checked<()> {
    let Problem { a, b, c, d, .. } = &job.problem;
    let [at_a, at_b, at_c, at_d] = given.addresses;
    let written = Span::of(d, at_d);
    let mut others = vec![("A", Span::of(a, at_a)), ("B", Span::of(b, at_b))];
    if job.reads_c() && at_c != at_d {
        others.push(("C", Span::of(c, at_c)));
    }
    others.extend(job.factors().into_iter().map(|(name, at, bytes)| (name, Span::bytes(at, bytes))));
    let workspace = Span::bytes(given.workspace, given.workspace_bytes.max(1));
    for (name, span) in &others {
        if written.overlaps(span) {
            return invalid(format!("D overlaps {name} (the documents are silent)"));
        }
        if given.workspace_bytes > 0 && workspace.overlaps(span) {
            return invalid(format!("the workspace overlaps {name}"));
        }
    }
    if given.workspace_bytes > 0 && workspace.overlaps(&written) {
        return invalid("the workspace overlaps D");
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmul(
    handle: cublasLtHandle_t,
    product: cublasLtMatmulDesc_t,
    alpha: *const c_void,
    a: *const c_void,
    adesc: cublasLtMatrixLayout_t,
    b: *const c_void,
    bdesc: cublasLtMatrixLayout_t,
    beta: *const c_void,
    c: *const c_void,
    cdesc: cublasLtMatrixLayout_t,
    d: *mut c_void,
    ddesc: cublasLtMatrixLayout_t,
    chosen: *const cublasLtMatmulAlgo_t,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: cudaStream_t,
) -> Status {
    let call = "cublasLtMatmul";
    let run = || {
        check_handle(handle)?;
        let product = operation(product)?;
        let given = Given {
            addresses: [a, b, c, d.cast_const()].map(|pointer| pointer.expose_provenance() as u64),
            workspace: workspace.expose_provenance() as u64,
            workspace_bytes: workspace_bytes as u64,
        };
        let queue = |work: Work| {
            submit(stream.addr() as u64, call, work).or_else(|status| match status {
                CUresult::CUDA_ERROR_INVALID_HANDLE => invalid("the stream is none"),
                other => refuse(Status::CUBLAS_STATUS_EXECUTION_FAILED, format!("{other:?}")),
            })
        };
        let all = [adesc, bdesc, if cdesc.is_null() { ddesc } else { cdesc }, ddesc];
        if let Some(groups) = Groups::of(&product, all, settings().cublas)? {
            // SAFETY: the header's contract.
            let job = unsafe { GroupJob::new(groups, given, [alpha, beta], chosen.as_ref()) }?;
            return queue(Arc::new(move || job.run()));
        }
        let to = layout(ddesc, "D")?;
        // If C has no layout, D's is used.
        let from = if cdesc.is_null() { to } else { layout(cdesc, "C")? };
        let problem = Problem::of(&product, [&layout(adesc, "A")?, &layout(bdesc, "B")?, &from, &to])?;
        // SAFETY: the header's contract.
        let chosen = algorithm(unsafe { chosen.as_ref() }, &problem, given.addresses)?;
        let on_device = problem.scalars_on_device;
        // SAFETY: the header's contract.
        let (alpha, beta) = unsafe { (scalar("alpha", alpha, on_device)?, scalar("beta", beta, on_device)?) };
        let workspace = (given.workspace, chosen.workspace);
        let job = Job { problem, addresses: given.addresses, alpha, beta, workspace };
        check_pointers(&job, &chosen, &given)?;
        job.check().or_else(invalid)?;
        check_overlaps(&job, &given)?;
        queue(Arc::new(move || job.run()))
    };
    answer(call, run())
}

#[cfg(test)]
mod tests {
    use super::Span;

    #[test]
    fn matrices_may_lie_between_each_others_columns() {
        let span = |start, piece, distance, count| Span { start, piece, distance, count };
        let check = |one: Span, two: Span, expected| {
            assert_eq!((one.overlaps(&two), two.overlaps(&one)), (expected, expected));
        };
        check(span(0, 4, 10, 5), span(4, 6, 10, 5), false);
        check(span(0, 4, 10, 5), span(3, 6, 10, 5), true);
        check(span(0, 4, 10, 5), span(4, 7, 10, 5), true);
        check(span(0, 4, 10, 2), span(14, 2, 3, 100), false);
        check(span(0, 4, 10, 3), span(14, 2, 3, 100), true);
        check(span(0, 100, 100, 1), span(100, 1, 1, 1), false);
        check(span(0, 4, 1000, 1000), span(999_003, 1, 1, 1), true);
        check(span(0, 4, 1000, 1000), span(999_004, 1, 1, 1), false);
    }
}
