//! Vectors of texts that are compared with all others of a step (InfoNCE: van den Oord et al., arXiv 1807.03748;
//! Sentence-Transformers' `MultipleNegativesRankingLoss`).
//!
//! A row is an anchor, its positive and any number of negatives, which are documents next to each other. The loss of an
//! anchor is the cross-entropy of its positive among the positives and negatives of all rows, by the cosine of the angle
//! between vectors over a temperature. All vectors of a step are computed first, without gradients, and with them the
//! gradients by the vectors; the pass of a micro-batch then continues from its own (GradCache: Gao et al., arXiv
//! 2101.06983). So a step of any number of rows takes the memory of one micro-batch, besides the vectors.

use std::ops::Range;

use crate::micro_batch::{ContrastLosses, MicroBatch};
use crate::objective::{Answers, Compares, Objective, ObjectiveSum, Weigh, WeightedLoss};

/// From the rows of a text to its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The first.
    First,
    /// The last.
    Last,
}

/// The objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// Texts of a row: anchor, positive, negatives.
    pub group: usize,
    /// From rows to a vector.
    pub pooling: Pooling,
    /// Divides cosines.
    pub temperature: f64,
    /// Numbers of first columns that are compared, each with a loss of its own (Matryoshka: Kusupati et al., arXiv
    /// 2205.13147); empty for all columns.
    pub widths: Vec<usize>,
}

/// Keys of the documents with facts: equal for equal texts.
pub(crate) fn keys(micro: &MicroBatch) -> Vec<u64> {
    let hash = |hash: u64, id: &i32| {
        (hash ^ u64::from(id.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    documents(micro).map(|doc| micro.ids[doc].iter().fold(17, hash)).collect()
}

/// The documents with facts; a range that pads the stream has none.
pub(crate) fn documents(micro: &MicroBatch) -> impl Iterator<Item = Range<usize>> + '_ {
    micro.docs[..micro.facts.documents().min(micro.docs.len())].iter().cloned()
}

impl Pooling {
    /// Rows of a document with the weight of each.
    fn rows(self, doc: &Range<usize>) -> (Range<usize>, f32) {
        match self {
            Pooling::Mean => (doc.clone(), 1.0 / doc.len() as f32),
            Pooling::First => (doc.start..doc.start + 1, 1.0),
            Pooling::Last => (doc.end - 1..doc.end, 1.0),
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight sums, which the compiler keeps in a vector.
    let (heads, tails) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0f32; 8];
    for (a, b) in heads.0.iter().zip(tails.0) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    let rest: f32 = heads.1.iter().zip(tails.1).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

fn add(to: &mut [f32], from: &[f32], factor: f32) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

/// Vectors of length 1 over some columns, with the lengths before; vectors without a direction stay zero.
fn units(vectors: &[f32], columns: usize, width: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut all, mut lengths) = (Vec::with_capacity(vectors.len() / columns * width), Vec::new());
    for vector in vectors.chunks_exact(columns) {
        let length = dot(&vector[..width], &vector[..width]).sqrt();
        let by = if length > 0.0 { 1.0 / length } else { 0.0 };
        all.extend(vector[..width].iter().map(|x| x * by));
        lengths.push(length);
    }
    (all, lengths)
}

impl Contrast {
    /// Compares over the first `width` columns; adds to `all`.
    fn compare_width(
        &self,
        vectors: &[f32],
        keys: &[u64],
        (columns, width): (usize, usize),
        all: &mut ContrastLosses,
    ) {
        let (units, lengths) = units(vectors, columns, width);
        let unit = |doc: usize| &units[doc * width..(doc + 1) * width];
        let (group, docs) = (self.group, keys.len());
        let candidates: Vec<usize> = (0..docs).filter(|doc| !doc.is_multiple_of(group)).collect();
        let mut by_unit = vec![0f32; units.len()];
        let scale = 1.0 / self.temperature;
        for (row, anchor) in (0..docs).step_by(group).enumerate() {
            let positive = anchor + 1;
            // The positive's text in another row is no negative.
            let counts =
                |doc: usize| doc == positive || (keys[doc] != keys[positive] && keys[doc] != keys[anchor]);
            let scores: Vec<f64> = candidates
                .iter()
                .map(|doc| {
                    if counts(*doc) {
                        f64::from(dot(unit(anchor), unit(*doc))) * scale
                    } else {
                        f64::NEG_INFINITY
                    }
                })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
            let own = scores[candidates.partition_point(|doc| *doc < positive)];
            all.losses[row] += most + sum.ln() - own;
            all.hits[row] = own >= most;
            for (score, doc) in scores.iter().zip(&candidates) {
                let share = (score - most).exp() / sum - f64::from(u8::from(*doc == positive));
                let factor = (share * scale) as f32;
                if factor != 0.0 {
                    add(&mut by_unit[anchor * width..(anchor + 1) * width], unit(*doc), factor);
                    add(&mut by_unit[doc * width..(doc + 1) * width], unit(anchor), factor);
                }
            }
        }
        for doc in 0..docs {
            let gradient = &by_unit[doc * width..(doc + 1) * width];
            let along = dot(gradient, unit(doc));
            let by = if lengths[doc] > 0.0 { 1.0 / lengths[doc] } else { 0.0 };
            let to = &mut all.gradient[doc * columns..doc * columns + width];
            add(to, gradient, by);
            add(to, unit(doc), -along * by);
        }
    }
}

impl Compares for Contrast {
    fn vectors(&self, answers: &Answers<'_>) -> Vec<f32> {
        let columns = answers.scores.len() / answers.micro.ids.len().max(1);
        let of = |doc: Range<usize>| {
            let (rows, weight) = self.pooling.rows(&doc);
            let mut vector = vec![0f32; columns];
            answers.scores[rows.start * columns..rows.end * columns]
                .chunks_exact(columns.max(1))
                .for_each(|row| add(&mut vector, row, weight));
            vector
        };
        documents(answers.micro).flat_map(of).collect()
    }

    fn compare(&self, vectors: &[f32], keys: &[u64]) -> ContrastLosses {
        let (docs, rows) = (keys.len(), keys.len() / self.group);
        let mut all = ContrastLosses {
            losses: vec![0.0; rows],
            hits: vec![false; rows],
            gradient: vec![0.0; vectors.len()],
        };
        let Some(columns) = vectors.len().checked_div(docs) else { return all };
        let widths = if self.widths.is_empty() { vec![columns] } else { self.widths.clone() };
        for width in widths {
            self.compare_width(vectors, keys, (columns, width.min(columns)), &mut all);
        }
        all
    }
}

impl Objective for Contrast {
    fn name(&self) -> &'static str {
        "embed"
    }

    /// Number of rows.
    fn count(&self, micro: &MicroBatch) -> f64 {
        (micro.facts.documents() / self.group) as f64
    }

    fn terms(&self) -> Vec<WeightedLoss> {
        Vec::new()
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }
}

impl Weigh for Contrast {
    fn metrics(&self) -> &[&'static str] {
        &["accuracy"]
    }

    fn states(&self) -> bool {
        true
    }

    fn compares(&self) -> Option<&dyn Compares> {
        Some(self)
    }

    fn group(&self) -> usize {
        self.group
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let micro = answers.micro;
        let columns = answers.scores.len() / micro.ids.len().max(1);
        let own = || self.compare(&self.vectors(answers), &keys(micro));
        let compared = micro.compared.as_deref().cloned().unwrap_or_else(own);
        let mut scores = vec![0f32; answers.scores.len()];
        for (doc, gradient) in documents(micro).zip(compared.gradient.chunks_exact(columns.max(1))) {
            let (rows, weight) = self.pooling.rows(&doc);
            for row in rows {
                add(&mut scores[row * columns..(row + 1) * columns], gradient, weight);
            }
        }
        let hits = compared.hits.iter().filter(|hit| **hit).count() as f64;
        ObjectiveSum {
            loss: compared.losses.iter().sum(),
            scores,
            metrics: vec![[hits, compared.hits.len() as f64]],
            ..ObjectiveSum::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use fathom_text::pack::Facts;

    use super::*;

    const COLUMNS: usize = 12;

    fn micro(group: usize, rows: usize) -> (MicroBatch, Vec<f32>) {
        let mut micro = MicroBatch::default();
        for doc in 0..group * rows {
            let (start, tokens) = (micro.ids.len(), 2 + doc % 3);
            micro.ids.extend((0..tokens).map(|at| (doc * 7 + at) as i32));
            micro.docs.push(start..start + tokens);
        }
        micro.facts = Facts { width: 1, values: vec![0.0; group * rows] };
        let states =
            (0..micro.ids.len() * COLUMNS).map(|at| ((at * 37 % 101) as f32 / 50.0 - 1.0).sin()).collect();
        (micro, states)
    }

    fn ask(of: &Contrast, micro: &MicroBatch, states: &[f32]) -> ObjectiveSum {
        Weigh::weigh(of, &Answers { scores: states, ..Answers::of(micro, &[]) })
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        for (group, pooling, widths) in
            [(2, Pooling::Mean, vec![]), (3, Pooling::First, vec![12, 5]), (4, Pooling::Last, vec![3])]
        {
            let of = Contrast { group, pooling, temperature: 0.2, widths };
            let (micro, states) = micro(group, 3);
            let found = ask(&of, &micro, &states);
            let mut moved = states.clone();
            for at in (0..states.len()).step_by(5) {
                let mut loss = |by: f32| {
                    moved[at] = states[at] + by;
                    ask(&of, &micro, &moved).loss
                };
                let slope = (loss(1e-2) - loss(-1e-2)) / 2e-2;
                moved[at] = states[at];
                let own = f64::from(found.scores[at]);
                assert!((own - slope).abs() < 3e-3 * slope.abs().max(1.0), "{group} {at}: {own} {slope}");
            }
        }
    }

    #[test]
    fn a_micro_batch_without_rows_has_no_loss() {
        let of = Contrast { group: 2, pooling: Pooling::Mean, temperature: 0.05, widths: vec![] };
        let micro = MicroBatch { ids: vec![1; 4], docs: vec![0..2, 2..4], ..MicroBatch::default() };
        let found = ask(&of, &micro, &[1.0; 4 * COLUMNS]);
        assert!(found.loss == 0.0 && found.scores == [0.0; 4 * COLUMNS]);
    }

    #[test]
    fn rows_of_many_micro_batches_have_the_gradients_of_one() {
        let of = Contrast { group: 2, pooling: Pooling::Mean, temperature: 0.05, widths: vec![] };
        let (whole, states) = micro(2, 6);
        let one = ask(&of, &whole, &states);
        let vectors = Compares::vectors(&of, &Answers { scores: &states, ..Answers::of(&whole, &[]) });
        let all = Compares::compare(&of, &vectors, &keys(&whole));
        let (mut loss, mut scores) = (0.0, Vec::new());
        for docs in [0..4, 4..10, 10..12] {
            let (from, to) = (whole.docs[docs.start].start, whole.docs[docs.end - 1].end);
            let part = MicroBatch {
                ids: whole.ids[from..to].to_vec(),
                docs: whole.docs[docs.clone()].iter().map(|doc| doc.start - from..doc.end - from).collect(),
                facts: Facts { width: 1, values: vec![0.0; docs.len()] },
                compared: Some(std::sync::Arc::new(all.part(docs, (2, COLUMNS)))),
                ..MicroBatch::default()
            };
            let sum = ask(&of, &part, &states[from * COLUMNS..to * COLUMNS]);
            loss += sum.loss;
            scores.extend(sum.scores);
        }
        assert!((loss - one.loss).abs() < 1e-9 && scores == one.scores);
    }

    /// The loss by hand for two rows with given cosines.
    #[test]
    fn the_loss_is_the_cross_entropy_of_the_positive() {
        let of = Contrast { group: 2, pooling: Pooling::Mean, temperature: 0.5, widths: vec![] };
        let vectors = [1.0, 0.0, 0.6, 0.8, 0.0, 2.0, 0.8, 0.6];
        let found = Compares::compare(&of, &vectors, &[1, 2, 3, 4]);
        let expect = |own: f64, other: f64| ((2.0 * own).exp() + (2.0 * other).exp()).ln() - 2.0 * own;
        for (found, wanted) in found.losses.iter().zip([expect(0.6, 0.8), expect(0.6, 0.8)]) {
            assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
        }
        // The same text as the positive's is no negative.
        let alone = Compares::compare(&of, &vectors, &[1, 2, 3, 2]);
        assert!(alone.losses.iter().all(|loss| loss.abs() < 1e-9) && alone.hits == [true, true]);
    }
}
