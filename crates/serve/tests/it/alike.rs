//! All protocols treat conversations alike: the same checks, calls and thoughts.

use serde_json::{Value, json};

use crate::mock::{Bed, Mock};

/// Markers of calls and thoughts are special tokens of some models and text of others: their contents are found either
/// way, in every protocol, streamed or not.
#[tokio::test]
async fn calls_and_thoughts_are_found_whether_or_not_their_marks_are_special_tokens() {
    static MARKS: [&str; 8] = [
        "[TOOL_CALLS]",
        "[CALL_ID]",
        "[ARGS]",
        "<|python_tag|>",
        "[THINK]",
        "[/THINK]",
        "<tool_call>",
        "</tool_call>",
    ];
    let schema = json!({"type": "object"});
    let asks = [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": "function", "function": {"name": "add", "parameters": schema}}]}),
        ),
        (
            "/v1/responses",
            json!({"input": "a", "tools": [{"type": "function", "name": "add", "parameters": schema}]}),
        ),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 200,
            "tools": [{"name": "add", "input_schema": schema}]}),
        ),
    ];
    let answers = [
        (r#"[TOOL_CALLS]add[ARGS]{"a": 1}"#, ""),
        (r#"[TOOL_CALLS]add[CALL_ID]x9[ARGS]{"a": 1}"#, ""),
        (r#"<|python_tag|>{"name": "add", "parameters": {"a": 1}}"#, ""),
        (r#"<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>"#, ""),
        (r#"[THINK]hm[/THINK][TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]"#, "[THINK]hm[/THINK]"),
    ];
    for ((answer, words), special) in answers.iter().flat_map(|it| [(it, &[] as &[&str]), (it, &MARKS[..])]) {
        let bed = Bed::new(Mock { special: special.to_vec(), ..Mock::saying(answer) });
        for ((path, body), stream) in asks.iter().flat_map(|ask| [(ask, false), (ask, true)]) {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let events =
                if stream { bed.stream(path, body).await } else { vec![bed.post(path, body).await.1] };
            let said = streamed(&events);
            assert_eq!(said, (words.to_string(), vec![("add".into(), json!({"a": 1}))]), "{path} {events:?}");
        }
    }
    // Without tools, thoughts still have their markers.
    let bed = Bed::new(Mock { special: MARKS.to_vec(), ..Mock::saying("[THINK]hm[/THINK]yes") });
    for ((path, body), stream) in asks.iter().flat_map(|ask| [(ask, false), (ask, true)]) {
        let mut body = body.clone();
        body.as_object_mut().unwrap().remove("tools");
        body["stream"] = stream.into();
        let events = if stream { bed.stream(path, body).await } else { vec![bed.post(path, body).await.1] };
        assert_eq!(streamed(&events), ("[THINK]hm[/THINK]yes".to_string(), Vec::new()), "{path} {events:?}");
    }
}

/// The text and the calls of an answer in any protocol, whole or in events.
fn streamed(events: &[Value]) -> (String, Vec<(String, Value)>) {
    let (mut words, mut calls) = (String::new(), Vec::<(String, String)>::new());
    let part = |value: &Value| value.as_str().unwrap_or_default().to_string();
    for event in events {
        let choice = &event["choices"][0];
        let message = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        words += &part(&message["content"]);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            calls.push((part(&call["function"]["name"]), part(&call["function"]["arguments"])));
        }
        let kind = event["type"].as_str().unwrap_or_default();
        match (kind, event["delta"]["type"].as_str()) {
            ("response.output_text.delta", _) => words += &part(&event["delta"]),
            ("response.function_call_arguments.done", _) => {
                calls.push((part(&event["name"]), part(&event["arguments"])));
            }
            ("content_block_start", _) if event["content_block"]["type"] == "tool_use" => {
                calls.push((part(&event["content_block"]["name"]), String::new()));
            }
            ("content_block_delta", Some("text_delta")) => words += &part(&event["delta"]["text"]),
            ("content_block_delta", _) => {
                calls.last_mut().unwrap().1 += &part(&event["delta"]["partial_json"])
            }
            _ => {}
        }
        for item in event["output"].as_array().or(event["content"].as_array()).into_iter().flatten() {
            match item["type"].as_str() {
                Some("message") => words += &part(&item["content"][0]["text"]),
                Some("text") => words += &part(&item["text"]),
                Some("tool_use") => calls.push((part(&item["name"]), item["input"].to_string())),
                _ => calls.push((part(&item["name"]), part(&item["arguments"]))),
            }
        }
    }
    let read = |(name, arguments): (String, String)| (name, serde_json::from_str(&arguments).unwrap());
    (words, calls.into_iter().map(read).collect())
}

/// A body with further fields.
fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Checks of chats apply to the other protocols too, each with its own messages.
#[tokio::test]
async fn what_a_chat_refuses_every_protocol_does() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let conversation = json!([{"role": "user", "content": "a"}]);
    let bare = [
        ("/v1/chat/completions", json!({"messages": conversation, "max_tokens": 5})),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 5})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 5})),
        ("/v1/messages", json!({"messages": conversation, "max_tokens": 5})),
        ("/v2/models/mock/generate", json!({"text_input": "a", "max_tokens": 5})),
        ("/v2/models/mock/generate_stream", json!({"text_input": "a", "max_tokens": 5})),
    ];
    for more in [
        json!({"temperature": "hot"}),
        json!({"temperature": [1]}),
        json!({"top_p": 1.5}),
        json!({"top_k": "x"}),
        json!({"n": 17}),
        json!({"n": 0}),
        json!({"seed": "x"}),
        json!({"stop": [""]}),
        json!({"stop": vec!["a"; 65]}),
        json!({"stop_token_ids": [-1]}),
        json!({"logit_bias": {"x": 1}}),
        json!({"max_tokens": 0, "max_output_tokens": 0}),
        json!({"max_tokens": 1000, "max_output_tokens": 1000}),
        json!({"max_tokens": "x", "max_output_tokens": "x"}),
        json!({"stream": "yes"}),
        json!({"use_beam_search": true, "beam_width": 17}),
        json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}),
        json!({"guided_regex": "a".repeat(70_000)}),
        json!({"modalities": ["audio"]}),
        json!({"best_of": 2}),
        json!({"skip_special_tokens": false}),
    ] {
        for (path, body) in &bare {
            let body = with(body, &more);
            let (status, whole) = bed.post(path, body).await;
            assert_eq!(status, 400, "{path} {more}: {whole}");
        }
    }
    for (path, body) in &bare[2..] {
        assert_eq!(bed.post(path, with(body, &json!({"n": 2}))).await.0, 400, "{path}");
    }
    assert!(bed.mock.asked.lock().unwrap().is_empty());
    // An adapter is requested like a model, and unknown names are not found.
    for (path, body) in &bare[..4] {
        assert_eq!(bed.post(path, with(body, &json!({"model": "other"}))).await.0, 404, "{path}");
        assert_eq!(bed.post(path, with(body, &json!({"model": "tuned"}))).await.0, 200, "{path}");
        assert_eq!(bed.mock.last().adapter.as_deref(), Some("tuned"), "{path}");
    }
}

/// The checks of tools in the protocols that have them.
#[tokio::test]
async fn tools_that_a_chat_refuses_every_protocol_does() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let conversation = json!([{"role": "user", "content": "a"}]);
    let bare = [
        ("/v1/chat/completions", json!({"messages": conversation, "max_tokens": 5})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 5})),
        ("/v1/messages", json!({"messages": conversation, "max_tokens": 5})),
    ];
    let named = |path: &str, tool: Value| match path {
        "/v1/chat/completions" => json!({"type": "function", "function": tool}),
        "/v1/responses" => with(&json!({"type": "function"}), &tool),
        _ => tool,
    };
    for (path, body) in &bare {
        let required = if *path == "/v1/messages" { json!({"type": "any"}) } else { "required".into() };
        let other = match *path {
            "/v1/chat/completions" => json!({"type": "function", "function": {"name": "g"}}),
            "/v1/responses" => json!({"type": "function", "name": "g"}),
            _ => json!({"type": "tool", "name": "g"}),
        };
        let f = named(path, json!({"name": "f"}));
        for more in [
            json!({"tools": [named(path, json!({}))]}),
            json!({"tools": ["f"]}),
            json!({"tools": vec![f.clone(); 129]}),
            json!({"tool_choice": required}),
            json!({"tools": [f], "tool_choice": other}),
            json!({"tools": [f], "tool_choice": "all"}),
            json!({"tools": [f], "tool_choice": required, "guided_regex": "a"}),
        ] {
            let (status, whole) = bed.post(path, with(body, &more)).await;
            assert_eq!(status, 400, "{path} {more}: {whole}");
        }
    }
}

/// A call that is the whole answer is incomplete if the answer was cut.
#[tokio::test]
async fn a_forced_call_that_is_cut_is_incomplete() {
    let bed = Bed::new(Mock::saying(r#"{"a": 1}"#));
    let mut body = json!({"input": "a", "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": "function", "name": "f"}});
    for (tokens, expected) in [(4, "incomplete"), (40, "completed")] {
        body["max_output_tokens"] = tokens.into();
        body["stream"] = false.into();
        let (_, whole) = bed.post("/v1/responses", body.clone()).await;
        let said = |whole: &Value| (whole["status"].clone(), whole["output"][0]["status"].clone());
        assert_eq!(said(&whole), (expected.into(), expected.into()), "{whole}");
        body["stream"] = true.into();
        let events = bed.stream("/v1/responses", body.clone()).await;
        let last = events.last().unwrap();
        assert_eq!(said(&last["response"]), (expected.into(), expected.into()), "{last}");
        let item = events.iter().find(|it| it["type"] == "response.output_item.done").unwrap();
        assert_eq!(item["item"]["status"], expected);
    }
}
