//! BLEU as `sacrebleu.corpus_bleu` computes it: tokenizer 13a, orders 1 to 4, exponential smoothing.

use std::collections::HashMap;

use super::counted;
use crate::python::words;

/// Largest order of n-grams.
const ORDERS: usize = 4;

/// Counts of a segment, or of several that are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BleuCounts {
    length: usize,
    reference_length: usize,
    right: [usize; ORDERS],
    total: [usize; ORDERS],
}

impl BleuCounts {
    /// Counts of an answer against its references.
    pub fn of(answer: &str, references: &[String]) -> BleuCounts {
        let answer = tokens(answer);
        let mut best: HashMap<&[String], usize> = HashMap::new();
        let references: Vec<Vec<String>> = references.iter().map(|text| tokens(text)).collect();
        for reference in &references {
            for (gram, count) in counted((1..=ORDERS).flat_map(|n| reference.windows(n))) {
                let most = best.entry(gram).or_default();
                *most = count.max(*most);
            }
        }
        let near = |tokens: &Vec<String>| (tokens.len().abs_diff(answer.len()), tokens.len());
        let reference_length = references.iter().map(near).min().map_or(0, |(_, length)| length);
        let mut counts = BleuCounts { length: answer.len(), reference_length, ..BleuCounts::default() };
        for (gram, count) in counted((1..=ORDERS).flat_map(|n| answer.windows(n))) {
            counts.total[gram.len() - 1] += count;
            counts.right[gram.len() - 1] += count.min(best.get(gram).copied().unwrap_or(0));
        }
        counts
    }

    /// Adds the counts of another segment.
    pub fn add(&mut self, other: &BleuCounts) {
        self.length += other.length;
        self.reference_length += other.reference_length;
        for n in 0..ORDERS {
            self.right[n] += other.right[n];
            self.total[n] += other.total[n];
        }
    }

    /// The score, from 0 to 100.
    pub fn score(&self) -> f64 {
        if self.right.iter().all(|count| *count == 0) {
            return 0.0;
        }
        let (length, reference) = (self.length as f64, self.reference_length as f64);
        let brevity = match () {
            () if self.length >= self.reference_length => 1.0,
            () if self.length == 0 => 0.0,
            () => (1.0 - reference / length).exp(),
        };
        let (mut smooth, mut precisions) = (1.0, [0.0; ORDERS]);
        for n in 0..ORDERS {
            if self.total[n] == 0 {
                break;
            }
            precisions[n] = if self.right[n] == 0 {
                smooth *= 2.0;
                100.0 / (smooth * self.total[n] as f64)
            } else {
                100.0 * self.right[n] as f64 / self.total[n] as f64
            };
        }
        // sacreBLEU's logarithm of 0.
        let log = |precision: &f64| if *precision == 0.0 { -9_999_999_999.0 } else { precision.ln() };
        brevity * (precisions.iter().map(log).sum::<f64>() / ORDERS as f64).exp()
    }
}

/// Tokens of mteval-v13a.
pub fn tokens(text: &str) -> Vec<String> {
    let text = text.trim_end_matches(crate::python::is_space);
    let mut line = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if line.contains('&') {
        for (entity, sign) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
            line = line.replace(entity, sign);
        }
    }
    let mut marked = String::with_capacity(2 * line.len());
    for c in format!(" {line} ").chars() {
        let is_sign = matches!(c, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/');
        if is_sign { marked.extend([' ', c, ' ']) } else { marked.push(c) }
    }
    let digit = |c: char| c.is_ascii_digit();
    let stop = |c: char| c == '.' || c == ',';
    let marked = pairs(&marked, |a, b| !digit(a) && stop(b), |a, b| [a, ' ', b, ' '].iter().collect());
    let marked = pairs(&marked, |a, b| stop(a) && !digit(b), |a, b| [' ', a, ' ', b].iter().collect());
    let marked = pairs(&marked, |a, b| digit(a) && b == '-', |a, b| [a, ' ', b, ' '].iter().collect());
    words(&marked).map(str::to_string).collect()
}

/// Replaces pairs of neighbours that do not overlap, from the left.
fn pairs(text: &str, is: impl Fn(char, char) -> bool, with: impl Fn(char, char) -> String) -> String {
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut at) = (String::with_capacity(2 * text.len()), 0);
    while at < chars.len() {
        match chars.get(at + 1) {
            Some(next) if is(chars[at], *next) => {
                out.push_str(&with(chars[at], *next));
                at += 2;
            }
            _ => {
                out.push(chars[at]);
                at += 1;
            }
        }
    }
    out
}
