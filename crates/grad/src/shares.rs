//! Sharding of weights, gradients and optimizer state over ranks with the same weights (ZeRO, Rajbhandari et al.,
//! 2020), and the slots in which the squares of gradients are added.
//!
//! The square of the gradient's norm is added up in slots, one for each [`SLOT`] elements of a weight of the whole
//! model, and the slots in order: the norm has the same bits whichever rank computes which slot.

use std::ops::Range;

use fathom_tensor::Device;
use fathom_tensor::mesh::{Group, share};

use crate::param_id::ParamId;

/// Elements whose squares are added into one slot; weights are divided among ranks at multiples of it.
pub const SLOT: usize = 1 << 18;

/// State that is sharded over ranks with the same weights (named as in Megatron-FSDP's `data_parallel_sharding_strategy`).
/// Each variant includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharding {
    /// Nothing: everything is replicated.
    NoShard,
    /// The optimizer's state (ZeRO-1, Megatron's distributed optimizer).
    #[default]
    Optim,
    /// Also main gradients, outside the segment that computes them (ZeRO-2).
    OptimGrads,
    /// Also weights, outside the segments that need them (ZeRO-3).
    OptimGradsParams,
}

/// The shards of one weight over a group of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamShares {
    /// The elements whose state each member keeps, ascending and together all; or all elements for each, if they are
    /// replicated.
    pub ranges: Vec<Range<usize>>,
    /// The slot of its first element; `None` if another rank adds its squares.
    pub slot: Option<usize>,
    /// True if every tensor parallel rank has the whole weight and a part of its gradient.
    pub partial: bool,
    /// For a weight that other stages of the pipeline have too, its number among [`Shares::copies`].
    pub copies: Option<usize>,
    /// True for an expert's weight, whose replicas are [`Shares::experts`].
    pub expert: bool,
}

/// The shares of all weights.
pub struct Shares {
    /// By [`ParamId`].
    pub params: Vec<ParamShares>,
    /// Weights whose gradients are summed together, in the order of a forward pass.
    pub buckets: Vec<Vec<ParamId>>,
    /// Slots of the whole model.
    pub num_slots: usize,
    /// Ranks with the same weights.
    pub replicas: Group,
    /// Ranks with the same experts.
    pub experts: Group,
    /// Their sharding; none if there is only one.
    pub sharding: Sharding,
    /// True if each has the whole state.
    pub whole: bool,
    /// Ranks whose slots together are all slots.
    pub squares: Group,
    /// Ranks with different parts of the same weights.
    pub tp: Group,
    /// Ranks with different parts of the same experts.
    pub etp: Group,
    /// Ranks with the copies of a weight that several stages have: a tied embedding, a table that layers share.
    pub copies: Vec<Group>,
}

impl Shares {
    /// A single rank with everything; `lens` are the elements of all weights, by [`ParamId`].
    pub fn alone(device: &Device, lens: impl Iterator<Item = usize>) -> Shares {
        let mut num_slots = 0;
        let share = |len: usize| {
            let slot = Some(num_slots);
            num_slots += len.div_ceil(SLOT);
            let ranges = std::iter::once(0..len).collect();
            ParamShares { ranges, slot, partial: false, copies: None, expert: false }
        };
        let params = lens.map(share).collect();
        let alone = device.mesh.group(&[]);
        Shares {
            params,
            buckets: Vec::new(),
            num_slots,
            replicas: alone.clone(),
            experts: alone.clone(),
            sharding: Sharding::NoShard,
            whole: true,
            squares: alone.clone(),
            tp: alone.clone(),
            etp: alone,
            copies: Vec::new(),
        }
    }

    /// The ranks with the same part of a weight.
    pub fn group(&self, id: ParamId) -> &Group {
        if self.params[id.index()].expert { &self.experts } else { &self.replicas }
    }

    /// The ranks with its other parts.
    pub(crate) fn other_parts(&self, id: ParamId) -> &Group {
        if self.params[id.index()].expert { &self.etp } else { &self.tp }
    }

    /// Some weights by the group of their replicas.
    pub(crate) fn by_group(&self, ids: &[ParamId]) -> [(&Group, Vec<ParamId>); 2] {
        let (experts, others) = ids.iter().copied().partition(|id| self.params[id.index()].expert);
        [(&self.replicas, others), (&self.experts, experts)]
    }

    /// The elements whose state this rank keeps.
    pub fn own(&self, id: ParamId) -> Range<usize> {
        self.params[id.index()].ranges[self.group(id).index()].clone()
    }

    /// The elements of a weight of `len` whose gradients each member sums: those whose state it keeps, or, with
    /// replicated state, equal parts that are exchanged afterwards.
    pub(crate) fn summed(&self, id: ParamId, len: usize) -> Vec<Range<usize>> {
        let members = self.group(id).size();
        if self.whole {
            (0..members).map(|member| share(len, members, member)).collect()
        } else {
            self.params[id.index()].ranges.clone()
        }
    }

    /// Buckets that contain some of the weights, the last first.
    pub(crate) fn buckets_of(&self, ids: &[ParamId]) -> Vec<usize> {
        let holds = |bucket: &usize| self.buckets[*bucket].iter().any(|id| ids.contains(id));
        (0..self.buckets.len()).rev().filter(holds).collect()
    }

    /// True if there is nothing to reduce with other ranks.
    pub(crate) fn is_alone(&self) -> bool {
        let own = [&self.replicas, &self.experts, &self.tp, &self.etp];
        own.into_iter().chain(&self.copies).all(|group| group.size() == 1)
    }
}

/// Distributes elements to `members` in runs that begin and end at slots and are as equal as that allows: the ranges of
/// each member in each of the weights of these lengths.
pub fn deal(lens: &[usize], members: usize) -> Vec<Vec<Range<usize>>> {
    let total: usize = lens.iter().sum();
    // The end of a member's part of the total in a weight, rounded to slots.
    let cut = |before: usize, len: usize, member: usize| {
        let end = total * member / members;
        let at = end.saturating_sub(before).min(len);
        if at == len { len } else { (at + SLOT / 2) / SLOT * SLOT }.min(len)
    };
    let mut before = 0;
    let ranges = |len: &usize| {
        let cuts: Vec<usize> = (0..=members).map(|member| cut(before, *len, member)).collect();
        before += len;
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    };
    lens.iter().map(ranges).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_one_owner() {
        for lens in [vec![10 * SLOT + 5, 7, 3 * SLOT], vec![100, 200, 300, 400], vec![SLOT - 1]] {
            for members in [1, 2, 3, 8] {
                let ranges = deal(&lens, members);
                for (len, ranges) in lens.iter().zip(&ranges) {
                    assert_eq!((ranges[0].start, ranges[members - 1].end), (0, *len));
                    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                    assert!(
                        ranges.iter().all(|range| range.start.is_multiple_of(SLOT) || range.start == *len)
                    );
                }
                let of = |member: usize| ranges.iter().map(|ranges| ranges[member].len()).sum::<usize>();
                let most = (0..members).map(of).max().unwrap();
                assert!(most <= lens.iter().sum::<usize>() / members + 2 * SLOT, "{lens:?} {members}");
            }
        }
    }
}
