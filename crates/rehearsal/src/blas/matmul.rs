//! A product's call: everything that can be known before it runs.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::sys::{
    cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
    cublasStatus_t as Status, cudaStream_t,
};
use cudarc::driver::sys::CUresult;

use super::buffers::{BufferArgs, Span, scalar};
use super::group_shapes::Groups;
use super::groups::GroupJob;
use super::heuristic::{Algorithm, choose};
use super::objects::{PREFERENCE, Preference, check_handle, layout, operation};
use super::operands::Problem;
use super::product::Job;
use super::{Outcome, answer, invalid, refuse};
use crate::device::{Work, settings, submit};

/// The caller's algorithm, if it was chosen for this product; else the heuristic's default.
fn algorithm(
    given: Option<&cublasLtMatmulAlgo_t>,
    problem: &Problem,
    addresses: [u64; 4],
) -> Outcome<Algorithm> {
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
fn check_pointers(job: &Job, chosen: &Algorithm, args: &BufferArgs) -> Outcome<()> {
    let sides = ["A", "B", "C", "D"].into_iter().zip(args.addresses).zip(chosen.alignments);
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
    let [_, _, c, d] = args.addresses;
    if c == d && job.problem.c != job.problem.d {
        return invalid("C is D, and their layouts are not the same");
    }
    args.check_workspace(chosen)
}

/// Checks that nothing else uses the memory written.
fn check_overlaps(job: &Job, args: &BufferArgs) -> Outcome<()> {
    let Problem { a, b, c, d, .. } = &job.problem;
    let [at_a, at_b, at_c, at_d] = args.addresses;
    let written = Span::of(d, at_d);
    let mut others = vec![("A", Span::of(a, at_a)), ("B", Span::of(b, at_b))];
    if job.reads_c() && at_c != at_d {
        others.push(("C", Span::of(c, at_c)));
    }
    others.extend(job.factors().into_iter().map(|(name, at, bytes)| (name, Span::bytes(at, bytes))));
    let workspace = Span::bytes(args.workspace, args.workspace_bytes.max(1));
    for (name, span) in &others {
        if written.overlaps(span) {
            return invalid(format!("D overlaps {name} (the documents are silent)"));
        }
        if args.workspace_bytes > 0 && workspace.overlaps(span) {
            return invalid(format!("the workspace overlaps {name}"));
        }
    }
    if args.workspace_bytes > 0 && workspace.overlaps(&written) {
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
        let args = BufferArgs {
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
            let job = unsafe { GroupJob::new(groups, args, [alpha, beta], chosen.as_ref()) }?;
            return queue(Arc::new(move || job.run()));
        }
        let to = layout(ddesc, "D")?;
        // If C has no layout, D's is used.
        let from = if cdesc.is_null() { to } else { layout(cdesc, "C")? };
        let problem = Problem::of(&product, [&layout(adesc, "A")?, &layout(bdesc, "B")?, &from, &to])?;
        // SAFETY: the header's contract.
        let chosen = algorithm(unsafe { chosen.as_ref() }, &problem, args.addresses)?;
        let on_device = problem.scalars_on_device;
        // SAFETY: the header's contract.
        let (alpha, beta) = unsafe { (scalar("alpha", alpha, on_device)?, scalar("beta", beta, on_device)?) };
        let workspace = (args.workspace, chosen.workspace);
        let job = Job { problem, addresses: args.addresses, alpha, beta, workspace };
        check_pointers(&job, &chosen, &args)?;
        job.check().or_else(invalid)?;
        check_overlaps(&job, &args)?;
        queue(Arc::new(move || job.run()))
    };
    answer(call, run())
}

#[cfg(test)]
mod tests {
    use crate::blas::buffers::Span;

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
