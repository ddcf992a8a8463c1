//! Drawing documents from weighted sources up to a target size.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::permutation::Permutation;
use crate::error::Error;

/// Unit of the weights and of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Documents, as NeMo Curator's `blend_datasets`.
    #[default]
    Documents,
    /// Bytes of text.
    Bytes,
    /// Tokens, which no stage knows: `tokenize` is the last.
    #[schemars(skip)]
    Tokens,
}

/// How sources are blended. Uses the same unit as the sizes of the sources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlendOptions {
    /// Unit of the weights and the target.
    pub unit: Unit,
    /// Size of the blend in that unit; drawing stops with the document that reaches it. Zero draws each source of
    /// positive weight exactly once, in the blend's order, and `repeat` has no effect.
    pub target: u64,
    /// Restarts a source that has run out. Otherwise the source leaves the blend and the others continue by their
    /// weights.
    pub repeat: bool,
    /// Shuffles each source, with a different order in each repetition.
    pub shuffle: bool,
    /// Seed of the shuffle.
    pub seed: u64,
}

impl Default for BlendOptions {
    fn default() -> Self {
        Self { unit: Unit::Documents, target: 0, repeat: true, shuffle: true, seed: 0 }
    }
}

/// Sizes of a source's documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes<'a> {
    /// This many documents of size one.
    Ones(u64),
    /// Size of each document, in units.
    Each(&'a [u64]),
}

impl Sizes<'_> {
    fn documents(self) -> u64 {
        match self {
            Sizes::Ones(count) => count,
            Sizes::Each(sizes) => sizes.len() as u64,
        }
    }

    fn of(self, document: u64) -> u64 {
        match self {
            Sizes::Ones(_) => 1,
            Sizes::Each(sizes) => sizes[document as usize],
        }
    }
}

/// One source of a blend.
#[derive(Clone, Debug)]
pub struct BlendSource<'a> {
    /// Name used in messages.
    pub name: String,
    /// Relative weight. Nothing is drawn from a source of weight zero.
    pub weight: f64,
    /// Sizes of its documents.
    pub sizes: Sizes<'a>,
}

/// One document drawn into the blend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Draw {
    /// Index of the source, in the order given.
    pub source: usize,
    /// Index of the document within its source.
    pub document: u64,
    /// Number of complete passes over the source before this one.
    pub copy: u64,
}

/// Iterator over the documents of a blend, in order.
///
/// Each document comes from the source whose share so far falls shortest of its weight: the largest `weight x
/// max(drawn in all, 1) - drawn`, ties going to the first source. Megatron's `build_blending_indices` uses the same
/// rule for samples; here `drawn` is in the unit of the blend.
#[derive(Clone, Debug)]
pub struct Blend<'a> {
    options: BlendOptions,
    sources: Vec<State<'a>>,
    total: u64,
}

#[derive(Clone, Debug)]
struct State<'a> {
    /// Share of the whole; all shares sum to one. Zero once the source has left the blend.
    weight: f64,
    sizes: Sizes<'a>,
    drawn: u64,
    next: u64,
    copy: u64,
    order: Option<Permutation>,
}

impl<'a> Blend<'a> {
    /// Prepares a blend.
    ///
    /// # Errors
    /// No source has a positive weight; a weight is negative or NaN; a source of positive weight has no documents, or
    /// only documents of size zero.
    pub fn new(options: BlendOptions, sources: &[BlendSource<'a>]) -> Result<Self, Error> {
        let refuse = |found: String, advice: &str| {
            Err(Error::Setting { key: "weights", found, advice: advice.to_owned() })
        };
        for BlendSource { name, weight, sizes } in sources {
            if !weight.is_finite() || *weight < 0.0 {
                return refuse(format!("{weight} for {name}"), "a weight is a number, zero or above");
            }
            let empty = (0..sizes.documents()).all(|document| sizes.of(document) == 0);
            if *weight > 0.0 && empty {
                let found = format!("{weight} for {name}, which holds nothing");
                return refuse(found, "give it documents, or weight zero");
            }
        }
        let sum: f64 = sources.iter().map(|source| source.weight).sum();
        if sum.is_nan() || sum <= 0.0 || !sum.is_finite() {
            return refuse(format!("{sum} over all sources"), "give at least one source a weight above zero");
        }
        let sources = sources.iter().map(|source| State {
            weight: source.weight / sum,
            sizes: source.sizes,
            drawn: 0,
            next: 0,
            copy: 0,
            order: None,
        });
        let mut blend = Self { options, sources: sources.collect(), total: 0 };
        (0..blend.sources.len()).for_each(|source| blend.reorder(source));
        Ok(blend)
    }

    /// Units drawn so far.
    pub fn drawn(&self) -> u64 {
        self.total
    }

    /// Remaining draws of each document, by source and document: sufficient for a single pass over the sources when a
    /// later shuffle decides the order.
    pub fn copies(self) -> Vec<Vec<u32>> {
        let mut copies: Vec<Vec<u32>> =
            self.sources.iter().map(|source| vec![0; source.sizes.documents() as usize]).collect();
        for draw in self {
            let count = &mut copies[draw.source][draw.document as usize];
            *count = count.saturating_add(1);
        }
        copies
    }

    fn reorder(&mut self, number: usize) {
        let source = &mut self.sources[number];
        source.order = self.options.shuffle.then(|| {
            Permutation::keyed(source.sizes.documents(), &[self.options.seed, number as u64, source.copy])
        });
    }

    fn shortest(&self) -> Option<usize> {
        let total = self.total.max(1) as f64;
        let open = self.sources.iter().enumerate().filter(|(_, source)| source.weight > 0.0);
        open.map(|(number, source)| (number, source.weight * total - source.drawn as f64))
            .reduce(|best, other| if other.1 > best.1 { other } else { best })
            .map(|(number, _)| number)
    }

    /// Handles a source that was drawn completely: restarts it or removes it from the blend.
    fn ran_out(&mut self, number: usize) {
        let source = &mut self.sources[number];
        source.next = 0;
        source.copy += 1;
        if self.options.repeat && self.options.target > 0 {
            self.reorder(number);
            return;
        }
        self.sources[number].weight = 0.0;
        let left: f64 = self.sources.iter().map(|source| source.weight).sum();
        if left > 0.0 {
            self.sources.iter_mut().for_each(|source| source.weight /= left);
        }
    }
}

impl Iterator for Blend<'_> {
    type Item = Draw;

    fn next(&mut self) -> Option<Draw> {
        if self.options.target > 0 && self.total >= self.options.target {
            return None;
        }
        let number = self.shortest()?;
        let source = &mut self.sources[number];
        let document = source.order.as_ref().map_or(source.next, |order| order.at(source.next));
        let draw = Draw { source: number, document, copy: source.copy };
        let size = source.sizes.of(document);
        source.drawn = source.drawn.saturating_add(size);
        self.total = self.total.saturating_add(size);
        source.next += 1;
        if source.next == source.sizes.documents() {
            self.ran_out(number);
        }
        Some(draw)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed helper is a failed test.

    use super::*;
    use proptest::prelude::*;

    fn source(weight: f64, sizes: Sizes<'_>) -> BlendSource<'_> {
        BlendSource { name: "one".into(), weight, sizes }
    }

    fn counts(target: u64, sources: &[(f64, u64)]) -> Vec<u64> {
        let options = BlendOptions { target, ..BlendOptions::default() };
        let sources: Vec<_> = sources.iter().map(|&(w, n)| source(w, Sizes::Ones(n))).collect();
        let mut counts = vec![0; sources.len()];
        Blend::new(options, &sources).unwrap().for_each(|draw| counts[draw.source] += 1);
        counts
    }

    /// Test cases of NeMo Curator 0.x.
    #[test]
    fn curators_cases() {
        assert_eq!(counts(3, &[(1.0, 3)]), [3]);
        assert_eq!(counts(2, &[(0.5, 2), (0.5, 2)]), [1, 1]);
        assert_eq!(counts(2, &[(2.0, 2), (2.0, 2)]), [1, 1]);
        assert_eq!(counts(4, &[(3.0, 2), (1.0, 2)]), [3, 1]);
        assert_eq!(counts(4, &[(1.0, 2), (0.0, 2)]), [4, 0]);
        assert_eq!(counts(4, &[(0.0, 2), (1.0, 2)]), [0, 4]);
    }

    /// Example from Megatron's `datasets/readme.md`.
    #[test]
    fn megatrons_order() {
        let options = BlendOptions { target: 4, ..BlendOptions::default() };
        let sources = [0.5, 0.25, 0.25].map(|weight| source(weight, Sizes::Ones(10)));
        let order: Vec<usize> = Blend::new(options, &sources).unwrap().map(|draw| draw.source).collect();
        assert_eq!(order, [0, 1, 2, 0]);
    }

    #[test]
    fn sources_repeat_or_leave() {
        let sources = [source(1.0, Sizes::Ones(2)), source(1.0, Sizes::Ones(5))];
        let draws = |repeat, target| {
            let options = BlendOptions { target, repeat, shuffle: false, ..BlendOptions::default() };
            Blend::new(options, &sources).unwrap().collect::<Vec<_>>()
        };
        let repeated = draws(true, 10);
        assert_eq!(repeated.len(), 10);
        assert_eq!(repeated.iter().filter(|draw| draw.source == 0).map(|draw| draw.copy).max(), Some(2));
        for all in [draws(false, 10), draws(true, 0)] {
            let mut places: Vec<_> = all.iter().map(|draw| (draw.source, draw.document)).collect();
            places.sort_unstable();
            assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]);
        }
    }

    #[test]
    fn impossible_blends_are_named() {
        let refused =
            |sources: &[BlendSource]| Blend::new(BlendOptions::default(), sources).unwrap_err().to_string();
        assert!(refused(&[]).contains("weight above zero"));
        assert!(refused(&[source(-1.0, Sizes::Ones(1))]).contains("-1 for one"));
        assert!(refused(&[source(f64::NAN, Sizes::Ones(1))]).contains("NaN for one"));
        assert!(refused(&[source(1.0, Sizes::Each(&[0, 0]))]).contains("holds nothing"));
        assert!(refused(&[source(0.0, Sizes::Ones(1))]).contains("weight above zero"));
    }

    proptest! {
        #[test]
        fn shares_follow_the_weights_within_a_document(
            sizes in prop::collection::vec(prop::collection::vec(1u64..50, 1..20), 1..5),
            weights in prop::collection::vec(0.1f64..1.0, 5),
            target in 1u64..3000,
        ) {
            let sources: Vec<_> =
                sizes.iter().zip(&weights).map(|(sizes, &weight)| source(weight, Sizes::Each(sizes))).collect();
            let sum: f64 = sources.iter().map(|source| source.weight).sum();
            let options = BlendOptions { unit: Unit::Bytes, target, ..BlendOptions::default() };
            let mut blend = Blend::new(options, &sources).unwrap();
            let mut drawn = vec![0; sources.len()];
            for draw in blend.by_ref() {
                drawn[draw.source] += sizes[draw.source][draw.document as usize];
            }
            prop_assert!(blend.drawn() >= target && blend.drawn() < target + 50);
            for (source, drawn) in sources.iter().zip(&drawn) {
                let wanted = source.weight / sum * blend.drawn() as f64;
                prop_assert!((wanted - *drawn as f64).abs() <= 50.0 * sources.len() as f64);
            }
            let again = Blend::new(BlendOptions { unit: Unit::Bytes, target, ..BlendOptions::default() }, &sources);
            let copies: u64 = again.unwrap().copies().iter().zip(&sizes).map(|(copies, sizes)| {
                copies.iter().zip(sizes).map(|(&copies, &size)| u64::from(copies) * size).sum::<u64>()
            }).sum();
            prop_assert_eq!(copies, blend.drawn());
        }
    }
}
