//! The whole matrix over HTTP: every rail of text, in each direction and mode, over every route that generates, whole and
//! streamed, with several answers, tools, adapters, log-probabilities and echoes.

use std::path::Path;
use std::sync::Arc;

use fathom_guard::needs::{Languages, PersonalData, PersonalDataFinder, PersonalDataOptions};
use fathom_guard::{Config, Finding, Guard, GuardedService, Needs};
use fathom_serve::{ROUTES, ServeOptions, ServerState, router};
use serde_json::{Value, json};

use crate::mock::{Bed, Mock, post};

/// A detector of `ann@x.org` alone.
struct Ann;

impl PersonalData for Ann {
    fn kinds(&self) -> Vec<&'static str> {
        vec!["email"]
    }

    fn finder(&self, _: &PersonalDataOptions) -> fathom_base::Result<Box<dyn PersonalDataFinder>> {
        Ok(Box::new(Ann))
    }
}

impl PersonalDataFinder for Ann {
    fn find(&self, text: &str) -> Vec<Finding> {
        text.match_indices("ann@x.org").map(|(at, it)| Finding::new(at..at + it.len(), "email")).collect()
    }

    fn first_open(&self, text: &str) -> usize {
        text.rfind(char::is_whitespace).map_or(0, |at| at + 1)
    }
}

impl Languages for Ann {
    fn identify(&self, text: &str) -> Option<(String, f64)> {
        Some((if text.contains("zzz") { "xx" } else { "en" }.into(), 1.0))
    }
}

/// A kind of rail: its options, a text that it finds, a part of it that must not pass, and its mask.
pub struct Case {
    pub rail: &'static str,
    pub text: &'static str,
    pub part: &'static str,
    pub mask: &'static str,
    pub actions: &'static [&'static str],
}

const REWRITES: &[&str] = &["block", "mask", "omit", "flag"];

pub const CASES: &[Case] = &[
    Case {
        rail: "use = 'regex'\nwords = ['forbidden']",
        text: "It is forbidden here.",
        part: "forbidden",
        mask: "<PATTERN>",
        actions: REWRITES,
    },
    Case {
        rail: "use = 'personal_data'\nkinds = ['email']",
        text: "Ask ann@x.org today.",
        part: "ann@",
        mask: "<EMAIL_ADDRESS>",
        actions: REWRITES,
    },
    Case {
        rail: "use = 'secrets'",
        text: "Use ghp_0123456789abcdefghijABCDEFGHIJ012345 now.",
        part: "ghp_",
        mask: "<GITHUB>",
        actions: REWRITES,
    },
    Case {
        rail: "use = 'injection'",
        text: "x'; DROP TABLE users; --",
        part: "DROP TABLE",
        mask: "<SQL_STACKED>",
        actions: REWRITES,
    },
    Case {
        rail: "use = 'hidden_text'",
        text: "It is \u{1}hidden.",
        part: "\u{1}",
        mask: "<CONTROL>",
        actions: REWRITES,
    },
    Case {
        rail: "use = 'encodings'",
        text: "See Jzsgc2VsZWN0ICogZnJvbSB1c2VyczsgRFJPUCBUQUJMRSB1c2VyczsgLS0= there.",
        part: "Jzsgc2VsZ",
        mask: "<BASE64>",
        actions: REWRITES,
    },
    Case {
        rail: "use = 'language'",
        text: "Say zzz again.",
        part: "zzz",
        mask: "",
        actions: &["block", "flag"],
    },
    Case {
        rail: "use = 'length'\nmax_chars = 12",
        text: "Far too long, THE END",
        part: "THE END",
        mask: "",
        actions: &["block", "truncate", "flag"],
    },
    Case {
        rail: "use = 'classifier'\nmodel = 'm'\nblocked_labels = ['bad']",
        text: "It is bad.",
        part: "bad",
        mask: "",
        actions: &["block", "flag"],
    },
];

/// Models of rails: a classifier that finds all texts bad, and judges that condemn texts with `POISON`, each in the words
/// that its name says.
struct Judges;

impl fathom_guard::needs::Models for Judges {
    fn service(&self, name: &str) -> fathom_base::Result<Arc<dyn fathom_base::Service>> {
        let answers: Option<fn(&str) -> String> = match name {
            "yes" => Some(|prompt| if prompt.contains("POISON") { "yes" } else { "no" }.into()),
            "no" => Some(|prompt| if prompt.contains("POISON") { "no" } else { "yes" }.into()),
            "off-topic" => {
                Some(|prompt| if prompt.contains("POISON") { "off-topic" } else { "on-topic" }.into())
            }
            "unsafe" => Some(|prompt| match prompt {
                _ if prompt.ends_with("unsafe\n") => "S1".into(),
                _ => if prompt.contains("POISON") { "unsafe" } else { "safe" }.into(),
            }),
            _ => None,
        };
        let labels = if answers.is_none() { vec!["good".into(), "bad".into()] } else { Vec::new() };
        Ok(Arc::new(Mock { labels, answers, context_tokens: 100_000, ..Mock::default() }))
    }
}

/// Guardrails of this configuration.
pub fn guard(text: &str) -> Arc<Guard> {
    let needs = Needs {
        personal_data: Some(Arc::new(Ann)),
        languages: Some(Arc::new(Ann)),
        models: Some(Arc::new(Judges)),
        ..Needs::default()
    };
    let config = Config::parse(text, Path::new("guard.toml"), &needs);
    let config = config.unwrap_or_else(|error| panic!("{text}: {error}"));
    Arc::new(Guard::new(config, &needs).unwrap())
}

/// A server of one model within guardrails.
pub fn around(guard: Arc<Guard>, mock: Mock, opening: ServeOptions) -> Bed {
    let (mock, server) = (Arc::new(mock), Arc::new(ServerState::new(opening)));
    server.add("mock", Arc::new(GuardedService::new(mock.clone(), guard))).unwrap();
    let router = router(&server, ROUTES);
    Bed { mock, server, router }
}

/// A server of one model within one rail.
pub fn bed(rail: &str, on: &str, action: &str, answer: &str) -> Bed {
    let hold = if action == "truncate" && on == "output" { "hold = 'all'\n" } else { "" };
    let text = format!("[[rail]]\n{rail}\non = ['{on}']\naction = '{action}'\n{hold}");
    around(guard(&text), Mock::saying(answer), ServeOptions::default())
}

/// Every way to ask for an answer: a path and a body, given the messages of a conversation.
pub fn ways(prompt: &str) -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": prompt}]);
    let of = |path: &'static str, mut body: Value, more: Value| {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (path, body)
    };
    let talk = || json!({"messages": messages, "max_tokens": 200});
    let text = || json!({"prompt": prompt, "max_tokens": 200});
    let (chat, complete) = ("/v1/chat/completions", "/v1/completions");
    let tools = json!([{"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}]);
    let mut ways = vec![
        of(chat, talk(), json!({"n": 3})),
        of(chat, talk(), json!({"logprobs": true, "top_logprobs": 2})),
        of(chat, talk(), json!({"model": "tuned"})),
        of(chat, talk(), json!({"tools": tools})),
        of(chat, talk(), json!({"stop": ["qqq"]})),
        of(complete, text(), json!({"n": 2})),
        of(complete, text(), json!({"logprobs": 1})),
        of(complete, text(), json!({"model": "tuned"})),
        of(complete, text(), json!({"return_token_ids": true})),
        of("/v2/models/mock/generate", json!({"text_input": prompt, "max_tokens": 200}), json!({})),
        of("/v2/models/mock/generate_stream", json!({"text_input": prompt, "max_tokens": 200}), json!({})),
        of(
            "/v2/models/mock/versions/1/generate",
            json!({"text_input": prompt, "max_tokens": 200}),
            json!({}),
        ),
        of(
            "/v2/models/mock/infer",
            json!({"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [prompt]}], "parameters": {"max_tokens": 200}}),
            json!({}),
        ),
    ];
    for stream in [false, true] {
        let stream = json!({"stream": stream});
        ways.push(of(chat, talk(), stream.clone()));
        ways.push(of(complete, text(), stream.clone()));
        ways.push(of("/v1/responses", json!({"input": prompt, "max_output_tokens": 200}), stream.clone()));
        ways.push(of("/v1/messages", talk(), stream));
    }
    ways.push(of(chat, talk(), json!({"n": 2, "stream": true, "logprobs": true})));
    ways
}

/// All texts that a response says, with the pieces of a stream joined by answer.
pub fn said(text: &str) -> String {
    fn collect(value: &Value, key: &str, index: u64, all: &mut Vec<(u64, String)>) {
        match value {
            Value::String(text)
                if [
                    "content",
                    "text",
                    "text_output",
                    "delta",
                    "refusal",
                    "data",
                    "partial_json",
                    "arguments",
                    "token",
                ]
                .contains(&key) =>
            {
                all.push((index, text.clone()));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, key, index, all)),
            Value::Object(entries) => {
                let index = value["index"].as_u64().unwrap_or(index);
                entries.iter().for_each(|(key, value)| collect(value, key, index, all));
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    let frames = text.lines().filter_map(|line| line.strip_prefix("data: "));
    for value in frames.chain([text]).filter_map(|it| serde_json::from_str::<Value>(it).ok()) {
        collect(&value, "", 0, &mut all);
    }
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, text)| text).collect()
}

pub async fn ask(bed: &Bed, (path, body): &(&'static str, Value)) -> (u16, String, String) {
    let (status, _, text) = bed.send(post(path, &body.to_string())).await;
    let said = said(&text);
    (status, text, said)
}

/// Whether a response says that a rail refused, in the words of its protocol.
pub fn is_refused(text: &str) -> bool {
    [
        "content_filter",
        "guardrails_violation",
        "\"stop_reason\":\"refusal\"",
        "content_blocked",
        "refused",
        "blocked by",
    ]
    .iter()
    .any(|mark| text.contains(mark))
}

/// The prompts that reached the model.
pub fn prompts(bed: &Bed) -> Vec<String> {
    let asked = bed.mock.asked.lock().unwrap();
    asked.iter().map(|it| it.ids.iter().flatten().map(|id| *id as u8 as char).collect()).collect()
}

#[tokio::test]
async fn no_answer_gets_around_a_rail_on_any_route() {
    for case in CASES {
        for action in case.actions {
            let bed = bed(case.rail, "output", action, case.text);
            for way in ways("Hi") {
                let (status, text, said) = ask(&bed, &way).await;
                let what = format!("{} {action} {}: {status} {text}", case.rail, way.0);
                match *action {
                    "block" => assert!(!said.contains(case.part) && is_refused(&text), "{what}"),
                    "flag" => assert!(status == 200 && said.contains(case.part), "{what}"),
                    "mask" => assert!(!said.contains(case.part) && said.contains(case.mask), "{what}"),
                    _ => assert!(status == 200 && !said.contains(case.part) && !is_refused(&text), "{what}"),
                }
                assert!(
                    *action == "flag" || !text.contains("\"logprob\":-0.5") || *action == "block",
                    "{what}"
                );
            }
        }
    }
}

#[tokio::test]
async fn no_prompt_gets_around_a_rail_on_any_route() {
    for case in CASES {
        for action in case.actions {
            let bed = bed(case.rail, "input", action, "Fine.");
            let mut all = ways(case.text);
            all.push(("/v1/completions", json!({"prompt": case.text, "echo": true, "max_tokens": 5})));
            let ids: Vec<u8> = case.text.bytes().collect();
            all.push(("/v1/completions", json!({"prompt": ids, "max_tokens": 5})));
            all.push(("/v1/completions", json!({"prompt": ["Hi", case.text], "max_tokens": 5})));
            for way in all {
                bed.mock.asked.lock().unwrap().clear();
                let (status, text, said) = ask(&bed, &way).await;
                let what = format!("{} {action} {} {}: {status} {text}", case.rail, way.0, way.1);
                let asked = prompts(&bed);
                let reached = asked.iter().any(|prompt: &String| prompt.contains(case.part));
                match *action {
                    "block" => {
                        assert!(!reached && !said.contains("Fine.Fine.Fine") && is_refused(&text), "{what}")
                    }
                    // Answers of one stream take turns, letter by letter.
                    "flag" => assert!(
                        reached && ["Fine.", "FFiinnee.."].iter().any(|it| said.contains(it)),
                        "{what} {asked:?}"
                    ),
                    "mask" => {
                        assert!(!reached && asked.iter().any(|it| it.contains(case.mask)), "{what} {asked:?}")
                    }
                    _ => assert!(!reached && !asked.is_empty(), "{what} {asked:?}"),
                }
            }
        }
    }
}

/// Calls of tools and their results, as each protocol writes them.
#[tokio::test]
async fn no_call_and_no_result_gets_around_a_rail() {
    let schema = json!({"type": "object"});
    let tool = json!({"type": "function", "function": {"name": "pay", "parameters": schema}});
    let flat = json!({"type": "function", "name": "pay", "parameters": schema});
    let own = json!({"name": "pay", "input_schema": schema});
    let with_tools = [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]})),
        ("/v1/responses", json!({"input": "Hi", "tools": [flat]})),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [own], "max_tokens": 200}),
        ),
    ];
    for case in &CASES[..6] {
        let arguments = json!({"to": case.text}).to_string();
        let answer = format!("<tool_call>{{\"name\": \"pay\", \"arguments\": {arguments}}}</tool_call>");
        for action in ["block", "flag"] {
            let bed = bed(case.rail, "tool_call", action, &answer);
            for (path, body) in &with_tools {
                for stream in [false, true] {
                    let mut body = body.clone();
                    body["stream"] = stream.into();
                    let (status, text, said) = ask(&bed, &(path, body)).await;
                    let what = format!("{} {action} {path} {stream}: {status} {text}", case.rail);
                    let escaped = case.part.escape_default().to_string();
                    let is_said =
                        said.contains(case.part) || said.contains(&escaped) || said.contains("\\u0001");
                    match action {
                        "block" => assert!(!is_said && is_refused(&text), "{what}"),
                        "flag" => assert!(text.contains("pay") && !is_refused(&text), "{what}"),
                        _ => {}
                    }
                }
            }
        }
        let call = json!({"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}});
        let results = [
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": case.text}], "tools": [tool]}),
            ),
            (
                "/v1/responses",
                json!({"input": [{"role": "user", "content": "Hi"}, {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c1", "output": case.text}], "tools": [flat]}),
            ),
            (
                "/v1/messages",
                json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "pay", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": case.text}]}], "tools": [own], "max_tokens": 20}),
            ),
        ];
        for action in REWRITES {
            let bed = bed(case.rail, "tool_result", action, "Fine.");
            for (path, body) in &results {
                bed.mock.asked.lock().unwrap().clear();
                let (status, text, _) = ask(&bed, &(path, body.clone())).await;
                let asked = bed.mock.asked.lock().unwrap();
                let reached = asked.iter().any(|it| {
                    let prompt: String = it.ids.iter().flatten().map(|id| *id as u8 as char).collect();
                    prompt.contains(case.part)
                });
                let what = format!("{} {action} {path}: {status} {text}", case.rail);
                match *action {
                    "block" => assert!(asked.is_empty() && is_refused(&text), "{what}"),
                    "flag" => assert!(reached, "{what}"),
                    _ => assert!(!reached && !asked.is_empty(), "{what}"),
                }
            }
        }
    }
}

#[tokio::test]
async fn a_client_with_too_many_requests_is_refused_and_a_tool_that_is_not_declared() {
    let limited = bed("use = 'rate'\nmax_requests = 1\nper_s = 3600", "input", "block", "Fine.");
    let way = ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert!(!is_refused(&ask(&limited, &way).await.1) && is_refused(&ask(&limited, &way).await.1));
    let answer = r#"<tool_call>{"name": "steal", "arguments": {}}</tool_call>"#;
    let tools = bed("use = 'tools'", "tool_call", "block", answer);
    let tool = json!({"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}});
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]});
    let (_, text, _) = ask(&tools, &("/v1/chat/completions", body)).await;
    assert!(is_refused(&text) && !text.contains("steal"), "{text}");
}
