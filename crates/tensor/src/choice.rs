//! Choice of a token from its logits: the largest, or a random draw. The functions here define on the host what a
//! machine computes. There is no choice if a logit is NaN or the largest is infinite.

use std::ops::Range;

use crate::Tensor;

/// Chooses a column of each row.
#[derive(Clone, Copy, Debug)]
pub struct Choose<'a> {
    /// [r, vocab], f32 or bf16.
    pub logits: &'a Tensor,
    /// i32 [1, r]: the columns; -1 where there is no choice.
    pub ids: &'a Tensor,
    /// How each row is drawn; `None` takes the row's largest, the first of equals.
    pub draws: &'a [Option<Draw>],
    /// u8 [r, vocab / 8, rounded up]: the columns that each row's draw keeps, the first in the lowest bit of the first
    /// byte; all columns if there is no draw, none if there is no choice. Written only if given.
    pub kept: Option<&'a Tensor>,
}

/// Masks logits that a draw did not keep, so that a loss over the rest is that of the distribution drawn from.
#[derive(Clone, Copy, Debug)]
pub struct LeaveOut<'a> {
    /// f32 [r, columns]: becomes [`LEFT_OUT`] where a column's bit is zero.
    pub logits: &'a Tensor,
    /// u8 [r, vocab / 8, rounded up]: bits as in [`Choose::kept`].
    pub kept: &'a Tensor,
    /// Bit index of the first column.
    pub first: usize,
}

/// Value of a masked logit: its exponential is zero under any scale, and its product with zero is zero.
pub const LEFT_OUT: f32 = -1e15;

/// Logits below this are masked, whatever scale they were multiplied by.
pub const LEFT_OUT_BELOW: f32 = -1e10;

/// Bytes of a vocabulary's bit mask.
pub fn kept_bytes(vocab: usize) -> usize {
    vocab.div_ceil(8)
}

/// Masks columns of a row; see [`LeaveOut`].
pub fn leave_out(logits: &mut [f32], kept: &[u8], first: usize) {
    for (id, logit) in (first..).zip(logits) {
        if kept[id / 8] >> (id % 8) & 1 == 0 {
            *logit = LEFT_OUT;
        }
    }
}

/// Groups consecutive rows whose draws differ only by a counter that counts up, and rows without a draw, into runs;
/// each with its first draw.
pub fn runs(draws: &[Option<Draw>]) -> impl Iterator<Item = (Range<usize>, Option<Draw>)> {
    let follows = |first: Option<Draw>, at: u64| first.map(|draw| Draw { drawn: draw.drawn + at, ..draw });
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = *draws.get(start)?;
        let like = draws[start..].iter().zip(0..).take_while(|(draw, at)| **draw == follows(first, *at));
        let rows = start..start + like.count();
        start = rows.end;
        Some((rows, first))
    })
}

/// Parameters of a draw: softmax of the logits over a temperature, with some tokens excluded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides the logits; above zero.
    pub temperature: f64,
    /// Keeps the k most likely; 0 keeps all.
    pub top_k: usize,
    /// Then keeps the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f64,
    /// Then drops tokens less likely than this share of the most likely one's probability.
    pub min_p: f64,
    /// Seed of the random number.
    pub seed: u64,
    /// Number of earlier draws; with the seed, determines the random number.
    pub drawn: u64,
}

/// The largest logit; the first of equals.
pub fn largest(logits: &[f32]) -> Option<usize> {
    // Independent lanes, so that the loop vectorises.
    const LANES: usize = 16;
    let (mut most, mut no_number) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let mut take = |lane: usize, logit: f32| {
        most[lane] = if logit > most[lane] { logit } else { most[lane] };
        no_number[lane] |= logit.is_nan();
    };
    let (whole, rest) = logits.as_chunks::<LANES>();
    for lanes in whole {
        (0..LANES).for_each(|lane| take(lane, lanes[lane]));
    }
    rest.iter().for_each(|logit| take(0, *logit));
    let most = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if no_number.contains(&true) || !most.is_finite() {
        return None;
    }
    logits.iter().position(|logit| *logit == most)
}

/// Draws a token.
pub fn drawn(logits: &[f32], how: &Draw) -> Option<usize> {
    drawn_typical(logits, how, 1.0)
}

/// Bit mask of the columns that a draw keeps ([`Choose::kept`]); all without a draw.
pub fn kept(logits: &[f32], draw: Option<&Draw>, bits: &mut [u8]) {
    bits.fill(0);
    let Some(top) = largest(logits) else { return };
    let all = |how: &Draw| how.top_k == 0 && how.top_p >= 1.0 && how.min_p <= 0.0;
    let Some(how) = draw.filter(|how| !all(how)) else {
        (0..logits.len()).for_each(|id| bits[id / 8] |= 1 << (id % 8));
        return;
    };
    let scale = Scale { top: f64::from(logits[top]), temperature: how.temperature };
    let mut ranked = Ranked::new(logits);
    if how.top_k > 0 {
        ranked.keep(how.top_k);
    }
    let weights = weights_of_few(&mut ranked, (logits, scale), how)
        .unwrap_or_else(|| weights_in_order(&mut ranked, (logits, scale), how));
    for id in (0..weights.len()).filter_map(|rank| ranked.id(rank)) {
        bits[id / 8] |= 1 << (id % 8);
    }
}

/// Draws a token after typical sampling: of the tokens left, keeps those whose surprise is nearest the entropy until
/// their probability reaches `typical_p` (Meister et al., 2023, arXiv:2202.00666); 1 keeps all.
pub fn drawn_typical(logits: &[f32], how: &Draw, typical_p: f64) -> Option<usize> {
    let scale = Scale { top: f64::from(logits[largest(logits)?]), temperature: how.temperature };
    let all = how.top_k == 0 && how.top_p >= 1.0 && how.min_p <= 0.0 && typical_p >= 1.0;
    if all && let Some(id) = drawn_of_all(logits, scale, how) {
        return Some(id);
    }
    let mut ranked = Ranked::new(logits);
    if how.top_k > 0 {
        ranked.keep(how.top_k);
    }
    if !all
        && typical_p >= 1.0
        && let Some(id) = drawn_of_few(&mut ranked, (logits, scale), how)
    {
        return Some(id);
    }
    let mut weights = weights_in_order(&mut ranked, (logits, scale), how);
    keep_typical(&mut weights, typical_p);
    ranked.id(drawn_weight(&weights, how)?)
}

/// Weights of logits: `exp((logit - top) / temperature)`.
#[derive(Clone, Copy)]
struct Scale {
    top: f64,
    temperature: f64,
}

impl Scale {
    /// The exponent: zero or below.
    #[inline]
    fn exponent(&self, logit: f32) -> f64 {
        (f64::from(logit) - self.top) / self.temperature
    }

    #[inline]
    fn weight(&self, logit: f32) -> f64 {
        exp(self.exponent(logit))
    }

    /// The sum of all weights, by lanes, so that it vectorises.
    fn total(&self, logits: &[f32]) -> f64 {
        let mut sums = [0.0; 8];
        let (whole, rest) = logits.as_chunks::<8>();
        for eight in whole {
            (0..8).for_each(|lane| sums[lane] += self.weight(eight[lane]));
        }
        rest.iter().fold(sums.iter().sum(), |sum, logit| sum + self.weight(*logit))
    }
}

/// e^x for x <= 0, within four units of rounding and without branches, so that it vectorises; 0 below -708.
#[inline]
fn exp(x: f64) -> f64 {
    // Adding and subtracting this rounds to the nearest integer, which meanwhile lies in the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const LN_2: [f64; 2] = [f64::from_bits(0x3fe6_2e42_fee0_0000), f64::from_bits(0x3dea_39ef_3579_3c76)];
    let kept = x.max(-708.0);
    let whole = kept * std::f64::consts::LOG2_E + ROUND;
    let n = whole - ROUND;
    let r = kept - n * LN_2[0] - n * LN_2[1];
    // Taylor series: |r| <= ln 2 / 2, whose 14th power over 14! is below 2^-53 of the result.
    let mut sum = 1.0 / 6_227_020_800.0;
    for term in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum * r + term;
    }
    let power = f64::from_bits((whole.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
    if x < -708.0 { 0.0 } else { sum * power }
}

/// Number of logit intervals in a draw from all tokens, and intervals per unit of logit over temperature.
const INTERVALS: usize = 2048;
const FINENESS: f64 = 64.0;

/// Draws from all tokens, the likeliest first, without sorting them: weights are summed by intervals of logits, and
/// only the interval in which the number falls is sorted. `None` where rounding could decide, as in [`drawn_of_few`].
fn drawn_of_all(logits: &[f32], scale: Scale, how: &Draw) -> Option<usize> {
    // Ascends as the logit descends, whatever the rounding. The sum with 2^52 has an integer in its lowest bits.
    let interval = |logit: f32| {
        let place = (scale.exponent(logit) * -FINENESS).min((INTERVALS - 1) as f64);
        (place + 4_503_599_627_370_496.0).to_bits() as u32
    };
    let mut sums = [0.0; INTERVALS];
    let (whole, rest) = logits.as_chunks::<16>();
    for some in whole.iter().map(<[f32; 16]>::as_slice).chain([rest]) {
        let (mut weights, mut places) = ([0.0; 16], [0; 16]);
        for ((logit, weight), place) in some.iter().zip(&mut weights).zip(&mut places) {
            (*weight, *place) = (scale.weight(*logit), interval(*logit));
        }
        for (weight, place) in weights.iter().zip(places).take(some.len()) {
            sums[place as usize] += weight;
        }
    }
    let total: f64 = sums.iter().sum();
    let doubt = doubt(total, logits.len());
    let mut left = uniform(how.seed, how.drawn) * total;
    let found = sums.iter().position(|sum| {
        left -= sum;
        left <= doubt
    })?;
    left += sums[found];
    if left <= doubt {
        return None;
    }
    let among = |(_, logit): &(usize, &f32)| interval(**logit) == found as u32;
    let mut keys: Vec<u64> = logits.iter().enumerate().filter(among).map(key).collect();
    keys.sort_unstable();
    for key in keys {
        let id = id(key);
        left -= scale.weight(logits[id]);
        if left.abs() <= doubt {
            return None;
        }
        if left < 0.0 {
            return Some(id);
        }
    }
    None
}

/// Bound on the rounding error: a sum of n numbers, in any order, is within n units of rounding, and so are n
/// differences from it.
fn doubt(total: f64, count: usize) -> f64 {
    total * count as f64 * (8.0 * f64::EPSILON)
}

/// The index of the drawn weight.
fn drawn_weight(weights: &[f64], how: &Draw) -> Option<usize> {
    let total: f64 = weights.iter().sum();
    let mut left = uniform(how.seed, how.drawn) * total;
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    let last = weights.iter().rposition(|weight| *weight > 0.0)?;
    Some(chosen.unwrap_or(last))
}

/// Draws from the few tokens that are kept; `None` where rounding could decide.
fn drawn_of_few(ranked: &mut Ranked, (logits, scale): (&[f32], Scale), how: &Draw) -> Option<usize> {
    let weights = weights_of_few(ranked, (logits, scale), how)?;
    ranked.id(drawn_weight(&weights, how)?)
}

/// Weights of the kept tokens, by rank.
fn weights_in_order(ranked: &mut Ranked, (logits, scale): (&[f32], Scale), how: &Draw) -> Vec<f64> {
    let weigh = |id: usize| scale.weight(logits[id]);
    let mut weights: Vec<f64> =
        (0..ranked.keys.len()).filter_map(|rank| ranked.id(rank)).map(weigh).collect();
    keep_top_p(&mut weights, how.top_p);
    // The largest weight is one, because the top logit was subtracted.
    weights.retain(|weight| *weight >= how.min_p);
    weights
}

/// The same without sorting tokens too unlikely to matter, which are most of a row. The total is summed in any order
/// here, with different rounding; `None` where that could decide.
fn weights_of_few(ranked: &mut Ranked, (logits, scale): (&[f32], Scale), how: &Draw) -> Option<Vec<f64>> {
    let weigh = |id: usize| scale.weight(logits[id]);
    let count = ranked.keys.len();
    let total = if count == logits.len() {
        scale.total(logits)
    } else {
        (0..count).map(|at| weigh(ranked.at(at))).sum()
    };
    let doubt = doubt(total, count);
    let (mut weights, mut sum) = (Vec::new(), 0.0);
    for rank in 0..count {
        let weight = weigh(ranked.id(rank)?);
        // Later weights are at most this one, except for the rounding of exponentials.
        if weight < how.min_p * (1.0 - 1e-9) {
            break;
        }
        weights.push(weight);
        sum += weight;
        if how.top_p < 1.0 {
            let over = sum - how.top_p * total;
            if over.abs() <= doubt {
                return None;
            }
            if over > 0.0 {
                break;
            }
        }
    }
    weights.retain(|weight| *weight >= how.min_p);
    Some(weights)
}

/// Sort key: ascends as the logit descends and, among equals, with the token.
fn key((id, logit): (usize, &f32)) -> u64 {
    let bits = logit.to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | id as u64
}

/// The token of a key.
fn id(key: u64) -> usize {
    key as u32 as usize
}

/// Tokens, the most likely first and the first of equals; sorted only as far as needed.
struct Ranked {
    /// Keys, ascending: by descending logit, with the token in the low bits.
    keys: Vec<u64>,
    sorted: usize,
}

impl Ranked {
    fn new(logits: &[f32]) -> Ranked {
        Ranked { keys: logits.iter().enumerate().map(key).collect(), sorted: 0 }
    }

    /// Keeps only the first `count`.
    fn keep(&mut self, count: usize) {
        if count < self.keys.len() {
            self.keys.select_nth_unstable(count - 1);
            self.keys.truncate(count);
            self.sorted = self.sorted.min(count);
        }
    }

    /// A token by position, in no particular order.
    fn at(&self, at: usize) -> usize {
        id(self.keys[at])
    }

    /// The token at a rank.
    fn id(&mut self, rank: usize) -> Option<usize> {
        while rank >= self.sorted && self.sorted < self.keys.len() {
            let count = (3 * self.sorted).max(256).min(self.keys.len() - self.sorted);
            let rest = &mut self.keys[self.sorted..];
            if count < rest.len() {
                rest.select_nth_unstable(count - 1);
            }
            rest[..count].sort_unstable();
            self.sorted += count;
        }
        (rank < self.keys.len()).then(|| self.at(rank))
    }
}

/// Drops the tail beyond the smallest set whose share reaches `p`; weights are in descending order.
fn keep_top_p(weights: &mut Vec<f64>, p: f64) {
    if p >= 1.0 {
        return;
    }
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let reached = weights.iter().position(|weight| {
        sum += weight;
        sum >= p * total
    });
    weights.truncate(reached.map_or(weights.len(), |last| last + 1));
}

/// Sets weights of atypical tokens to zero.
fn keep_typical(weights: &mut [f64], typical_p: f64) {
    if typical_p >= 1.0 {
        return;
    }
    let total: f64 = weights.iter().sum();
    let surprise = |weight: &f64| -(weight / total).ln();
    let entropy: f64 = weights.iter().filter(|w| **w > 0.0).map(|w| w / total * surprise(w)).sum();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    let apart = |at: &usize| (surprise(&weights[*at]) - entropy).abs();
    order.sort_by(|a, b| apart(a).total_cmp(&apart(b)));
    let mut sum = 0.0;
    let reached = order.iter().position(|at| {
        sum += weights[*at];
        sum >= typical_p * total
    });
    let kept = reached.map_or(order.len(), |last| last + 1);
    order[kept..].iter().for_each(|at| weights[*at] = 0.0);
}

/// A number in [0, 1) from a key and a counter (SplitMix64's finaliser, Steele et al., 2014).
pub fn uniform(seed: u64, counter: u64) -> f64 {
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The column chosen from a row of logits; -1 if there is no choice.
pub fn of_row(logits: &[f32], draw: Option<&Draw>) -> i32 {
    draw.map_or_else(|| largest(logits), |draw| drawn(logits, draw)).map_or(-1, |id| id as i32)
}

/// The columns for rows of `vocab` logits each.
pub(crate) fn of_rows(logits: &[f32], vocab: usize, draws: &[Option<Draw>]) -> Vec<i32> {
    logits.chunks_exact(vocab).zip(draws).map(|(logits, draw)| of_row(logits, draw.as_ref())).collect()
}

/// The bit masks of all rows, one after another.
pub(crate) fn kept_of_rows(logits: &[f32], vocab: usize, draws: &[Option<Draw>]) -> Vec<u8> {
    let mut all = vec![0; draws.len() * kept_bytes(vocab)];
    let rows = logits.chunks_exact(vocab).zip(draws).zip(all.chunks_exact_mut(kept_bytes(vocab)));
    rows.for_each(|((logits, draw), bits)| kept(logits, draw.as_ref(), bits));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference: sorts all tokens and computes all weights; returns the token and the kept ones.
    fn by_order(logits: &[f32], how: &Draw) -> Option<(usize, Vec<usize>)> {
        largest(logits)?;
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        if how.top_k > 0 {
            order.truncate(how.top_k);
        }
        let top = f64::from(logits[order[0]]);
        let weigh = |id: &usize| exp((f64::from(logits[*id]) - top) / how.temperature);
        let mut weights: Vec<f64> = order.iter().map(weigh).collect();
        keep_top_p(&mut weights, how.top_p);
        weights.retain(|weight| *weight >= how.min_p);
        let id = order[drawn_weight(&weights, how)?];
        order.truncate(weights.len());
        Some((id, order))
    }

    #[test]
    fn a_part_of_the_order_is_enough() {
        let mut quick = 0;
        let mut check = |logits: &[f32], how: &Draw| {
            let want = by_order(logits, how);
            assert_eq!(
                drawn(logits, how),
                want.as_ref().map(|(id, _)| *id),
                "{} logits, {how:?}",
                logits.len()
            );
            let mut bits = vec![0xff; kept_bytes(logits.len())];
            kept(logits, Some(how), &mut bits);
            let keeps = |id: &usize| bits[id / 8] >> (id % 8) & 1 == 1;
            let mut order = want.map_or_else(Vec::new, |(_, order)| order);
            order.sort_unstable();
            assert_eq!((0..8 * bits.len()).filter(keeps).collect::<Vec<_>>(), order, "{how:?}");
            let top = f64::from(logits[largest(logits).expect("numbers")]);
            let scale = Scale { top, temperature: how.temperature };
            let mut ranked = Ranked::new(logits);
            ranked.keep(if how.top_k > 0 { how.top_k } else { logits.len() });
            let all = how.top_k == 0 && how.top_p >= 1.0 && how.min_p <= 0.0;
            let found = if all {
                drawn_of_all(logits, scale, how)
            } else {
                drawn_of_few(&mut ranked, (logits, scale), how)
            };
            quick += usize::from(found.is_some());
        };
        let mut cases = 0;
        for (count, spread, steps) in
            [(1, 1.0, 0.0), (5, 2.0, 0.0), (300, 8.0, 2.0), (5000, 12.0, 0.0), (5000, 6.0, 4.0)]
        {
            for seed in 0..6 {
                // With steps, many logits are equal, including zeros of both signs; some are masked.
                let logit = |at: usize| {
                    let x = (uniform(seed, at as u64) - 0.7) * spread;
                    let x = if steps > 0.0 { (x * steps).round() / steps } else { x };
                    if at % 97 == 50 { f32::NEG_INFINITY } else { x as f32 }
                };
                let logits: Vec<f32> = (0..count).map(logit).collect();
                for temperature in [0.3, 1.0, 1.7] {
                    for (top_k, top_p, min_p) in [
                        (0, 1.0, 0.0),
                        (1, 1.0, 0.0),
                        (40, 1.0, 0.0),
                        (0, 0.9, 0.0),
                        (300, 0.999, 0.02),
                        (0, 1.0, 0.1),
                        (0, 1e-3, 1.0),
                        (100_000, 0.5, 0.0),
                    ] {
                        for drawn in 0..4 {
                            cases += 1;
                            check(&logits, &Draw { temperature, top_k, top_p, min_p, seed, drawn });
                        }
                    }
                }
            }
        }
        assert!(quick * 10 > cases * 9, "{quick} of {cases} without all of the order");
        // A share that is met exactly, so that rounding decides.
        let how = Draw { temperature: 1.0, top_k: 0, top_p: 0.5, min_p: 0.0, seed: 1, drawn: 0 };
        for number in 0..50 {
            let how = Draw { drawn: number, ..how };
            assert_eq!(drawn(&[0.0; 8], &how), by_order(&[0.0; 8], &how).map(|(id, _)| id));
        }
    }

    #[test]
    fn there_is_no_choice_without_numbers() {
        let draw = Draw { temperature: 1.0, top_k: 0, top_p: 0.9, min_p: 0.0, seed: 3, drawn: 0 };
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in 0..3 {
                let mut logits = [1.0, 2.0, f32::NEG_INFINITY, 0.5];
                logits[at] = bad;
                assert_eq!((largest(&logits), drawn(&logits, &draw)), (None, None), "{logits:?}");
            }
        }
        let none = [f32::NEG_INFINITY; 4];
        assert_eq!((largest(&none), drawn(&none, &draw), largest(&[])), (None, None, None));
        // The first of equals at any position, including zeros of both signs.
        for (count, at) in (1..70).flat_map(|count| (0..count).map(move |at| (count, at))) {
            let mut logits = vec![-0.5; count];
            logits[at..].fill(0.0);
            logits[at] = -0.0;
            assert_eq!(largest(&logits), Some(at), "{count} logits");
            logits[at] = f32::NAN;
            assert_eq!(largest(&logits), None, "{count} logits");
        }
        let some = [f32::NEG_INFINITY, 2.0];
        assert_eq!((largest(&some), drawn(&some, &draw)), (Some(1), Some(1)));
        assert_eq!(of_rows(&[1.0, 2.0, f32::NAN, 0.0], 2, &[None; 2]), [1, -1]);
    }

    #[test]
    fn powers_of_e() {
        let mut worst: f64 = 0.0;
        for at in 0..200_000 {
            let x = -(f64::from(at) / 200_000.0).powi(3) * 707.9;
            worst = worst.max((exp(x) / x.exp() - 1.0).abs());
        }
        assert!(worst < 4.0 * f64::EPSILON, "{worst}");
        assert_eq!([0.0, -0.0, -709.0, f64::NEG_INFINITY].map(exp), [1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn draws_by_runs() {
        let draw = Draw { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 3, drawn: 7 };
        let of = |drawn| Some(Draw { drawn, ..draw });
        let found: Vec<_> = runs(&[None, None, of(7), of(8), of(10), of(10), None]).collect();
        assert_eq!(found, [(0..2, None), (2..4, of(7)), (4..5, of(10)), (5..6, of(10)), (6..7, None)]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
