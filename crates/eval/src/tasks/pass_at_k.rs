//! The metric `pass@k`: its options, and its estimator.

use serde_json::Value;

use super::measure::Measure;
use crate::metrics::aggregate::ItemValue;

/// Name of the metric.
pub const PASS_AT_K: &str = "pass_at_k";

/// The metric of a task: `k`, and the `program` as a template over the row and its `answer`.
#[derive(Debug)]
pub struct PassAtK {
    counts: Vec<usize>,
    /// Template of the program.
    pub program: String,
}

impl PassAtK {
    /// The metric of these measures, if they have it.
    ///
    /// # Errors
    /// Invalid options; more answers than are made.
    pub fn of(measures: &[Measure], repeats: usize) -> std::result::Result<Option<PassAtK>, String> {
        let Some(measure) = measures.iter().find(|measure| measure.name == PASS_AT_K) else {
            return Ok(None);
        };
        let program = measure.options.get("program").and_then(Value::as_str);
        let program =
            program.ok_or("pass_at_k needs a `program`, a template over the row and its `answer`")?;
        let given = measure.options.get("k").cloned().unwrap_or_else(|| 1.into());
        let given = given.as_array().cloned().unwrap_or_else(|| vec![given]);
        let counts: Option<Vec<usize>> =
            given.iter().map(|k| k.as_u64().filter(|k| *k > 0).map(|k| k as usize)).collect();
        let counts =
            counts.filter(|counts| !counts.is_empty()).ok_or("`k` of pass_at_k is no number from 1 on")?;
        if let Some(most) = counts.iter().max().filter(|most| **most > repeats) {
            return Err(format!("pass@{most} needs as many answers, and `repeats` is {repeats}"));
        }
        Ok(Some(PassAtK { counts, program: program.to_string() }))
    }

    /// Figures of an item, of which these answers passed.
    pub fn values(&self, passed: &[bool]) -> impl Iterator<Item = (String, ItemValue)> {
        let (all, right) = (passed.len(), passed.iter().filter(|passed| **passed).count());
        self.counts.iter().map(move |k| (format!("pass@{k}"), ItemValue::Number(pass_at_k(all, right, *k))))
    }
}

/// Probability that one of `k` answers, drawn from `all` of which `right` pass, passes: `1 - C(all - right, k) / C(all,
/// k)`, the unbiased estimator of Chen et al. 2021.
pub fn pass_at_k(all: usize, right: usize, k: usize) -> f64 {
    if all - right < k {
        return 1.0;
    }
    1.0 - (all - right + 1..=all).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimator_counts_draws_without_replacement() {
        // 1 - C(n - c, k) / C(n, k) by hand: 1 - C(3, 2) / C(5, 2), 1 - C(9, 1) / C(10, 1).
        for ((all, right, k), expected) in
            [((5, 2, 2), 0.7), ((10, 1, 1), 0.1), ((4, 0, 3), 0.0), ((4, 2, 3), 1.0), ((1, 1, 1), 1.0)]
        {
            assert!((pass_at_k(all, right, k) - expected).abs() < 1e-12, "{all} {right} {k}");
        }
    }
}
