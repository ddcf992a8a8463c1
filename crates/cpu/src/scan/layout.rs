//! Workspaces of a scan: what a thread has, and offsets in it.

use super::{CHUNK, Sizes};
use crate::attention::workspace::{Carve, padded};

/// Rows between two states that are kept, in chunks.
pub const SPAN: usize = fathom_tensor::SCAN_SPAN / CHUNK;

/// A thread's memory in the forward pass.
#[derive(Clone, Copy)]
pub struct ForwardLayout {
    pub group: GroupLayout,
    /// x, then the results [CHUNK, wide].
    pub x: usize,
    pub y: usize,
    /// `delta x` and the same decayed to the chunk's end, in panels.
    pub steps: usize,
    pub last: usize,
    /// A strip of weights [STRIP, CHUNK].
    pub weights: usize,
    /// The states of a block's heads, and one in panels.
    pub states: usize,
    pub state_panels: usize,
    pub bytes: usize,
}

/// B and C of a chunk, in the layouts of products.
#[derive(Clone, Copy)]
pub struct GroupLayout {
    /// C by rows.
    pub c_rows: usize,
    /// B as a right operand with the state's columns summed over.
    pub b_across: usize,
    /// B turned: a left operand with the rows summed over.
    pub b_turned: usize,
    /// Products of rows of C and B [CHUNK, CHUNK].
    pub scores: usize,
}

impl GroupLayout {
    fn new(sizes: &Sizes, carve: &mut Carve) -> GroupLayout {
        let mut f32s = |count: usize| carve.take::<f32>(count);
        let rows = CHUNK * sizes.tall();
        GroupLayout {
            c_rows: f32s(rows),
            b_across: f32s(rows),
            b_turned: f32s(rows),
            scores: f32s(CHUNK * CHUNK),
        }
    }
}

impl ForwardLayout {
    pub fn new(sizes: &Sizes) -> ForwardLayout {
        let mut carve = Carve::default();
        let group = GroupLayout::new(sizes, &mut carve);
        let mut f32s = |count: usize| carve.take::<f32>(count);
        let rows = CHUNK * sizes.wide();
        let mut layout = ForwardLayout {
            group,
            x: f32s(rows),
            y: f32s(rows),
            steps: f32s(rows),
            last: f32s(rows),
            weights: f32s(super::STRIP * CHUNK),
            states: f32s(sizes.block_heads() * sizes.square()),
            state_panels: f32s(sizes.square()),
            bytes: 0,
        };
        layout.bytes = carve.bytes();
        layout
    }
}

/// A thread's memory in the backward pass.
#[derive(Clone, Copy)]
pub struct BackwardLayout {
    pub group: GroupLayout,
    pub b_rows: usize,
    pub c_across: usize,
    pub c_turned: usize,
    /// Right operands with the rows summed over.
    pub b_along: usize,
    pub c_along: usize,
    /// Sums over heads of the gradients of scores [CHUNK, CHUNK], turned and as they are.
    pub turned: usize,
    pub pairs: usize,
    /// Gradients of B and C.
    pub db: usize,
    pub dc: usize,
    /// Rows of a head: x, dy, x decayed to the end, dy decayed from the beginning, the gradient of `delta x`.
    pub x: usize,
    pub dy: usize,
    pub x_last: usize,
    pub dy_first: usize,
    pub r: usize,
    /// dy as right operands.
    pub dy_along: usize,
    pub dy_first_along: usize,
    pub dy_across: usize,
    /// `delta x` decayed to the end, in panels.
    pub last: usize,
    /// A state as right operands.
    pub along: usize,
    pub across: usize,
    /// Products with a state [CHUNK, tall].
    pub v: usize,
    /// Strips [STRIP, CHUNK].
    pub weights: usize,
    pub strip: usize,
    pub bytes: usize,
}

impl BackwardLayout {
    pub fn new(sizes: &Sizes) -> BackwardLayout {
        let mut carve = Carve::default();
        let group = GroupLayout::new(sizes, &mut carve);
        let mut f32s = |count: usize| carve.take::<f32>(count);
        let (wide, tall) = (CHUNK * sizes.wide(), CHUNK * sizes.tall());
        let strip = super::STRIP * CHUNK;
        let mut layout = BackwardLayout {
            group,
            b_rows: f32s(tall),
            c_across: f32s(tall),
            c_turned: f32s(tall),
            b_along: f32s(tall),
            c_along: f32s(tall),
            turned: f32s(CHUNK * CHUNK),
            pairs: f32s(CHUNK * CHUNK),
            db: f32s(tall),
            dc: f32s(tall),
            x: f32s(wide),
            dy: f32s(wide),
            x_last: f32s(wide),
            dy_first: f32s(wide),
            r: f32s(wide),
            dy_along: f32s(wide),
            dy_first_along: f32s(wide),
            dy_across: f32s(wide),
            last: f32s(wide),
            along: f32s(sizes.square()),
            across: f32s(sizes.square()),
            v: f32s(tall),
            weights: f32s(strip),
            strip: f32s(strip),
            bytes: 0,
        };
        layout.bytes = carve.bytes();
        layout
    }
}

/// The memory that all threads of a backward pass share, and theirs.
#[derive(Clone, Copy)]
pub struct SharedLayout {
    /// Terms of the gradients of weights [rows, 3 x heads].
    pub terms: usize,
    /// Gradients of B and C by blocks of heads [blocks, SPAN x CHUNK, 2 x state]; empty if a group is one block.
    pub parts: usize,
    /// The gradient of the state between the rows of a document in this wave and in the next [heads, square].
    pub carried: usize,
    /// States before chunks of a wave and gradients of those after them, [heads of some blocks, SPAN, square].
    pub states: usize,
    pub gradients: usize,
    /// States before runs and gradients of those after them [2, places, heads, square].
    pub borders: usize,
    pub places: usize,
    /// Blocks whose states there are at a time.
    pub together: usize,
    pub threads: usize,
    pub bytes: usize,
}

impl SharedLayout {
    pub fn new(sizes: &Sizes, [rows, places]: [usize; 2], threads: usize) -> SharedLayout {
        let mut carve = Carve::default();
        let parts = if sizes.blocks_of_group() > 1 { sizes.blocks() * SPAN * CHUNK } else { 0 };
        // A block has sixteen chunks to deal to threads.
        let together = threads.div_ceil(4).min(sizes.blocks());
        let states = together * sizes.block_heads() * SPAN * sizes.square();
        let mut f32s = |count: usize| carve.take::<f32>(count);
        let (terms, parts) = (f32s(rows * 3 * sizes.heads), f32s(parts * 2 * sizes.state));
        let carried = f32s(sizes.heads * sizes.square());
        let [states, gradients] = [states, states].map(&mut f32s);
        let borders = f32s(2 * places * sizes.heads * sizes.square());
        let own = carve.bytes();
        let bytes = padded(own + threads * BackwardLayout::new(sizes).bytes);
        let threads = own;
        SharedLayout { terms, parts, carried, states, gradients, borders, places, together, threads, bytes }
    }

    /// A head's state before a run (0), or the gradient of that after it (1), by the run's place.
    pub fn border(&self, sizes: &Sizes, shared: *mut u8, [which, place, head]: [usize; 3]) -> *mut f32 {
        let base: *mut f32 = shared.wrapping_add(self.borders).cast();
        base.wrapping_add(((which * self.places + place) * sizes.heads + head) * sizes.square())
    }
}
