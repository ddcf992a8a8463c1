//! A call of attention as the library handles it: rounds of packed sequences for groups of heads, and where each result
//! goes.

use fathom_tensor::gpu::AttentionScratch;
use fathom_tensor::{Attention, AttentionBackward, Band, DType, PackedMask, Tensor};

use super::layers::Layer;
use super::operands::Operands;
use crate::blas::Element;
use crate::operand::output;
use crate::sdpa::{Case, Strides, uid};

/// Below this many tokens, a single document of an unusual length is described as packed, with the next usual length:
/// each length has its own plan, which takes up to two seconds to make, and prompts have any length.
const EXACT_FROM: usize = 8192;
/// Multiples of this length have their own plans.
const EXACT_STEP: usize = 1024;
/// The shortest length with its own plan.
const LEAST: usize = 128;

/// Plan length for packed sequences of which the longest has `tokens` rows; the library counts tiles for that many rows
/// of each sequence. Few lengths are used: powers of two and, beyond [`EXACT_FROM`], quarter steps between them.
pub(super) fn spanned(tokens: usize) -> usize {
    let power = tokens.next_power_of_two().max(LEAST);
    if power <= EXACT_FROM { power } else { tokens.next_multiple_of(power / 8) }
}

/// Plan length for a single document, if not its own.
pub(super) fn rounded(tokens: usize) -> Option<usize> {
    let exact = tokens >= EXACT_FROM
        || tokens.is_multiple_of(EXACT_STEP)
        || tokens.is_power_of_two() && tokens >= LEAST;
    (!exact).then(|| spanned(tokens))
}

/// One layer, as the library handles it for a group of heads.
pub(super) struct Round {
    pub layer: Layer,
    pub case: Case,
    /// Reach of the case's window.
    pub window: Option<usize>,
}

impl Layer {
    /// A round with this layer's kind of mask, with `window` for causal ones.
    fn round(self, case: Case, window: Option<usize>) -> Round {
        let window = match self.band {
            Band::Full => None,
            Band::Causal => window,
            Band::Left(reach) => Some(reach),
        };
        let case = Case { causal: self.band == Band::Causal, window: window.is_some(), ..case };
        Round { layer: self, case, window }
    }
}

impl Round {
    /// First query and first key passed to the library; packed sequences have their starts in lists.
    pub fn first_rows(&self) -> [usize; 2] {
        match &self.layer.sequences[..] {
            [one] if !self.case.packed => [one.q.start, one.k.start],
            _ => [0; 2],
        }
    }
}

/// A call of attention or of its gradient.
pub(super) struct Call<'a> {
    pub op: &'a Attention<'a>,
    /// Destinations of the gradients, for the backward pass.
    pub gradients: Option<[&'a Tensor; 3]>,
    /// True if results or the queries' gradient accumulate on existing values.
    pub goes_on: bool,
    pub operands: Operands<'a>,
    pub scratch: AttentionScratch,
    pub ws: &'a Tensor,
}

impl<'a> Call<'a> {
    /// The call, if the library may support it.
    pub fn of(
        op: &'a Attention<'a>,
        backward: Option<&AttentionBackward<'a>>,
        ws: &'a Tensor,
    ) -> Option<Self> {
        let plain =
            op.softcap == 0.0 && op.sinks.is_none() && op.bias.is_none() && op.head_dim.is_multiple_of(8);
        if !plain || op.q.is_empty() || op.k.is_empty() {
            return None;
        }
        let (operands, parts): (_, &[i64]) = match backward {
            Some(backward) => (Operands::backward(backward), &[uid::DQ, uid::DK, uid::DV]),
            None => (Operands::forward(op, true), &[uid::OUT, uid::LSE]),
        };
        Some(Call {
            op,
            gradients: backward.map(|backward| [backward.dq, backward.dk, backward.dv]),
            goes_on: backward.map_or(op.resume, |backward| backward.accumulate),
            operands: if op.mask.partial { operands.without(parts) } else { operands },
            scratch: AttentionScratch::within(&op.desc(backward.is_some()), ws.bytes())?,
            ws,
        })
    }

    /// Query heads and key heads per call of the library.
    pub fn heads(&self) -> [usize; 2] {
        let kv_heads = self.scratch.kv_heads;
        [kv_heads * (self.op.q.cols() / self.op.k.cols()), kv_heads]
    }

    /// Columns of a group's heads.
    pub fn columns(&self, group: usize, heads: usize) -> std::ops::Range<usize> {
        let wide = heads * self.op.head_dim;
        group * wide..(group + 1) * wide
    }

    /// True if the library writes this tensor to scratch.
    fn is_apart(&self, number: i64, packed: bool) -> bool {
        let (partial, forward) = (self.op.mask.partial, self.gradients.is_none());
        match number {
            uid::LSE => !packed || partial && forward,
            uid::OUT => partial && forward,
            uid::DQ | uid::DK | uid::DV => partial || packed,
            _ => false,
        }
    }

    /// Strides of a case; tensors in scratch have no gaps.
    fn strides(&self, packed: bool) -> Strides {
        let mut strides = Strides::default();
        self.operands.strides().for_each(|(number, stride)| strides.set(number, stride));
        let [wide, narrow] = self.heads().map(|heads| heads * self.op.head_dim);
        let logarithms = if packed { self.heads()[0] } else { 0 };
        let made =
            [(uid::OUT, wide), (uid::LSE, logarithms), (uid::DQ, wide), (uid::DK, narrow), (uid::DV, narrow)];
        let backward = self.gradients.is_some();
        for (number, stride) in made.into_iter().filter(|(number, _)| backward || *number <= uid::LSE) {
            if self.is_apart(number, packed) {
                strides.set(number, stride);
            }
        }
        strides
    }

    /// A case for sequences of this many query and key rows, with at most `packs` packed sequences; `None` if the
    /// operands' layout does not fit.
    fn case(&self, element: Element, tokens: [usize; 2], packs: Option<usize>) -> Option<Case> {
        let packed = packs.is_some();
        if packed && !self.operands.are_even(self.op.q.cols() / self.op.head_dim) {
            return None;
        }
        let [q_tokens, k_tokens] = tokens.map(|count| count as i64);
        let [heads, kv_heads] = self.heads().map(|count| count as i64);
        Some(Case {
            sequences: packs.unwrap_or(1) as i64,
            heads,
            kv_heads,
            q_tokens,
            k_tokens,
            head_dim: self.op.head_dim as i64,
            element,
            causal: true,
            window: false,
            packed,
            strides: self.strides(packed),
        })
    }

    /// One round for consecutive documents that cover all rows, each attending causally to itself.
    pub fn whole(&self, packed: &PackedMask, element: Element) -> Option<Vec<Round>> {
        let (rows, mut end) = (self.op.q.rows(), 0);
        for sequence in packed.sequences.iter() {
            if sequence.band != Band::Causal || sequence.q != sequence.k || sequence.q.start != end {
                return None;
            }
            end = sequence.q.end;
        }
        if end != rows || self.op.k.rows() != rows || self.goes_on {
            return None;
        }
        let layer = Layer { sequences: packed.sequences.to_vec(), band: Band::Causal };
        let (docs, has_room) =
            (layer.sequences.len(), self.gradients.is_none() || self.scratch.sequences > 1);
        let case = match (docs, rounded(rows).filter(|_| has_room)) {
            (1, None) => self.case(element, [rows; 2], None)?,
            _ => {
                let packs = docs.next_power_of_two().min(self.scratch.sequences);
                self.case(element, layer.longest().map(spanned), Some(packs))?
            }
        };
        Some(vec![layer.round(case, packed.window)])
    }

    /// One round per layer. If there may be many documents, every layer is packed, whatever its sequences: their
    /// lengths depend on the data, and each exact length would need its own plan.
    pub fn layered(&self, packed: &PackedMask, element: Element) -> Option<Vec<Round>> {
        let most = self.scratch.sequences;
        // A ring step may have fewer keys than there is room for.
        let rows = [self.op.q.rows(), self.op.k.rows().max(self.op.q.rows())];
        let round = |layer: Layer| {
            let case = match &layer.sequences[..] {
                [one] if most == 1 => self.case(element, [one.q.len(), one.k.len()], None)?,
                some => {
                    let packs = some.len().next_power_of_two().min(most);
                    let [q, k] = layer.longest().map(spanned);
                    self.case(element, [q.min(rows[0]), k.min(rows[1])], Some(packs))?
                }
            };
            Some(layer.round(case, packed.window))
        };
        Layer::of(&packed.sequences, most)?.into_iter().map(round).collect()
    }

    /// Scratch tensors named by the graph, and the engine's own scratch with its size.
    pub fn in_scratch(&self, packed: bool) -> (Vec<(i64, u64)>, [u64; 2]) {
        let (start, parts) = (output(self.ws), self.scratch.parts());
        let (mut made, mut named) = (vec![(uid::LSE, parts.lse)], Vec::new());
        if self.gradients.is_some() {
            named.extend([(uid::SUMS, parts.sums), (uid::DQ_WIDE, parts.wide)]);
            made.extend([uid::DQ, uid::DK, uid::DV].into_iter().zip(parts.gradients));
            let [heads, kv_heads] = self.heads();
            if packed && heads != kv_heads {
                let [dk, dv] = parts.full;
                named.extend([(uid::DK_FULL, dk), (uid::DV_FULL, dv)]);
            }
        } else {
            made.push((uid::OUT, parts.gradients[0]));
        }
        named.extend(made.into_iter().filter(|(number, _)| self.is_apart(*number, packed)));
        // Without packed sequences, the engine's own scratch takes the room for full gradients.
        let own = if packed { parts.own } else { parts.full[0] };
        let named = named.into_iter().map(|(number, at)| (number, start + at)).collect();
        (named, [start + own, parts.own + self.scratch.own - own])
    }

    /// The logarithms of a group's query heads: the caller's, and head after head in scratch.
    pub fn logarithms(&self, round: &Round, group: usize) -> [Tensor; 2] {
        let (heads, [first, _], tokens) = (self.heads()[0], round.first_rows(), round.case.q_tokens as usize);
        let theirs = self.op.lse.view_rows(first..first + tokens);
        let ours = self.ws.part(self.scratch.parts().lse, heads, tokens, DType::F32);
        [theirs.view_cols(group * heads..(group + 1) * heads), ours]
    }
}
