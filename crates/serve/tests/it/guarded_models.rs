//! The matrix over HTTP of rails that ask models.

use fathom_serve::ServeOptions;
use serde_json::json;

use crate::guarded::{around, ask, bed, guard, is_refused, prompts, ways};
use crate::mock::Mock;

const JUDGED: &[&str] = &["block", "flag"];

/// A rail with the directions in which it judges what users write, and what models do.
struct ModelRail {
    rail: &'static str,
    on: &'static [&'static str],
}

const RAILS: &[ModelRail] = &[
    ModelRail { rail: "use = 'self_check'\nmodel = 'yes'", on: &["input", "output"] },
    ModelRail { rail: "use = 'self_check'\nmodel = 'no'\ncondemned_by = 'no'", on: &["input", "output"] },
    ModelRail {
        rail: "use = 'topic'\nmodel = 'off-topic'\npolicy = 'Talk about birds alone.'",
        on: &["input"],
    },
    ModelRail {
        rail: "use = 'content_safety'\nmodel = 'unsafe'\nformat = 'llama_guard'",
        on: &["input", "output"],
    },
    ModelRail { rail: "use = 'facts'\nmodel = 'no'\nwithout_evidence = 'block'", on: &["output"] },
    ModelRail { rail: "use = 'hallucination'\nmodel = 'no'\nsamples = 2", on: &["output"] },
    ModelRail { rail: "use = 'jailbreak'\nmodel = 'labels'\nblocked_labels = ['bad']", on: &["input"] },
    ModelRail {
        rail: "use = 'classifier'\nmodel = 'labels'\nblocked_labels = ['bad']",
        on: &["input", "output"],
    },
];

const TEXT: &str = "Take POISON now.";

#[tokio::test]
async fn no_answer_gets_around_a_rail_that_asks_a_model() {
    for ModelRail { rail, .. } in RAILS.iter().filter(|it| it.on.contains(&"output")) {
        for action in JUDGED {
            let bed = bed(rail, "output", action, TEXT);
            for way in ways("Hi") {
                let (status, text, said) = ask(&bed, &way).await;
                let what = format!("{rail} {action} {}: {status} {text}", way.0);
                match *action {
                    "block" => assert!(!said.contains("POISON") && is_refused(&text), "{what}"),
                    _ => assert!(status == 200 && said.contains("POISON"), "{what}"),
                }
            }
        }
    }
}

#[tokio::test]
async fn no_prompt_gets_around_a_rail_that_asks_a_model() {
    for ModelRail { rail, .. } in RAILS.iter().filter(|it| it.on.contains(&"input")) {
        for action in JUDGED {
            let bed = bed(rail, "input", action, "Fine.");
            let mut all = ways(TEXT);
            all.push(("/v1/completions", json!({"prompt": TEXT, "echo": true, "max_tokens": 5})));
            all.push(("/v1/completions", json!({"prompt": ["Hi", TEXT], "max_tokens": 5})));
            for way in all {
                bed.mock.asked.lock().unwrap().clear();
                let (status, text, _) = ask(&bed, &way).await;
                let what = format!("{rail} {action} {}: {status} {text}", way.0);
                let reached = prompts(&bed).iter().any(|prompt| prompt.contains("POISON"));
                match *action {
                    "block" => assert!(!reached && is_refused(&text), "{what}"),
                    _ => assert!(reached && status == 200, "{what}"),
                }
            }
        }
    }
}

/// Harmless texts pass the same judges: what is blocked above is blocked for its words.
#[tokio::test]
async fn judges_let_harmless_texts_pass_on_every_route() {
    for rail in RAILS.iter().map(|it| it.rail).filter(|it| !it.contains("labels") && !it.contains("facts")) {
        let on = if rail.contains("topic") { "input" } else { "output" };
        let bed = bed(rail, on, "block", "Gulls are birds.");
        for way in ways("What are gulls?") {
            let (status, text, said) = ask(&bed, &way).await;
            assert!(status == 200 && !is_refused(&text), "{rail} {}: {text}", way.0);
            let is_said = said.contains("Gulls are birds.") || said.contains("GGuullllss");
            assert!(is_said, "{rail} {}: {text}", way.0);
        }
    }
}

#[tokio::test]
async fn a_judge_on_the_stream_lets_a_window_pass_and_stops_at_the_one_that_it_condemns() {
    let rail = "use = 'content_safety'\nmodel = 'unsafe'\nformat = 'llama_guard'\nwindow = 32";
    let text = format!("[[rail]]\n{rail}\non = ['output']\naction = 'block'\n");
    let fine = "Gulls live at the sea. ".repeat(8);
    let answer = format!("{fine}POISON {fine}");
    let bed = around(guard(&text), Mock::saying(&answer), ServeOptions::default());
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"] {
        let body = match path {
            "/v1/responses" => json!({"input": "Hi", "stream": true, "max_output_tokens": 900}),
            "/v1/completions" => json!({"prompt": "Hi", "stream": true, "max_tokens": 900}),
            _ => json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true, "max_tokens": 900}),
        };
        let (status, text, said) = ask(&bed, &(path, body)).await;
        assert!(status == 200 && is_refused(&text), "{path}: {text}");
        // The first window was sent, and nothing of the condemned one or after it.
        assert!(said.starts_with(&fine[..20]), "{path}: {said}");
        assert!(!said.contains("POISON") && said.len() < fine.len() + 200, "{path}: {said}");
    }
}

#[tokio::test]
async fn text_of_windows_that_a_judge_flags_is_not_held_back() {
    let rail = "use = 'content_safety'\nmodel = 'unsafe'\nformat = 'llama_guard'\nwindow = 32";
    let text = format!("[[rail]]\n{rail}\non = ['output']\naction = 'flag'\n");
    let answer = "POISON lives at the sea. ".repeat(32);
    let bed = around(guard(&text), Mock::saying(&answer), ServeOptions::default());
    let body = json!({"prompt": "Hi", "stream": true, "max_tokens": 900});
    let (status, text, said) = ask(&bed, &("/v1/completions", body)).await;
    assert!(status == 200 && said == answer, "{text}");
    // The first window goes out before the end.
    let parts = text.lines().filter(|line| line.contains("POISON")).count();
    assert!(parts >= 2, "{parts} parts: {text}");
}
