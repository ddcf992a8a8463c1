//! Products of rows with the weights of their experts: rows are gathered expert by expert, multiplied by the ordinary
//! kernel, and scattered.
//!
//! A result's row depends only on its inputs. Sums over rows (weights' gradients) take an expert's tokens ascending; if
//! the kernel sums several products at a time, an expert's rows in each [`SUM_CHUNK`] tokens are padded with rows of
//! zeros, so that the bits do not depend on where tokens are cut (at multiples of that). An expert is processed in
//! batches of at most [`BATCH`] rows, so scratch does not grow with the number of tokens.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::elementwise::{ExpertRows, Place, gather, scatter};
use crate::gemm::{self, Gemm};
use crate::isa::Isa;
use crate::mat::{Elem, Mat, MatMut};
use fathom_tensor::{MOST_EXPERTS, SUM_CHUNK};

#[cfg(test)]
mod tests;

/// Rows of an expert that are multiplied at a time; a multiple of [`SUM_CHUNK`].
const BATCH: usize = 1024;
/// Alignment of everything in the workspace.
const ALIGN: usize = 64;

/// `C = A op(W_e)`; see [`fathom_tensor::GroupedMatMul`].
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// i32 `[tokens, slots]`.
    pub index: &'a [i32],
    /// Slots per token.
    pub slots: usize,
    /// Number of experts.
    pub experts: usize,
    /// The summed size.
    pub inner: usize,
    /// Columns of the result.
    pub out: usize,
    /// `[tokens, slots x inner]`.
    pub a: Mat,
    /// True if A is `[tokens, inner]`: a token's slots share it.
    pub shared: bool,
    /// `[experts x out, inner]` with `trans`, else `[experts x inner, out]`.
    pub weights: Mat,
    /// True if weights are stored `[out, inner]`.
    pub trans: bool,
    /// `[tokens, slots x out]`, overwritten.
    pub c: MatMut,
}

/// `C_e += A_e^T B_e`; see [`fathom_tensor::GroupedWeight`].
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// i32 `[tokens, slots]`.
    pub index: &'a [i32],
    /// Slots per token.
    pub slots: usize,
    /// Number of experts.
    pub experts: usize,
    /// Rows of an expert's gradient.
    pub m: usize,
    /// Columns of an expert's gradient.
    pub n: usize,
    /// `[tokens, slots x m]`.
    pub a: Mat,
    /// True if A is `[tokens, m]`.
    pub a_shared: bool,
    /// `[tokens, slots x n]`.
    pub b: Mat,
    /// True if B is `[tokens, n]`.
    pub b_shared: bool,
    /// f32 `[experts x m, n]`.
    pub c: MatMut,
}

/// Sizes and types that determine the workspace.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tokens times slots.
    pub rows: usize,
    /// Columns of A, and of C or of B in a weight's gradient.
    pub cols: [usize; 2],
    /// Storage of the operands and of the result.
    pub elems: [Elem; 2],
    /// True for a weight's gradient.
    pub weight: bool,
}

fn round_up(x: usize, to: usize) -> usize {
    x.div_ceil(to) * to
}

/// Rows per batch; a short one may be padded with zeros.
fn batch(rows: usize) -> usize {
    round_up(rows, SUM_CHUNK).min(BATCH)
}

/// Parts of the workspace in bytes: the order of rows, the two sides, and the product's own.
fn parts(isa: Isa, threads: usize, shape: &Shape) -> [usize; 4] {
    let [operand, result] = shape.elems;
    let sides = [operand, if shape.weight { operand } else { result }];
    let rows = batch(shape.rows);
    let side = |at: usize| round_up(rows * shape.cols[at] * sides[at].bytes(), ALIGN);
    let k = if shape.weight { rows } else { shape.cols[0] };
    let product = gemm::most_workspace_bytes(isa, threads, operand, k);
    [round_up(4 * shape.rows, ALIGN), side(0), side(1), product]
}

/// Bytes of workspace for products of this shape.
pub fn workspace_bytes(isa: Isa, threads: usize, shape: &Shape) -> usize {
    if shape.rows == 0 { 0 } else { parts(isa, threads, shape).iter().sum::<usize>() + ALIGN }
}

/// The slots of each expert, tokens ascending: `order[starts[e]..starts[e + 1]]`.
pub(crate) struct SortedSlots<'a> {
    /// All slots that have an expert.
    pub order: &'a [i32],
    starts: [usize; MOST_EXPERTS + 1],
}

impl<'a> SortedSlots<'a> {
    /// Sorts the slots into `order`, which has an element for each slot.
    ///
    /// # Panics
    /// If an expert does not exist.
    pub fn new(index: &[i32], experts: usize, order: &'a mut [i32]) -> SortedSlots<'a> {
        assert!(experts <= MOST_EXPERTS, "grouped product: {experts} experts");
        let mut starts = [0; MOST_EXPERTS + 1];
        for expert in index.iter().filter(|expert| **expert >= 0) {
            assert!((*expert as usize) < experts, "grouped product: expert {expert} of {experts}");
            starts[*expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            starts[expert + 1] += starts[expert];
        }
        let mut next = starts;
        for (slot, expert) in index.iter().enumerate().filter(|(_, expert)| **expert >= 0) {
            order[next[*expert as usize]] = slot as i32;
            next[*expert as usize] += 1;
        }
        SortedSlots { order, starts }
    }

    /// Range of an expert's slots in the order.
    pub fn range(&self, expert: usize) -> Range<usize> {
        self.starts[expert]..self.starts[expert + 1]
    }

    fn of(&self, expert: usize) -> &[i32] {
        &self.order[self.range(expert)]
    }
}

/// Zeroes the columns of slots without an expert.
///
/// # Safety
/// C has `slots` times `out` columns for every token, and nothing else uses them.
pub(crate) unsafe fn clear_empty(index: &[i32], (slots, out): (usize, usize), c: &MatMut) {
    let size = c.elem.bytes();
    for (slot, _) in index.iter().enumerate().filter(|(_, expert)| **expert < 0) {
        let at = (slot / slots * c.stride + slot % slots * out) * size;
        // SAFETY: the slot's columns of its token's row.
        unsafe { c.ptr.add(at).write_bytes(0, out * size) };
    }
}

fn shift(mat: &Mat, row: usize) -> Mat {
    Mat { ptr: mat.ptr.wrapping_add(row * mat.stride * mat.elem.bytes()), ..*mat }
}

fn as_mut(mat: &Mat) -> MatMut {
    // Only read: this matrix is gathered, never scattered to.
    MatMut { ptr: mat.ptr.cast_mut(), elem: mat.elem, stride: mat.stride }
}

/// The divided workspace.
struct Memory<'a> {
    order: &'a mut [i32],
    sides: [*mut u8; 2],
    product: *mut u8,
}

/// # Safety
/// `workspace` is writable for [`workspace_bytes`] of the shape and nothing else uses it.
unsafe fn memory<'a>(place: Place<'_>, shape: &Shape, workspace: *mut u8) -> Memory<'a> {
    let [order, first, second, _] = parts(place.isa, place.threads.count(), shape);
    let start = workspace.wrapping_add(workspace.align_offset(ALIGN));
    // SAFETY: the caller's promise; the parts are consecutive.
    unsafe {
        let list = std::slice::from_raw_parts_mut(start.cast::<i32>(), shape.rows);
        let sides = [start.add(order), start.add(order + first)];
        Memory { order: list, sides, product: start.add(order + first + second) }
    }
}

/// Computes `op.c`.
///
/// # Safety
/// Operands are readable and C is writable for their extents; `workspace` has [`workspace_bytes`].
pub unsafe fn product(place: Place<'_>, op: &Product<'_>, workspace: *mut u8) {
    if op.index.is_empty() {
        return;
    }
    let elems = [op.a.elem, op.c.elem];
    let shape = Shape { rows: op.index.len(), cols: [op.inner, op.out], elems, weight: false };
    // SAFETY: the caller's promise.
    let Memory { order, sides, product } = unsafe { memory(place, &shape, workspace) };
    // SAFETY: the caller's promise.
    unsafe { clear_empty(op.index, (op.slots, op.out), &op.c) };
    let sorted = SortedSlots::new(op.index, op.experts, order);
    let a = MatMut { ptr: sides[0], elem: op.a.elem, stride: op.inner };
    let c = MatMut { ptr: sides[1], elem: op.c.elem, stride: op.out };
    for expert in 0..op.experts {
        let weight = shift(&op.weights, expert * if op.trans { op.out } else { op.inner });
        for rows in sorted.of(expert).chunks(batch(shape.rows)) {
            let gathering = ExpertRows {
                rows,
                slots: op.slots,
                cols: op.inner,
                apart: as_mut(&op.a),
                shared: op.shared,
                together: a,
            };
            let call = Gemm {
                m: rows.len(),
                n: op.out,
                k: op.inner,
                a: a.as_mat(),
                a_trans: false,
                b: weight,
                b_layout: gemm::Layout::of(op.trans),
                c,
                accumulate: false,
            };
            let back = ExpertRows { cols: op.out, apart: op.c, shared: false, together: c, ..gathering };
            // SAFETY: the sides hold a batch of rows, the rest of the workspace any product of these operands.
            unsafe {
                gather(place, &gathering);
                gemm::gemm(place.threads, place.isa, &call, product);
                scatter(place, &back);
            }
        }
    }
}

/// Adds to `op.c`.
///
/// # Safety
/// See [`product`].
pub unsafe fn weight(place: Place<'_>, op: &Weight<'_>, workspace: *mut u8) {
    if op.index.is_empty() {
        return;
    }
    let elems = [op.a.elem, op.c.elem];
    let shape = Shape { rows: op.index.len(), cols: [op.m, op.n], elems, weight: true };
    // SAFETY: the caller's promise.
    let Memory { order, sides, product } = unsafe { memory(place, &shape, workspace) };
    let sorted = SortedSlots::new(op.index, op.experts, order);
    let unit = gemm::unit(place.isa, op.a.elem);
    let most = batch(shape.rows);
    let mut list = [-1; BATCH];
    for expert in 0..op.experts {
        let (mut filled, mut chunk) = (0, 0);
        let call = |rows: &[i32]| {
            // SAFETY: as the caller of this function promises.
            unsafe { add(place, op, expert, rows, (sides, product)) }
        };
        for slot in sorted.of(expert) {
            let of = *slot as usize / op.slots / SUM_CHUNK;
            if of != chunk {
                // Padding that another cut would have left to the kernel's own zeros.
                let end = round_up(filled, unit);
                list[filled..end].fill(-1);
                (filled, chunk) = (end, of);
            }
            if filled == most {
                call(&list[..filled]);
                filled = 0;
            }
            list[filled] = *slot;
            filled += 1;
        }
        if filled > 0 {
            call(&list[..filled]);
        }
    }
}

/// Adds some rows' contribution to an expert's gradient.
///
/// # Safety
/// See [`weight`].
unsafe fn add(
    place: Place<'_>,
    op: &Weight<'_>,
    expert: usize,
    rows: &[i32],
    (sides, product): ([*mut u8; 2], *mut u8),
) {
    let a = MatMut { ptr: sides[0], elem: op.a.elem, stride: op.m };
    let b = MatMut { ptr: sides[1], elem: op.b.elem, stride: op.n };
    let gathering = |from: &Mat, cols, shared, together| ExpertRows {
        rows,
        slots: op.slots,
        cols,
        apart: as_mut(from),
        shared,
        together,
    };
    let row = expert * op.m * op.c.stride * op.c.elem.bytes();
    let call = Gemm {
        m: op.m,
        n: op.n,
        k: rows.len(),
        a: a.as_mat(),
        a_trans: true,
        b: b.as_mat(),
        b_layout: gemm::Layout::Rows,
        c: MatMut { ptr: op.c.ptr.wrapping_add(row), ..op.c },
        accumulate: true,
    };
    // SAFETY: the sides hold a batch of rows, the rest of the workspace any product of these operands.
    unsafe {
        gather(place, &gathering(&op.a, op.m, op.a_shared, a));
        gather(place, &gathering(&op.b, op.n, op.b_shared, b));
        gemm::gemm(place.threads, place.isa, &call, product);
    }
}
