//! Low-precision GEMMs of linear layers: their number formats, and the largest magnitudes of earlier steps for delayed
//! scaling.
//!
//! Each product quantizes both operands along its own reduction dimension: the forward product x and W along the
//! columns of x, the input gradient dy and W along the rows of W, the weight gradient dy and x along the tokens. The
//! machine decides how. Blocks are aligned with tiles, micro-batches and ranks' shards, all of which are multiples of
//! them.

use std::cell::Cell;

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Blocks, Category, DType, Device, Element, Narrow, ScaleRule, Tensor};

use crate::param_id::ParamId;

mod product;
#[cfg(test)]
mod tests;

/// Number formats of GEMM operands, by their common names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmFormat {
    /// FP8 with one scale per tensor, from the largest magnitudes of earlier steps (Micikevicius et al., 2022; Transformer Engine's
    /// `DelayedScaling`): E4M3, gradients E5M2.
    Fp8Delayed,
    /// The same, from the tensor's own largest magnitude (`Float8CurrentScaling`).
    Fp8Current,
    /// E4M3 in blocks (DeepSeek-V3, 2024, section 3.3.2; `Float8BlockScaling`): weights in tiles of 128 x 128, the others in lines
    /// of 128.
    Fp8Block,
    /// Micro-scaling (OCP Microscaling Formats 1.0): lines of 32 elements of this format.
    Micro(Element),
}

/// Block size in microscaling.
const MICRO: usize = 32;
/// Block size in FP8.
const BLOCK: usize = 128;

/// The three products of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// `y = x W^T`.
    Forward,
    /// `dx = dy W`.
    Input,
    /// `dW += dy^T x`.
    Weight,
}

/// An operand of a product, by its index in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    X,
    W,
    Dy,
}

impl Pass {
    /// Roles of A and B.
    fn roles(self) -> [Role; 2] {
        match self {
            Pass::Forward => [Role::X, Role::W],
            Pass::Input => [Role::Dy, Role::W],
            Pass::Weight => [Role::Dy, Role::X],
        }
    }
}

impl GemmFormat {
    /// All formats.
    pub const ALL: [GemmFormat; 8] = [
        GemmFormat::Fp8Delayed,
        GemmFormat::Fp8Current,
        GemmFormat::Fp8Block,
        GemmFormat::Micro(Element::E4M3),
        GemmFormat::Micro(Element::E5M2),
        GemmFormat::Micro(Element::E2M3),
        GemmFormat::Micro(Element::E3M2),
        GemmFormat::Micro(Element::E2M1),
    ];

    fn operand(self, role: Role) -> Narrow {
        match (self, role) {
            (GemmFormat::Micro(element), _) => {
                Narrow { element, blocks: Blocks::Line(MICRO), rule: ScaleRule::Floor }
            }
            (GemmFormat::Fp8Block, role) => {
                let blocks = if role == Role::W { Blocks::Tile(BLOCK) } else { Blocks::Line(BLOCK) };
                Narrow { element: Element::E4M3, blocks, rule: ScaleRule::Covers }
            }
            (_, role) => {
                let element = if role == Role::Dy { Element::E5M2 } else { Element::E4M3 };
                Narrow { element, blocks: Blocks::Tensor, rule: ScaleRule::Covers }
            }
        }
    }

    /// Formats of A and B of a product.
    pub fn operands(self, pass: Pass) -> [Narrow; 2] {
        pass.roles().map(|role| self.operand(role))
    }

    /// Number of adjacent elements that share a scale; `None` if a whole tensor does.
    pub fn block(self) -> Option<usize> {
        match self {
            GemmFormat::Micro(_) => Some(MICRO),
            GemmFormat::Fp8Block => Some(BLOCK),
            GemmFormat::Fp8Delayed | GemmFormat::Fp8Current => None,
        }
    }

    /// True if results depend on how tokens are cut into tiles, since each tile's tensor has its own scale.
    pub fn depends_on_tiles(self) -> bool {
        self == GemmFormat::Fp8Current
    }
}

/// The formats of an operation's products.
#[derive(Clone, Debug)]
pub struct NarrowLinear {
    format: GemmFormat,
    /// f32 [1, 3] for x, W and dy: largest magnitudes of earlier steps, and of this one.
    seen: Option<[Tensor; 2]>,
}

/// The weights with low-precision GEMMs.
#[derive(Debug)]
pub struct NarrowWeights {
    format: GemmFormat,
    /// By weight, its index among the narrow ones.
    numbers: Vec<Option<usize>>,
    seen: Option<Magnitudes>,
}

/// Largest magnitudes of the three operands of each narrow weight, with one row of history per step.
#[derive(Debug)]
struct Magnitudes {
    /// f32 [steps, 3 x weights]: earlier steps, in a ring.
    history: Tensor,
    /// f32 [1, 3 x weights]: the maximum of each column.
    before: Tensor,
    /// f32 [1, 3 x weights]: this step so far.
    now: Tensor,
    /// The row for this step.
    row: Cell<usize>,
}

impl NarrowWeights {
    /// Low-precision GEMMs for these weights, of `count` in all. `history` is the number of steps of delayed scaling
    /// (Transformer Engine's `amax_history_len`).
    pub fn new(
        device: &Device,
        format: GemmFormat,
        ids: &[ParamId],
        count: usize,
        history: usize,
    ) -> NarrowWeights {
        let mut numbers = vec![None; count];
        ids.iter().enumerate().for_each(|(number, id)| numbers[id.index()] = Some(number));
        device.pool.enter("amax", -1);
        let zeros = |rows| device.zeros(rows, 3 * ids.len(), DType::F32, Category::Optimizer);
        let delayed = format == GemmFormat::Fp8Delayed && !ids.is_empty();
        let seen = delayed.then(|| Magnitudes {
            history: zeros(history.max(1)),
            before: zeros(1),
            now: zeros(1),
            row: Cell::new(0),
        });
        NarrowWeights { format, numbers, seen }
    }

    /// The number format of a weight's GEMM operands; `None` if they are not quantized.
    pub fn of(&self, id: ParamId) -> Option<NarrowLinear> {
        let number = (*self.numbers.get(id.index())?)?;
        let columns = 3 * number..3 * number + 3;
        let seen =
            self.seen.as_ref().map(|seen| [&seen.before, &seen.now].map(|x| x.view_cols(columns.clone())));
        Some(NarrowLinear { format: self.format, seen })
    }

    /// Ends a step: adds its largest magnitudes, over all ranks with the same layers, to the history.
    pub fn end_step(&self, device: &Device) {
        let Some(Magnitudes { history, before, now, row }) = &self.seen else { return };
        device.pool.enter("amax", -1);
        let (machine, ranks) = (&device.machine, device.mesh.group(&[Axis::Tp, Axis::Cp, Axis::Dp]));
        if ranks.size() > 1 {
            let all = device.empty(ranks.size(), now.cols(), DType::F32, Category::Comm);
            let parts: Vec<Tensor> = (0..ranks.size()).map(|rank| all.view_rows(rank..rank + 1)).collect();
            ranks.all_gather(device, now, &parts).wait();
            machine.largest(&all, now);
        }
        machine.copy(now, &history.view_rows(row.get()..row.get() + 1));
        row.set((row.get() + 1) % history.rows());
        machine.zero(now);
        machine.zero(before);
        machine.largest(history, before);
    }

    /// f32 [steps, 3 x weights]: the history of delayed scaling, and the row for this step.
    pub fn history(&self) -> Option<(&Tensor, usize)> {
        self.seen.as_ref().map(|seen| (&seen.history, seen.row.get()))
    }

    /// Resumes at a row of a history that was loaded into [`NarrowWeights::history`].
    pub fn resume(&self, device: &Device, row: usize) {
        let Some(seen) = &self.seen else { return };
        seen.row.set(row % seen.history.rows());
        device.machine.zero(&seen.before);
        device.machine.zero(&seen.now);
        device.machine.largest(&seen.history, &seen.before);
    }
}
