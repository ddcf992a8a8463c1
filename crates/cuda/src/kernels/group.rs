//! Kernels around a library's products by expert: sorting slots by expert, gathering rows contiguously, tables of each
//! expert's rows, and scattering results to their slots. Counts never reach the host: parts are fixed ranges of the
//! sorted slots, and tables on the device describe which rows belong to which expert.

use fathom_tensor::gpu::{GROUP_ROWS, GroupedScratch, MATMUL_SCRATCH};
use fathom_tensor::{GroupedMatMul, GroupedWeight, OpDesc, Tensor};

use super::experts::zero_empty;
use super::launch::{Args, Launch, Sheet, code, start_mut};
use super::lists::Lists;
use super::table::group as entries;
use crate::blas::{Element, GroupOperands, Groups};

/// A product by expert in parts, each a grouped product.
pub(crate) struct Grouped {
    /// The library's description of every part.
    pub groups: Groups,
    /// Launches before all parts.
    pub sort: Vec<Launch>,
    /// Parts, run one after another in the same memory.
    pub parts: Vec<GroupStep>,
}

/// One part.
pub(crate) struct GroupStep {
    /// Launches that gather rows and write the tables.
    pub before: Vec<Launch>,
    /// Operands of the product.
    pub operands: GroupOperands,
    /// Scatters results.
    pub after: Option<Launch>,
}

/// Layout of the scratch.
struct Place {
    lists: Lists,
    groups: usize,
    /// List entries per part.
    rows: usize,
    /// Bytes per row of each side.
    row_bytes: [usize; 2],
    /// Entries from one table to the next.
    pitch: usize,
    /// Addresses of each side's contiguous rows.
    sides: [u64; 2],
    tables: u64,
    workspace: u64,
}

/// Each expert's matrix: address of the first, bytes from one expert's to the next, bytes from one of the part's rows
/// to the next, and the leading dimension for the library.
#[derive(Clone, Copy)]
struct Side {
    base: u64,
    of_group: usize,
    of_row: usize,
    ld: usize,
}

impl Place {
    fn new(desc: &OpDesc, index: &Tensor, experts: usize, ws: &Tensor) -> Option<Place> {
        let scratch = GroupedScratch::within(desc, ws.bytes())?;
        let start = start_mut(ws);
        let [lists, tables, first, second, own] = scratch.offsets().map(|offset| start + offset);
        let lists = Lists::filled(index, experts, GROUP_ROWS, lists);
        let fits = start.is_multiple_of(256) && lists.end() <= tables;
        fits.then(|| Place {
            rows: scratch.rows.min(lists.entries().next_multiple_of(GROUP_ROWS)),
            row_bytes: scratch.row_bytes.map(|bytes| bytes as usize),
            lists,
            groups: experts,
            pitch: experts.next_multiple_of(4),
            sides: [first, second],
            tables,
            workspace: own,
        })
    }

    /// Hint of an expert's number of rows in a part, if all experts have equally many; since parts are ranges of sorted
    /// slots, most experts are in one part. Rounded up to a power of two, so that similar token counts share a plan.
    fn likely(&self) -> u64 {
        ((self.lists.entries() / self.groups).min(self.rows) as u64)
            .next_power_of_two()
            .max(GROUP_ROWS as u64)
    }

    /// Starts of the parts.
    fn parts(&self) -> impl Iterator<Item = usize> {
        (0..self.lists.entries()).step_by(self.rows)
    }

    /// Appends the lists and the part, as a part's kernels take them.
    fn part(&self, args: Args, first: usize) -> Args {
        let args = args.address(self.lists.order).address(self.lists.starts).int(self.groups);
        args.long(first).long(self.rows)
    }

    /// Gathers the rows of a part into a side.
    fn gather(&self, first: usize, x: &Tensor, cols: usize, slots: usize, side: usize) -> Launch {
        let sheet = Sheet::new(self.rows, cols);
        let args = Args::new().address(x.address()).long(x.stride()).address(self.sides[side]);
        let args = self.part(args, first).long(cols).int(slots).flag(x.cols() == cols).sheet(sheet);
        Launch::new(entries::gather_slots, sheet.blocks(), args)
    }

    /// Writes the tables of a part; `sizes` are the column-major m, n and k, `None` for the expert's row count.
    fn tables(&self, first: usize, sides: [Side; 3], sizes: [Option<usize>; 3], factor: f32) -> Launch {
        let [pointers, sizes_at, factors] = self.arrays();
        let args =
            Args::new().address(pointers).address(sizes_at).address(factors).address(self.lists.starts);
        let args = args.int(self.groups).int(self.pitch).long(first).long(self.rows);
        let args = sides.iter().fold(args, |args, side| args.bits(side.base));
        let args = sides.iter().fold(args, |args, side| args.long(side.of_group));
        let args = sides.iter().fold(args, |args, side| args.long(side.of_row));
        let args = sizes.iter().fold(args, |args, size| match size {
            Some(size) => args.int(*size),
            None => args.int_bits(-1),
        });
        let args = sides.iter().fold(args, |args, side| args.int(side.ld)).float(factor);
        Launch::new(entries::group_tables, self.groups.div_ceil(256), args)
    }

    /// Addresses of the tables of pointers, of sizes, and of factors.
    fn arrays(&self) -> [u64; 3] {
        let pitch = self.pitch as u64;
        [self.tables, self.tables + 24 * pitch, self.tables + 48 * pitch]
    }

    fn operands(&self) -> GroupOperands {
        let [pointers, sizes, factors] = self.arrays();
        let pitch = self.pitch as u64;
        GroupOperands {
            pointers: [0, 1, 2].map(|at| pointers + 8 * pitch * at),
            sizes: [0, 1, 2].map(|at| sizes + 4 * pitch * at),
            strides: [3, 4, 5].map(|at| sizes + 4 * pitch * at),
            factors: [factors, factors + 16],
            workspace: self.workspace,
            workspace_bytes: MATMUL_SCRATCH,
        }
    }
}

/// Bytes from one expert's matrix of this many rows to the next, if all matrices and their lines begin at multiples of
/// 16 bytes.
fn pitched(x: &Tensor, rows: usize) -> Option<usize> {
    let bytes = x.dtype().bytes();
    let whole = x.address().is_multiple_of(16) && (x.stride() * bytes).is_multiple_of(16);
    whole.then_some(rows * x.stride() * bytes)
}

/// `C = A op(W_e)` in parts; `None` if the library does not support the operands.
#[track_caller]
pub(crate) fn groups_matmul(op: &GroupedMatMul<'_>, ws: &Tensor) -> Option<Grouped> {
    let (_, slots, inner, out) = op.sizes();
    let (input, output) = (Element::of(op.a.dtype())?, Element::of(op.c.dtype())?);
    if output != Element::F32 && output != input {
        return None;
    }
    let of_group = pitched(op.weights, if op.trans { out } else { inner })?;
    let place = Place::new(&op.desc(), op.index, op.experts, ws)?;
    let [rows, results] = place.sides;
    // Column-major, C^T = op(W_e)^T A^T of the same bytes.
    let sides = [
        Side { base: op.weights.address(), of_group, of_row: 0, ld: op.weights.stride() },
        Side { base: rows, of_group: 0, of_row: place.row_bytes[0], ld: inner },
        Side { base: results, of_group: 0, of_row: place.row_bytes[1], ld: out },
    ];
    let sheet = Sheet::new(place.rows, out);
    let part = |first: usize| GroupStep {
        before: vec![
            place.gather(first, op.a, inner, slots, 0),
            place.tables(first, sides, [Some(out), None, Some(inner)], 0.0),
        ],
        operands: place.operands(),
        after: Some(Launch::new(
            entries::scatter_slots,
            sheet.blocks(),
            place
                .part(Args::new().raw_mat(results, out, code(op.c.dtype())).out(op.c), first)
                .long(out)
                .int(slots)
                .sheet(sheet),
        )),
    };
    let mut sort = place.lists.sort(op.index);
    sort.push(zero_empty(op));
    let groups = Groups {
        count: op.experts as u32,
        input,
        output,
        first_trans: op.trans,
        second_trans: false,
        likely: [out as u64, place.likely(), inner as u64],
    };
    Some(Grouped { groups, sort, parts: place.parts().map(part).collect() })
}

/// `C_e += A_e^T B_e` in parts; `None` if the library does not support the operands. An expert's rows may be in two
/// parts, which are then added one after the other.
#[track_caller]
pub(crate) fn groups_weight(op: &GroupedWeight<'_>, ws: &Tensor) -> Option<Grouped> {
    let (_, slots, m, n) = op.sizes();
    let input = Element::of(op.a.dtype())?;
    let of_group = pitched(op.c, m)?;
    let place = Place::new(&op.desc(), op.index, op.experts, ws)?;
    let ([left, right], [of_left, of_right]) = (place.sides, place.row_bytes);
    // Column-major, C_e^T = B_e^T A_e.
    let sides = [
        Side { base: right, of_group: 0, of_row: of_right, ld: n },
        Side { base: left, of_group: 0, of_row: of_left, ld: m },
        Side { base: start_mut(op.c), of_group, of_row: 0, ld: op.c.stride() },
    ];
    let part = |first: usize| GroupStep {
        before: vec![
            place.gather(first, op.a, m, slots, 0),
            place.gather(first, op.b, n, slots, 1),
            place.tables(first, sides, [Some(n), Some(m), None], 1.0),
        ],
        operands: place.operands(),
        after: None,
    };
    let groups = Groups {
        count: op.experts as u32,
        input,
        output: Element::F32,
        first_trans: false,
        second_trans: true,
        likely: [n as u64, m as u64, place.likely()],
    };
    Some(Grouped { groups, sort: place.lists.sort(op.index), parts: place.parts().map(part).collect() })
}
