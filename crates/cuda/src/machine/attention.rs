//! Which calls of attention the library takes, and what it is told of them.
//!
//! It takes masks that the host knows in plain words ([`fathom_tensor::Packed`]), 16-bit operands, and results that are
//! overwritten. Everything else is for kernels: other masks, sinks, capped scores, results that go on.
//!
//! What goes through scratch ([`AttentionScratch`]): the logarithms of a single sequence, which the library has head after head
//! and everybody else in rows of tokens; the gradients of packed sequences.
#![allow(unsafe_code)]

use std::sync::Arc;

use fathom_tensor::gpu::{self, AttentionScratch};
use fathom_tensor::{Attention, AttentionBackward, DType, Packed, Tensor};

use super::Cuda;
use crate::Result;
use crate::blas::Element;
use crate::driver::Rows;
use crate::kernels;
use crate::memory::{Attended, Work};
use crate::operand::{input, output};
use crate::sdpa::{Attend, Case, Strides, uid};

/// Operands of all heads, by number; the first head of each is where the tensor begins.
struct Operands<'a> {
    tensors: Vec<(i64, &'a Tensor, u64)>,
}

impl<'a> Operands<'a> {
    fn forward(op: &Attention<'a>, written: bool) -> Operands<'a> {
        let place = |tensor: &Tensor| if written { output(tensor) } else { input(tensor) };
        let read = |number, tensor: &'a Tensor| (number, tensor, input(tensor));
        let (out, lse) = ((uid::OUT, op.out, place(op.out)), (uid::LSE, op.lse, place(op.lse)));
        Operands { tensors: vec![read(uid::Q, op.q), read(uid::K, op.k), read(uid::V, op.v), out, lse] }
    }

    fn backward(op: &AttentionBackward<'a>) -> Operands<'a> {
        let mut operands = Operands::forward(&op.forward, false);
        operands.tensors.push((uid::DOUT, op.dout, input(op.dout)));
        let written = [(uid::DQ, op.dq), (uid::DK, op.dk), (uid::DV, op.dv)];
        operands.tensors.extend(written.map(|(number, tensor)| (number, tensor, output(tensor))));
        operands
    }

    /// The library's type, if all are of it, or f32 for the rows' logarithms, and lie as it wants.
    fn element(&self) -> Option<Element> {
        let element = Element::of(self.tensors[0].1.dtype()).filter(|element| *element != Element::F32)?;
        let fits = self.tensors.iter().all(|(number, tensor, address)| match *number {
            uid::LSE => Element::of(tensor.dtype()) == Some(Element::F32),
            _ => {
                let even = address.is_multiple_of(16) && tensor.stride().is_multiple_of(8);
                even && Element::of(tensor.dtype()) == Some(element)
            }
        });
        fits.then_some(element)
    }

    /// Of one sequence rows may have any stride; of packed ones logarithms have no gaps and begin where graphs promise.
    fn are_even(&self, heads: usize) -> bool {
        let fits = |tensor: &Tensor, address: u64| tensor.stride() == heads && address.is_multiple_of(16);
        self.tensors.iter().all(|(number, tensor, address)| *number != uid::LSE || fits(tensor, *address))
    }

    /// Strides of a case: what is written in scratch has its own.
    fn strides(&self, packed: bool, [heads, kv_heads, head_dim]: [i64; 3]) -> Strides {
        let mut strides = Strides::default();
        for (number, tensor, _) in &self.tensors {
            let stride = match *number {
                uid::LSE if !packed => 0,
                uid::DQ if packed => (heads * head_dim) as usize,
                uid::DK | uid::DV if packed => (kv_heads * head_dim) as usize,
                _ => tensor.stride(),
            };
            strides.set(*number, stride);
        }
        strides
    }

    /// Where a group of heads begins: its first query head, its first key head.
    fn addresses(&self, firsts: [usize; 2], head_dim: usize) -> Vec<(i64, u64)> {
        let address = |(number, tensor, address): &(i64, &Tensor, u64)| {
            let first = firsts[usize::from(of_keys(*number))];
            let columns = if *number == uid::LSE { first } else { first * head_dim };
            (*number, address + (columns * tensor.dtype().bytes()) as u64)
        };
        self.tensors.iter().map(address).collect()
    }
}

/// Tensors that have a row for each key.
fn of_keys(number: i64) -> bool {
    [uid::K, uid::V, uid::DK, uid::DV].contains(&number)
}

/// Below so many tokens, lengths of one document that are none of a few are told as packed ones of the next such length: each
/// length has a plan of its own, which takes up to two seconds to make, and prompts come in every length.
const EXACT_FROM: usize = 8192;
/// Lengths of which every multiple has a plan of its own.
const EXACT_STEP: usize = 1024;
/// The shortest length of a plan of that kind.
const LEAST: usize = 128;

/// The length that a plan for one document is made for, if not its own.
fn rounded(tokens: usize) -> Option<usize> {
    let exact = tokens >= EXACT_FROM
        || tokens.is_multiple_of(EXACT_STEP)
        || tokens.is_power_of_two() && tokens >= LEAST;
    (!exact).then(|| tokens.next_power_of_two().max(LEAST))
}

/// What is the same for forward and backward.
#[track_caller]
fn case(
    op: &Attention<'_>,
    operands: &Operands<'_>,
    scratch: &AttentionScratch,
    backward: bool,
) -> Option<Case> {
    let packed: &Packed = op.mask.packed.as_ref()?;
    let plain = op.softcap == 0.0 && op.sinks.is_none() && !op.resume && op.q.rows() == op.k.rows();
    if !plain || op.q.is_empty() || !op.head_dim.is_multiple_of(8) {
        return None;
    }
    let (docs, element) = (packed.ends.len(), operands.element()?);
    let kv_heads = scratch.kv_heads;
    let heads = kv_heads * (op.q.cols() / op.k.cols());
    let longer = if docs == 1 && !backward { rounded(op.q.rows()) } else { None };
    let (is_packed, tokens) = (docs > 1 || longer.is_some(), longer.unwrap_or(op.q.rows()) as i64);
    if is_packed && !operands.are_even(op.q.cols() / op.head_dim) {
        return None;
    }
    let [heads, kv_heads, head_dim] = [heads, kv_heads, op.head_dim].map(|count| count as i64);
    Some(Case {
        sequences: if docs == 1 { 1 } else { docs.next_power_of_two().min(scratch.sequences) as i64 },
        heads,
        kv_heads,
        q_tokens: tokens,
        k_tokens: tokens,
        head_dim,
        element,
        causal: true,
        window: packed.window.filter(|window| *window < packed.longest()).map(|window| window as i64),
        packed: is_packed,
        strides: operands.strides(is_packed, [heads, kv_heads, head_dim]),
    })
}

/// Beginnings of the packed sequences in each tensor that has a plan's node for them, and their lengths: bytes for the device,
/// and where in them each list begins ([`gpu::attention_list`]).
fn lists(case: &Case, packed: &Packed, numbers: &[i64]) -> (Vec<u8>, Vec<(i64, u64)>) {
    let (sequences, last) = (case.sequences as usize, packed.ends.last().copied().unwrap_or(0));
    let ends: Vec<usize> = (0..sequences).map(|at| packed.ends.get(at).copied().unwrap_or(last)).collect();
    let starts: Vec<usize> = std::iter::once(0).chain(ends.iter().copied()).collect();
    let (mut bytes, mut places) = (Vec::new(), Vec::new());
    let mut add = |number: i64, list: Vec<u8>, list_bytes: u64| {
        places.push((number, bytes.len() as u64));
        bytes.extend(list);
        bytes.resize((places[places.len() - 1].1 + list_bytes) as usize, 0);
    };
    for number in numbers {
        let stride = case.strides.of(*number);
        let list = starts.iter().flat_map(|start| (*start as i64 * stride).to_le_bytes()).collect();
        add(uid::start_of(*number), list, gpu::attention_list(sequences + 1, 8));
    }
    let lengths: Vec<u8> =
        ends.iter().zip(&starts).flat_map(|(end, start)| ((end - start) as i32).to_le_bytes()).collect();
    for number in [uid::Q_LEN, uid::K_LEN] {
        add(number, lengths.clone(), gpu::attention_list(sequences, 4));
    }
    (bytes, places)
}

/// One call of attention or of its gradient, as the library takes it.
struct Told<'a> {
    op: &'a Attention<'a>,
    /// For the gradient: where it goes.
    gradients: Option<[&'a Tensor; 3]>,
    operands: Operands<'a>,
    case: Case,
    scratch: AttentionScratch,
    ws: &'a Tensor,
}

impl Told<'_> {
    /// Columns of `heads` heads from the first of a group.
    fn columns(&self, group: usize, heads: i64) -> std::ops::Range<usize> {
        let wide = (heads * self.case.head_dim) as usize;
        group * wide..(group + 1) * wide
    }

    /// The logarithms of a group's query heads, where the caller has them and head after head in scratch.
    fn logarithms(&self, group: usize) -> [Tensor; 2] {
        let heads = self.case.heads as usize;
        let theirs = self.op.lse.view_cols(group * heads..(group + 1) * heads);
        let ours = self.ws.part(self.scratch.parts().lse, heads, self.op.q.rows(), DType::F32);
        [theirs, ours]
    }

    /// Scratch that the graph names, and the engine's own with its bytes.
    fn in_scratch(&self) -> (Vec<(i64, u64)>, [u64; 2]) {
        let (start, parts) = (output(self.ws), self.scratch.parts());
        let mut named = Vec::new();
        if self.gradients.is_some() {
            named.extend([(uid::SUMS, parts.sums), (uid::DQ_WIDE, parts.wide)]);
            if self.case.packed {
                let [dq, dk, dv] = parts.gradients;
                named.extend([(uid::DQ, dq), (uid::DK, dk), (uid::DV, dv)]);
                let [dk, dv] = parts.full;
                let shared = self.case.heads != self.case.kv_heads;
                named.extend([(uid::DK_FULL, dk), (uid::DV_FULL, dv)].into_iter().filter(|_| shared));
            }
        }
        if !self.case.packed {
            named.push((uid::LSE, parts.lse));
        }
        // Without packed sequences the room for full gradients is the engine's own.
        let own = if self.case.packed { parts.own } else { parts.full[0] };
        let named = named.into_iter().map(|(number, at)| (number, start + at)).collect();
        (named, [start + own, parts.own + self.scratch.own - own])
    }
}

impl Cuda {
    /// Issues attention if the library takes it.
    #[track_caller]
    pub(super) fn attended(&self, op: &Attention<'_>, ws: &Tensor) -> bool {
        let Some(scratch) = AttentionScratch::of(&op.desc(false)) else { return false };
        self.told(op, None, Operands::forward(op, true), (scratch, ws))
    }

    /// Issues its gradient if the library takes it.
    #[track_caller]
    pub(super) fn attended_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor) -> bool {
        let forward = &op.forward;
        let Some(scratch) = AttentionScratch::of(&forward.desc(true)) else { return false };
        let plain = !op.accumulate && op.dsinks.is_none();
        let gradients = [op.dq, op.dk, op.dv];
        plain && self.told(forward, Some(gradients), Operands::backward(op), (scratch, ws))
    }

    /// Tells the library, if there is one and it takes the case.
    #[track_caller]
    fn told(
        &self,
        op: &Attention<'_>,
        gradients: Option<[&Tensor; 3]>,
        operands: Operands<'_>,
        (scratch, ws): (AttentionScratch, &Tensor),
    ) -> bool {
        let (Some(library), Some(packed)) = (&self.attend, &op.mask.packed) else { return false };
        let backward = gradients.is_some();
        let Some(case) = case(op, &operands, &scratch, backward) else { return false };
        let told = Told { op, gradients, operands, case, scratch, ws };
        let (named, workspace) = told.in_scratch();
        if !library.takes(&told.case, backward, workspace[1]) {
            return false;
        }
        self.must("attention", self.by_heads(library, packed, &told, (named, workspace)));
        true
    }

    /// Calls the library for some key heads after the other.
    fn by_heads(
        &self,
        library: &Arc<dyn Attend>,
        packed: &Packed,
        told: &Told<'_>,
        (mut named, workspace): (Vec<(i64, u64)>, [u64; 2]),
    ) -> Result<()> {
        let (case, backward) = (told.case, told.gradients.is_some());
        if case.packed {
            let of_gradients = if backward { uid::DV } else { uid::LSE };
            let (bytes, places) = lists(&case, packed, &(uid::Q..=of_gradients).collect::<Vec<_>>());
            let lists_at = output(told.ws) + told.scratch.parts().lists;
            let to = Rows::flat(lists_at, bytes.len());
            self.writes.write("lists of packed documents", &bytes, to)?;
            named.extend(places.iter().map(|(number, at)| (*number, lists_at + at)));
        }
        let groups = told.op.k.cols() / told.op.head_dim / told.scratch.kv_heads;
        for group in 0..groups {
            let firsts = [case.heads, case.kv_heads].map(|heads| group * heads as usize);
            let mut tensors = named.clone();
            let elsewhere = told.operands.addresses(firsts, told.op.head_dim);
            tensors
                .extend(elsewhere.into_iter().filter(|(number, _)| named.iter().all(|(of, _)| of != number)));
            if backward && !case.packed {
                let [theirs, ours] = told.logarithms(group);
                self.run(&kernels::transpose(&theirs, &ours));
            }
            let call = Attended { case, backward, tensors, workspace, scale: told.op.scale };
            // SAFETY: the case was made of these tensors, which live; see `Cuda::run` for their storage.
            unsafe { self.streams.issue(Work::Attend(library.clone(), Box::new(call)))? };
            if !backward && !case.packed {
                let [theirs, ours] = told.logarithms(group);
                self.run(&kernels::transpose(&ours, &theirs));
            }
            self.place_gradients(told, group);
        }
        Ok(())
    }

    /// Copies packed gradients of a group of heads to where they belong.
    fn place_gradients(&self, told: &Told<'_>, group: usize) {
        let (Some([dq, dk, dv]), true) = (told.gradients, told.case.packed) else { return };
        let Case { heads, kv_heads, .. } = told.case;
        for ((to, heads), at) in
            [(dq, heads), (dk, kv_heads), (dv, kv_heads)].into_iter().zip(told.scratch.parts().gradients)
        {
            let to = to.view_cols(told.columns(group, heads));
            let made = told.ws.part(at, to.rows(), to.cols(), to.dtype());
            self.run(&kernels::copy(&made, &to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn few_lengths_of_one_document_have_plans() {
        for (tokens, expected) in [
            (1, Some(128)),
            (100, Some(128)),
            (128, None),
            (300, Some(512)),
            (1024, None),
            (3072, None),
            (3073, Some(4096)),
            (8191, Some(8192)),
            (8193, None),
        ] {
            assert_eq!(rounded(tokens), expected, "{tokens} tokens");
        }
        let plans: std::collections::BTreeSet<usize> =
            (1..8192).map(|at| rounded(at).unwrap_or(at)).collect();
        assert_eq!(plans.len(), 11);
    }
}
