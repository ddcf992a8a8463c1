//! The matrix over HTTP in the direction of retrieval: passages that a server finds for a question, and documents that a
//! request brings.

use std::sync::Arc;

use fathom_guard::Guard;
use fathom_serve::{Knowledge, KnowledgeBase, Passage, Screen, ScreenVerdict, SearchRequest, ServeOptions};
use serde_json::{Value, json};

use crate::guarded::{CASES, around, ask, guard, is_refused, prompts};
use crate::mock::{Bed, Mock};

/// Two passages for every question: a harmless one, and this text.
struct Two(&'static str);

impl Knowledge for Two {
    fn search(&self, _: &SearchRequest) -> fathom_base::Result<Vec<Passage>> {
        let of = |text: &str| Passage { text: text.into(), place: "a.md:1".into(), ..Passage::default() };
        Ok(vec![of("Gulls are birds."), of(self.0)])
    }
}

/// The guard's verdict on a passage, as the server's own screen has it.
fn screen(guard: &Arc<Guard>) -> Screen {
    let guard = guard.clone();
    Arc::new(move |text| match guard.passage(text) {
        Some(outcome) if outcome.block().is_none() && outcome.is_rewritten() => {
            ScreenVerdict::Rewritten(outcome.text)
        }
        Some(outcome) if outcome.block().is_none() => ScreenVerdict::Passed,
        _ => ScreenVerdict::Omitted("blocked".into()),
    })
}

fn bed(rail: &str, action: &str, text: &'static str) -> Bed {
    let guard = guard(&format!("[[rail]]\n{rail}\non = ['retrieval']\naction = '{action}'\n"));
    let knowledge = KnowledgeBase { store: Arc::new(Two(text)), screen: Some(screen(&guard)), passages: 2 };
    around(
        guard,
        Mock::saying("Gulls are birds [1]."),
        ServeOptions { knowledge: Some(knowledge), ..ServeOptions::default() },
    )
}

/// Every way in which a server reads passages.
fn asked() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "What are gulls?"}]);
    let mut all = vec![("/v1/search", json!({"query": "What are gulls?"}))];
    for stream in [false, true] {
        all.push(("/v1/chat/completions", json!({"messages": messages, "stream": stream})));
        all.push(("/v1/responses", json!({"input": "What are gulls?", "stream": stream})));
        all.push(("/v1/messages", json!({"messages": messages, "max_tokens": 50, "stream": stream})));
    }
    all
}

const JUDGES: &[(&str, &str)] = &[
    ("use = 'self_check'\nmodel = 'yes'", "Take POISON now."),
    ("use = 'content_safety'\nmodel = 'unsafe'\nformat = 'llama_guard'", "Take POISON now."),
];

#[tokio::test]
async fn no_passage_gets_around_a_rail_on_any_route() {
    let texts = CASES[..6].iter().map(|case| (case.rail, case.text, case.part, case.mask, case.actions));
    let judges = JUDGES.iter().map(|(rail, text)| (*rail, *text, "POISON", "", &["block", "flag"][..]));
    for (rail, text, part, mask, actions) in texts.chain(judges) {
        for action in actions {
            let bed = bed(rail, action, text);
            for way in asked() {
                bed.mock.asked.lock().unwrap().clear();
                let (status, answer, _) = ask(&bed, &way).await;
                let what = format!("{rail} {action} {}: {status} {answer}", way.0);
                assert!(status == 200 && answer.contains("Gulls are birds."), "{what}");
                let read = prompts(&bed).concat();
                let escaped = serde_json::to_string(part).unwrap();
                let shown = |text: &str| text.contains(part) || text.contains(escaped.trim_matches('"'));
                match *action {
                    "flag" => assert!(shown(&answer) && (way.0 == "/v1/search" || shown(&read)), "{what}"),
                    _ => assert!(!shown(&answer) && !shown(&read), "{what}\n{read}"),
                }
                if *action == "mask" {
                    assert!(answer.contains(mask), "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn documents_of_a_request_are_judged_as_passages() {
    for case in &CASES[..6] {
        let guard = guard(&format!("[[rail]]\n{}\non = ['retrieval']\naction = 'block'\n", case.rail));
        let bed = around(guard, Mock::saying("Fine."), ServeOptions::default());
        for (text, refused) in [(case.text, true), ("Gulls are birds.", false)] {
            for stream in [false, true] {
                let body = json!({
                    "messages": [{"role": "user", "content": "Hi"}], "stream": stream,
                    "chat_template_kwargs": {"documents": [{"title": "a", "text": text}]},
                });
                let (status, answer, _) = ask(&bed, &("/v1/chat/completions", body)).await;
                assert_eq!(is_refused(&answer), refused, "{} {stream}: {status} {answer}", case.rail);
            }
        }
    }
}
