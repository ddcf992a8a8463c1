//! Conversations in the other protocols.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::mock::{Bed, Mock};

fn messages() -> Value {
    json!({"model": "mock", "max_tokens": 50, "system": "Be brief.", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Add."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2"}]},
    ], "tools": [{"name": "add", "input_schema": {"type": "object"}}], "stop_sequences": ["END"]})
}

#[tokio::test]
async fn anthropics_messages_are_answered_in_blocks() {
    let bed =
        Bed::new(Mock::saying("So: <tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>"));
    let mut body = messages();
    body["max_tokens"] = 200.into();
    let (status, whole) = bed.post("/v1/messages", body.clone()).await;
    assert_eq!(status, 200, "{whole}");
    assert_eq!(whole["content"][0], json!({"type": "text", "text": "So: "}));
    assert_eq!(
        (&whole["content"][1]["input"], &whole["stop_reason"]),
        (&json!({"a": 1}), &json!("tool_use"))
    );
    assert_eq!(bed.mock.last().sampling.stop, ["END"]);

    body["stream"] = true.into();
    let events = bed.stream("/v1/messages", body).await;
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert_eq!(kinds.iter().filter(|kind| **kind == "content_block_start").count(), 2);
    // Both ends of a stream count cached tokens separately.
    let (first, last) = (&events[0]["message"]["usage"], &events[events.len() - 2]["usage"]);
    for name in ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"] {
        assert!(
            first[name].is_u64() && first[name] == last[name] && first[name] == whole["usage"][name],
            "{first} {last}"
        );
    }

    let last = &events[events.len() - 2]["delta"];
    assert_eq!((&last["stop_reason"], &last["stop_sequence"]), (&json!("tool_use"), &json!("END")));
    assert_eq!(whole["stop_sequence"], "END");

    let (_, counted) = bed.post("/v1/messages/count_tokens", messages()).await;
    assert_eq!(counted["input_tokens"].as_u64(), first["input_tokens"].as_u64().map(|tokens| tokens + 1));
    let (status, wrong) = bed.post("/v1/messages", json!({"model": "mock", "messages": []})).await;
    assert_eq!(
        (status, &wrong["type"], &wrong["error"]["type"]),
        (400, &json!("error"), &json!("invalid_request_error"))
    );
}

/// Anthropic's prefill: the answer continues the last message.
#[tokio::test]
async fn a_last_message_of_the_assistant_is_continued() {
    let bed = Bed::new(Mock::saying("llo"));
    let ask = |last: Value| {
        let messages = json!([{"role": "user", "content": "Greet."}, {"role": "assistant", "content": last}]);
        json!({"model": "mock", "max_tokens": 50, "messages": messages})
    };
    for last in [json!("He"), json!([{"type": "text", "text": "H"}, {"type": "text", "text": "e"}])] {
        let (status, whole) = bed.post("/v1/messages", ask(last.clone())).await;
        assert_eq!((status, &whole["content"][0]["text"]), (200, &json!("llo")), "{whole}");
        assert_eq!(bed.mock.prompt(), "user:Greet.\nassistant:He");
        let (_, counted) = bed.post("/v1/messages/count_tokens", ask(last)).await;
        assert_eq!(counted["input_tokens"], 24);
    }
    assert_eq!(bed.post("/v1/messages", ask(json!(""))).await.0, 200);
    assert_eq!(bed.mock.prompt(), "user:Greet.\n");
    let (status, wrong) = bed.post("/v1/messages", ask(json!("He "))).await;
    assert!(status == 400 && wrong["error"]["message"].as_str().unwrap().contains("white space"), "{wrong}");
}

/// A number beyond `f64` is an identifier, and must not change.
#[tokio::test]
async fn arguments_of_calls_keep_every_digit() {
    let given = r#"{"id": 12345678901234567890123, "sum": 1.10}"#;
    let bed =
        Bed::new(Mock::saying(&format!(r#"<tool_call>{{"name": "add", "arguments": {given}}}</tool_call>"#)));
    let schema = json!({"type": "object"});
    let ask = |path: &'static str, tool: Value, stream: bool| {
        let messages = json!([{"role": "user", "content": "Add."}]);
        let mut body = json!({"max_tokens": 200, "tools": [tool], "stream": stream});
        body[if path == "/v1/responses" { "input" } else { "messages" }] = messages;
        bed.send(crate::mock::post(path, &body.to_string()))
    };
    let quoted = Value::from(given).to_string();
    for (path, tool) in [
        (
            "/v1/chat/completions",
            json!({"type": "function", "function": {"name": "add", "parameters": schema}}),
        ),
        ("/v1/responses", json!({"type": "function", "name": "add", "parameters": schema})),
        ("/v1/messages", json!({"name": "add", "input_schema": schema})),
    ] {
        for stream in [false, true] {
            let (status, _, text) = ask(path, tool.clone(), stream).await;
            let whole = path == "/v1/messages" && !stream;
            let expected = if whole { format!("\"input\":{given}") } else { quoted.clone() };
            assert!(status == 200 && text.contains(&expected), "{path}: {text}");
        }
    }
}

#[tokio::test]
async fn responses_are_items() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let body =
        json!({"model": "mock", "input": "Hello", "instructions": "Be brief.", "max_output_tokens": 2});
    let (status, whole) = bed.post("/v1/responses", body.clone()).await;
    assert_eq!(status, 200, "{whole}");
    assert_eq!(whole["output"][0]["content"][0]["text"], "Hi");
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let mut body = body;
    body["stream"] = true.into();
    let events = bed.stream("/v1/responses", body).await;
    let text: String = events
        .iter()
        .filter(|it| it["type"] == "response.output_text.delta")
        .filter_map(|it| it["delta"].as_str())
        .collect();
    assert_eq!(text, "Hi");
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64));
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["output"][0]["content"][0]["text"]),
        (&json!("response.incomplete"), &json!("Hi"))
    );
    for more in [
        json!({"previous_response_id": "x"}),
        json!({"tools": [{"type": "web_search"}]}),
        json!({"background": true}),
    ] {
        let mut body = json!({"model": "mock", "input": "Hello"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(bed.post("/v1/responses", body).await.0, 400, "{more}");
    }
}

#[tokio::test]
async fn a_response_repeats_its_request() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let tool = json!({"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": true});
    let asked = json!({"instructions": "Be brief.", "max_output_tokens": 7, "metadata": {"a": "b"}, "parallel_tool_calls": false,
        "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}, "verbosity": "low"}, "tool_choice": "none", "tools": [tool],
        "top_logprobs": 1, "user": "u"});
    let mut body = json!({"model": "mock", "input": "Hello", "truncation": "auto", "include": ["file_search_call.results"], "whatever": 1});
    body.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
    let (status, head, text) = bed.send(crate::mock::post("/v1/responses", &body.to_string())).await;
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status, 200, "{whole}");
    for (name, value) in asked.as_object().unwrap() {
        assert_eq!(&whole[name], value, "{name}");
    }
    assert_eq!(whole["truncation"], "disabled");
    let mut named: Vec<&str> = head["x-fathom-ignored"].to_str().unwrap().split(", ").collect();
    named.sort_unstable();
    assert_eq!(named, ["include", "text.verbosity", "truncation", "whatever"]);
    body["stream"] = true.into();
    let events = bed.stream("/v1/responses", body).await;
    for event in [&events[0], events.last().unwrap()] {
        assert_eq!(event["response"]["metadata"], json!({"a": "b"}), "{event}");
    }
    let (_, plain) = bed.post("/v1/responses", json!({"input": "Hello", "metadata": null})).await;
    assert_eq!(
        (&plain["tools"], &plain["tool_choice"], &plain["metadata"]),
        (&json!([]), &json!("auto"), &json!({}))
    );
}

#[tokio::test]
async fn a_response_has_the_log_probabilities_that_are_asked_for() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let ask = |more: Value| {
        let mut body = json!({"model": "mock", "input": "Hello"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, top) in [
        (json!({"include": ["message.output_text.logprobs"]}), 0),
        (json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2}), 2),
        (json!({"top_logprobs": 2}), 2),
    ] {
        let (_, whole) = bed.post("/v1/responses", ask(more.clone())).await;
        let part = &whole["output"][0]["content"][0];
        let logprobs = part["logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), 3, "{more}");
        assert_eq!((&logprobs[0]["token"], &logprobs[0]["logprob"]), (&json!("H"), &json!(-0.5)));
        assert_eq!(logprobs[2]["top_logprobs"].as_array().unwrap().len(), top);
        let mut body = ask(more);
        body["stream"] = true.into();
        let events = bed.stream("/v1/responses", body).await;
        let deltas = events.iter().filter(|it| it["type"] == "response.output_text.delta");
        let streamed: Vec<Value> = deltas.flat_map(|it| it["logprobs"].as_array().unwrap().clone()).collect();
        assert_eq!(&streamed, logprobs);
        assert_eq!(&events.last().unwrap()["response"]["output"][0]["content"][0], part);
    }
    let (_, whole) = bed.post("/v1/responses", ask(json!({}))).await;
    assert_eq!(whole["output"][0]["content"][0]["logprobs"], json!([]));
    assert_eq!(bed.post("/v1/responses", ask(json!({"top_logprobs": 21}))).await.0, 400);
}

/// With a limit of one call, further calls are dropped in every protocol, streamed or not.
#[tokio::test]
async fn calls_beyond_the_first_are_dropped_where_one_is_the_most() {
    let call = r#"<tool_call>{"name": "add", "arguments": {}}</tool_call>"#;
    let bed = Bed::new(Mock::saying(&format!("{call}\n{call}")));
    let schema = json!({"type": "object"});
    let asks = [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}], "parallel_tool_calls": false,
            "tools": [{"type": "function", "function": {"name": "add", "parameters": schema}}]}),
        ),
        (
            "/v1/responses",
            json!({"input": "a", "parallel_tool_calls": false,
            "tools": [{"type": "function", "name": "add", "parameters": schema}]}),
        ),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 200,
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "tools": [{"name": "add", "input_schema": schema}]}),
        ),
    ];
    for (path, mut body) in asks {
        for stream in [false, true] {
            body["stream"] = stream.into();
            let (status, _, text) = bed.send(crate::mock::post(path, &body.to_string())).await;
            let names = ["\"call_", "\"toolu_"].iter().flat_map(|mark| text.split(mark).skip(1));
            let ids = names.map(|rest| rest.split('"').next().unwrap());
            // Skips the field's name, `call_id`.
            let ids: BTreeSet<&str> = ids.filter(|id| id.len() > 8).collect();
            assert!(status == 200 && ids.len() == 1, "{path} {stream}: {text}");
        }
    }
}

/// An answer that is cut after a call is reported as cut.
#[tokio::test]
async fn messages_cut_inside_of_a_second_call_say_that_they_were_cut() {
    let call = r#"<tool_call>{"name": "add", "arguments": {}}</tool_call>"#;
    let bed = Bed::new(Mock::saying(&format!("{call}\n{call}")));
    let mut body = messages();
    body["max_tokens"] = (call.len() + 8).into();
    let (_, whole) = bed.post("/v1/messages", body.clone()).await;
    assert_eq!((&whole["content"][1]["name"], &whole["stop_reason"]), (&json!("add"), &json!("max_tokens")));
    body["stream"] = true.into();
    let events = bed.stream("/v1/messages", body).await;
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "max_tokens");
}

/// Invalid messages, calls and tool choices are refused by each protocol, without a failure of the server.
#[tokio::test]
async fn what_is_no_message_is_refused_in_every_protocol() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let said = |calls: Value| json!([{"role": "assistant", "content": null, "tool_calls": calls}, {"role": "user", "content": "a"}]);
    let call = |arguments: Value| json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
    let item = |arguments: Value| json!([{"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}]);
    let used = |input: Value| json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": input}]}]);
    for (path, field, bad) in [
        (
            "/v1/chat/completions",
            "messages",
            vec![
                json!([1]),
                json!([null]),
                said(json!(["x"])),
                said(json!("x")),
                said(json!([{}])),
                said(call(json!([1]))),
                said(call(json!("[1]"))),
                said(call(json!("{"))),
            ],
        ),
        ("/tokenize", "messages", vec![json!([1]), said(json!(["x"])), said(call(json!(7)))]),
        (
            "/v1/responses",
            "input",
            vec![json!([1]), json!([null]), json!([{"content": "a"}]), item(json!("7")), item(json!([]))],
        ),
        (
            "/v1/messages",
            "messages",
            vec![
                json!([1]),
                json!([null]),
                json!([{"content": "a"}]),
                json!([{"role": "tool", "content": "a"}]),
                used(json!("x")),
                used(json!([1])),
            ],
        ),
        ("/v1/messages/count_tokens", "messages", vec![json!([1]), json!([{"content": "a"}])]),
    ] {
        for value in bad {
            let mut body = json!({"max_tokens": 9});
            body[field] = value;
            let (status, whole) = bed.post(path, body.clone()).await;
            assert_eq!(status, 400, "{path} {body}: {whole}");
        }
    }
    for (path, field, good) in [
        (
            "/v1/chat/completions",
            "messages",
            vec![said(json!(null)), said(call(json!(null))), said(call(json!("")))],
        ),
        ("/v1/responses", "input", vec![item(json!(null)), item(json!("null"))]),
        ("/v1/messages", "messages", vec![used(json!(null))]),
    ] {
        for value in good {
            let mut body = json!({"max_tokens": 9});
            body[field] = value;
            let (status, whole) = bed.post(path, body.clone()).await;
            assert_eq!(status, 200, "{path} {body}: {whole}");
        }
    }
}

/// A template gets no key that the tool does not have.
#[tokio::test]
async fn tools_without_a_description_have_none_in_every_protocol() {
    let bed = Bed::new(Mock::saying("Hi!"));
    for (path, field, tool) in [
        ("/v1/responses", "input", json!({"type": "function", "name": "f"})),
        (
            "/v1/messages",
            "messages",
            json!({"name": "f", "input_schema": {"type": "object"}, "description": null}),
        ),
    ] {
        let mut body = json!({"max_tokens": 9, "tools": [tool]});
        body[field] = json!([{"role": "user", "content": "a"}]);
        assert_eq!(bed.post(path, body).await.0, 200);
        let tools = bed.mock.tools.lock().unwrap().clone();
        assert_eq!(tools[0]["function"]["name"], "f");
        assert!(tools[0]["function"].get("description").is_none(), "{path}: {tools:?}");
    }
}

/// Fields without effect are listed, in every protocol.
#[tokio::test]
async fn fields_without_effect_are_named() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let messages = json!([{"role": "user", "content": "a"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages, "odd": 1})),
        ("/v1/responses", json!({"input": "a", "odd": 1})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 5, "odd": 1})),
        ("/v2/models/mock/generate", json!({"text_input": "a", "parameters": {"odd": 1}})),
        ("/tokenize", json!({"prompt": "a", "odd": 1})),
        ("/v1/completions", json!({"prompt": "a", "stream_options": {"odd": 1}})),
        ("/v1/completions", json!({"prompt": "a", "structured_outputs": {"regex": "H", "odd": true}})),
    ] {
        let (status, head, text) = bed.send(crate::mock::post(path, &body.to_string())).await;
        let named = head.get("x-fathom-ignored").map_or("", |names| names.to_str().unwrap());
        assert!(status == 200 && named.ends_with("odd"), "{body}: {status} {named} {text}");
    }
    let search = json!({"messages": messages, "max_tokens": 5, "tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    assert_eq!(bed.post("/v1/messages", search).await.0, 400);
}

#[tokio::test]
async fn kserve_generates_and_infers() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let body = json!({"text_input": "Hello", "parameters": {"max_tokens": 2, "temperature": 0}});
    let (status, whole) = bed.post("/v2/models/mock/generate", body.clone()).await;
    assert_eq!((status, &whole["text_output"]), (200, &json!("Hi")));
    let events = bed.stream("/v2/models/mock/generate_stream", body).await;
    assert_eq!(events.iter().filter_map(|event| event["text_output"].as_str()).collect::<String>(), "Hi");
    let tensor =
        |name: &str, value: Value| json!({"name": name, "datatype": "X", "shape": [1], "data": [value]});
    let inputs =
        json!({"id": "7", "inputs": [tensor("text_input", "Hello".into()), tensor("max_tokens", 3.into())]});
    let (_, whole) = bed.post("/v2/models/mock/infer", inputs).await;
    assert_eq!((&whole["id"], &whole["outputs"][0]["data"]), (&json!("7"), &json!(["Hi!"])));
    let (status, wrong) = bed.post("/v2/models/other/generate", json!({"text_input": "a"})).await;
    assert!(status == 404 && wrong["error"].is_string(), "{wrong}");
    assert_eq!(bed.get("/v2/models/mock/ready").await.0, 200);
    // The version in the model's metadata may appear in a path.
    let inputs = json!({"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [["Hello"]]}]});
    for path in ["/v2/models/mock/infer", "/v2/models/mock/versions/1/infer"] {
        let (status, whole) = bed.post(path, inputs.clone()).await;
        assert_eq!((status, &whole["outputs"][0]["data"]), (200, &json!(["Hi!"])), "{whole}");
    }
    let (status, whole) = bed.post("/v2/models/mock/versions/1/generate", json!({"text_input": "a"})).await;
    assert_eq!((status, &whole["text_output"]), (200, &json!("Hi!")));
    for (path, status) in
        [("versions/1", 200), ("versions/1/ready", 200), ("versions/2", 404), ("versions/2/ready", 404)]
    {
        assert_eq!(bed.get(&format!("/v2/models/mock/{path}")).await.0, status, "{path}");
    }
    let (status, wrong) = bed.post("/v2/models/mock/versions/2/generate", json!({"text_input": "a"})).await;
    assert!(status == 404 && wrong["error"].as_str().unwrap().contains("version `2`"), "{wrong}");
}

/// The default of Triton's client: JSON, followed by tensors.
#[tokio::test]
async fn kserve_takes_and_gives_binary_tensors() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let tensor = |name: &str, datatype: &str, bytes: usize| json!({"name": name, "datatype": datatype, "shape": [1], "parameters": {"binary_data_size": bytes}});
    let inputs = json!([tensor("text_input", "BYTES", 9), tensor("max_tokens", "INT32", 4)]);
    let behind = b"\x05\0\0\0Hello\x02\0\0\0";
    let ask = |body: Value, behind: &[u8], (kind, more): (&str, usize)| {
        let json = body.to_string();
        let request =
            Request::post("/v2/models/mock/infer").header("host", "localhost").header("content-type", kind);
        let request = request.header("inference-header-content-length", json.len() + more);
        request.body(Body::from([json.as_bytes(), behind].concat())).unwrap()
    };
    let octets = ("application/octet-stream", 0);
    for (wanted, binary) in [
        (json!({"parameters": {"binary_data_output": true}}), true),
        (json!({"outputs": [{"name": "text_output", "parameters": {"binary_data": true}}]}), true),
        (json!({"outputs": [{"name": "text_output", "parameters": {"binary_data": false}}]}), false),
        (json!({}), false),
    ] {
        let mut body = wanted.clone();
        body["inputs"] = inputs.clone();
        let (status, head, text) = bed.send(ask(body, behind, octets)).await;
        assert_eq!((status, head.contains_key("inference-header-content-length")), (200, binary), "{text}");
        let json_bytes = head
            .get("inference-header-content-length")
            .map_or(text.len(), |bytes| bytes.to_str().unwrap().parse().unwrap());
        let whole: Value = serde_json::from_str(&text[..json_bytes]).unwrap();
        let output = &whole["outputs"][0];
        assert_eq!(output["data"].is_null(), binary, "{wanted}");
        if binary {
            assert_eq!(
                (&output["parameters"]["binary_data_size"], &text[json_bytes..]),
                (&json!(6), "\x02\0\0\0Hi")
            );
        }
    }
    let body = json!({"inputs": inputs});
    let other = json!({"inputs": inputs, "outputs": [{"name": "logits"}]});
    for (request, expected, says) in [
        (ask(body.clone(), &behind[..12], octets), 400, "beyond the end"),
        (ask(body.clone(), &[&behind[..], b"1"].concat(), octets), 400, "belong to none"),
        (ask(body.clone(), b"", ("application/octet-stream", 1)), 400, "the body has"),
        (ask(other, behind, octets), 400, "text_output"),
        (ask(body, behind, ("text/plain", 0)), 415, "application/json"),
    ] {
        let (status, _, text) = bed.send(request).await;
        assert!(status == expected && text.contains(says), "{status} {text}");
    }
    // On other routes the body is only JSON.
    let request =
        Request::post("/v1/completions").header("host", "localhost").header("content-type", octets.0);
    let request = request.header("inference-header-content-length", 2).body(Body::from("{}")).unwrap();
    assert_eq!(bed.send(request).await.0, 415);
}
