//! Lookup in a table of rows, and its gradient.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, madd, run};
use crate::mat::{Elem, Mat, MatMut};
use std::marker::PhantomData;
use std::ops::Range;

/// `out[t] (+)= scale * table[ids[t]]`.
#[derive(Clone, Copy, Debug)]
pub struct Embed<'a> {
    /// Index of the table row for each row of `out`.
    pub ids: &'a [i32],
    /// Rows of the table.
    pub vocab: usize,
    /// Columns.
    pub cols: usize,
    /// `[vocab, cols]`.
    pub table: Mat,
    /// Multiplies each row.
    pub scale: f32,
    /// `[ids, cols]`, any storage.
    pub out: MatMut,
    /// Adds to `out`, as for learned positions.
    pub accumulate: bool,
    /// The id of the table's first row; ids without a row give zeros. `None`: ids count from 0, and all must have rows.
    pub first: Option<usize>,
}

struct Gather<'a, T, U>(&'a Embed<'a>, PhantomData<fn(T, U)>);

/// Computes `op.out`.
///
/// # Safety
/// See the module documentation.
///
/// # Panics
/// If an id is not a row of the table.
pub unsafe fn embed(place: Place<'_>, op: &Embed<'_>) {
    if op.first.is_none() {
        check_ids("embed", op.ids, op.vocab);
    }
    let bytes = op.cols * (op.table.elem.bytes() + op.out.elem.bytes());
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(op.table.elem, T => by_elem!(op.out.elem, U => unsafe {
        run(place, &Gather::<T, U>(op, PhantomData), op.ids.len(), 1, bytes)
    }));
}

/// The row of an id in a table whose first row is `first`'s.
#[inline(always)]
fn row_of(id: i32, first: usize, rows: usize) -> Option<usize> {
    usize::try_from(id).ok()?.checked_sub(first).filter(|row| *row < rows)
}

fn check_ids(name: &str, ids: &[i32], vocab: usize) {
    if let Some(at) = ids.iter().position(|id| *id < 0 || *id as usize >= vocab) {
        panic!("{name}: id {} at {at} is not below {vocab}", ids[at]);
    }
}

impl<T: Float, U: Float> Kernel for Gather<'_, T, U> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let out = unsafe { op.out.row::<U>(row, op.cols) };
            let Some(at) = row_of(op.ids[row], op.first.unwrap_or(0), op.vocab) else {
                if !op.accumulate {
                    out.fill(U::narrow(0.0));
                }
                continue;
            };
            // SAFETY: as above, and the row is one of the table's.
            let from = unsafe { op.table.row::<T>(at, op.cols) };
            if op.accumulate {
                for (out, from) in out.iter_mut().zip(from) {
                    *out = U::narrow(madd::<L>(op.scale, from.wide(), out.wide()));
                }
            } else {
                for (out, from) in out.iter_mut().zip(from) {
                    *out = U::narrow(op.scale * from.wide());
                }
            }
        }
    }
}

/// `dtable[ids[t]] += scale * dy[t]` in ascending t.
#[derive(Clone, Copy, Debug)]
pub struct EmbedBackward<'a> {
    /// Index of the table row for each row of `dy`.
    pub ids: &'a [i32],
    /// Rows of the table.
    pub vocab: usize,
    /// Columns.
    pub cols: usize,
    /// `[ids, cols]`.
    pub dy: Mat,
    /// Multiplies each row.
    pub scale: f32,
    /// f32 `[vocab, cols]`.
    pub dtable: MatMut,
    /// Same as in [`Embed`].
    pub first: Option<usize>,
}

struct Scatter<'a, T>(&'a EmbedBackward<'a>, PhantomData<fn(T)>);

/// Adds to `op.dtable`. Parallel over columns.
///
/// # Safety
/// See the module documentation.
///
/// # Panics
/// If an id is not a row of the table.
pub unsafe fn embed_backward(place: Place<'_>, op: &EmbedBackward<'_>) {
    if op.first.is_none() {
        check_ids("embed backward", op.ids, op.vocab);
    }
    assert!(op.dtable.elem == Elem::F32, "embed backward: the table's gradient is f32");
    let bytes = op.ids.len() * (op.dy.elem.bytes() + 8);
    let grain = op.cols.div_ceil(place.threads.count()).next_multiple_of(16);
    // SAFETY: the caller's promise; columns are disjoint.
    by_elem!(op.dy.elem, T => unsafe {
        run(place, &Scatter::<T>(op, PhantomData), op.cols, grain, bytes)
    });
}

impl<T: Float> Kernel for Scatter<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for (row, id) in op.ids.iter().enumerate() {
            let Some(at) = row_of(*id, op.first.unwrap_or(0), op.vocab) else { continue };
            // SAFETY: the row is one of the table's; these columns belong to this call, and no slice extends past them.
            let (dy, to) = unsafe {
                let dy = &op.dy.row::<T>(row, part.end)[part.start..];
                let at = at * op.dtable.stride + part.start;
                (dy, std::slice::from_raw_parts_mut(op.dtable.ptr.cast::<f32>().add(at), part.len()))
            };
            for (to, dy) in to.iter_mut().zip(dy) {
                *to = madd::<L>(op.scale, dy.wide(), *to);
            }
        }
    }
}
