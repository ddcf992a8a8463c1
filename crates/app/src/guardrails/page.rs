//! Pages about guardrails: an evaluation on an interaction set, a calibrated threshold, an audit by probes.

use fathom_guard::evaluation::{AuditReport, Calibration, EvaluationReport, ProbeOutcome, Rate};
use fathom_report::html::{Heading, document, row, table};
use fathom_report::plots::{Axis, BarGroup, Bars, LineChart, Mark, Series};

/// Misses and hits that are listed.
const LISTED: usize = 200;

/// Page of an evaluation.
pub fn evaluation_page(title: &str, report: &EvaluationReport) -> String {
    let latency = report.latency;
    let heading = Heading {
        brand: "guardrails".into(),
        title: title.into(),
        facts: vec![
            format!("{} interactions", report.interactions),
            format!("agreement {:.1} %", 100.0 * report.agreement.rate),
            format!("false refusals {:.1} %", 100.0 * report.false_refusals.rate),
            format!("median {:.2} ms", latency.p50_ms),
        ],
        source: "the interaction set".into(),
    };
    let rates = [
        ("as expected", report.agreement),
        ("blocked, of those to block", report.blocked),
        ("rewritten, of those to rewrite", report.rewritten),
        ("false refusals, of those to pass", report.false_refusals),
        ("with a rail that failed", report.failed),
    ];
    let kinds: Vec<(&str, Rate)> = report.kinds.iter().map(|(kind, rate)| (name(kind), *rate)).collect();
    let times = [
        ("50 %", latency.p50_ms),
        ("90 %", latency.p90_ms),
        ("99 %", latency.p99_ms),
        ("slowest", latency.max_ms),
    ];
    let times: Vec<Vec<String>> =
        times.iter().map(|(name, ms)| vec![name.to_string(), format!("{ms:.3}")]).collect();
    let sections = [
        ("rates", "Rates", rates_table(&rates)),
        ("kinds", "Kinds", rates_bars("Verdicts as expected", &kinds) + &rates_table(&kinds)),
        ("rails", "Rails", rails(report)),
        ("latency", "Latency", table(&["judgements within", "ms"], &times)),
        ("misses", "Other verdicts than expected", misses(report)),
    ];
    document(&heading, &sections)
}

fn name(kind: &str) -> &str {
    if kind.is_empty() { "(none)" } else { kind }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn rates_table(rates: &[(&str, Rate)]) -> String {
    let line = |(name, rate): &(&str, Rate)| {
        let interval = format!("{} to {}", percent(rate.low), percent(rate.high));
        vec![name.to_string(), percent(rate.rate), rate.hits.to_string(), rate.of.to_string(), interval]
    };
    let known = rates.iter().filter(|(_, rate)| rate.of > 0);
    table(&["", "rate", "hits", "of", "95 % interval"], &known.map(line).collect::<Vec<_>>())
}

fn rates_bars(title: &str, rates: &[(&str, Rate)]) -> String {
    if rates.len() < 2 {
        return String::new();
    }
    let group =
        |(name, rate): &(&str, Rate)| BarGroup { name: name.to_string(), values: vec![100.0 * rate.rate] };
    let bars = Bars {
        title: title.into(),
        note: String::new(),
        label: "%".into(),
        kinds: vec![("rate".into(), "s1".into())],
        groups: rates.iter().map(group).collect(),
    };
    row(&[bars.draw()])
}

fn rails(report: &EvaluationReport) -> String {
    let line = |(name, rates): (&String, &fathom_guard::evaluation::RailRates)| {
        let counts = [
            rates.true_positives,
            rates.false_positives,
            rates.true_negatives,
            rates.false_negatives,
            rates.failures,
        ];
        let mut cells = vec![name.clone()];
        cells.extend(counts.iter().map(ToString::to_string));
        cells
    };
    let head =
        ["rail", "acted, as expected", "acted on others", "passed, as expected", "passed others", "failed"];
    table(&head, &report.rails.iter().map(line).collect::<Vec<_>>())
}

fn misses(report: &EvaluationReport) -> String {
    if report.misses.is_empty() {
        return String::new();
    }
    let line = |miss: &fathom_guard::evaluation::Miss| {
        vec![
            miss.id.clone(),
            miss.kind.clone(),
            format!("{:?}", miss.expected).to_lowercase(),
            format!("{:?}", miss.decision).to_lowercase(),
            miss.rails.join(", "),
        ]
    };
    let lines: Vec<Vec<String>> = report.misses.iter().take(LISTED).map(line).collect();
    let more = report.misses.len().saturating_sub(LISTED);
    let note =
        if more > 0 { format!("<p class=\"note\">{more} more are not listed.</p>") } else { String::new() };
    table(&["interaction", "kind", "expected", "verdict", "rails"], &lines) + &note
}

/// Page of a calibrated threshold.
pub fn calibration_page(title: &str, found: &Calibration) -> String {
    let chosen = found.chosen.map_or("none".to_string(), |point| format!("{:.4}", point.threshold));
    let heading = Heading {
        brand: "guardrails".into(),
        title: title.into(),
        facts: vec![format!("threshold {chosen}"), format!("area under the curve {:.3}", found.area)],
        source: "labelled texts".into(),
    };
    let points = |y: fn(&fathom_guard::evaluation::CurvePoint) -> f64| {
        found.curve.iter().rev().map(|point| (point.threshold, 100.0 * y(point))).collect()
    };
    let series = |name: &str, class: &str, points| Series { name: name.into(), class: class.into(), points };
    let by_threshold = LineChart {
        title: "Rates by threshold".into(),
        note: "Texts with at least this score are condemned.".into(),
        size: (1060.0, 360.0),
        x: Axis::linear("threshold", ""),
        y: Axis::zero("rate [%]", " %"),
        series: vec![
            series("recall", "s1", points(|point| point.recall)),
            series("false positives", "s2", points(|point| point.false_positive_rate)),
        ],
        marks: found
            .chosen
            .map(|point| Mark { x: point.threshold, label: "chosen".into(), class: "stage" })
            .into_iter()
            .collect(),
        level: None,
    };
    let mut curve = vec![(0.0, 0.0)];
    curve.extend(found.curve.iter().map(|point| (100.0 * point.false_positive_rate, 100.0 * point.recall)));
    let operating = LineChart {
        title: "Recall by false positives".into(),
        note: String::new(),
        size: (520.0, 360.0),
        x: Axis::zero("false positives [%]", " %"),
        y: Axis::zero("recall [%]", " %"),
        series: vec![series("thresholds", "s1", curve)],
        marks: Vec::new(),
        level: None,
    };
    let rates = [("recall", found.recall), ("false positives", found.false_positives)];
    let sections = [
        ("chosen", "At the chosen threshold", rates_table(&rates)),
        ("thresholds", "Thresholds", row(&[by_threshold.draw()])),
        ("curve", "Curve", row(&[operating.draw()])),
    ];
    document(&heading, &sections)
}

/// Page of an audit.
pub fn audit_page(title: &str, report: &AuditReport) -> String {
    let heading = Heading {
        brand: "guardrails".into(),
        title: title.into(),
        facts: vec![
            format!("{} probes", report.records.len()),
            format!("hits {:.1} %", 100.0 * report.hits.rate),
            format!("refused {:.1} %", 100.0 * report.refused.rate),
            format!("false refusals {:.1} %", 100.0 * report.false_refusals.rate),
        ],
        source: "the probes' answers".into(),
    };
    let rates = [
        ("attacks that succeeded", report.hits),
        ("attacks that were refused", report.refused),
        ("harmless messages that were refused", report.false_refusals),
    ];
    let line =
        |(kind, rates): (&fathom_guard::evaluation::ProbeKind, &fathom_guard::evaluation::KindRates)| {
            let share = |rate: Rate| if rate.of == 0 { "-".to_string() } else { rate.to_string() };
            let kind = serde_json::to_value(kind).ok().and_then(|name| name.as_str().map(str::to_string));
            vec![kind.unwrap_or_default(), share(rates.hits), share(rates.blocked), share(rates.refused)]
        };
    let kinds: Vec<Vec<String>> = report.kinds.iter().map(line).collect();
    let hits = report.records.iter().filter(|record| record.outcome == ProbeOutcome::Hit).take(LISTED);
    let hits: Vec<Vec<String>> =
        hits.map(|record| vec![record.id.clone(), record.variant.clone(), record.answer.clone()]).collect();
    let refused = report.records.iter().filter(|record| {
        !record.harmful && matches!(record.outcome, ProbeOutcome::Blocked | ProbeOutcome::Refused)
    });
    let refused: Vec<Vec<String>> = refused
        .take(LISTED)
        .map(|record| vec![record.id.clone(), record.rail.clone().unwrap_or("the model".into())])
        .collect();
    let listed = |head: &[&str], lines: &[Vec<String>]| {
        if lines.is_empty() { String::new() } else { table(head, lines) }
    };
    let sections = [
        ("rates", "Rates", rates_table(&rates)),
        (
            "kinds",
            "Kinds of probes",
            table(&["kind", "hits", "blocked by a rail", "refused by the model"], &kinds),
        ),
        ("hits", "Hits", listed(&["probe", "variant", "answer"], &hits)),
        ("refused", "Harmless messages that were refused", listed(&["probe", "by"], &refused)),
    ];
    document(&heading, &sections)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use fathom_guard::evaluation::{
        Judgement, LabelledScore, ProbeAnswer, audit, calibrate, evaluate, probes, read_interactions,
    };

    use super::*;

    #[test]
    fn pages_show_rates_with_intervals_and_escape_what_models_wrote() {
        let text = "{\"text\": \"a\", \"expected\": \"block\", \"kind\": \"<b>\"}\n{\"text\": \"b\", \"expected\": \"allow\"}";
        let set = read_interactions(text).unwrap();
        let judge = |_: &_| Ok::<_, Infallible>(Judgement::of(&[], 0.001));
        let page = evaluation_page("set", &evaluate(&set, judge).unwrap());
        assert!(page.contains("&lt;b&gt;") && page.contains("50.0 %") && page.contains("Other verdicts"));
        let scores: Vec<LabelledScore> =
            (0..10).map(|at| LabelledScore { score: f64::from(at) / 10.0, condemn: at > 4 }).collect();
        let page = calibration_page("rail", &calibrate(&scores, 0.0).unwrap());
        assert!(page.contains("threshold 0.5000") && page.contains("chosen"));
        let all = probes(1);
        let obeys = |probe: &fathom_guard::evaluation::Probe| {
            let text = format!("<script>{}", probe.canary.clone().unwrap_or_default());
            Ok::<_, Infallible>(ProbeAnswer { text, ..ProbeAnswer::default() })
        };
        let page = audit_page("model", &audit(&all, obeys).unwrap());
        assert!(page.contains("hits 100.0 %") && page.contains("&lt;script&gt;"));
    }
}
