//! Workspaces of gated DeltaNet.

use super::super::layout::SPAN;
use super::super::{CHUNK, STRIP};
use super::{DeltaSizes, ROWS};
use crate::attention::workspace::{Carve, padded};

/// Chunks between two states that are kept.
pub const CHUNKS: usize = SPAN * CHUNK / ROWS;

/// A thread's memory in the forward pass; panels are as high as a scan's chunk.
#[derive(Clone, Copy)]
pub struct ForwardLayout {
    /// Rows of q and k [ROWS, tall].
    pub q: usize,
    pub k: usize,
    pub k_across: usize,
    pub k_turned: usize,
    /// Products of rows of k with k, and of q with k [ROWS, CHUNK].
    pub kk: usize,
    pub qk: usize,
    /// Rows of a value head: w and the result [ROWS, wide].
    pub w: usize,
    pub out: usize,
    pub w_along: usize,
    pub last: usize,
    /// A strip of weights [STRIP, CHUNK].
    pub strip: usize,
    pub state_along: usize,
    /// States of the value heads.
    pub states: usize,
    pub bytes: usize,
}

impl ForwardLayout {
    pub fn new(sizes: &DeltaSizes) -> ForwardLayout {
        let mut carve = Carve::default();
        ForwardLayout::in_carve(sizes, &mut carve)
    }

    fn in_carve(sizes: &DeltaSizes, carve: &mut Carve) -> ForwardLayout {
        let mut f32s = |count: usize| carve.take::<f32>(count);
        let (tall, wide) = (CHUNK * sizes.tall(), CHUNK * sizes.wide());
        let mut layout = ForwardLayout {
            q: f32s(tall),
            k: f32s(tall),
            k_across: f32s(tall),
            k_turned: f32s(tall),
            kk: f32s(ROWS * CHUNK),
            qk: f32s(ROWS * CHUNK),
            w: f32s(wide),
            out: f32s(wide),
            w_along: f32s(wide),
            last: f32s(wide),
            strip: f32s(STRIP * CHUNK),
            state_along: f32s(sizes.square()),
            states: f32s(sizes.each() * sizes.square()),
            bytes: 0,
        };
        layout.bytes = carve.bytes();
        layout
    }
}

/// A thread's memory in the backward pass.
#[derive(Clone, Copy)]
pub struct BackwardLayout {
    pub forward: ForwardLayout,
    pub q_across: usize,
    pub q_turned: usize,
    pub q_along: usize,
    pub k_along: usize,
    /// Products of rows of k with q, from the diagonal on.
    pub kq: usize,
    /// Gradients of rows of q and k.
    pub dq: usize,
    pub dk: usize,
    /// Sums over value heads of the gradients of products, turned: of q with k, and of k with k; and one turned back.
    pub of_qk: usize,
    pub of_kk: usize,
    pub pairs: usize,
    /// Rows of a value head: the result's gradient, that of w, and what solves for it.
    pub d_out: usize,
    pub dw: usize,
    pub x: usize,
    pub left: usize,
    /// Right operands of those.
    pub d_out_along: usize,
    pub d_out_across: usize,
    pub x_along: usize,
    pub x_across: usize,
    pub scaled: usize,
    /// Products with a state [ROWS, tall].
    pub wide: usize,
    pub across: usize,
    pub strip: usize,
    /// States before the chunks of a span, and their rows of w.
    pub states: usize,
    pub ws: usize,
    /// Gradients of the states after the rows that are processed.
    pub gradients: usize,
    pub bytes: usize,
}

impl BackwardLayout {
    pub fn new(sizes: &DeltaSizes) -> BackwardLayout {
        let mut carve = Carve::default();
        let forward = ForwardLayout::in_carve(sizes, &mut carve);
        let mut f32s = |count: usize| carve.take::<f32>(count);
        let (tall, wide, square) = (CHUNK * sizes.tall(), CHUNK * sizes.wide(), ROWS * CHUNK);
        let mut layout = BackwardLayout {
            forward,
            q_across: f32s(tall),
            q_turned: f32s(tall),
            q_along: f32s(tall),
            k_along: f32s(tall),
            kq: f32s(square),
            dq: f32s(tall),
            dk: f32s(tall),
            of_qk: f32s(square),
            of_kk: f32s(square),
            pairs: f32s(square),
            d_out: f32s(wide),
            dw: f32s(wide),
            x: f32s(wide),
            left: f32s(wide),
            d_out_along: f32s(wide),
            d_out_across: f32s(wide),
            x_along: f32s(wide),
            x_across: f32s(wide),
            scaled: f32s(wide),
            wide: f32s(tall),
            across: f32s(sizes.square()),
            strip: f32s(STRIP * CHUNK),
            states: f32s(CHUNKS * sizes.each() * sizes.square()),
            ws: f32s(CHUNKS * sizes.each() * ROWS * sizes.wide()),
            gradients: f32s(sizes.each() * sizes.square()),
            bytes: 0,
        };
        layout.bytes = carve.bytes();
        layout
    }
}

/// The memory that all threads of a backward pass share, and theirs.
#[derive(Clone, Copy)]
pub struct SharedLayout {
    /// Terms of the gradients of weights [rows, 2 x heads].
    pub terms: usize,
    /// The gradient of the state between the rows of a document in this wave and in the next.
    pub carried: usize,
    pub threads: usize,
    pub bytes: usize,
}

impl SharedLayout {
    pub fn new(sizes: &DeltaSizes, rows: usize, threads: usize) -> SharedLayout {
        let mut carve = Carve::default();
        let mut f32s = |count: usize| carve.take::<f32>(count);
        let (terms, carried) = (f32s(rows * 2 * sizes.heads), f32s(sizes.heads * sizes.square()));
        let own = carve.bytes();
        let bytes = padded(own + threads * BackwardLayout::new(sizes).bytes);
        SharedLayout { terms, carried, threads: own, bytes }
    }
}

/// Bytes of workspace of the forward pass, or of maps of runs.
pub fn bytes_forward(threads: usize, sizes: &DeltaSizes) -> usize {
    padded(threads * ForwardLayout::new(sizes).bytes)
}

/// Bytes of workspace of the backward pass.
pub fn bytes_backward(threads: usize, sizes: &DeltaSizes, rows: usize) -> usize {
    SharedLayout::new(sizes, rows, threads).bytes
}
