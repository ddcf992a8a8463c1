//! Tests through the library's own functions, in memory of the simulated device. All tests of a process share the
//! device, so errors that would make it fail are checked on the work itself.

mod groups;
mod products;
mod refusals;
mod values;

use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};

use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreferenceAttributes_t as Wish, cublasStatus_t as Status,
};

use super::heuristic::cublasLtMatmulAlgoGetHeuristic;
use super::matmul::cublasLtMatmul;
use super::objects::*;
use super::values::Kind;
use crate::device::{StreamState, drive, state};
use crate::driver::{cuCtxSetCurrent, cuDevicePrimaryCtxRetain, cuInit};

const OK: Status = Status::CUBLAS_STATUS_SUCCESS;

/// A stream of the device, whose context is made current.
fn stream() -> u64 {
    let mut context = null_mut();
    cuInit(0);
    // SAFETY: a valid address.
    unsafe { cuDevicePrimaryCtxRetain(&mut context, 0) };
    cuCtxSetCurrent(context);
    let mut now = state();
    let handle = now.handle();
    now.streams.insert(handle, StreamState::default());
    handle
}

/// Device memory filled with NaN.
fn room(bytes: u64) -> u64 {
    state().allocate(0, bytes).unwrap()
}

fn number(kind: Kind) -> u32 {
    [0, 2, 14, 28, 29][[Kind::F32, Kind::F16, Kind::Bf16, Kind::E4m3, Kind::E5m2]
        .iter()
        .position(|one| *one == kind)
        .unwrap()]
}

/// Numbers between -1 and 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A matrix in memory with gaps between its columns, and its rounded values.
#[derive(Clone)]
struct Side {
    kind: Kind,
    rows: usize,
    cols: usize,
    ld: usize,
    address: u64,
    values: Vec<f32>,
}

impl Side {
    fn new(kind: Kind, [rows, cols]: [usize; 2], ld: usize, random: &mut Random) -> Side {
        let address = room((((cols - 1) * ld + rows) as u64) * kind.size());
        let mut side = Side { kind, rows, cols, ld, address, values: vec![0.0; rows * cols] };
        side.values.iter_mut().for_each(|value| *value = random.next());
        for col in 0..cols {
            // SAFETY: within the allocation.
            unsafe { kind.write(&side.values[col * rows..(col + 1) * rows], side.column(col)) };
        }
        side.values = side.read();
        side
    }

    fn column(&self, col: usize) -> u64 {
        self.address + (col * self.ld) as u64 * self.kind.size()
    }

    fn read(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        for col in 0..self.cols {
            // SAFETY: within the allocation.
            unsafe { self.kind.read(self.column(col), &mut values[col * self.rows..(col + 1) * self.rows]) };
        }
        values
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        f64::from(self.values[col * self.rows + row])
    }
}

/// Floats in the device's memory.
fn floats(values: &[f32]) -> u64 {
    let address = room(4 * values.len() as u64);
    // SAFETY: within the allocation.
    unsafe { Kind::F32.write(values, address) };
    address
}

fn float(address: u64) -> f32 {
    let mut value = [0.0];
    // SAFETY: of an allocation.
    unsafe { Kind::F32.read(address, &mut value) };
    value[0]
}

/// A layout and a matrix's address.
#[derive(Clone, Copy)]
struct Place {
    kind: u32,
    rows: u64,
    cols: u64,
    ld: i64,
    address: u64,
}

impl Side {
    fn place(&self) -> Place {
        let [rows, cols] = [self.rows as u64, self.cols as u64];
        Place { kind: number(self.kind), rows, cols, ld: self.ld as i64, address: self.address }
    }
}

/// A heuristic call and a product call, with all arguments.
#[derive(Clone)]
struct Call {
    compute: Compute,
    scale: u32,
    attributes: Vec<(Attribute, u64, usize)>,
    /// Layouts and addresses of A, B, C and D.
    places: [Place; 4],
    alpha: f32,
    beta: f32,
    /// Addresses of the scalars, if they are on the device.
    device_scalars: Option<[u64; 2]>,
    /// Workspace limit of the preference.
    workspace: u64,
    alignments: [u32; 4],
    /// Workspace given to the product; as much as the algorithm requires if `None`.
    given: Option<(u64, usize)>,
    /// Index of the algorithm; `None` skips the heuristic.
    pick: Option<usize>,
    stream: u64,
}

impl Call {
    fn new(sides: [&Side; 4], transposed: [bool; 2], stream: u64) -> Call {
        let ops = [Attribute::CUBLASLT_MATMUL_DESC_TRANSA, Attribute::CUBLASLT_MATMUL_DESC_TRANSB];
        Call {
            compute: Compute::CUBLAS_COMPUTE_32F,
            scale: 0,
            attributes: ops
                .into_iter()
                .zip(transposed)
                .map(|(op, turned)| (op, u64::from(turned), 4))
                .collect(),
            places: sides.map(Side::place),
            alpha: 1.0,
            beta: 0.0,
            device_scalars: None,
            workspace: 32 << 20,
            alignments: [256; 4],
            given: None,
            pick: Some(0),
            stream,
        }
    }

    fn set(&mut self, attribute: Attribute, value: u64, bytes: usize) {
        self.attributes.push((attribute, value, bytes));
    }

    /// Statuses of the heuristic and of the product; the latter is called only if the former succeeds.
    fn make(&self) -> (Status, Status) {
        self.make_by(|_| {})
    }

    fn make_by(&self, change: impl FnOnce(&mut cublasLtMatmulAlgo_t)) -> (Status, Status) {
        let mut handle = null_mut();
        let mut product = null_mut();
        let mut wishes = null_mut();
        // SAFETY: valid addresses for created objects and attributes.
        unsafe {
            assert_eq!(cublasLtCreate(&mut handle), OK);
            assert_eq!(cublasLtMatmulDescCreate(&mut product, self.compute as u32, self.scale), OK);
            for (attribute, value, bytes) in &self.attributes {
                let from = (&raw const *value).cast();
                assert_eq!(cublasLtMatmulDescSetAttribute(product, *attribute as u32, from, *bytes), OK);
            }
            assert_eq!(cublasLtMatmulPreferenceCreate(&mut wishes), OK);
            let set = |wish: u32, from: *const c_void, bytes| {
                assert_eq!(cublasLtMatmulPreferenceSetAttribute(wishes, wish, from, bytes), OK);
            };
            let most = Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as u32;
            set(most, (&raw const self.workspace).cast(), 8);
            for (index, alignment) in self.alignments.iter().enumerate() {
                let first = Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as u32;
                set(first + index as u32, (&raw const *alignment).cast(), 4);
            }
        }
        let layouts = self.places.map(|Place { kind, rows, cols, ld, .. }| {
            let mut layout = null_mut();
            // SAFETY: a valid address.
            assert_eq!(unsafe { cublasLtMatrixLayoutCreate(&mut layout, kind, rows, cols, ld) }, OK);
            layout
        });
        let [la, lb, lc, ld] = layouts;
        // SAFETY: zeros are valid for numbers and null pointers.
        let mut results: [cublasLtMatmulHeuristicResult_t; 8] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        let to = results.as_mut_ptr();
        // SAFETY: room for eight.
        let found = unsafe {
            cublasLtMatmulAlgoGetHeuristic(handle, product, la, lb, lc, ld, wishes, 8, to, &mut count)
        };
        let mut made = OK;
        if found == OK || self.pick.is_none() {
            let mut result = results[self.pick.unwrap_or(0)];
            change(&mut result.algo);
            let wanted = result.workspaceSize;
            let (workspace, bytes) = match self.given {
                Some(given) => given,
                None if self.pick.is_none() || wanted == 0 => (0, 0),
                None => (room(wanted as u64), wanted),
            };
            let algo = if self.pick.is_some() { &raw const result.algo } else { null() };
            let [a, b, c, d] =
                self.places.map(|place| without_provenance_mut::<c_void>(place.address as usize));
            let own = [(&raw const self.alpha).cast(), (&raw const self.beta).cast()];
            let there = |scalars: [u64; 2]| {
                scalars.map(|at| without_provenance_mut::<c_void>(at as usize).cast_const())
            };
            let [alpha, beta] = self.device_scalars.map_or(own, there);
            let stream = without_provenance_mut(self.stream as usize);
            let workspace = without_provenance_mut(workspace as usize);
            // SAFETY: the header's contract.
            made = unsafe {
                cublasLtMatmul(
                    handle, product, alpha, a, la, b, lb, beta, c, lc, d, ld, algo, workspace, bytes, stream,
                )
            };
        }
        // Everything needed was copied. The handle is kept, as destroying it would wait for the device.
        layouts.into_iter().for_each(|layout| assert_eq!(cublasLtMatrixLayoutDestroy(layout), OK));
        assert_eq!(cublasLtMatmulDescDestroy(product), OK);
        assert_eq!(cublasLtMatmulPreferenceDestroy(wishes), OK);
        (found, made)
    }

    fn run(&self) {
        assert_eq!(self.make(), (OK, OK));
        drive(self.stream);
    }
}
