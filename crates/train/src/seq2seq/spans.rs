//! Span corruption (Raffel et al., arXiv 1910.10683, section 3.1.4; the rule of `random_spans_noise_mask` in T5's
//! `preprocessors.py`).

use fathom_text::Rng;

/// Sizes of the spans that are dropped from a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpanSizes {
    /// Share of the tokens that are dropped.
    pub share: f64,
    /// Mean number of tokens of a span; at least 1.
    pub mean: f64,
}

/// Numbers of dropped tokens, and of spans, of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanCounts {
    pub dropped: usize,
    pub spans: usize,
}

impl SpanSizes {
    /// Counts of a text of `tokens` tokens; 0 of one that is too short for both. Products and quotients are rounded as T5's f32
    /// are: halves to even.
    pub(super) fn counts(self, tokens: usize) -> SpanCounts {
        if tokens < 2 {
            return SpanCounts { dropped: 0, spans: 0 };
        }
        let dropped = (tokens as f32 * self.share as f32).round_ties_even() as usize;
        let dropped = dropped.clamp(1, tokens - 1);
        let spans = (dropped as f32 / self.mean as f32).round_ties_even() as usize;
        SpanCounts { dropped, spans: spans.clamp(1, dropped.min(tokens - dropped)) }
    }

    /// Number of spans of a text.
    pub(crate) fn spans(self, tokens: usize) -> usize {
        self.counts(tokens).spans
    }

    /// Most tokens of the source and of the target of `docs` documents with `tokens` tokens together. A text of L has, with halves of
    /// rounding, a source of at most `L - share L (1 - 1/mean) + 2.5` and a target of at most `share L (1 + 1/mean) + 4`.
    pub(super) fn most(self, tokens: usize, docs: usize) -> [usize; 2] {
        let (tokens, dropped) = (tokens as f64, self.share * tokens as f64);
        let source = tokens - dropped * (1.0 - 1.0 / self.mean);
        let target = dropped * (1.0 + 1.0 / self.mean);
        [source.ceil() as usize + 3 * docs, target.ceil() as usize + 4 * docs]
    }

    /// A text without the spans that a random choice drops, and those spans; `sentinels` are in their place in order, and before each.
    ///
    /// # Panics
    /// If there are fewer sentinels than spans.
    #[track_caller]
    pub(super) fn corrupt(self, text: &[i32], sentinels: &[i32], rng: &mut Rng) -> [Vec<i32>; 2] {
        let SpanCounts { dropped, spans } = self.counts(text.len());
        let dropped_lengths = lengths(dropped, spans, rng);
        let other_lengths = lengths(text.len() - dropped, spans, rng);
        cut(text, [&other_lengths, &dropped_lengths], sentinels)
    }
}

/// Lengths above 0 of `parts` parts of `items` items, each choice as likely as the others: the items at which parts begin are
/// shuffled, except the first.
fn lengths(items: usize, parts: usize, rng: &mut Rng) -> Vec<usize> {
    let mut begins: Vec<bool> = (1..items).map(|item| item < parts).collect();
    rng.shuffle(&mut begins);
    parted(&begins, items)
}

/// Lengths of parts by whether each item but the first begins one.
fn parted(begins: &[bool], items: usize) -> Vec<usize> {
    let mut lengths = if items > 0 { vec![1] } else { Vec::new() };
    for begins in begins {
        match lengths.last_mut() {
            Some(length) if !begins => *length += 1,
            _ => lengths.push(1),
        }
    }
    lengths
}

/// A text in parts that alternate, the first of which stays.
#[track_caller]
fn cut(text: &[i32], [stay, drop]: [&[usize]; 2], sentinels: &[i32]) -> [Vec<i32>; 2] {
    let (mut source, mut target, mut rest) = (Vec::new(), Vec::new(), text);
    if drop.is_empty() {
        return [text.to_vec(), target];
    }
    for ((stay, drop), sentinel) in stay.iter().zip(drop).zip(sentinels) {
        let (kept, more) = rest.split_at(*stay);
        let (dropped, more) = more.split_at(*drop);
        source.extend(kept);
        source.push(*sentinel);
        target.push(*sentinel);
        target.extend(dropped);
        rest = more;
    }
    assert!(rest.is_empty(), "spans: {} of {} have sentinels", sentinels.len().min(drop.len()), drop.len());
    [source, target]
}

#[cfg(test)]
mod tests {
    use super::*;

    const T5: SpanSizes = SpanSizes { share: 0.15, mean: 3.0 };

    fn sentinels(number: usize) -> Vec<i32> {
        (0..number as i32).map(|at| 32_099 - at).collect()
    }

    /// Inputs and targets of T5's own functions for given choices (`oracle/spans.py`).
    #[test]
    fn inputs_and_targets_are_those_of_t5_s_functions() {
        let cases: Vec<serde_json::Value> =
            serde_json::from_str(include_str!("../../../../tests/golden_spans.json")).unwrap();
        assert!(cases.len() >= 30);
        for case in cases {
            let ints = |key: &str| serde_json::from_value::<Vec<i32>>(case[key].clone()).unwrap();
            let flags = |key: &str| ints(key).iter().map(|flag| *flag != 0).collect::<Vec<bool>>();
            let sizes =
                SpanSizes { share: case["share"].as_f64().unwrap(), mean: case["mean"].as_f64().unwrap() };
            let text = ints("text");
            let SpanCounts { dropped, spans } = sizes.counts(text.len());
            let of_both = [("stay", text.len() - dropped), ("drop", dropped)]
                .map(|(key, items)| (flags(key), items))
                .map(|(begins, items)| {
                    assert_eq!(begins.len(), items - 1, "{} {sizes:?}", text.len());
                    parted(&begins, items)
                });
            assert_eq!(of_both.each_ref().map(Vec::len), [spans; 2]);
            let [stay, drop] = of_both.each_ref().map(Vec::as_slice);
            let [source, target] = cut(&text, [stay, drop], &sentinels(spans));
            assert_eq!([source, target], [ints("inputs"), ints("targets")], "{} {sizes:?}", text.len());
        }
    }

    #[test]
    fn five_hundred_and_twelve_inputs_have_one_hundred_and_fourteen_targets() {
        let SpanCounts { dropped, spans } = T5.counts(568);
        assert_eq!((dropped, spans), (85, 28));
        assert_eq!([568 - dropped + spans + 1, dropped + spans + 1], [512, 114]);
        assert_eq!(T5.counts(1), SpanCounts { dropped: 0, spans: 0 });
        assert_eq!(T5.counts(2), SpanCounts { dropped: 1, spans: 1 });
    }

    #[test]
    fn sources_and_targets_give_back_the_text() {
        let mut rng = Rng::keyed(&[3]);
        for length in (0..200).chain([568, 2048]) {
            for sizes in [T5, SpanSizes { share: 0.5, mean: 8.0 }, SpanSizes { share: 0.8, mean: 1.0 }] {
                let text: Vec<i32> = (0..length).map(|at| at * 3 % 1000).collect();
                let SpanCounts { dropped, spans } = sizes.counts(text.len());
                let [source, target] = sizes.corrupt(&text, &sentinels(spans), &mut rng);
                assert_eq!([source.len(), target.len()], [text.len() - dropped + spans, dropped + spans]);
                let mut back = Vec::new();
                for id in &source {
                    match target.iter().position(|other| other == id && *id > 1000) {
                        Some(at) => back.extend(target[at + 1..].iter().take_while(|id| **id <= 1000)),
                        None => back.push(*id),
                    }
                }
                assert_eq!(back, text);
                assert!(source.first().is_none_or(|first| *first <= 1000), "a text begins with what stays");
            }
        }
    }

    #[test]
    fn streams_never_outgrow_their_room() {
        for share in [0.01, 0.15, 0.3, 0.5, 0.9, 1.0] {
            for mean in [1.0, 1.5, 3.0, 8.0, 64.0] {
                let sizes = SpanSizes { share, mean };
                for length in (0..300).chain([568, 1999, 4096]) {
                    let SpanCounts { dropped, spans } = sizes.counts(length);
                    let [source, target] = sizes.most(length, 1);
                    let found = [length - dropped + spans + 1, dropped + spans + 1];
                    assert!(found[0] <= source && found[1] <= target, "{sizes:?} {length} {found:?}");
                }
            }
        }
    }

    #[test]
    fn every_choice_of_lengths_is_as_likely() {
        let (mut rng, mut counts) = (Rng::keyed(&[5]), std::collections::BTreeMap::new());
        for _ in 0..6000 {
            *counts.entry(lengths(5, 3, &mut rng)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
