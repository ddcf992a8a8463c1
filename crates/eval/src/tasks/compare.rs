//! Results of several models on the same items: differences with standard errors, and paired tests over items.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::metrics::aggregate::{deviation, mean};

/// Results of one model, as they were written.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name to show.
    pub name: String,
    /// The file of the results.
    pub results: Map<String, Value>,
    /// Logged items by task, if they were written.
    pub samples: BTreeMap<String, Vec<Value>>,
}

/// A figure of all candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Task or group.
    pub task: String,
    /// Metric, and the filter if it is not the usual one.
    pub metric: String,
    /// Whether more is better.
    pub higher_is_better: Option<bool>,
    /// Per candidate the figure and its standard error.
    pub figures: Vec<Option<(f64, Option<f64>)>>,
    /// Per candidate after the first, its difference to the first.
    pub differences: Vec<Option<Difference>>,
}

/// A difference of two figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The difference to the first candidate.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
    /// Probability of one at least as large if the models were equal (normal approximation, two sides).
    pub p: f64,
    /// True if it is that of the same items; otherwise of two independent figures.
    pub paired: bool,
}

/// Compares candidates with the first one.
///
/// # Errors
/// Fewer than two candidates; results of other items, or of another limit.
pub fn compare(candidates: &[Candidate]) -> Result<Vec<Comparison>> {
    let Some((first, others)) = candidates.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Err(Error::Impossible("a comparison needs the results of at least two models".into()));
    };
    others.iter().try_for_each(|other| same_items(first, other))?;
    let mut all = Vec::new();
    for (task, figures) in first.results.get("results").and_then(Value::as_object).into_iter().flatten() {
        for key in figures.as_object().into_iter().flatten().map(|(key, _)| key) {
            let Some((metric, filter)) =
                key.split_once(',').filter(|(metric, _)| !metric.ends_with("_stderr"))
            else {
                continue;
            };
            let figure = |of: &Candidate| {
                let figures = &of.results["results"].get(task)?;
                let error = figures.get(format!("{metric}_stderr,{filter}")).and_then(Value::as_f64);
                Some((figures.get(key)?.as_f64()?, error))
            };
            let figures: Vec<Option<(f64, Option<f64>)>> = candidates.iter().map(figure).collect();
            let differences = others.iter().zip(&figures[1..]).map(|(other, own)| {
                paired([first, other], task, metric, filter).or_else(|| unpaired(figures[0], *own))
            });
            let differences = differences.collect();
            let better =
                first.results.get("higher_is_better").and_then(|all| all.get(task)?.get(metric)?.as_bool());
            let shown = if filter == "none" { metric.to_string() } else { format!("{metric} ({filter})") };
            all.push(Comparison {
                task: task.clone(),
                metric: shown,
                higher_is_better: better,
                figures,
                differences,
            });
        }
    }
    Ok(all)
}

/// Refuses results that are not of the same items.
fn same_items(first: &Candidate, other: &Candidate) -> Result<()> {
    let limit = |of: &Candidate| {
        of.results.get("config").and_then(|config| config.get("limit")).cloned().unwrap_or_default()
    };
    let (a, b) = (limit(first), limit(other));
    if a != b {
        return Err(Error::Impossible(format!(
            "{} was limited to {a} items and {} to {b}: their figures are of different items; run one again with the \
             limit of the other",
            first.name, other.name
        )));
    }
    let of = |candidate: &Candidate, key: &str, task: &str| {
        candidate.results.get(key).and_then(|all| all.get(task)).cloned()
    };
    for task in
        first.results.get("n-samples").and_then(Value::as_object).into_iter().flatten().map(|(task, _)| task)
    {
        for key in ["n-samples", "n-shot", "task_hashes"] {
            let (a, b) = (of(first, key, task), of(other, key, task));
            if let (Some(a), Some(b)) = (a, b)
                && a != b
            {
                let what = match key {
                    "n-samples" => "numbers of items",
                    "n-shot" => "numbers of examples",
                    _ => "items or prompts",
                };
                return Err(Error::task(
                    task,
                    format!("{} and {} have different {what}: {a} and {b}", first.name, other.name),
                ));
            }
        }
    }
    Ok(())
}

/// The difference over the items that both have logged.
fn paired(of: [&Candidate; 2], task: &str, metric: &str, filter: &str) -> Option<Difference> {
    let values = |candidate: &Candidate| -> Option<BTreeMap<u64, f64>> {
        let samples = candidate.samples.get(task)?.iter().filter(|sample| sample["filter"] == filter);
        samples.map(|sample| Some((sample["doc_id"].as_u64()?, sample.get(metric)?.as_f64()?))).collect()
    };
    let [a, b] = of.map(values);
    let (a, b) = (a?, b?);
    let differences: Vec<f64> = a.iter().filter_map(|(id, value)| Some(b.get(id)? - value)).collect();
    if differences.len() < 2 || differences.len() != a.len() || a.len() != b.len() {
        return None;
    }
    let error = deviation(&differences) / (differences.len() as f64).sqrt();
    Some(Difference {
        mean: mean(&differences),
        error,
        p: two_sided(mean(&differences), error),
        paired: true,
    })
}

fn unpaired(a: Option<(f64, Option<f64>)>, b: Option<(f64, Option<f64>)>) -> Option<Difference> {
    let ((a, a_error), (b, b_error)) = (a?, b?);
    let error = a_error?.hypot(b_error?);
    Some(Difference { mean: b - a, error, p: two_sided(b - a, error), paired: false })
}

/// Probability of a deviation at least as large under a normal distribution.
fn two_sided(difference: f64, error: f64) -> f64 {
    match () {
        () if difference == 0.0 => 1.0,
        () if error == 0.0 => 0.0,
        () => erfc((difference / error).abs() / std::f64::consts::SQRT_2),
    }
}

/// Complementary error function for x >= 0, to 1.2e-7 (Press et al., Numerical Recipes, 6.2.2).
fn erfc(x: f64) -> f64 {
    const TERMS: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let t = 1.0 / (1.0 + 0.5 * x);
    t * (-x * x + TERMS.iter().rev().fold(0.0, |sum, term| sum * t + term)).exp()
}

/// The comparison as a table in Markdown.
pub fn table(candidates: &[Candidate], all: &[Comparison]) -> String {
    let mut out = String::from("| task | metric |");
    candidates.iter().for_each(|it| out += &format!(" {} |", it.name));
    candidates[1..].iter().for_each(|it| out += &format!(" {} against {} |", it.name, candidates[0].name));
    out += &format!("\n|{}\n", "---|".repeat(1 + 2 * candidates.len()));
    for row in all {
        out += &format!("| {} | {} |", row.task, row.metric);
        row.figures.iter().for_each(|figure| out += &format!(" {} |", shown(*figure)));
        for difference in &row.differences {
            out += &match difference {
                Some(it) => format!(
                    " {:+.4} ± {:.4}, p {:.3}{} |",
                    it.mean,
                    it.error,
                    it.p,
                    if it.paired { "" } else { ", unpaired" }
                ),
                None => " |".to_string(),
            };
        }
        out.push('\n');
    }
    out
}

/// A figure with its standard error.
pub fn shown(figure: Option<(f64, Option<f64>)>) -> String {
    match figure {
        Some((value, Some(error))) => format!("{value:.4} ± {error:.4}"),
        Some((value, None)) => format!("{value:.4}"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn candidate(name: &str, right: &[u8], limit: Value) -> Candidate {
        let mean = right.iter().map(|it| f64::from(*it)).sum::<f64>() / right.len() as f64;
        let results = json!({
            "results": {"t": {"acc,none": mean, "acc_stderr,none": 0.1}}, "config": {"limit": limit},
            "n-samples": {"t": {"original": 9, "effective": right.len()}}, "higher_is_better": {"t": {"acc": true}},
        });
        let samples = right
            .iter()
            .enumerate()
            .map(|(id, it)| json!({"doc_id": id, "filter": "none", "acc": it}))
            .collect();
        let samples = [("t".to_string(), samples)].into_iter().collect();
        Candidate { name: name.into(), results: results.as_object().unwrap().clone(), samples }
    }

    #[test]
    fn differences_are_paired_over_items() {
        let (a, b) = (
            candidate("a", &[0, 0, 1, 1, 0, 1], json!(null)),
            candidate("b", &[1, 0, 1, 1, 1, 1], json!(null)),
        );
        let found = compare(&[a.clone(), b.clone()]).unwrap().remove(0);
        let difference = found.differences[0].unwrap();
        assert!((difference.mean - 1.0 / 3.0).abs() < 1e-12 && difference.paired);
        assert!((difference.error - 0.210_818_510_677_892).abs() < 1e-12);
        assert!((difference.p - 0.113_846).abs() < 1e-5, "{}", difference.p);
        let alone = Candidate { samples: BTreeMap::new(), ..b };
        assert!(!compare(&[a.clone(), alone]).unwrap()[0].differences[0].unwrap().paired);
        assert!(
            table(&[a.clone(), a.clone()], &compare(&[a.clone(), a]).unwrap())
                .contains("+0.0000 ± 0.0000, p 1.000")
        );
    }

    #[test]
    fn results_of_different_limits_or_items_are_refused() {
        let full = candidate("full", &[0, 1, 1], json!(null));
        let message =
            compare(&[full.clone(), candidate("part", &[0, 1, 1], json!(3.0))]).unwrap_err().to_string();
        assert!(message.contains("full was limited to null") && message.contains("part to 3"), "{message}");
        let message =
            compare(&[full.clone(), candidate("other", &[0, 1], json!(null))]).unwrap_err().to_string();
        assert!(message.contains("numbers of items"), "{message}");
        assert!(compare(&[full]).is_err());
    }
}
