//! Figures of answers: those of sacreBLEU, rouge-score and scikit-learn, means, perplexities, and their standard errors.

pub mod aggregate;
pub mod bleu;
pub mod chrf;
pub mod classes;
pub mod exact;
pub mod mathematics;
pub mod overlap;
pub mod rankings;
pub mod rouge;
pub mod score;
pub mod similar;
pub mod summary;
pub mod ter;

use std::collections::HashMap;

/// How often each item occurs.
pub(crate) fn counted<T: std::hash::Hash + Eq>(items: impl Iterator<Item = T>) -> HashMap<T, usize> {
    let mut counts = HashMap::new();
    items.for_each(|item| *counts.entry(item).or_default() += 1);
    counts
}

/// Sum of the smaller counts of items in both.
pub(crate) fn shared<T: std::hash::Hash + Eq>(a: &HashMap<T, usize>, b: &HashMap<T, usize>) -> usize {
    a.iter().filter_map(|(item, count)| b.get(item).map(|other| *count.min(other))).sum()
}
