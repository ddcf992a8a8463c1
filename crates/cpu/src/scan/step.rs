//! One row of a document in generation: the state is read and written once, where it is.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use super::Operands;
use super::chunk::columns;
use super::decays::Decays;
use super::family::Family;
use crate::attention::pack::{put, row_f32};
use crate::attention::simd::{LANES, Simd};
use crate::elementwise::level::madd;
use crate::mat::MatMut;

/// Columns of u of a row as f32; `to` has room for whole vectors.
#[inline(always)]
unsafe fn read<F: Family>(of: &Operands<'_>, row: usize, cols: Range<usize>, to: *mut f32) {
    let from = of.u.ptr.add((row * of.u.stride + cols.start) * of.u.elem.bytes());
    for at in (0..cols.len()).step_by(LANES) {
        F::S::store(to.add(at), row_f32::<F::S>(from, of.u.elem, at, cols.len()));
    }
}

/// Some heads of one row: `S = e^a S + delta x B^T`, `y = S C + D x`. `states` are those of all heads; the scratch has
/// room for 2 padded rows of a head and of a state.
///
/// # Safety
/// See [`super::forward::forward`].
#[inline(always)]
pub unsafe fn row<F: Family>(
    of: &Operands<'_>,
    (row, group, heads): (usize, usize, Range<usize>),
    (states, scratch): (*mut f32, *mut f32),
    out: &MatMut,
) {
    let sizes = &of.sizes;
    let (width, n) = (sizes.width, sizes.state);
    let [b_cols, c_cols] = columns(sizes, group);
    let (x, y) = (scratch, scratch.add(sizes.wide()));
    let b = y.add(sizes.wide());
    let c = b.add(sizes.tall());
    read::<F>(of, row, b_cols, b);
    read::<F>(of, row, c_cols, c);
    let mut decays = Decays::ZERO;
    for head in heads {
        decays.read::<F>(&of.steps, row..row + 1, head);
        read::<F>(of, row, head * width..(head + 1) * width, x);
        std::ptr::write_bytes(y, 0, width);
        let (decay, delta) = (decays.enter[0], decays.delta[0]);
        let (x, y) = (std::slice::from_raw_parts(x, width), std::slice::from_raw_parts_mut(y, width));
        for at in 0..n {
            let (b, c) = (delta * *b.add(at), *c.add(at));
            let state = std::slice::from_raw_parts_mut(states.add((head * n + at) * width), width);
            for ((s, x), y) in state.iter_mut().zip(x).zip(&mut *y) {
                *s = madd::<F::L>(decay, *s, b * x);
                *y = madd::<F::L>(c, *s, *y);
            }
        }
        for (y, x) in y.iter_mut().zip(x) {
            *y = madd::<F::L>(of.d[head], *x, *y);
        }
        let to = out.ptr.add((row * out.stride + head * width) * out.elem.bytes());
        for at in (0..width).step_by(LANES) {
            let v = row_f32::<F::S>(y.as_ptr().cast(), crate::mat::Elem::F32, at, width);
            put::<F::S>(to, out.elem, at, width, v);
        }
    }
}
