//! Conversations.

use fathom_base::Structure;
use serde_json::{Value, json};

use crate::mock::{Bed, Mock};

const PATH: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!({"model": "mock", "messages": [{"role": "user", "content": "Hello"}]})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_whole_answer_has_openais_form() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let (status, body) = bed.post(PATH, with(hello(), json!({"logprobs": true, "top_logprobs": 2}))).await;
    assert_eq!(status, 200, "{body}");
    let choice = &body["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "Hi!", "refusal": null}));
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &Value::Null));
    assert_eq!(choice["logprobs"]["content"][0]["token"], "H");
    assert_eq!(choice["logprobs"]["content"][0]["bytes"], json!([72]));
    assert_eq!(choice["logprobs"]["content"][2]["top_logprobs"][1]["token"], "\"");
    assert_eq!(body["usage"]["prompt_tokens"], 11);
    assert_eq!(body["usage"]["total_tokens"], 14);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
    assert_eq!(
        (&body["object"], &body["system_fingerprint"]),
        (&json!("chat.completion"), &json!("fp_mock"))
    );
    // OpenAI's defaults, and the room left for an answer.
    let asked = bed.mock.last();
    assert_eq!((asked.sampling.temperature, asked.sampling.max_tokens), (1.0, 989));
}

#[tokio::test]
async fn a_stream_joins_to_the_answer_and_ends_with_what_it_took() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let more = json!({"stream": true, "stream_options": {"include_usage": true}, "n": 2, "max_completion_tokens": 2});
    let events = bed.stream(PATH, with(hello(), more)).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let usage = &events[events.len() - 2];
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(4)));
    for index in 0..2 {
        let mine = events.iter().flat_map(|event| event["choices"].as_array().cloned().unwrap_or_default());
        let mine: Vec<Value> = mine.filter(|choice| choice["index"] == index).collect();
        let text: String = mine.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, "Hi");
        assert_eq!(mine[0]["delta"]["role"], "assistant");
        assert_eq!(mine.last().unwrap()["finish_reason"], "length");
    }
}

#[tokio::test]
async fn tools_are_rendered_and_their_calls_reported() {
    let answer = "Wait. <tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    let bed = Bed::new(Mock::saying(answer));
    let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
    let body = with(hello(), json!({"tools": [tool]}));
    let (_, whole) = bed.post(PATH, body.clone()).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &whole["choices"][0]["finish_reason"]),
        (&json!("Wait. "), &json!("tool_calls"))
    );
    assert_eq!(message["tool_calls"][0]["function"], json!({"name": "add", "arguments": "{\"a\": 1}"}));
    assert_eq!(whole["usage"]["prompt_tokens"], 17);

    let events = bed.stream(PATH, with(body.clone(), json!({"stream": true}))).await;
    let call =
        events.iter().find_map(|event| event["choices"][0]["delta"]["tool_calls"][0].as_object()).unwrap();
    assert_eq!((&call["index"], &call["function"]["name"]), (&json!(0), &json!("add")));
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "tool_calls");

    bed.post(PATH, with(body.clone(), json!({"tool_choice": "none"}))).await;
    bed.post(PATH, with(body.clone(), json!({"tool_choice": "required"}))).await;
    assert!(
        matches!(bed.mock.last().structure, Some(Structure::JsonSchema(schema)) if schema.contains("minItems"))
    );
    let named = json!({"type": "function", "function": {"name": "add"}});
    let (_, forced) = bed.post(PATH, with(body.clone(), json!({"tool_choice": named}))).await;
    assert_eq!(forced["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], answer);
    let (status, _) = bed.post(PATH, with(hello(), json!({"tool_choice": "required"}))).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn what_cannot_be_followed_is_refused_and_what_is_unknown_is_named() {
    let bed = Bed::new(Mock::saying("Hi!"));
    for (more, part) in [
        (json!({"messages": []}), "is empty"),
        (json!({"messages": "x"}), "a list"),
        (json!({"messages": [{"content": "x"}]}), "no `role`"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}),
            "not text",
        ),
        (json!({"temperature": "hot"}), "`temperature` has to be a number"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"n": 17}), "16 are the most"),
        (json!({"top_logprobs": 2}), "needs `logprobs: true`"),
        (json!({"logprobs": true, "top_logprobs": 21}), "20 are the most"),
        (json!({"max_tokens": 0}), "at least 1"),
        (json!({"max_tokens": 1000}), "context is 1000 tokens"),
        (json!({"logit_bias": {"x": 1}}), "token ids"),
        (json!({"chat_template": "{{ 1 }}"}), "not supported"),
        (json!({"chat_template_kwargs": {"tokenize": true}}), "cannot set"),
        (json!({"modalities": ["audio"]}), "not supported"),
        (json!({"stop": [""]}), "1 to 1024 bytes"),
        (json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}), "one structure"),
    ] {
        let (status, body) = bed.post(PATH, with(hello(), more.clone())).await;
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(part), "{more}: {status} {body}");
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }
    let (status, body) = bed.post(PATH, with(hello(), json!({"model": "other"}))).await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")));
    let body = with(hello(), json!({"user": "u", "metadata": {}, "whatever": 1})).to_string();
    let (status, headers, _) = bed.send(crate::mock::post(PATH, &body)).await;
    assert_eq!((status, headers["x-fathom-ignored"].to_str().unwrap()), (200, "whatever"));
    // An adapter is requested like a model.
    bed.post(PATH, with(hello(), json!({"model": "tuned"}))).await;
    assert_eq!(bed.mock.last().adapter.as_deref(), Some("tuned"));
}

#[tokio::test]
async fn a_model_that_dies_fails_its_request_and_not_the_server() {
    let bed = Bed::new(Mock { dies: true, ..Mock::saying("Hi!") });
    let (status, body) = bed.post(PATH, hello()).await;
    assert_eq!((status, &body["error"]["type"]), (500, &json!("server_error")));
    let events = bed.stream(PATH, with(hello(), json!({"stream": true}))).await;
    assert_eq!(events[events.len() - 2]["error"]["type"], "server_error");
    let (status, _) = bed.post("/v1/completions", json!({"prompt": "panic"})).await;
    assert_eq!(status, 500);
    assert_eq!(bed.get("/health/ready").await.0, 200);
    assert!(bed.get("/metrics").await.1.contains("fathom:request_failure_total{err=\"generation\"}"));
}
