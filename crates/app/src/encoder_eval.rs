//! Figures of encoders over local files: the correlation of cosines with judged similarity (STS), and the F1 of labels.

use std::path::{Path, PathBuf};

use fathom_base::{Describe, TextPair};
use fathom_retrieval::Encode;
use fathom_text::lessons::Rows;
use serde_json::Value;

use crate::error::{Error, Result, caught, refuse};
use crate::events::Events;
use crate::host::EncoderHost;
use crate::machine::Machine;

/// Keys of the two texts and of the judgement.
const PAIR: [[&str; 3]; 2] = [["sentence1", "text1", "anchor"], ["sentence2", "text2", "positive"]];
const SCORE: [&str; 3] = ["score", "label", "similarity"];

/// How well the cosines of vectors agree with judgements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// Correlation of ranks.
    pub spearman: f64,
    /// Linear correlation.
    pub pearson: f64,
    /// Number of pairs.
    pub pairs: usize,
}

/// How well labels are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelFigures {
    /// Mean of each label's F1, among labels that a text has or was given.
    pub macro_f1: f64,
    /// Share of right labels.
    pub accuracy: f64,
    /// Number of texts.
    pub texts: usize,
}

/// Measures the vectors of an encoder on pairs with judged similarity.
///
/// # Errors
/// No encoder of vectors there; a row without two texts and a number, by file and line.
pub fn similarity(model: &Path, file: &Path, machine: &Machine, events: &dyn Events) -> Result<Similarity> {
    let encoder = EncoderHost::open(model, None, machine, events)?.embedding()?;
    caught(|| {
        let (mut texts, mut judged) = (Vec::new(), Vec::new());
        each(file, &mut |row| {
            texts.push(text(row, &PAIR[0])?);
            texts.push(text(row, &PAIR[1])?);
            let score = SCORE.iter().find_map(|key| row.get(*key)).and_then(Value::as_f64);
            judged.push(score.ok_or("has no number `score`")?);
            Ok(())
        })?;
        let vectors = encoder.encode(&texts)?;
        let dot =
            |pair: &[Vec<f32>]| pair[0].iter().zip(&pair[1]).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let cosines: Vec<f64> = vectors.chunks_exact(2).map(dot).collect();
        let (spearman, pearson) =
            (correlation(&ranks(&cosines), &ranks(&judged)), correlation(&cosines, &judged));
        Ok(Similarity { spearman, pearson, pairs: judged.len() })
    })
}

/// Measures the labels of an encoder on texts with one label each.
///
/// # Errors
/// No encoder with labels there; a row without a text and one of its labels, by file and line.
pub fn labels(model: &Path, file: &Path, machine: &Machine, events: &dyn Events) -> Result<LabelFigures> {
    let encoder = EncoderHost::open(model, None, machine, events)?;
    caught(|| {
        let names = encoder.service()?.card().labels.clone();
        if names.len() < 2 {
            refuse!("{}: it has {} labels; at least two are needed", model.display(), names.len());
        }
        let (mut texts, mut wanted): (Vec<TextPair>, Vec<usize>) = (Vec::new(), Vec::new());
        each(file, &mut |row| {
            let first = text(row, &["text", "sentence", "sentence1"])?;
            let second = ["text_pair", "sentence2"].iter().find_map(|key| row.get(*key)?.as_str());
            texts.push((first, second.map(str::to_string)));
            let label = row.get("label").ok_or("has no `label`")?;
            let name = label.as_str().map_or_else(|| label.to_string(), str::to_string);
            let by_name = names.iter().position(|known| *known == name);
            let by_number = label.as_u64().map(|at| at as usize).filter(|at| *at < names.len());
            let unknown = || format!("has the label {label}, and the model {}", names.join(", "));
            wanted.push(by_name.or(by_number).ok_or_else(unknown)?);
            Ok(())
        })?;
        let found: Vec<usize> = encoder.classes(texts)?.iter().map(|row| largest(row)).collect();
        Ok(figures(&found, &wanted, names.len()))
    })
}

/// Calls `read` with each row of a file; a message that it gives is named with the row's place.
fn each(file: &Path, read: &mut dyn FnMut(&Value) -> std::result::Result<(), String>) -> Result<()> {
    let mut rows = Rows::open(file)?;
    let mut count = 0;
    while let Some(row) = rows.next() {
        let (row, line) = (row?, rows.line());
        let place = |reason| {
            let path: PathBuf = file.to_path_buf();
            Error::from(fathom_text::Error::Row { path, line, reason })
        };
        read(&row).map_err(place)?;
        count += 1;
    }
    if count == 0 {
        refuse!("{}: there is no row", file.display());
    }
    Ok(())
}

fn text(row: &Value, keys: &[&str]) -> std::result::Result<String, String> {
    let found = keys.iter().find_map(|key| row.get(*key)?.as_str());
    found.map(str::to_string).ok_or_else(|| format!("has no text `{}`", keys[0]))
}

/// Index of the largest number; the first among equals.
fn largest(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, at| if row[at] > row[best] { at } else { best })
}

/// Ranks from 1; equal numbers share the mean of theirs.
fn ranks(of: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..of.len()).collect();
    order.sort_by(|a, b| of[*a].total_cmp(&of[*b]));
    let mut ranks = vec![0.0; of.len()];
    for group in order.chunk_by(|a, b| of[*a] == of[*b]) {
        let first = order.partition_point(|at| of[*at] < of[group[0]]);
        let mean = first as f64 + (group.len() as f64 + 1.0) / 2.0;
        group.iter().for_each(|at| ranks[*at] = mean);
    }
    ranks
}

/// Pearson's correlation; 0 if one side does not vary.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum =
        |of: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(x, y)| of(x - mean_a, y - mean_b)).sum::<f64>();
    let spread = (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
    if spread > 0.0 { sum(&|x, y| x * y) / spread } else { 0.0 }
}

fn figures(found: &[usize], wanted: &[usize], labels: usize) -> LabelFigures {
    let pairs = || found.iter().zip(wanted);
    let f1 = |label: usize| {
        let right = pairs().filter(|(a, b)| **a == label && **b == label).count();
        let named = pairs().map(|(a, b)| usize::from(*a == label) + usize::from(*b == label)).sum::<usize>();
        (named > 0).then(|| 2.0 * right as f64 / named as f64)
    };
    let each: Vec<f64> = (0..labels).filter_map(f1).collect();
    let right = pairs().filter(|(a, b)| a == b).count();
    let texts = wanted.len();
    LabelFigures {
        macro_f1: each.iter().sum::<f64>() / each.len().max(1) as f64,
        accuracy: right as f64 / texts.max(1) as f64,
        texts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with SciPy's `spearmanr` and `pearsonr`, and scikit-learn's `f1_score`.
    #[test]
    fn figures_are_those_of_scipy_and_scikit_learn() {
        let (a, b) = ([0.1, 0.5, 0.5, 0.9, 0.3], [1.0, 2.0, 4.0, 5.0, 2.0]);
        assert!((correlation(&ranks(&a), &ranks(&b)) - 0.921_052_631_578_947_5).abs() < 1e-12);
        assert!((correlation(&a, &b) - 0.902_670_933_848_439_9).abs() < 1e-12);
        assert_eq!(ranks(&a), [1.0, 3.5, 3.5, 5.0, 2.0]);
        let found = figures(&[0, 1, 1, 2, 0], &[0, 1, 2, 2, 1], 4);
        assert!((found.macro_f1 - (2.0 / 3.0 + 0.5 + 2.0 / 3.0) / 3.0).abs() < 1e-12);
        assert!((found.accuracy - 0.6).abs() < 1e-12);
    }
}
