//! Prompts of guard models next to those that their publishers render, and judges that answer anything.

use std::path::Path;
use std::sync::Arc;

use fathom_guard::evaluation::{LabelledScore, calibrate};
use fathom_guard::{Context, Direction};
use serde::Deserialize;
use serde_json::Value;

use super::{config, judge, judge_in};
use crate::scripted::ScriptedModel;

/// A conversation and its prompt: for Llama Guard 3 (1B) the render of the template in its tokenizer's configuration, for
/// NemoGuard the prompt of its model card and of NeMo Guardrails' own tests, for ShieldGemma that of its model card.
#[derive(Deserialize)]
struct Golden {
    format: String,
    messages: Vec<Value>,
    prompt: String,
}

#[test]
fn prompts_are_those_that_the_guards_were_trained_on() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_guard/prompts.json");
    let cases: Vec<Golden> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(cases.len(), 6);
    for Golden { format, messages, prompt } in cases {
        // A model without a template reads the prompt as it is.
        let model = Arc::new(ScriptedModel::always(&[("safe", 0.5), ("unsafe", 0.5)]).plain());
        let categories = match &*format {
            "llama_guard" => (1..=13).map(|at| format!("'S{at}'")).collect::<Vec<_>>().join(", "),
            "shieldgemma" => "'harassment'".into(),
            _ => String::new(),
        };
        let toml = format!(
            "use = 'content_safety'\non = ['input', 'output']\nmodel = 'm'\nformat = '{format}'\ncategories = [{categories}]\n\
             threshold = 1.0"
        );
        let last = &messages[messages.len() - 1];
        let answer = last["role"] == "assistant";
        let direction = if answer { Direction::Output } else { Direction::Input };
        let text = last["content"].as_str().unwrap().to_string();
        let earlier = if answer { &messages[..messages.len() - 1] } else { &messages };
        let context = Context { messages: earlier.to_vec(), ..Context::default() };
        judge_in(&model, &toml, &text, direction, &context).unwrap();
        let own = model.last_prompt();
        let own = own.strip_prefix("<bos>").unwrap_or(&own);
        match &*format {
            // The answer's beginning follows.
            "nemoguard" => assert!(own.starts_with(&prompt), "{own}\n---\n{prompt}"),
            _ => assert_eq!(own, prompt, "{format}"),
        }
    }
}

/// Numbers below a limit, from a seed.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |limit| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    }
}

/// G11: whatever a judge prefers to say, its answer is a probability.
#[test]
fn of_ten_thousand_judges_that_say_anything_none_is_unparsable() {
    let mut below = numbers(3);
    let words = [
        "safe",
        "unsafe",
        "Not safe.",
        "safe unsafe",
        "No",
        "I",
        "",
        "\n\n",
        "{\"User",
        "Sorry, I cannot",
        "UNSAFE\nS99",
    ];
    let formats = [
        "use = 'content_safety'\nformat = 'llama_guard'",
        "use = 'content_safety'\nformat = 'nemoguard'",
        "use = 'content_safety'\nformat = 'shieldgemma'\ncategories = ['hate']",
        "use = 'content_safety'\nformat = 'granite_score'",
        "use = 'self_check'",
        "use = 'topic'\npolicy = 'Birds.'",
    ];
    for at in 0..10_000usize {
        let answers: Vec<(&str, f64)> = (0..1 + below(3))
            .map(|_| (words[below(words.len() as u64) as usize], below(1000) as f64 / 1000.0))
            .collect();
        let model = Arc::new(ScriptedModel::always(&answers));
        let toml = format!("{}\non = ['input']\nmodel = 'm'", formats[at % formats.len()]);
        let score = judge(&model, &toml, "text").score;
        assert!(score.is_some_and(|score| (0.0..=1.0).contains(&score)), "{toml} {answers:?}: {score:?}");
    }
}

/// A sweep over the thresholds of a judge that is right about 17 of 20 texts.
#[test]
fn a_sweep_over_a_labelled_set_keeps_to_the_false_positives_that_were_asked_for() {
    let mut below = numbers(11);
    let scores: Vec<LabelledScore> = (0..2000)
        .map(|at| {
            let condemn = at % 2 == 0;
            let right = below(20) < 17;
            let p =
                if condemn == right { 0.5 + below(500) as f64 / 1000.0 } else { below(500) as f64 / 1000.0 };
            let model = Arc::new(ScriptedModel::always(&[("yes", p), ("no", 1.0 - p)]));
            let score =
                judge(&model, "use = 'self_check'\non = ['input']\nmodel = 'm'", "text").score.unwrap();
            LabelledScore { score, condemn }
        })
        .collect();
    for most in [0.0, 0.01, 0.05, 0.2] {
        let found = calibrate(&scores, most).unwrap();
        assert!(found.area > 0.8 && found.false_positives.rate <= most, "{most}: {found:?}");
        let ordered = |a: f64, b: f64| a <= b;
        let pairs = found.curve.windows(2);
        assert!(
            pairs.clone().all(|it| it[0].threshold > it[1].threshold && ordered(it[0].recall, it[1].recall))
        );
        // The next lower threshold has too many.
        let chosen = found.chosen.map(|it| it.threshold);
        let next = found.curve.iter().find(|it| chosen.is_none_or(|chosen| it.threshold < chosen));
        assert!(next.is_none_or(|it| it.false_positive_rate > most), "{most}: {next:?}");
    }
    // A threshold that was found is one that a configuration takes.
    let chosen = calibrate(&scores, 0.05).unwrap().chosen.unwrap().threshold;
    let model = Arc::new(ScriptedModel::always(&[("yes", 1.0)]));
    assert!(
        config(&model, &format!("use = 'self_check'\non = ['input']\nmodel = 'm'\nthreshold = {chosen}"))
            .is_ok()
    );
}
