//! Grouped matrix products: many products in one call, whose sizes and addresses are read from tables in device memory
//! when the work runs. Sources: `cublasLt.h` of 13.10, and in cuBLAS' documentation `cublasLtMatmul()` ("to use
//! cublasLtMatmul() with grouped matrices") and "Tensor Core Usage".
//!
//! The library detects few errors there, which its documentation admits; here all of them are detected when the work
//! runs. Two requirements go beyond the documentation, which is silent about them: no result matrix overlaps anything
//! else, and no product has an empty sum.

use std::ffi::c_void;

use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t;

use super::buffers::{BufferArgs, Span, scalar};
use super::group_shapes::{Groups, NAMES};
use super::heuristic::Algorithm;
use super::operands::Matrix;
use super::product::{Job, Scalar};
use super::values::Kind;
use super::{Outcome, invalid, unsupported};
use crate::device::check_memory;

/// Alignment in bytes of every address, size and distance between columns.
const PIECE: u64 = 16;

/// Everything that a grouped product needs when it runs.
pub struct GroupJob {
    groups: Groups,
    /// Addresses of the arrays of A's, B's, C's and D's addresses.
    arrays: [u64; 4],
    alignments: [u64; 4],
    alpha: Scalar,
    beta: Scalar,
    workspace: (u64, u64),
}

fn read<T: Copy>(address: u64, index: usize) -> T {
    let from: *const T = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: inside a table that was checked.
    unsafe { from.add(index).read_unaligned() }
}

/// Matrices of one group and their addresses.
struct Group {
    number: usize,
    matrices: [Matrix; 4],
    addresses: [u64; 4],
    /// Sizes m, n, k.
    sizes: [usize; 3],
}

impl GroupJob {
    /// Checks everything that can be known before the product runs.
    ///
    /// # Safety
    /// The factors meet the header's requirements.
    pub unsafe fn new(
        groups: Groups,
        args: BufferArgs,
        [alpha, beta]: [*const c_void; 2],
        chosen: Option<&cublasLtMatmulAlgo_t>,
    ) -> Outcome<GroupJob> {
        let Some(chosen) = chosen else {
            return unsupported("the rehearsal has no groups without an algorithm");
        };
        let chosen = Algorithm::unpack(chosen)?;
        if chosen.key != groups.key {
            return invalid("the algorithm was chosen for other groups: types, number or attributes differ");
        }
        args.check_workspace(&chosen)?;
        let on_device = groups.scalars_on_device;
        // SAFETY: the caller's promise.
        let (alpha, beta) = unsafe { (scalar("alpha", alpha, on_device)?, scalar("beta", beta, on_device)?) };
        for (name, array) in NAMES.iter().zip(args.addresses) {
            if array == 0 || !array.is_multiple_of(PIECE) {
                return invalid(format!(
                    "{name}'s array of addresses at {array:#x}, which must be 16-byte aligned"
                ));
            }
        }
        let workspace = (args.workspace, chosen.workspace);
        let job = GroupJob {
            groups,
            arrays: args.addresses,
            alignments: chosen.alignments,
            alpha,
            beta,
            workspace,
        };
        job.check_tables().or_else(invalid)?;
        let own = Span::bytes(args.workspace, args.workspace_bytes.max(1));
        match job.tables().into_iter().find(|(_, at, bytes)| own.overlaps(&Span::bytes(*at, *bytes))) {
            Some((name, ..)) => invalid(format!("the workspace overlaps {name}")),
            None => Ok(job),
        }
    }

    fn count(&self) -> usize {
        self.groups.layouts[0].count as usize
    }

    /// Memory that is read in addition to matrices.
    fn tables(&self) -> Vec<(&'static str, u64, u64)> {
        let count = self.count() as u64;
        let mut all: Vec<_> =
            self.arrays.iter().map(|at| ("an array of addresses", *at, 8 * count)).collect();
        let sizes = self.groups.layouts.iter().flat_map(|layout| layout.tables);
        all.extend(sizes.map(|at| ("a table of sizes", at, 4 * count)));
        for factor in [self.alpha, self.beta] {
            if let Scalar::Device(at) = factor {
                all.push(("a factor", at, 4));
            }
        }
        all
    }

    fn check_tables(&self) -> Result<(), String> {
        let check = |(name, at, bytes)| check_memory(at, bytes).map_err(|why| format!("{name}: {why}"));
        self.tables().into_iter().try_for_each(check)
    }

    /// A matrix of a group; its address is checked only if it has elements.
    fn matrix(&self, side: usize, group: usize) -> Result<(Matrix, u64), String> {
        let (layout, kind, name) = (&self.groups.layouts[side], self.groups.kinds[side], NAMES[side]);
        let [rows, cols, ld] = layout.tables.map(|table| read::<i32>(table, group));
        let address: u64 = read(self.arrays[side], group);
        let failed =
            |why: &str| Err(format!("group {group}: {name}, {rows} x {cols} by {ld} at {address:#x}: {why}"));
        if rows < 0 || cols < 0 || ld < rows.max(1) {
            return failed("no matrix");
        }
        let odd = |size: &i32| !(*size as u64 * kind.size()).is_multiple_of(PIECE);
        if [rows, cols, ld].iter().any(odd) {
            return failed("sizes are no multiples of 16 bytes");
        }
        if rows > 0 && cols > 0 && (address == 0 || !address.is_multiple_of(self.alignments[side].max(PIECE)))
        {
            return failed("the address is not aligned as the preference promised");
        }
        Ok((Matrix { kind, rows: rows as usize, cols: cols as usize, ld: ld as usize }, address))
    }

    /// The groups with nonempty results.
    fn groups(&self) -> Result<Vec<Group>, String> {
        let mut all = Vec::new();
        for group in 0..self.count() {
            let mut matrices = [Matrix { kind: Kind::F32, rows: 0, cols: 0, ld: 0 }; 4];
            let mut addresses = [0; 4];
            for side in 0..4 {
                (matrices[side], addresses[side]) = self.matrix(side, group)?;
            }
            let [a, b, c, d] = &matrices;
            let turn = |matrix: &Matrix, turned: bool| {
                if turned { [matrix.cols, matrix.rows] } else { [matrix.rows, matrix.cols] }
            };
            let [left, right] = self.groups.transposed;
            let ([m, k], [inner, n]) = (turn(a, left), turn(b, right));
            let found = [[d.rows, d.cols], [c.rows, c.cols]];
            if inner != k || found != [[m, n]; 2] {
                return Err(format!(
                    "group {group}: op(A) {m} x {k}, op(B) {inner} x {n}, D and C {found:?}"
                ));
            }
            if m * n == 0 {
                continue;
            }
            if k == 0 {
                return Err(format!(
                    "group {group}: D {m} x {n} is a sum over nothing (the documents are silent)"
                ));
            }
            all.push(Group { number: group, matrices, addresses, sizes: [m, n, k] });
        }
        Ok(all)
    }

    /// Computes the products.
    ///
    /// # Errors
    /// Anything that would make a device fail or silently misbehave.
    pub fn run(&self) -> Result<(), String> {
        self.check_tables()?;
        let groups = self.groups()?;
        let mut used: Vec<(String, Span)> = Vec::new();
        let own = Span::bytes(self.workspace.0, self.workspace.1.max(1));
        used.push(("the workspace".into(), own));
        used.extend(self.tables().into_iter().map(|(name, at, bytes)| (name.into(), Span::bytes(at, bytes))));
        let span = |group: &Group, side: usize| Span::of(&group.matrices[side], group.addresses[side]);
        for group in &groups {
            let index = group.number;
            let read = [0, 1].map(|side| (format!("{} of group {index}", NAMES[side]), span(group, side)));
            if let Some((name, _)) = read.iter().find(|(_, read)| read.overlaps(&own)) {
                return Err(format!("the workspace overlaps {name}"));
            }
            used.extend(read);
        }
        for group in &groups {
            let index = group.number;
            let (result, from) = (span(group, 3), span(group, 2));
            if let Some((name, _)) = used.iter().find(|(_, other)| result.overlaps(other)) {
                return Err(format!("D of group {index} overlaps {name}"));
            }
            if group.addresses[2] != group.addresses[3] && result.overlaps(&from) {
                return Err(format!("D of group {index} overlaps its C"));
            }
            used.push((format!("D of group {index}"), result));
        }
        if self.workspace.1 > 0 {
            let to: *mut u8 = std::ptr::with_exposed_provenance_mut(self.workspace.0 as usize);
            check_memory(self.workspace.0, self.workspace.1)?;
            // SAFETY: checked. Overwriting the workspace exposes callers that keep data there.
            unsafe { to.write_bytes(0xff, self.workspace.1 as usize) };
        }
        groups.into_iter().try_for_each(|Group { matrices, addresses, sizes, .. }| {
            let problem = self.groups.problem(matrices, sizes);
            let (alpha, beta) = (self.alpha, self.beta);
            Job { problem, addresses, alpha, beta, workspace: (0, 0) }.run()
        })
    }
}
