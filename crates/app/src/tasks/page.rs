//! Comparison of results: a table, and a page with error bars.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use fathom_eval::tasks::compare::{Candidate, Comparison, compare, shown, table};
use serde_json::{Map, Value};

use super::next_to;
use crate::error::{Context, Result, refuse};

/// Width of the page's bars in pixels.
const WIDTH: f64 = 420.0;
/// Height of a bar with its gap.
const ROW: f64 = 22.0;
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;\
                     color-scheme:light dark}table{border-collapse:collapse;width:100%}td,th{text-align:left;\
                     padding:.2rem .6rem;border-bottom:1px solid #8884;font-variant-numeric:tabular-nums}\
                     .wide{overflow-x:auto}svg{max-width:100%}h2{margin-top:2rem}text{font-size:12px;fill:currentColor}";

/// Compares files of results with the first one, and writes a page if `out` is given. Returns the table.
///
/// # Errors
/// Files that are no results; results of different items or limits.
pub fn compared(files: &[PathBuf], out: Option<&Path>) -> Result<String> {
    let candidates: Vec<Candidate> = files.iter().map(|file| candidate(file)).collect::<Result<_>>()?;
    let all = compare(&candidates)?;
    if let Some(out) = out {
        fathom_base::files::write(out, page(&candidates, &all).as_bytes())?;
    }
    Ok(table(&candidates, &all))
}

/// A file of results with the items that were logged next to it.
fn candidate(file: &Path) -> Result<Candidate> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let Ok(Value::Object(results)) = serde_json::from_slice(&text) else {
        refuse!("{}: is no file of results (`fathom eval --tasks .. --out FILE`)", file.display());
    };
    let Some(tasks) = results.get("n-samples").and_then(Value::as_object) else {
        refuse!("{}: has no `n-samples`, so it is no file of results", file.display());
    };
    let mut samples = BTreeMap::new();
    for task in tasks.keys() {
        let log = next_to(file, &format!("_samples_{}.jsonl", task.replace(['/', ':'], "_")));
        let Ok(text) = std::fs::read_to_string(&log) else { continue };
        let rows = text.lines().map(serde_json::from_str).collect::<serde_json::Result<Vec<Value>>>();
        samples.insert(task.clone(), rows.with_context(|| format!("cannot read {}", log.display()))?);
    }
    let name = file
        .file_stem()
        .map_or_else(|| file.display().to_string(), |stem| stem.to_string_lossy().into_owned());
    Ok(Candidate { name, results, samples })
}

fn page(candidates: &[Candidate], all: &[Comparison]) -> String {
    let mut body = String::new();
    let limit = candidates[0].results.get("config").and_then(|config| config["limit"].as_f64());
    if let Some(limit) = limit {
        _ = write!(
            body,
            "<p><strong>Limited to {limit} items per task.</strong> The figures are of a part of the items.</p>"
        );
    }
    body += "<p>Bars show figures with one standard error. A difference is to the first model: paired over items where \
             their answers were logged, else of two independent figures; p is the probability of one at least as large \
             between equal models.</p>";
    for row in all {
        let better = match row.higher_is_better {
            Some(true) => ", higher is better",
            Some(false) => ", lower is better",
            None => "",
        };
        _ = write!(body, "<h2>{} <small>{}{better}</small></h2>", escaped(&row.task), escaped(&row.metric));
        body += &bars(candidates, row);
        body += "<div class=wide><table><tr><th>model<th>figure<th>difference<th>p</tr>";
        for (at, (candidate, figure)) in candidates.iter().zip(&row.figures).enumerate() {
            let difference = at.checked_sub(1).and_then(|at| row.differences[at]);
            let [mean, p] = difference.map_or_else(Default::default, |it| {
                let pairing = if it.paired { "" } else { " (unpaired)" };
                [format!("{:+.4} ± {:.4}{pairing}", it.mean, it.error), format!("{:.3}", it.p)]
            });
            let name = escaped(&candidate.name);
            _ = write!(body, "<tr><td>{name}<td>{}<td>{mean}<td>{p}</tr>", shown(*figure));
        }
        body += "</table></div>";
    }
    body += &by_language(candidates);
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Comparison</title><style>{STYLE}</style><h1>Comparison</h1>{body}</html>\n"
    )
}

/// A table of each set with a row for each language and a column for each candidate; empty without languages.
fn by_language(candidates: &[Candidate]) -> String {
    let of = |candidate: &Candidate| candidate.results.get("languages").and_then(Value::as_object).cloned();
    let all: Vec<Map<String, Value>> = candidates.iter().map(|it| of(it).unwrap_or_default()).collect();
    let members =
        |value: &Value| value.as_object().into_iter().flatten().map(|it| it.0.clone()).collect::<Vec<_>>();
    let sets: BTreeSet<String> =
        all.iter().flat_map(|languages| languages.values().flat_map(members)).collect();
    let mut body = String::new();
    for set in sets {
        let of_set = |languages: &Map<String, Value>| {
            languages
                .iter()
                .filter(|(_, sets)| sets.get(&set).is_some())
                .map(|(name, _)| name.clone())
                .collect::<Vec<_>>()
        };
        let names: BTreeSet<String> = all.iter().flat_map(of_set).collect();
        let heads: String = candidates.iter().map(|it| format!("<th>{}", escaped(&it.name))).collect();
        _ = write!(
            body,
            "<h2>{} <small>by language</small></h2><div class=wide><table><tr><th>language{heads}</tr>",
            escaped(&set)
        );
        for name in &names {
            _ = write!(body, "<tr><td>{}", escaped(name));
            for languages in &all {
                // The first metric is the one that the set is known by.
                let figures = languages.get(name).and_then(|sets| sets.get(&set)).and_then(Value::as_object);
                let first = figures.and_then(|figures| figures.iter().next());
                let value = first.and_then(|(metric, value)| {
                    Some((value.as_f64()?, figures?.get(&format!("{metric}_stderr")).and_then(Value::as_f64)))
                });
                _ = write!(body, "<td>{}", shown(value));
            }
            body += "</tr>";
        }
        body += "</table></div>";
    }
    body
}

/// A bar per candidate, from 0 or the lowest figure to the highest end of an error bar.
fn bars(candidates: &[Candidate], row: &Comparison) -> String {
    let ends = row.figures.iter().flatten().map(|(value, error)| value + error.unwrap_or(0.0));
    let most = ends.fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| (value / most).clamp(0.0, 1.0) * WIDTH;
    let mut svg = format!(
        "<svg width={} height={} role=img aria-label=\"figures with standard errors\">",
        WIDTH + 180.0,
        ROW * candidates.len() as f64
    );
    for (at, (candidate, figure)) in candidates.iter().zip(&row.figures).enumerate() {
        let Some((value, error)) = figure else { continue };
        let (top, middle) = (ROW * at as f64 + 3.0, ROW * at as f64 + ROW / 2.0);
        let (error, height) = (error.unwrap_or(0.0), ROW - 6.0);
        _ = write!(
            svg,
            "<rect y={top:.1} width={:.1} height={height:.1} fill=#5b8def opacity=.6 />",
            x(*value)
        );
        let [from, to] = [value - error, value + error].map(x);
        _ = write!(svg, "<path d=\"M{from:.1} {middle:.1}H{to:.1}\" stroke=currentColor stroke-width=2 />");
        let name = escaped(&candidate.name);
        _ = write!(svg, "<text x={:.1} y={:.1}>{name}</text>", WIDTH + 8.0, middle + 4.0);
    }
    svg + "</svg>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
