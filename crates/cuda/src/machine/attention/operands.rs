//! Operands of an attention call, by the library's tensor numbers.

use fathom_tensor::{Attention, AttentionBackward, Tensor};

use crate::blas::Element;
use crate::operand::{input, output};
use crate::sdpa::uid;

/// Operands of all heads, by number; the address is that of the first head.
pub(super) struct Operands<'a> {
    tensors: Vec<(i64, &'a Tensor, u64)>,
}

impl<'a> Operands<'a> {
    pub fn forward(op: &Attention<'a>, written: bool) -> Operands<'a> {
        let place = |tensor: &Tensor| if written { output(tensor) } else { input(tensor) };
        let read = |number, tensor: &'a Tensor| (number, tensor, input(tensor));
        let (out, lse) = ((uid::OUT, op.out, place(op.out)), (uid::LSE, op.lse, place(op.lse)));
        Operands { tensors: vec![read(uid::Q, op.q), read(uid::K, op.k), read(uid::V, op.v), out, lse] }
    }

    pub fn backward(op: &AttentionBackward<'a>) -> Operands<'a> {
        let mut operands = Operands::forward(&op.forward, false);
        operands.tensors.push((uid::DOUT, op.dout, input(op.dout)));
        let written = [(uid::DQ, op.dq), (uid::DK, op.dk), (uid::DV, op.dv)];
        operands.tensors.extend(written.map(|(number, tensor)| (number, tensor, output(tensor))));
        operands
    }

    /// Removes operands that the library does not see because it writes their parts elsewhere.
    pub fn without(mut self, numbers: &[i64]) -> Operands<'a> {
        self.tensors.retain(|(number, ..)| !numbers.contains(number));
        self
    }

    /// The library's type, if all operands have it, or f32 for the rows' logarithms, and their layout fits.
    pub fn element(&self) -> Option<Element> {
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

    /// True if logarithms have no gaps and are aligned as graphs promise; required for packed sequences, while a single
    /// sequence may have any stride.
    pub fn are_even(&self, heads: usize) -> bool {
        let fits = |tensor: &Tensor, address: u64| tensor.stride() == heads && address.is_multiple_of(16);
        self.tensors.iter().all(|(number, tensor, address)| *number != uid::LSE || fits(tensor, *address))
    }

    /// Row strides in elements, by number.
    pub fn strides(&self) -> impl Iterator<Item = (i64, usize)> {
        self.tensors.iter().map(|(number, tensor, _)| (*number, tensor.stride()))
    }

    /// Addresses for a group of heads, given its first query head, first key head, first query and first key.
    pub fn addresses(
        &self,
        heads: [usize; 2],
        rows: [usize; 2],
        head_dim: usize,
    ) -> impl Iterator<Item = (i64, u64)> {
        self.tensors.iter().map(move |(number, tensor, address)| {
            let of = usize::from(of_keys(*number));
            let columns = if *number == uid::LSE { heads[of] } else { heads[of] * head_dim };
            let elements = rows[of] * tensor.stride() + columns;
            (*number, address + (elements * tensor.dtype().bytes()) as u64)
        })
    }
}

/// True for tensors with one row per key.
pub(super) fn of_keys(number: i64) -> bool {
    [uid::K, uid::V, uid::DK, uid::DV].contains(&number)
}
