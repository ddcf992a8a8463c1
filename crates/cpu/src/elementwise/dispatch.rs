//! Assignment of slots to experts and owners: lists of slots, computed by one thread without allocation.

use fathom_tensor::MOST_EXPERTS;

/// Assignment of a round's slots; see [`fathom_tensor::Dispatch`].
#[derive(Debug)]
pub struct Dispatch<'a> {
    /// The expert of each slot.
    pub index: &'a [i32],
    /// Slots per token.
    pub top_k: usize,
    /// Experts per owner.
    pub own: usize,
    /// Number of an owner's slots before this round.
    pub first: usize,
    /// Slots per owner in the round.
    pub cap: usize,
    /// The slot of each owner and place, or -1.
    pub slots: &'a mut [i32],
    /// The slot's token.
    pub tokens: &'a mut [i32],
    /// Index of the slot's expert within its owner.
    pub experts: &'a mut [i32],
    /// The place of each slot, or -1.
    pub places: &'a mut [i32],
}

/// Fills the lists.
///
/// # Panics
/// If an expert has no owner.
pub fn dispatch(op: Dispatch<'_>) {
    let Dispatch { index, top_k, own, first, cap, slots, tokens, experts, places } = op;
    let owners = slots.len() / cap.max(1);
    assert!(owners <= MOST_EXPERTS && own > 0, "dispatch: {owners} owners of {own} experts");
    let mut counts = [0usize; MOST_EXPERTS];
    [&mut *slots, &mut *tokens, &mut *experts].into_iter().for_each(|list| list.fill(-1));
    for (slot, (expert, place)) in index.iter().zip(places).enumerate() {
        *place = -1;
        let Ok(expert) = usize::try_from(*expert) else { continue };
        let owner = expert / own;
        assert!(owner < owners, "dispatch: expert {expert} of {owners} x {own}");
        let number = counts[owner];
        counts[owner] += 1;
        if (first..first + cap).contains(&number) {
            let at = owner * cap + number - first;
            *place = at as i32;
            (slots[at], tokens[at]) = (slot as i32, (slot / top_k) as i32);
            experts[at] = (expert % own) as i32;
        }
    }
}

/// `bias += rate x sign(mean load - load)`; loads are integers, and their mean is computed in f64.
pub fn balance_bias(bias: &mut [f32], load: &[f32], rate: f32) {
    let mean = load.iter().map(|load| f64::from(*load)).sum::<f64>() / load.len() as f64;
    for (bias, load) in bias.iter_mut().zip(load) {
        let short = mean - f64::from(*load);
        *bias += if short == 0.0 { 0.0 } else { rate.copysign(short as f32) };
    }
}

/// `out` is `index`, with -1 for the slots of an expert beyond its `capacity`: the lightest, or without weights the
/// last.
///
/// # Panics
/// If an expert does not exist, or a weight is negative. NaN counts as zero: such a step is skipped later.
pub fn limit_experts(
    index: &[i32],
    weights: Option<&[f32]>,
    (experts, capacity): (usize, usize),
    out: &mut [i32],
) {
    assert!(experts <= MOST_EXPERTS && index.len() == out.len(), "limit experts: {experts} experts");
    let exist = index.iter().all(|expert| *expert < experts as i32);
    assert!(exist, "limit experts: an index of {experts}");
    // The bits of positive numbers have the order of the numbers.
    let bits = |slot: usize| {
        weights.map_or(0, |weights| {
            let weight = weights[slot];
            assert!(weight >= 0.0 || weight.is_nan(), "limit experts: weight {weight}");
            // Denormal weights count as zero, as in all kernels.
            if weight >= f32::MIN_POSITIVE { weight.to_bits() } else { 0 }
        })
    };
    // An expert takes all slots heavier than its bound, and the first ones equal to it that fit.
    let bounds = if weights.is_some() { bounds(index, bits, experts, capacity) } else { [0; MOST_EXPERTS] };
    let mut room = [capacity; MOST_EXPERTS];
    for (slot, expert) in index.iter().enumerate() {
        if let Ok(expert) = usize::try_from(*expert)
            && bits(slot) > bounds[expert]
        {
            room[expert] -= 1;
        }
    }
    for (slot, (out, expert)) in out.iter_mut().zip(index).enumerate() {
        *out = *expert;
        let Ok(expert) = usize::try_from(*expert) else { continue };
        let (weight, bound) = (bits(slot), bounds[expert]);
        if weight == bound && room[expert] > 0 {
            room[expert] -= 1;
        } else if weight <= bound {
            *out = -1;
        }
    }
}

/// For each expert the smallest bound that at most `capacity` slots exceed, found bit by bit.
fn bounds(
    index: &[i32],
    bits: impl Fn(usize) -> u32,
    experts: usize,
    capacity: usize,
) -> [u32; MOST_EXPERTS] {
    let mut bounds = [0u32; MOST_EXPERTS];
    // The bound is the largest value that more than `capacity` slots reach, built from its highest bit down.
    for bit in (0..31).rev() {
        let mut reached = [0usize; MOST_EXPERTS];
        for (slot, expert) in index.iter().enumerate() {
            if let Ok(expert) = usize::try_from(*expert)
                && bits(slot) >= bounds[expert] | 1 << bit
            {
                reached[expert] += 1;
            }
        }
        for (bound, reached) in bounds.iter_mut().zip(reached).take(experts) {
            if reached > capacity {
                *bound |= 1 << bit;
            }
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_take_every_slot_once() {
        let index: Vec<i32> = (0..60).map(|slot| if slot % 7 == 0 { -1 } else { slot * slot % 6 }).collect();
        let (own, cap) = (2, 9);
        let mut seen = vec![0; index.len()];
        for round in 0..4 {
            let mut lists = [vec![0; 3 * cap], vec![0; 3 * cap], vec![0; 3 * cap]];
            let mut places = vec![0; index.len()];
            let [slots, tokens, experts] = &mut lists;
            let first = round * cap;
            dispatch(Dispatch {
                index: &index,
                top_k: 3,
                own,
                first,
                cap,
                slots,
                tokens,
                experts,
                places: &mut places,
            });
            for (slot, place) in places.iter().enumerate().filter(|(_, place)| **place >= 0) {
                let at = *place as usize;
                let expert = lists[2][at] + (at / cap * own) as i32;
                assert_eq!((lists[0][at], lists[1][at], expert), (slot as i32, slot as i32 / 3, index[slot]));
                seen[slot] += 1;
            }
            let taken =
                |owner: usize| lists[0][owner * cap..(owner + 1) * cap].iter().filter(|slot| **slot >= 0);
            for owner in 0..3 {
                assert!(taken(owner).is_sorted());
            }
        }
        assert!(seen.iter().zip(&index).all(|(seen, expert)| *seen == i32::from(*expert >= 0)));
    }

    #[test]
    fn biases_move_towards_even_loads() {
        let mut bias = [0.5, 0.0, -0.25, 0.0];
        balance_bias(&mut bias, &[3.0, 9.0, 6.0, 6.0], 0.125);
        assert_eq!(bias, [0.625, -0.125, -0.25, 0.0]);
    }

    #[test]
    fn the_heaviest_stay_and_of_equals_the_first() {
        let index = [0, 1, 0, 0, 1, 0, -1, 0];
        let weights = [0.5, 0.1, 0.25, 0.5, 0.2, 0.75, 0.9, 0.25];
        let limit = |weights, capacity| {
            let mut out = [0; 8];
            limit_experts(&index, weights, (2, capacity), &mut out);
            out
        };
        assert_eq!(limit(None, 2), [0, 1, 0, -1, 1, -1, -1, -1]);
        assert_eq!(limit(Some(&weights), 2), [0, 1, -1, -1, 1, 0, -1, -1]);
        assert_eq!(limit(Some(&weights), 4), [0, 1, 0, 0, 1, 0, -1, -1]);
        assert_eq!(limit(Some(&weights), 9), index);
        assert_eq!(limit(Some(&weights), 1), [-1, -1, -1, -1, 1, 0, -1, -1]);
        // After a NaN the step is skipped, but the run continues.
        let broken = [f32::NAN, 0.1, 0.25, 0.5, 0.2, 0.75, 0.9, 0.25];
        assert_eq!(limit(Some(&broken), 2), [-1, 1, -1, 0, 1, 0, -1, -1]);
    }
}
