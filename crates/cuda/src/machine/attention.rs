//! Which calls of attention the library takes, and what it is told of them.
//!
//! It takes masks that the host knows in plain words ([`fathom_tensor::Packed`]), 16-bit operands, and results that are
//! overwritten. Everything else is for kernels: other masks, sinks, capped scores, results that go on.
#![allow(unsafe_code)]

use fathom_tensor::gpu::AttentionScratch;
use fathom_tensor::{Attention, AttentionBackward, Packed, Tensor};

use super::Cuda;
use crate::Result;
use crate::blas::Element;
use crate::driver::{Rows, Way};
use crate::memory::{Attended, Work};
use crate::operand::{input, output};
use crate::sdpa::{Case, Strides, uid};

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

    fn strides(&self) -> Strides {
        let mut strides = Strides::default();
        self.tensors.iter().for_each(|(number, tensor, _)| strides.set(*number, tensor.stride()));
        strides
    }
}

/// Tensors that have a row for each key.
fn of_keys(number: i64) -> bool {
    [uid::K, uid::V, uid::DK, uid::DV, uid::DK_FULL, uid::DV_FULL].contains(&number)
}

/// What is the same for forward and backward.
#[track_caller]
fn case(op: &Attention<'_>, operands: &Operands<'_>, scratch: &AttentionScratch) -> Option<Case> {
    let packed: &Packed = op.mask.packed.as_ref()?;
    let plain = op.softcap == 0.0 && op.sinks.is_none() && !op.resume && op.q.rows() == op.k.rows();
    if !plain || op.q.is_empty() || !op.head_dim.is_multiple_of(8) {
        return None;
    }
    let (tokens, docs) = (op.q.rows() as i64, packed.ends.len());
    let element = operands.element()?;
    let mut strides = operands.strides();
    let kv_heads = scratch.kv_heads as i64;
    let heads = kv_heads * (op.q.cols() / op.k.cols()) as i64;
    for (number, stride) in [
        (uid::SUMS, heads),
        (uid::DQ_WIDE, heads * op.head_dim as i64),
        (uid::DK_FULL, heads * op.head_dim as i64),
        (uid::DV_FULL, heads * op.head_dim as i64),
    ] {
        strides.set(number, stride as usize);
    }
    Some(Case {
        sequences: if docs == 1 { 1 } else { docs.next_power_of_two().min(scratch.sequences) as i64 },
        heads,
        kv_heads,
        q_tokens: tokens,
        k_tokens: tokens,
        head_dim: op.head_dim as i64,
        element,
        causal: true,
        window: packed.window.filter(|window| *window < packed.longest()).map(|window| window as i64),
        packed: docs > 1,
        strides,
    })
}

/// Beginnings of the packed sequences in each tensor that has a plan's node for them, and their lengths: bytes for the device,
/// and where in them each list begins.
fn lists(case: &Case, packed: &Packed, numbers: &[i64]) -> (Vec<u8>, Vec<(i64, u64)>) {
    let (sequences, mut bytes, mut places) = (case.sequences as usize, Vec::new(), Vec::new());
    let ends =
        |count: usize| (0..count).map(|at| packed.ends.get(at).copied().unwrap_or(case.q_tokens as usize));
    for number in numbers {
        places.push((uid::start_of(*number), bytes.len() as u64));
        let stride = case.strides.of(*number);
        let starts = std::iter::once(0).chain(ends(sequences));
        bytes.extend(starts.flat_map(|start| (start as i64 * stride).to_le_bytes()));
    }
    let starts = std::iter::once(0).chain(ends(sequences));
    let lengths: Vec<u8> =
        ends(sequences).zip(starts).flat_map(|(end, start)| ((end - start) as i32).to_le_bytes()).collect();
    for number in [uid::Q_LEN, uid::K_LEN] {
        places.push((number, bytes.len() as u64));
        bytes.extend(&lengths);
    }
    (bytes, places)
}

impl Cuda {
    /// Issues attention if the library takes it.
    #[track_caller]
    pub(super) fn attended(&self, op: &Attention<'_>, ws: &Tensor) -> bool {
        let scratch = AttentionScratch::of(&op.desc(false));
        let (Some(library), Some(scratch)) = (&self.attend, scratch) else { return false };
        let operands = Operands::forward(op, true);
        let Some(case) = case(op, &operands, &scratch) else { return false };
        let numbers = [uid::Q, uid::K, uid::V, uid::OUT, uid::LSE];
        library.takes(&case, false, scratch.own)
            && self.must("attention", self.by_heads(op, &operands, (&case, false), &numbers, (&scratch, ws)))
    }

    /// Issues its gradient if the library takes it.
    #[track_caller]
    pub(super) fn attended_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor) -> bool {
        let forward = &op.forward;
        let scratch = AttentionScratch::of(&forward.desc(true));
        let (Some(library), Some(scratch)) = (&self.attend, scratch) else { return false };
        if op.accumulate || op.dsinks.is_some() {
            return false;
        }
        let operands = Operands::backward(op);
        let Some(case) = case(forward, &operands, &scratch) else { return false };
        let mut numbers: Vec<i64> = (uid::Q..=uid::DQ_WIDE).collect();
        if case.heads != case.kv_heads {
            numbers.push(uid::DK_FULL);
        }
        // An engine for one sequence keeps the gradients of every query head in its own scratch.
        let own = if case.packed { scratch.own } else { scratch.own + 2 * scratch.full };
        library.takes(&case, true, own)
            && self
                .must("attention", self.by_heads(forward, &operands, (&case, true), &numbers, (&scratch, ws)))
    }

    /// Calls the library for some key heads after the other.
    fn by_heads(
        &self,
        op: &Attention<'_>,
        operands: &Operands<'_>,
        (case, backward): (&Case, bool),
        numbers: &[i64],
        (scratch, ws): (&AttentionScratch, &Tensor),
    ) -> Result<bool> {
        let (Some(library), Some(packed)) = (&self.attend, &op.mask.packed) else { return Ok(false) };
        let start = output(ws);
        let [lists_at, sums, wide, dk_full, dv_full, own] = scratch.offsets().map(|offset| start + offset);
        let mut fixed = Vec::new();
        if case.packed {
            let (bytes, places) = lists(case, packed, numbers);
            let from = Rows::flat(bytes.as_ptr().expose_provenance() as u64, bytes.len());
            let to = Rows::flat(lists_at, bytes.len());
            let compute = self.streams.compute("lists of packed documents")?;
            // SAFETY: the lists fit (`AttentionScratch`); memory of the host that is not pinned is read before the call
            // returns.
            unsafe { self.streams.driver.copy(Way::Up, from, to, compute)? };
            fixed.extend(places.iter().map(|(number, at)| (*number, lists_at + at)));
        }
        if backward {
            fixed.extend([(uid::SUMS, sums), (uid::DQ_WIDE, wide)]);
            if case.packed && case.heads != case.kv_heads {
                fixed.extend([(uid::DK_FULL, dk_full), (uid::DV_FULL, dv_full)]);
            }
        }
        // Without packed sequences the room for full gradients is the engine's own.
        let (workspace, workspace_bytes) = match case.packed {
            true => (own, scratch.own),
            false => (dk_full, own + scratch.own - dk_full),
        };
        let groups = op.k.cols() / op.head_dim / scratch.kv_heads;
        for group in 0..groups {
            let mut tensors = fixed.clone();
            tensors.extend(operands.tensors.iter().map(|(number, tensor, address)| {
                let heads = group as i64 * if of_keys(*number) { case.kv_heads } else { case.heads };
                let columns = if *number == uid::LSE { heads } else { heads * case.head_dim };
                (*number, address + columns as u64 * tensor.dtype().bytes() as u64)
            }));
            let workspace = [workspace, workspace_bytes];
            let call = Attended { case: *case, backward, tensors, workspace, scale: op.scale };
            // SAFETY: the case was made of these tensors, which live; see `Cuda::run` for their storage.
            unsafe { self.streams.issue(Work::Attend(library.clone(), Box::new(call)))? };
        }
        Ok(true)
    }
}
