//! Labels of texts, of pairs of texts and of tokens, and scores that rank texts for a query: losses of a head with a
//! few numbers.

use crate::encoder::contrast::documents;
use crate::micro_batch::MicroBatch;
use crate::objective::{Answers, Objective, ObjectiveSum, Weigh, WeightedLoss};

/// Loss of the head's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelLoss {
    /// Cross-entropy of one of several labels.
    OneOf,
    /// Cross-entropy of each label, which is true or not.
    EachOf,
    /// Squared error of numbers.
    Number,
    /// Cross-entropy of one of several labels at each labelled token.
    Tokens,
    /// Logistic loss of each two texts of a query with different labels (RankNet: Burges et al., 2005).
    Pairs,
    /// Squared error of the distances between the first text's score and the others', from those of the labels
    /// (MarginMSE: Hofstätter et al., arXiv 2010.02666).
    Margin,
    /// Cross-entropy of the labels as a distribution over a query's texts (ListNet: Cao et al., 2007).
    Listwise,
}

/// The objective. Documents have the place where a pair's second text begins, and the values of their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelObjective {
    /// Its name in recipes.
    pub name: &'static str,
    /// The loss.
    pub loss: LabelLoss,
    /// Texts of a row, which are documents next to each other.
    pub group: usize,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `log(1 + exp(x))`.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The negative logarithm of a softmax at an index, and its derivatives.
fn cross_entropy(scores: &[f64], wanted: impl Fn(usize) -> f64) -> (f64, Vec<f64>) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    let log = |score: f64| score - most - sum.ln();
    let loss = scores.iter().enumerate().map(|(at, score)| -wanted(at) * log(*score)).sum();
    (loss, scores.iter().enumerate().map(|(at, score)| log(*score).exp() - wanted(at)).collect())
}

/// Index of the largest number; the first among equals.
fn largest(numbers: &[f64]) -> usize {
    (1..numbers.len()).fold(0, |best, at| if numbers[at] > numbers[best] { at } else { best })
}

/// A sum, its derivatives by the scores that were given, and a count of right answers with its divisor.
struct LossSum {
    loss: f64,
    by: Vec<f64>,
    right: [f64; 2],
}

impl LabelObjective {
    /// Judges a document by the numbers at its place.
    fn text(&self, scores: &[f64], labels: &[f32]) -> LossSum {
        match self.loss {
            LabelLoss::OneOf => {
                let label = labels[0] as usize;
                let (loss, by) = cross_entropy(scores, |at| f64::from(u8::from(at == label)));
                LossSum { loss, by, right: [f64::from(u8::from(largest(scores) == label)), 1.0] }
            }
            LabelLoss::EachOf => {
                let each = || scores.iter().zip(labels).map(|(score, label)| (*score, f64::from(*label)));
                let right = each().filter(|(score, label)| (*score > 0.0) == (*label > 0.5)).count();
                LossSum {
                    loss: each().map(|(score, label)| softplus(score) - label * score).sum(),
                    by: each().map(|(score, label)| sigmoid(score) - label).collect(),
                    right: [right as f64, scores.len() as f64],
                }
            }
            _ => {
                let errors: Vec<f64> =
                    scores.iter().zip(labels).map(|(score, label)| score - f64::from(*label)).collect();
                LossSum {
                    loss: errors.iter().map(|error| error * error).sum(),
                    by: errors.iter().map(|error| 2.0 * error).collect(),
                    right: [errors.iter().map(|error| error.abs()).sum(), errors.len() as f64],
                }
            }
        }
    }

    /// Judges a query's texts by their scores.
    fn list(&self, scores: &[f64], labels: &[f64]) -> LossSum {
        let best = largest(labels);
        let right = [f64::from(u8::from(largest(scores) == best)), 1.0];
        let (mut loss, mut by) = (0.0, vec![0.0; scores.len()]);
        match self.loss {
            LabelLoss::Listwise => {
                let sum: f64 = labels.iter().sum();
                (loss, by) = cross_entropy(scores, |at| labels[at] / sum);
            }
            LabelLoss::Margin => {
                let others = (scores.len() - 1).max(1) as f64;
                for other in 1..scores.len() {
                    let error = scores[0] - scores[other] - (labels[0] - labels[other]);
                    loss += error * error / others;
                    by[0] += 2.0 * error / others;
                    by[other] -= 2.0 * error / others;
                }
            }
            _ => {
                let pairs = (0..scores.len()).flat_map(|a| (0..scores.len()).map(move |b| (a, b)));
                let pairs: Vec<(usize, usize)> = pairs.filter(|(a, b)| labels[*a] > labels[*b]).collect();
                for (better, worse) in &pairs {
                    let far = scores[*better] - scores[*worse];
                    loss += softplus(-far) / pairs.len() as f64;
                    let slope = -sigmoid(-far) / pairs.len() as f64;
                    by[*better] += slope;
                    by[*worse] -= slope;
                }
            }
        }
        LossSum { loss, by, right }
    }

    /// Labelled tokens of a stream with the label of each. Weights are stored one position earlier, and are the label
    /// plus one.
    fn tokens(micro: &MicroBatch) -> impl Iterator<Item = (usize, f32)> + '_ {
        let places = documents(micro).flat_map(|doc| doc.start..doc.end.max(doc.start + 1) - 1);
        let weight = move |at: usize| micro.weights.get(at).copied().unwrap_or(0.0);
        places.filter(move |at| weight(*at) > 0.0).map(move |at| (at + 1, weight(at) - 1.0))
    }

    fn is_of_lists(&self) -> bool {
        matches!(self.loss, LabelLoss::Pairs | LabelLoss::Margin | LabelLoss::Listwise)
    }
}

impl Objective for LabelObjective {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Number of texts, queries, or labelled tokens.
    fn count(&self, micro: &MicroBatch) -> f64 {
        match self.loss {
            LabelLoss::Tokens => LabelObjective::tokens(micro).count() as f64,
            _ if self.is_of_lists() => (micro.facts.documents() / self.group) as f64,
            _ => micro.facts.documents() as f64,
        }
    }

    fn terms(&self) -> Vec<WeightedLoss> {
        Vec::new()
    }

    fn weigh(&self) -> Option<&dyn Weigh> {
        Some(self)
    }

    /// The second text of a pair has the second type.
    fn types(&self, micro: &MicroBatch) -> Option<Vec<i32>> {
        let mut types = vec![0; micro.ids.len()];
        for (index, doc) in documents(micro).enumerate() {
            let second = doc.start + (micro.facts.of(index)[0] as usize).min(doc.len());
            types[second..doc.end].fill(1);
        }
        Some(types)
    }
}

impl Weigh for LabelObjective {
    fn metrics(&self) -> &[&'static str] {
        match self.loss {
            LabelLoss::Number => &["absolute_error"],
            _ => &["accuracy"],
        }
    }

    fn scores(&self) -> bool {
        true
    }

    fn weigh(&self, answers: &Answers<'_>) -> ObjectiveSum {
        let micro = answers.micro;
        let width = answers.scores.len() / micro.ids.len().max(1);
        let mut sum = ObjectiveSum { scores: vec![0.0; answers.scores.len()], ..ObjectiveSum::default() };
        let mut right = [0.0; 2];
        let mut take = |places: &[usize], judged: LossSum| {
            sum.loss += judged.loss;
            for (by, place) in judged.by.iter().zip(places) {
                sum.scores[*place] = *by as f32;
            }
            right = [right[0] + judged.right[0], right[1] + judged.right[1]];
        };
        let at = |place: usize| f64::from(answers.scores[place]);
        let numbers = |row: usize| -> Vec<usize> { (row * width..(row + 1) * width).collect() };
        let read = |places: &[usize]| -> Vec<f64> { places.iter().map(|place| at(*place)).collect() };
        if self.loss == LabelLoss::Tokens {
            let one = LabelObjective { loss: LabelLoss::OneOf, ..self.clone() };
            for (row, label) in LabelObjective::tokens(micro) {
                let places = numbers(row);
                take(&places, one.text(&read(&places), &[label]));
            }
        } else {
            let rows: Vec<usize> = documents(micro).map(|doc| answers.scored_row(&doc)).collect();
            for (first, rows) in rows.chunks_exact(self.group).enumerate() {
                let labels = |at: usize| &micro.facts.of(first * self.group + at)[1..];
                if self.is_of_lists() {
                    let places: Vec<usize> = rows.iter().map(|row| row * width).collect();
                    let labels: Vec<f64> = (0..rows.len()).map(|at| f64::from(labels(at)[0])).collect();
                    take(&places, self.list(&read(&places), &labels));
                    continue;
                }
                for (index, row) in rows.iter().enumerate() {
                    let places = numbers(*row);
                    take(&places, self.text(&read(&places), labels(index)));
                }
            }
        }
        sum.metrics = vec![right];
        sum
    }
}

#[cfg(test)]
mod tests {
    use fathom_text::pack::Facts;

    use super::*;

    /// Documents of three tokens with three numbers a token.
    fn micro(labels: &[&[f32]]) -> (MicroBatch, Vec<f32>) {
        let width = 1 + labels[0].len();
        let mut micro = MicroBatch { facts: Facts { width, values: Vec::new() }, ..MicroBatch::default() };
        for (doc, labels) in labels.iter().enumerate() {
            micro.ids.extend([1, 2, 3]);
            micro.docs.push(3 * doc..3 * doc + 3);
            micro.facts.values.extend([2.0].iter().chain(*labels));
            micro.weights.extend([2.0, 1.0, 0.0]);
        }
        let scores = (0..micro.ids.len() * 3).map(|at| ((at * 29 % 17) as f32 / 4.0 - 2.0).sin()).collect();
        (micro, scores)
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for (loss, labels) in [
            (LabelLoss::OneOf, &[&[2.0f32][..], &[0.0], &[1.0]][..]),
            (LabelLoss::EachOf, &[&[1.0, 0.0, 1.0], &[0.0, 0.0, 1.0]]),
            (LabelLoss::Number, &[&[0.5, -1.0, 2.0], &[0.0, 3.0, 1.0]]),
            (LabelLoss::Tokens, &[&[0.0], &[0.0]]),
            (LabelLoss::Pairs, &[&[1.0], &[0.0], &[0.5]]),
            (LabelLoss::Margin, &[&[1.0], &[0.0], &[0.5]]),
            (LabelLoss::Listwise, &[&[1.0], &[0.0], &[0.5]]),
        ] {
            let group = if matches!(labels.len(), 3) && loss != LabelLoss::OneOf { 3 } else { 1 };
            let of = LabelObjective { name: "test", loss, group };
            let (micro, scores) = micro(labels);
            let answers = |scores: &[f32]| {
                let answers = Answers { scores, at_first: true, ..Answers::of(&micro, &[]) };
                Weigh::weigh(&of, &answers)
            };
            let found = answers(&scores);
            assert!(found.scores.iter().any(|by| *by != 0.0), "{loss:?}");
            let mut moved = scores.clone();
            for at in 0..scores.len() {
                let mut ask = |by: f32| {
                    moved[at] = scores[at] + by;
                    answers(&moved).loss
                };
                let slope = (ask(1.0 / 128.0) - ask(-1.0 / 128.0)) * 64.0;
                moved[at] = scores[at];
                assert!((f64::from(found.scores[at]) - slope).abs() < 1e-3, "{loss:?} {at}: {slope}");
            }
        }
    }

    #[test]
    fn the_second_text_of_a_pair_has_the_second_type() {
        let (micro, _) = micro(&[&[0.0], &[0.0]]);
        let of = LabelObjective { name: "test", loss: LabelLoss::OneOf, group: 1 };
        assert_eq!(of.types(&micro).unwrap(), [0, 0, 1, 0, 0, 1]);
    }
}
