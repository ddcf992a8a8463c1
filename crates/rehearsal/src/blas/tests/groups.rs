//! Grouped matrix products: compared with individual products, and their refusals.

use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t;

use super::*;
use crate::blas::buffers::BufferArgs;
use crate::blas::group_shapes::Groups;
use crate::blas::groups::GroupJob;
use crate::blas::objects::operation;

const INVALID: Status = Status::CUBLAS_STATUS_INVALID_VALUE;
const UNSUPPORTED: Status = Status::CUBLAS_STATUS_NOT_SUPPORTED;
const VERSION: usize = 131_000;

/// Tables in device memory for groups of these sizes.
struct Bed {
    sides: Vec<[Side; 4]>,
    /// Rows, columns and leading dimensions of A, B, C and D.
    tables: [[Vec<i32>; 3]; 4],
    addresses: [Vec<u64>; 4],
    transposed: [bool; 2],
    kinds: [Kind; 4],
}

fn integers(values: &[i32]) -> u64 {
    let address = room(4 * values.len() as u64);
    let to: *mut i32 = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: within the allocation.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) };
    address
}

fn addresses(values: &[u64]) -> u64 {
    let address = room(8 * values.len() as u64);
    let to: *mut u64 = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: within the allocation.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) };
    address
}

impl Bed {
    fn new(kinds: [Kind; 4], transposed: [bool; 2], sizes: &[[usize; 3]]) -> Bed {
        let mut random = Random(11);
        let turn = |shape: [usize; 2], turned: bool| if turned { [shape[1], shape[0]] } else { shape };
        let mut bed = Bed {
            sides: Vec::new(),
            tables: Default::default(),
            addresses: Default::default(),
            transposed,
            kinds,
        };
        for [m, n, k] in sizes.iter().copied() {
            let shapes = [turn([m, k], transposed[0]), turn([k, n], transposed[1]), [m, n], [m, n]];
            let sides: [Side; 4] = std::array::from_fn(|at| {
                let [rows, cols] = shapes[at];
                // Allocates some memory even for empty matrices.
                let ld = rows.max(8) + 8;
                let mut side = Side::new(kinds[at], [rows.max(1), cols.max(1)], ld, &mut random);
                (side.rows, side.cols) = (rows, cols);
                side
            });
            for (at, side) in sides.iter().enumerate() {
                for (table, value) in bed.tables[at].iter_mut().zip([side.rows, side.cols, side.ld]) {
                    table.push(value as i32);
                }
                bed.addresses[at].push(side.address);
            }
            bed.sides.push(sides);
        }
        bed
    }

    /// The request, made through descriptors.
    fn groups(&self, change: impl FnOnce(u64), version: usize) -> Result<Groups, Status> {
        let count = self.sides.len() as i32;
        let mut product = null_mut();
        let layouts = self.kinds.map(number);
        let layouts: Vec<_> = layouts
            .into_iter()
            .zip(&self.tables)
            .map(|(kind, tables)| {
                let [rows, cols, ld] = tables.each_ref().map(|table| integers(table));
                let at = |table: u64| without_provenance_mut::<c_void>(table as usize).cast_const();
                let mut made = null_mut();
                // SAFETY: a valid address.
                let status = unsafe {
                    cublasLtGroupedMatrixLayoutCreate(&mut made, kind, count, at(rows), at(cols), at(ld))
                };
                assert_eq!(status, OK);
                made
            })
            .collect();
        // SAFETY: a valid address, and values that live.
        unsafe {
            assert_eq!(cublasLtMatmulDescCreate(&mut product, Compute::CUBLAS_COMPUTE_32F as u32, 0), OK);
            let set = |attribute: u32, value: u64, bytes: usize| {
                let from = (&raw const value).cast();
                assert_eq!(cublasLtMatmulDescSetAttribute(product, attribute, from, bytes), OK);
            };
            set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA as u32, self.transposed[0].into(), 4);
            set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB as u32, self.transposed[1].into(), 4);
            set(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE as u32, 1, 4);
        }
        change(product.addr() as u64);
        let described = operation(product).unwrap();
        let found = Groups::of(&described, [layouts[0], layouts[1], layouts[2], layouts[3]], version);
        layouts.into_iter().for_each(|layout| assert_eq!(cublasLtMatrixLayoutDestroy(layout), OK));
        assert_eq!(cublasLtMatmulDescDestroy(product), OK);
        found.map(Option::unwrap).map_err(|refusal| refusal.status)
    }

    /// The work, with an algorithm from the heuristic.
    fn job(&self, change: impl FnOnce(&mut [*const c_void; 2], &mut BufferArgs)) -> Result<GroupJob, Status> {
        let groups = self.groups(|_| {}, VERSION).unwrap();
        let wishes = Preference { workspace: 32 << 20, alignments: [16; 4], ..PREFERENCE };
        let chosen = crate::blas::heuristic::choose_groups(&groups, &wishes).unwrap();
        let packed: cublasLtMatmulAlgo_t = chosen[0].pack();
        let own = chosen[0].workspace;
        let mut args = BufferArgs {
            addresses: self.addresses.each_ref().map(|list| addresses(list)),
            workspace: room(own),
            workspace_bytes: own,
        };
        let factors = [floats(&[2.0]), floats(&[0.5])];
        let mut factors = factors.map(|at| without_provenance_mut::<c_void>(at as usize).cast_const());
        change(&mut factors, &mut args);
        // SAFETY: factors of the device.
        unsafe { GroupJob::new(groups, args, factors, Some(&packed)) }.map_err(|refusal| refusal.status)
    }
}

const SIZES: [[usize; 3]; 4] = [[16, 8, 24], [16, 0, 24], [16, 40, 24], [0, 0, 0]];

#[test]
fn groups_are_products_of_each() {
    stream();
    for kinds in [[Kind::Bf16; 4], [Kind::F16, Kind::F16, Kind::F32, Kind::F32]] {
        for transposed in [[false; 2], [true, false], [false, true], [true; 2]] {
            let bed = Bed::new(kinds, transposed, &SIZES);
            bed.job(|_, _| {}).unwrap().run().unwrap();
            for [a, b, c, d] in bed.sides.iter().filter(|[.., d]| d.rows * d.cols > 0) {
                let inner = if transposed[0] { a.rows } else { a.cols };
                let found = d.read();
                for col in 0..d.cols {
                    for row in 0..d.rows {
                        let left = |at| if transposed[0] { a.at(at, row) } else { a.at(row, at) };
                        let right = |at| if transposed[1] { b.at(col, at) } else { b.at(at, col) };
                        let sum: f64 = (0..inner).map(|at| left(at) * right(at)).sum();
                        let expected = 2.0 * sum + 0.5 * c.at(row, col);
                        let off = (f64::from(found[col * d.rows + row]) - expected).abs();
                        assert!(off <= 1e-5 + 5e-3 * expected.abs(), "{row} {col}: off by {off}");
                    }
                }
            }
        }
    }
}

#[test]
fn tables_are_read_when_the_work_runs() {
    stream();
    let bed = Bed::new([Kind::Bf16; 4], [false; 2], &SIZES);
    let mut arrays = [0; 4];
    let job = bed.job(|_, args| arrays = args.addresses).unwrap();
    let to: *mut u64 = std::ptr::with_exposed_provenance_mut(arrays[0] as usize);
    // SAFETY: the first element of the array.
    unsafe { to.write(bed.addresses[0][0] + 2) };
    assert!(job.run().unwrap_err().contains("group 0: A"));
}

#[test]
fn what_tables_must_not_say() {
    stream();
    let check = |words: &str, change: fn(&mut Bed)| {
        let mut bed = Bed::new([Kind::Bf16; 4], [false; 2], &SIZES);
        change(&mut bed);
        let why = bed.job(|_, _| {}).unwrap().run().unwrap_err();
        assert!(why.contains(words), "{why}");
    };
    check("no matrix", |bed| bed.tables[0][0][2] = -8);
    check("no matrix", |bed| bed.tables[1][2][0] = 8);
    check("16 bytes", |bed| {
        for side in [1, 2, 3] {
            bed.tables[side][1][0] = 4;
        }
    });
    check("16 bytes", |bed| bed.tables[3][2][0] = 28);
    check("not aligned", |bed| bed.addresses[2][0] += 8);
    check("op(A)", |bed| bed.tables[1][0][2] = 16);
    check("over nothing", |bed| {
        bed.tables[0][1][0] = 0;
        bed.tables[1][0][0] = 0;
    });
    check("overlaps D of group 0", |bed| bed.addresses[3][2] = bed.addresses[3][0]);
    check("overlaps A of group 2", |bed| bed.addresses[3][0] = bed.addresses[0][2]);
    check("A: ", |bed| bed.addresses[0][0] = 1 << 40);
}

#[test]
fn what_a_call_must_not_say() {
    stream();
    let check = |what: &str, status: Status, change: fn(&mut [*const c_void; 2], &mut BufferArgs)| {
        let bed = Bed::new([Kind::Bf16; 4], [false; 2], &SIZES);
        assert_eq!(bed.job(change).err(), Some(status), "{what}");
    };
    check("an array that is not aligned", INVALID, |_, args| args.addresses[1] += 8);
    check("no array", INVALID, |_, args| args.addresses[2] = 0);
    check("an array that is not allocated", INVALID, |_, args| args.addresses[0] = 1 << 40);
    check("no factor", INVALID, |factors, _| factors[1] = std::ptr::null());
    check("a factor of the host", INVALID, |factors, _| {
        static ONE: f32 = 1.0;
        factors[0] = (&raw const ONE).cast();
    });
    check("too little workspace", INVALID, |_, args| args.workspace_bytes -= 1);
    check("a workspace that is not aligned", INVALID, |_, args| args.workspace += 16);
    check("a workspace over a table", INVALID, |_, args| args.addresses[0] = args.workspace);
}

#[test]
fn what_is_no_problem_of_groups() {
    stream();
    let groups = |kinds: [Kind; 4], version| Bed::new(kinds, [true, false], &SIZES).groups(|_| {}, version);
    assert!(groups([Kind::Bf16; 4], 130_400).is_ok());
    assert_eq!(groups([Kind::Bf16; 4], 130_300).err(), Some(UNSUPPORTED));
    assert_eq!(groups([Kind::F32; 4], VERSION).err(), Some(UNSUPPORTED));
    assert_eq!(groups([Kind::Bf16, Kind::Bf16, Kind::F32, Kind::Bf16], VERSION).err(), Some(UNSUPPORTED));
    assert_eq!(groups([Kind::E4m3, Kind::E4m3, Kind::Bf16, Kind::Bf16], VERSION).err(), Some(UNSUPPORTED));
    let with = |attribute: u32, value: u64, bytes: usize, version| {
        let set = |product: u64| {
            let (product, from) = (without_provenance_mut(product as usize), (&raw const value).cast());
            // SAFETY: a value that lives.
            assert_eq!(unsafe { cublasLtMatmulDescSetAttribute(product, attribute, from, bytes) }, OK);
        };
        Bed::new([Kind::Bf16; 4], [false; 2], &SIZES).groups(set, version).err()
    };
    let mode = Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE as u32;
    assert_eq!(with(mode, 0, 4, 130_700), Some(UNSUPPORTED));
    assert_eq!(with(mode, 0, 4, VERSION), None);
    // CUBLASLT_MATMUL_DESC_ALPHA_BATCH_STRIDE
    assert_eq!(with(39, 1, 8, VERSION), Some(UNSUPPORTED));
    assert_eq!(with(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM as u32, 1, 1, VERSION), Some(INVALID));
}

#[test]
fn averages_have_eight_bytes() {
    let mut wishes = null_mut();
    // SAFETY: valid addresses, and values that live.
    unsafe {
        assert_eq!(cublasLtMatmulPreferenceCreate(&mut wishes), OK);
        for attribute in 13..=15 {
            let average = 300u64;
            let set = |bytes| {
                cublasLtMatmulPreferenceSetAttribute(wishes, attribute, (&raw const average).cast(), bytes)
            };
            assert_eq!([set(8), set(4)], [OK, INVALID]);
        }
    }
    assert_eq!(cublasLtMatmulPreferenceDestroy(wishes), OK);
}
