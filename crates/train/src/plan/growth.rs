//! Bytes per token: how the peak grows with the length, by the names of the live buffers.

use std::collections::BTreeMap;

use fathom_tensor::{Label, SUM_CHUNK};

use super::Draft;
use super::figures::Record;
use crate::error::Result;
use crate::in_step::InStep;

/// Growth of the peak per token of length.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Total bytes per token: `B` of the handbook.
    pub bytes: f64,
    /// The same by name, largest first; the entries add up to `bytes`.
    pub by_name: Vec<(String, f64)>,
}

impl Draft<'_> {
    /// The growth of the peak from half of the stage's length to all of it, by name, divided by the added tokens.
    /// Buffers of different layers with the same name are one entry, so values kept for every layer have larger
    /// figures.
    ///
    /// # Errors
    /// Those of [`Draft::workload`].
    pub fn growth(&self, how: &InStep) -> Result<Growth> {
        let long = self.workload()?;
        // Multiples of a chunk of addition, so that rounding to granules is not counted as growth.
        let half = (self.recipe.stage[self.index].seq_tokens / 2).next_multiple_of(SUM_CHUNK);
        let shorter = self.with_tokens(half);
        let short = shorter.workload()?;
        let tokens = long.tokens as f64 - short.tokens as f64;
        let mut rows = BTreeMap::<String, i64>::new();
        for (mut work, sign) in [(long, 1), (short, -1)] {
            work.how.places = how.places.clone();
            let (plan, marks) = work.run(Record::Peak)?;
            // Buffers allocated before the recorded step, such as staging buffers, are listed by category.
            for (category, bytes) in plan.usage.peak_by_category.iter() {
                *rows.entry(category.name().to_string()).or_default() += sign * bytes as i64;
            }
            for (label, bytes) in fathom_tensor::live_at_peak(&marks) {
                *rows.entry(name(&label)).or_default() += sign * bytes as i64;
                *rows.entry(label.category.name().to_string()).or_default() -= sign * bytes as i64;
            }
        }
        let mut by_name: Vec<(String, f64)> = rows
            .into_iter()
            .filter(|(_, bytes)| *bytes != 0)
            .map(|(name, bytes)| (name, bytes as f64 / tokens))
            .collect();
        by_name.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(Growth { bytes: by_name.iter().map(|(_, bytes)| bytes).sum(), by_name })
    }
}

fn name(label: &Label) -> String {
    if label.gradient { format!("d {}", label.name) } else { label.name.to_string() }
}
