//! Operands of a chunk's products, and loops over their rows.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use super::decays::Decays;
use super::family::Family;
use super::layout::GroupLayout;
use super::{CHUNK, Operands, STRIP, Sizes};
use crate::attention::pack::{Pack, View};
use crate::attention::product::Product;
use crate::attention::simd::Simd;
use crate::attention::unit::Unit;
use crate::mat::{Elem, Mat};

/// A view of a matrix from some column on.
#[inline(always)]
pub fn view(x: &Mat, col: usize) -> View {
    let bytes = x.elem.bytes();
    View {
        data: x.ptr.wrapping_add(col * bytes).cast_mut(),
        stride: x.stride * bytes,
        group: 1,
        head: 0,
        elem: x.elem,
    }
}

/// Rows of f32.
#[inline(always)]
pub fn plain(data: *const f32, stride: usize) -> View {
    view(&Mat { ptr: data.cast(), elem: Elem::F32, stride }, 0)
}

/// Rows of a chunk, padded to strips.
#[inline(always)]
pub fn padded(rows: &Range<usize>) -> usize {
    rows.len().next_multiple_of(STRIP)
}

/// The rows of some columns of u, of a chunk, in f32.
#[inline(always)]
pub unsafe fn rows<F: Family>(x: &Mat, rows: &Range<usize>, cols: Range<usize>, depth: usize, to: *mut f32) {
    let from = view(x, cols.start);
    let (first, count, padded) = (rows.start, rows.len(), padded(rows));
    F::U::rows(&Pack { from, first, rows: count, padded, cols: cols.len(), to: to.cast(), depth });
}

/// Rows of f32 as a right operand whose columns they are: `[count / 16][depth][16]`.
#[inline(always)]
pub unsafe fn across<F: Family>(from: *const f32, count: usize, depth: usize, to: *mut f32) {
    let from = plain(from, depth);
    F::U::across(&Pack { from, first: 0, rows: count, padded: count, cols: depth, to: to.cast(), depth });
}

/// Rows of f32 as a right operand that is summed over them, in panels of `height` rows.
#[inline(always)]
pub unsafe fn along<F: Family>(from: *const f32, count: usize, cols: usize, (height, to): (usize, *mut f32)) {
    for row in 0..count {
        for panel in 0..cols / STRIP {
            let v = F::S::load(from.add(row * cols + panel * STRIP));
            F::S::store(to.add((panel * height + row) * STRIP), v);
        }
    }
}

/// [`along`] of a chunk's rows, each times its factor.
#[inline(always)]
pub unsafe fn along_times<F: Family>(
    from: *const f32,
    count: usize,
    cols: usize,
    factors: &[f32; CHUNK],
    to: *mut f32,
) {
    for row in 0..count {
        let factor = F::S::splat(factors[row]);
        for panel in 0..cols / STRIP {
            let v = F::S::load(from.add(row * cols + panel * STRIP));
            F::S::store(to.add((panel * CHUNK + row) * STRIP), F::S::mul(v, factor));
        }
    }
}

/// Multiplies panels of a chunk's rows by their factors.
#[inline(always)]
pub unsafe fn panels_times<F: Family>(
    from: *const f32,
    count: usize,
    cols: usize,
    factors: &[f32; CHUNK],
    to: *mut f32,
) {
    for panel in 0..cols / STRIP {
        for row in 0..count {
            let at = (panel * CHUNK + row) * STRIP;
            F::S::store(to.add(at), F::S::mul(F::S::load(from.add(at)), F::S::splat(factors[row])));
        }
    }
}

/// Multiplies rows by their factors; `to` may be `from`.
#[inline(always)]
pub unsafe fn rows_times<F: Family>(
    from: *const f32,
    count: usize,
    cols: usize,
    factors: &[f32; CHUNK],
    to: *mut f32,
) {
    for row in 0..count {
        let factor = F::S::splat(factors[row]);
        for at in (row * cols..(row + 1) * cols).step_by(STRIP) {
            F::S::store(to.add(at), F::S::mul(F::S::load(from.add(at)), factor));
        }
    }
}

/// Multiplies elements by one factor.
#[inline(always)]
pub unsafe fn times<F: Family>(x: *mut f32, count: usize, factor: f32) {
    let factor = F::S::splat(factor);
    for at in (0..count).step_by(STRIP) {
        F::S::store(x.add(at), F::S::mul(F::S::load(x.add(at)), factor));
    }
}

/// The sum of products of two rows.
#[inline(always)]
pub unsafe fn dot<F: Family>(a: *const f32, b: *const f32, count: usize) -> f32 {
    let mut sum = F::S::splat(0.0);
    for at in (0..count).step_by(STRIP) {
        sum = F::S::fma(F::S::load(a.add(at)), F::S::load(b.add(at)), sum);
    }
    F::S::sum(sum)
}

/// Right operands of a chunk are panels of this many words.
pub const PANEL: usize = CHUNK * STRIP;

/// The operands of B and C that both passes need: C by rows, and B across and turned.
#[inline(always)]
pub unsafe fn group<F: Family>(
    of: &Operands<'_>,
    chunk: &Range<usize>,
    group: usize,
    (at, base): (&GroupLayout, *mut u8),
) {
    let (sizes, tall) = (&of.sizes, of.sizes.tall());
    let [b, c] = columns(sizes, group);
    rows::<F>(&of.u, chunk, c, tall, base.add(at.c_rows).cast());
    turned_rows::<F>(of, chunk, b, [base.add(at.b_across).cast(), base.add(at.b_turned).cast()]);
}

/// Columns of u with B and C of a group.
#[inline(always)]
pub fn columns(sizes: &Sizes, group: usize) -> [Range<usize>; 2] {
    let (n, first) = (sizes.state, sizes.inner() + group * sizes.state);
    let second = first + sizes.groups * n;
    [first..first + n, second..second + n]
}

/// Some columns of u as a right operand, the rows across, and turned.
#[inline(always)]
pub unsafe fn turned_rows<F: Family>(
    of: &Operands<'_>,
    chunk: &Range<usize>,
    cols: Range<usize>,
    [across, turned]: [*mut f32; 2],
) {
    let (tall, count) = (of.sizes.tall(), padded(chunk));
    let from = view(&of.u, cols.start);
    let (first, rows) = (chunk.start, chunk.len());
    F::U::across(&Pack {
        from,
        first,
        rows,
        padded: count,
        cols: cols.len(),
        to: across.cast(),
        depth: tall,
    });
    self::turned::<F>(across, count, tall, turned);
}

/// Rows across as a left operand that is summed over them.
#[inline(always)]
pub unsafe fn turned<F: Family>(across: *const f32, count: usize, tall: usize, to: *mut f32) {
    for panel in 0..count / STRIP {
        for n in 0..tall {
            let v = F::S::load(across.add((panel * tall + n) * STRIP));
            F::S::store(to.add(n * CHUNK + panel * STRIP), v);
        }
    }
}

/// Words of an operand.
pub trait Words {
    /// The first of them.
    fn words(self) -> *const u32;
}

impl Words for *const f32 {
    #[inline(always)]
    fn words(self) -> *const u32 {
        self.cast()
    }
}

impl Words for *mut f32 {
    #[inline(always)]
    fn words(self) -> *const u32 {
        self.cast_const().cast()
    }
}

/// `C (+)= A B` of `rows` rows and `panels` panels: A and B with the words between their rows and panels, C with those
/// between its rows, and whether to add.
#[inline(always)]
pub unsafe fn multiply<F: Family>(
    (a, lda): (impl Words, usize),
    (b, ldb): (impl Words, usize),
    depth: usize,
    (c, ldc, add): (*mut f32, usize, bool),
    (rows, panels): (usize, usize),
) {
    F::U::product(&Product { a: a.words(), lda, b: b.words(), ldb, depth, c, ldc, rows, panels, add });
}

/// Turns a strip of pairs of rows: from rows j, of i in the strip, to rows i of all j up to its end.
#[inline(always)]
pub unsafe fn turn<F: Family>(from: *const f32, to: *mut f32, strip: usize) {
    for earlier in 0..strip + 1 {
        let from = from.add(earlier * STRIP * CHUNK + strip * STRIP);
        let mut block = [F::S::splat(0.0); STRIP];
        for at in 0..STRIP {
            block[at] = F::S::load(from.add(at * CHUNK));
        }
        F::S::transpose(&mut block);
        for at in 0..STRIP {
            F::S::store(to.add((strip * STRIP + at) * CHUNK + earlier * STRIP), block[at]);
        }
    }
}

/// The state after a chunk: `whole S + B^T last`.
#[inline(always)]
pub unsafe fn advance<F: Family>(
    sizes: &Sizes,
    count: usize,
    decays: &Decays,
    [turned, last]: [*const f32; 2],
    (state, add): (*mut f32, bool),
) {
    let (wide, tall) = (sizes.wide(), sizes.tall());
    if add {
        times::<F>(state, tall * wide, decays.whole);
    }
    F::U::product(&Product {
        a: turned.cast(),
        lda: CHUNK,
        b: last.cast(),
        ldb: PANEL,
        depth: count,
        c: state,
        ldc: wide,
        rows: tall,
        panels: wide / STRIP,
        add,
    });
}
