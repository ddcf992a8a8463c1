//! Selection of the attention calls for the library, and their description to it.
//!
//! The library handles masks that the host knows as packed sequences ([`fathom_tensor::PackedMask`]) and 16-bit
//! operands. Everything else is for kernels: other masks, sinks, capped scores, biases.
//!
//! Consecutive documents are one call for a group of heads, whose results are written to their destination. If the keys
//! are only some of those that the queries attend to ([`fathom_tensor::Mask::partial`]: ring steps, gathered keys),
//! there is one call per layer of sequences ([`layers`]). Its results are a part of the whole, in scratch and in the
//! operands' type: outputs are merged with those of other keys by their logarithms, gradients are added (`parts.rs`).
//!
//! Scratch ([`AttentionScratch`]) also holds the logarithms of a single sequence, which the library stores head after
//! head and all other code in rows of tokens, and the gradients of packed sequences.
#![allow(unsafe_code)]

#[cfg(test)]
mod fake_attention;
mod layers;
mod operands;
mod parts;
mod row_set;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use fathom_tensor::gpu::AttentionScratch;
use fathom_tensor::{Attention, AttentionBackward, Band, DType, PackedMask, Tensor};

use super::Cuda;
use crate::Result;
use crate::blas::Element;
use crate::driver::Rows;
use crate::kernels;
use crate::memory::{AttentionOp, Work};
use crate::operand::output;
use crate::sdpa::{Attend, Case, Strides, uid};
use layers::Layer;
use operands::Operands;
use parts::Progress;

/// Below this many tokens, a single document of an unusual length is described as packed, with the next usual length:
/// each length has its own plan, which takes up to two seconds to make, and prompts have any length.
const EXACT_FROM: usize = 8192;
/// Multiples of this length have their own plans.
const EXACT_STEP: usize = 1024;
/// The shortest length with its own plan.
const LEAST: usize = 128;

/// Plan length for packed sequences of which the longest has `tokens` rows; the library counts tiles for that many rows
/// of each sequence. Few lengths are used: powers of two and, beyond [`EXACT_FROM`], quarter steps between them.
fn spanned(tokens: usize) -> usize {
    let power = tokens.next_power_of_two().max(LEAST);
    if power <= EXACT_FROM { power } else { tokens.next_multiple_of(power / 8) }
}

/// Plan length for a single document, if not its own.
fn rounded(tokens: usize) -> Option<usize> {
    let exact = tokens >= EXACT_FROM
        || tokens.is_multiple_of(EXACT_STEP)
        || tokens.is_power_of_two() && tokens >= LEAST;
    (!exact).then(|| spanned(tokens))
}

/// One layer, as the library handles it for a group of heads.
struct Round {
    layer: Layer,
    case: Case,
    /// Reach of the case's window.
    window: Option<usize>,
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
    fn first_rows(&self) -> [usize; 2] {
        match &self.layer.sequences[..] {
            [one] if !self.case.packed => [one.q.start, one.k.start],
            _ => [0; 2],
        }
    }
}

/// A call of attention or of its gradient.
struct Described<'a> {
    op: &'a Attention<'a>,
    /// Destinations of the gradients, for the backward pass.
    gradients: Option<[&'a Tensor; 3]>,
    /// True if results or the queries' gradient accumulate on existing values.
    goes_on: bool,
    operands: Operands<'a>,
    scratch: AttentionScratch,
    ws: &'a Tensor,
}

impl<'a> Described<'a> {
    /// The call, if the library may support it.
    fn of(op: &'a Attention<'a>, backward: Option<&AttentionBackward<'a>>, ws: &'a Tensor) -> Option<Self> {
        let plain =
            op.softcap == 0.0 && op.sinks.is_none() && op.bias.is_none() && op.head_dim.is_multiple_of(8);
        if !plain || op.q.is_empty() || op.k.is_empty() {
            return None;
        }
        let (operands, parts): (_, &[i64]) = match backward {
            Some(backward) => (Operands::backward(backward), &[uid::DQ, uid::DK, uid::DV]),
            None => (Operands::forward(op, true), &[uid::OUT, uid::LSE]),
        };
        Some(Described {
            op,
            gradients: backward.map(|backward| [backward.dq, backward.dk, backward.dv]),
            goes_on: backward.map_or(op.resume, |backward| backward.accumulate),
            operands: if op.mask.partial { operands.without(parts) } else { operands },
            scratch: AttentionScratch::within(&op.desc(backward.is_some()), ws.bytes())?,
            ws,
        })
    }

    /// Query heads and key heads per call of the library.
    fn heads(&self) -> [usize; 2] {
        let kv_heads = self.scratch.kv_heads;
        [kv_heads * (self.op.q.cols() / self.op.k.cols()), kv_heads]
    }

    /// Columns of a group's heads.
    fn columns(&self, group: usize, heads: usize) -> std::ops::Range<usize> {
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
    fn whole(&self, packed: &PackedMask, element: Element) -> Option<Vec<Round>> {
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
    fn layered(&self, packed: &PackedMask, element: Element) -> Option<Vec<Round>> {
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
    fn in_scratch(&self, packed: bool) -> (Vec<(i64, u64)>, [u64; 2]) {
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
    fn logarithms(&self, round: &Round, group: usize) -> [Tensor; 2] {
        let (heads, [first, _], tokens) = (self.heads()[0], round.first_rows(), round.case.q_tokens as usize);
        let theirs = self.op.lse.view_rows(first..first + tokens);
        let ours = self.ws.part(self.scratch.parts().lse, heads, tokens, DType::F32);
        [theirs.view_cols(group * heads..(group + 1) * heads), ours]
    }
}

impl Cuda {
    /// Issues attention if the library supports it.
    #[track_caller]
    pub(super) fn attended(&self, op: &Attention<'_>, ws: &Tensor) -> bool {
        Described::of(op, None, ws).is_some_and(|described| self.issue_described(&described))
    }

    /// Issues attention's gradient if the library supports it.
    #[track_caller]
    pub(super) fn attended_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor) -> bool {
        Described::of(&op.forward, Some(op), ws).is_some_and(|described| self.issue_described(&described))
    }

    /// Issues the call if there is a library and it supports all rounds.
    #[track_caller]
    fn issue_described(&self, described: &Described<'_>) -> bool {
        let mask = described.op.mask;
        let (Some(library), Some(packed)) = (&self.attend, &mask.packed) else { return false };
        let Some(element) = described.operands.element() else { return false };
        let rounds =
            if mask.partial { described.layered(packed, element) } else { described.whole(packed, element) };
        let Some(rounds) = rounds else { return false };
        let backward = described.gradients.is_some();
        let takes = |round: &Round| {
            let (_, [_, bytes]) = described.in_scratch(round.case.packed);
            self.within(|| Ok(library.takes(&round.case, backward, bytes))).unwrap_or(false)
        };
        let mut progress = Progress::of(described);
        if !progress.fills(described, &rounds) || !rounds.iter().all(takes) {
            return false;
        }
        for round in &rounds {
            self.must("attention", self.by_heads(library, described, round, &progress));
            progress.made(round);
        }
        self.clear_gradients(described, &progress);
        true
    }

    /// Calls the library for one group of key heads after another.
    fn by_heads(
        &self,
        library: &Arc<dyn Attend>,
        described: &Described<'_>,
        round: &Round,
        progress: &Progress,
    ) -> Result<()> {
        let (case, backward) = (round.case, described.gradients.is_some());
        let (mut named, workspace) = described.in_scratch(case.packed);
        if case.packed {
            let last = if backward { uid::DV } else { uid::LSE };
            let (bytes, places) = round.layer.lists(&case, &(uid::Q..=last).collect::<Vec<_>>());
            let lists_at = output(described.ws) + described.scratch.parts().lists;
            let to = Rows::flat(lists_at, bytes.len());
            self.writes.write("lists of packed documents", &bytes, to)?;
            named.extend(places.iter().map(|(number, at)| (*number, lists_at + at)));
        }
        let groups = described.op.k.cols() / described.op.head_dim / described.scratch.kv_heads;
        for group in 0..groups {
            let firsts = described.heads().map(|heads| group * heads);
            let mut tensors = named.clone();
            let elsewhere = described.operands.addresses(firsts, round.first_rows(), described.op.head_dim);
            tensors.extend(elsewhere.filter(|(number, _)| named.iter().all(|(of, _)| of != number)));
            if backward && !case.packed {
                let [theirs, ours] = described.logarithms(round, group);
                self.run(&kernels::transpose(&theirs, &ours));
            }
            let (scale, window) = (described.op.scale, round.window.unwrap_or_default());
            let call = AttentionOp { case, backward, tensors, workspace, scale, window };
            // SAFETY: the case was made of these tensors, which live; see `Cuda::run` for their storage.
            unsafe { self.streams.issue(Work::Attend(library.clone(), Box::new(call)))? };
            self.place(described, round, group, progress);
        }
        Ok(())
    }
}
