//! Algorithms, with and without a workspace; each records the product that it was chosen for, and is refused for any
//! other.

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};

use cudarc::cublaslt::sys::{
    cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreference_t, cublasLtMatrixLayout_t, cublasStatus_t as Status,
};

use super::group_shapes::Groups;
use super::objects::{Preference, check_handle, layout, operation, preference};
use super::operands::Problem;
use super::{Outcome, answer, give, invalid, unsupported};
use crate::device::settings;

/// First word of an algorithm.
const MAGIC: u64 = u64::from_le_bytes(*b"rehearse");

/// An algorithm as stored in the header's opaque words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// Key of the product.
    pub key: u64,
    /// Bytes of workspace required.
    pub workspace: u64,
    /// Required alignments of A, B, C and D in bytes.
    pub alignments: [u64; 4],
    /// Index of the algorithm.
    pub index: u64,
}

fn seal(words: &[u64; 7]) -> u64 {
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    hasher.finish()
}

impl Algorithm {
    pub fn pack(&self) -> cublasLtMatmulAlgo_t {
        let alignments =
            self.alignments.iter().fold(0, |all, one| all << 8 | u64::from(one.trailing_zeros()));
        let words = [MAGIC, self.key, self.workspace, alignments, self.index, 0, 0];
        let [a, b, c, d, e, f, g] = words;
        cublasLtMatmulAlgo_t { data: [a, b, c, d, e, f, g, seal(&words)] }
    }

    /// Decodes an algorithm made here.
    pub fn unpack(algorithm: &cublasLtMatmulAlgo_t) -> Outcome<Algorithm> {
        let [magic, key, workspace, alignments, index, f, g, sealed] = algorithm.data;
        if magic != MAGIC || sealed != seal(&[magic, key, workspace, alignments, index, f, g]) {
            return invalid("the algorithm is none that the heuristic has given");
        }
        let alignments = [24, 16, 8, 0].map(|shift| 1 << (alignments >> shift & 0xff));
        Ok(Algorithm { key, workspace, alignments, index })
    }
}

/// Reduction schemes, as the header's bits.
const NONE: u64 = 0;
const INPLACE: u64 = 1;
const COMPUTE_TYPE: u64 = 2;
const OUTPUT_TYPE: u64 = 4;

/// Workspace of an algorithm without splitting: two KiB per multiprocessor.
const TILES: u64 = 132 << 11;

/// Refuses preferences that the rehearsal does not support.
fn check_wishes(wishes: &Preference) -> Outcome<()> {
    if wishes.search != 0 {
        return unsupported("the rehearsal has no search mode but the best fit");
    }
    if wishes.implementations != u64::MAX {
        return unsupported("the rehearsal does not know implementations");
    }
    Ok(())
}

/// The schemes that satisfy the preference, given their workspace bytes.
fn offer(key: u64, all: &[(u64, u64)], wishes: &Preference) -> Vec<Algorithm> {
    let fits = |(_, (scheme, bytes)): &(usize, (u64, u64))| {
        scheme & wishes.reductions == *scheme && *bytes <= wishes.workspace
    };
    let make = |(index, (_, bytes)): (usize, (u64, u64))| Algorithm {
        key,
        workspace: bytes,
        alignments: wishes.alignments,
        index: index as u64,
    };
    let whole = all.iter().map(|(scheme, bytes)| (*scheme, bytes.next_multiple_of(256)));
    whole.enumerate().filter(fits).map(make).collect()
}

/// Algorithms for grouped products: always with a workspace, so that callers that provide none are detected.
pub fn choose_groups(groups: &Groups, wishes: &Preference) -> Outcome<Vec<Algorithm>> {
    check_wishes(wishes)?;
    if let Some(less) = wishes.alignments.iter().find(|bytes| **bytes < 16) {
        return unsupported(format!("groups at multiples of {less} bytes, where 16 are needed"));
    }
    Ok(offer(groups.key, &[(COMPUTE_TYPE, 8 * TILES), (NONE, 2 * TILES), (NONE, TILES)], wishes))
}

/// Algorithms for a product, the fastest first. Those with a workspace come first, so that callers that provide none
/// are detected.
pub fn choose(problem: &Problem, wishes: &Preference) -> Outcome<Vec<Algorithm>> {
    check_wishes(wishes)?;
    let sides = [("A", problem.a), ("B", problem.b), ("C", problem.c), ("D", problem.d)];
    for ((name, matrix), alignment) in sides.into_iter().zip(wishes.alignments) {
        let least = if problem.is_narrow() { 16 } else { matrix.kind.size() };
        if alignment < least {
            return unsupported(format!(
                "{name} at multiples of {alignment} bytes, where {least} are needed"
            ));
        }
    }
    let elements = problem.m as u64 * problem.n as u64;
    let all = [
        (COMPUTE_TYPE, 2 * 4 * elements),
        (NONE, TILES),
        (NONE, 0),
        (INPLACE, 1 << 20),
        (OUTPUT_TYPE, 3 * problem.d.kind.size() * elements),
    ];
    Ok(offer(problem.key, &all, wishes))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: cublasLtHandle_t,
    product: cublasLtMatmulDesc_t,
    a: cublasLtMatrixLayout_t,
    b: cublasLtMatrixLayout_t,
    c: cublasLtMatrixLayout_t,
    d: cublasLtMatrixLayout_t,
    wishes: cublasLtMatmulPreference_t,
    requested: c_int,
    results: *mut cublasLtMatmulHeuristicResult_t,
    returned: *mut c_int,
) -> Status {
    let run = || {
        check_handle(handle)?;
        // SAFETY: the header's contract. The count is zero unless everything succeeds.
        unsafe { give(returned, 0) }?;
        if requested <= 0 || results.is_null() {
            return invalid(format!("{requested} algorithms at {results:?}"));
        }
        let product = operation(product)?;
        let chosen = if let Some(groups) = Groups::of(&product, [a, b, c, d], settings().cublas)? {
            choose_groups(&groups, &preference(wishes)?)?
        } else {
            let layouts = [layout(a, "A")?, layout(b, "B")?, layout(c, "C")?, layout(d, "D")?];
            let [a, b, c, d] = &layouts;
            let problem = Problem::of(&product, [a, b, c, d])?;
            choose(&problem, &preference(wishes)?)?
        };
        let mut count = 0;
        for algorithm in chosen.iter().take(requested as usize) {
            let result = cublasLtMatmulHeuristicResult_t {
                algo: algorithm.pack(),
                workspaceSize: algorithm.workspace as usize,
                state: Status::CUBLAS_STATUS_SUCCESS,
                wavesCount: 1.0,
                reserved: [0; 4],
            };
            // SAFETY: the header's contract: as many as were requested.
            unsafe { results.add(count).write(result) };
            count += 1;
        }
        // SAFETY: the header's contract.
        unsafe { give(returned, count as c_int) }
    };
    answer("cublasLtMatmulAlgoGetHeuristic", run())
}
