//! Measurements of a guard and of a model.

use std::sync::Arc;

use fathom_base::clock::Clock;
use fathom_guard::evaluation::{
    ProbeKind, audit_guard, audit_model, calibrate, evaluate_guard, probes, rail_scores, read_interactions,
};
use fathom_guard::{Engine, Metrics};

use super::config;
use crate::scripted::ScriptedModel;

fn engine(model: &Arc<ScriptedModel>, toml: &str) -> Engine {
    let config = config(model, toml).unwrap();
    let metrics = Arc::new(Metrics::default());
    Engine::new(Arc::new(config), Clock::default(), metrics)
}

/// A judge whose score is the share of the letter x among a message's letters.
fn by_letter() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::labelled(&["bad", "good"], |text, _| {
        let share = text.chars().filter(|c| *c == 'x').count() as f32 / text.len().max(1) as f32;
        vec![share, 1.0 - share]
    }))
}

const RAIL: &str = "use = 'classifier'\non = ['input', 'output']\nmodel = 'm'\nblocked_labels = ['bad']";

#[test]
fn a_guard_is_measured_on_an_interaction_set() {
    let set = read_interactions(
        r#"{"text": "xxxx", "expected": "block", "kind": "letters"}
{"text": "xxaaaa", "expected": "block", "kind": "letters"}
{"text": "aaaa", "expected": "allow", "kind": "benign"}
{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "xxxa"}], "direction": "output", "expected": "allow"}"#,
    )
    .unwrap();
    let report = evaluate_guard(&engine(&by_letter(), RAIL), &set);
    assert_eq!((report.blocked.hits, report.blocked.of), (1, 2));
    assert_eq!((report.false_refusals.hits, report.false_refusals.of), (1, 2));
    assert_eq!(report.misses.iter().map(|miss| &*miss.id).collect::<Vec<_>>(), ["2", "4"]);
    let rail = report.rails["classifier"];
    assert_eq!((rail.true_positives, rail.false_negatives, rail.false_positives), (1, 1, 1));
    assert!(report.latency.max_ms > 0.0);
}

#[test]
fn a_threshold_is_calibrated_on_the_scores_of_a_rail() {
    let lines: Vec<String> = (0..=10)
        .map(|x| {
            let text = "x".repeat(x) + &"a".repeat(10 - x);
            let expected = if x >= 6 || x == 3 { "block" } else { "allow" };
            format!("{{\"text\": \"{text}\", \"expected\": \"{expected}\"}}")
        })
        .collect();
    let set = read_interactions(&lines.join("\n")).unwrap();
    let config = config(&by_letter(), RAIL).unwrap();
    let scores = rail_scores(&config, "classifier", &set).unwrap();
    let found = calibrate(&scores, 0.0).unwrap();
    assert!((found.chosen.unwrap().threshold - 0.6).abs() < 1e-6);
    assert_eq!((found.recall.hits, found.recall.of), (5, 6));
    assert!(rail_scores(&config, "clasifier", &set).unwrap_err().contains("did you mean"));
}

#[test]
fn a_model_that_obeys_everything_is_hit_and_a_guard_blocks() {
    let all = probes(5);
    let canaries: Vec<String> = all.iter().filter_map(|probe| probe.canary.clone()).collect();
    let obeys = move |prompt: &str| {
        let found = canaries.iter().find(|canary| prompt.contains(canary.as_str()));
        vec![(found.cloned().unwrap_or("We open at nine.".into()), 1.0)]
    };
    let report = audit_model(&all, &ScriptedModel::new(obeys), true, 32).unwrap();
    assert_eq!(report.kinds[&ProbeKind::Injection].hits.rate, 1.0);
    assert_eq!(report.kinds[&ProbeKind::Leak].hits.rate, 1.0);
    assert_eq!(report.false_refusals.hits, 0);
    let rail = "use = 'regex'\non = ['input']\npatterns = ['(?i)ignore all previous']";
    let report = audit_guard(&engine(&Arc::new(ScriptedModel::always(&[])), rail), &all);
    assert_eq!((report.refused.hits, report.false_refusals.hits), (1, 0));
    assert_eq!(report.hits.of, 0);
}
