//! Which rank keeps the optimizer's state of which elements (the distributed optimizer, ZeRO-1), and where their squares are
//! added.
//!
//! The square of the gradient's norm is added up in slots, one for each [`SLOT`] elements of a weight of the whole model, and
//! the slots in their order: the norm has the same bits whichever rank computes which slot.

use std::ops::Range;

use fathom_tensor::Device;
use fathom_tensor::mesh::Group;

use crate::params::{ParamId, Params};

/// Elements whose squares are added into one slot; ranks part weights at multiples of it.
pub const SLOT: usize = 1 << 18;

/// The elements of a weight that the members of a data parallel group keep the state of, and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamShares {
    /// One range for each member, ascending and together all elements; or all elements for each, if none is shared.
    pub ranges: Vec<Range<usize>>,
    /// The slot of its first element; `None` if another rank adds its squares.
    pub slot: Option<usize>,
    /// It is an expert's: the ranks that have the same are [`Shares::experts`].
    pub expert: bool,
}

/// The shares of all weights.
pub struct Shares {
    /// By [`ParamId`].
    pub params: Vec<ParamShares>,
    /// Slots of the whole model.
    pub num_slots: usize,
    /// Ranks with the same weights, which share their state.
    pub replicas: Group,
    /// Ranks with the same experts, which share theirs.
    pub experts: Group,
    /// Each has the whole state: nothing is shared.
    pub whole: bool,
    /// Ranks whose slots together are all.
    pub squares: Group,
}

impl Shares {
    /// One rank with everything.
    pub fn alone(device: &Device, params: &Params) -> Shares {
        let mut num_slots = 0;
        let share = |len: usize| {
            let slot = Some(num_slots);
            num_slots += len.div_ceil(SLOT);
            ParamShares { ranges: std::iter::once(0..len).collect(), slot, expert: false }
        };
        let params = params.iter().map(|(_, param)| param.value.len()).map(share).collect();
        let alone = device.mesh.group(&[]);
        let [replicas, experts, squares] = [alone.clone(), alone.clone(), alone];
        Shares { params, num_slots, replicas, experts, whole: true, squares }
    }

    /// The ranks that have the same of a weight.
    pub fn group(&self, id: ParamId) -> &Group {
        if self.params[id.index()].expert { &self.experts } else { &self.replicas }
    }

    /// The elements whose state this rank keeps.
    pub fn own(&self, id: ParamId) -> Range<usize> {
        self.params[id.index()].ranges[self.group(id).index()].clone()
    }
}

/// Deals elements to `members` in runs that begin and end at slots and are as equal as that allows: the ranges of each
/// member in each of the weights of these lengths.
pub fn deal(lens: &[usize], members: usize) -> Vec<Vec<Range<usize>>> {
    let total: usize = lens.iter().sum();
    // The member whose part of the total an element is in, rounded to slots.
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
