//! Grouped matrix products: many products in one call, whose sizes and addresses are read from tables in device memory
//! when the work runs. Sources: `cublasLt.h` of 13.10, and in cuBLAS' documentation `cublasLtMatmul()` ("to use
//! cublasLtMatmul() with grouped matrices") and "Tensor Core Usage".
//!
//! The library detects few errors there, which its documentation admits; here all of them are detected when the work
//! runs. Two requirements go beyond the documentation, which is silent about them: no result matrix overlaps anything
//! else, and no product has an empty sum.

use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};

use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatrixLayout_t,
};

use super::heuristic::Algorithm;
use super::matmul::{Given, Span, scalar};
use super::objects::{self, GroupLayout, Operation};
use super::problem::{Matrix, Mode, Precision, Problem, Scale, transposed};
use super::product::{Job, Scalar};
use super::values::Kind;
use super::{Checked, invalid, rules, unsupported};
use crate::device::check_memory;

/// First version that supports grouped products on compute capability 9.0.
const FIRST: usize = 130_400;
/// Up to this version host factors give wrong results there (release notes of CUDA 13.4 update 1, issue 6681084).
const HOST_FACTORS: usize = 130_700;
/// Alignment in bytes of every address, size and distance between columns.
const PIECE: u64 = 16;
const NAMES: [&str; 4] = ["A", "B", "C", "D"];

/// A grouped product.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Layouts of A, B, C and D.
    layouts: [GroupLayout; 4],
    kinds: [Kind; 4],
    transposed: [bool; 2],
    scalars_on_device: bool,
    /// Identifies products that can share an algorithm.
    pub key: u64,
}

fn kind_of(name: &str, number: u32) -> Checked<Kind> {
    match Kind::of(number) {
        Some(kind) => Ok(kind),
        None => unsupported(format!("{name} is of type {number}, which the rehearsal does not have")),
    }
}

impl Groups {
    /// The product requested of a library of this version; `None` if none of the matrices is grouped.
    pub fn of(
        operation: &Operation,
        handles: [cublasLtMatrixLayout_t; 4],
        version: usize,
    ) -> Checked<Option<Groups>> {
        let [a, b, c, d] = match handles.map(objects::groups) {
            [None, None, None, None] => return Ok(None),
            [Some(a), Some(b), Some(c), Some(d)] => [a, b, c, d],
            _ => return unsupported("some matrices are grouped and others are not"),
        };
        let layouts = [a, b, c, d];
        if version < FIRST {
            return unsupported(format!(
                "groups on compute capability 9.0 come with {FIRST}, this is {version}"
            ));
        }
        let count = a.count;
        if count <= 0 || layouts.iter().any(|layout| layout.count != count) {
            return invalid(format!("numbers of groups {:?}", layouts.map(|layout| layout.count)));
        }
        for (name, layout) in NAMES.iter().zip(&layouts) {
            if layout.tables.iter().any(|table| *table == 0 || !table.is_multiple_of(4)) {
                return invalid(format!("tables of {name} at {:x?}", layout.tables));
            }
        }
        let mut kinds = [Kind::F32; 4];
        for ((kind, name), layout) in kinds.iter_mut().zip(NAMES).zip(&layouts) {
            *kind = kind_of(name, layout.kind)?;
        }
        check_kinds(operation, kinds)?;
        let get = |attribute| operation.get(attribute);
        let groups = Groups {
            layouts,
            kinds,
            transposed: [
                transposed("A", get(Attribute::CUBLASLT_MATMUL_DESC_TRANSA))?,
                transposed("B", get(Attribute::CUBLASLT_MATMUL_DESC_TRANSB))?,
            ],
            scalars_on_device: get(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE) == 1,
            key: {
                let mut hasher = DefaultHasher::new();
                ("groups", count, layouts.map(|layout| layout.kind)).hash(&mut hasher);
                rules::KEY.iter().for_each(|attribute| get(*attribute).hash(&mut hasher));
                hasher.finish()
            },
        };
        if !groups.scalars_on_device && version <= HOST_FACTORS {
            return unsupported(format!(
                "factors of the host, which give wrong results up to {HOST_FACTORS}"
            ));
        }
        Ok(Some(groups))
    }

    /// The problem of one group.
    fn problem(&self, [a, b, c, d]: [Matrix; 4], [m, n, k]: [usize; 3]) -> Problem {
        let none = Scale { mode: Mode::Tensor, address: 0 };
        Problem {
            a,
            b,
            c,
            d,
            transposed: self.transposed,
            m,
            n,
            k,
            precision: Precision::Full,
            scalars_on_device: self.scalars_on_device,
            scale_a: none,
            scale_b: none,
            scale_c: 0,
            scale_d: 0,
            largest: 0,
            key: self.key,
        }
    }
}

/// Checks the documentation's table of grouped matrices, and features that this device lacks.
fn check_kinds(operation: &Operation, [a, b, c, d]: [Kind; 4]) -> Checked<()> {
    rules::refuse_what_is_absent(operation)?;
    let get = |attribute| operation.get(attribute);
    if get(Attribute::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) != Compute::CUBLAS_COMPUTE_32F as u64
        || get(Attribute::CUBLASLT_MATMUL_DESC_SCALE_TYPE) != 0
    {
        return unsupported("groups: the compute type must be CUBLAS_COMPUTE_32F, the scale type CUDA_R_32F");
    }
    if a.is_narrow() || b.is_narrow() {
        return unsupported("the rehearsal has no groups of narrow types");
    }
    let listed = matches!(a, Kind::Bf16 | Kind::F16) && a == b && c == d && (d == a || d == Kind::F32);
    if !listed {
        return unsupported(format!("the table of groups does not list A {a:?}, B {b:?}, C {c:?}, D {d:?}"));
    }
    if operation.factor_strides() != [0; 2] {
        return unsupported("groups on compute capability 9.0 have one alpha and one beta");
    }
    let scaled = [
        Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_C_SCALE_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
        Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM,
    ];
    if scaled.iter().any(|attribute| get(*attribute) != 0) {
        return invalid("factors and fast accumulation are only for products of narrow types");
    }
    Ok(())
}

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
        given: Given,
        [alpha, beta]: [*const c_void; 2],
        chosen: Option<&cublasLtMatmulAlgo_t>,
    ) -> Checked<GroupJob> {
        let Some(chosen) = chosen else {
            return unsupported("the rehearsal has no groups without an algorithm");
        };
        let chosen = Algorithm::unpack(chosen)?;
        if chosen.key != groups.key {
            return invalid("the algorithm was chosen for other groups: types, number or attributes differ");
        }
        given.check_workspace(&chosen)?;
        let on_device = groups.scalars_on_device;
        // SAFETY: the caller's promise.
        let (alpha, beta) = unsafe { (scalar("alpha", alpha, on_device)?, scalar("beta", beta, on_device)?) };
        for (name, array) in NAMES.iter().zip(given.addresses) {
            if array == 0 || !array.is_multiple_of(PIECE) {
                return invalid(format!(
                    "{name}'s array of addresses at {array:#x}, which must be 16-byte aligned"
                ));
            }
        }
        let workspace = (given.workspace, chosen.workspace);
        let job = GroupJob {
            groups,
            arrays: given.addresses,
            alignments: chosen.alignments,
            alpha,
            beta,
            workspace,
        };
        job.check_tables().or_else(invalid)?;
        let own = Span::bytes(given.workspace, given.workspace_bytes.max(1));
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
