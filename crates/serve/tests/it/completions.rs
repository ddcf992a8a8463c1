//! Completions, as requested by evaluation harnesses.

use fathom_base::{Beams, EarlyStopping, PartialSampling};
use serde_json::{Value, json};

use crate::mock::{Bed, Mock};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn a_harness_gets_the_log_likelihood_of_its_ids() {
    let bed = Bed::new(Mock::saying("z"));
    let body = json!({"prompt": [[97, 98, 99]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true});
    let (status, body) = bed.post(PATH, body).await;
    assert_eq!(status, 200, "{body}");
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], "abcz");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c", "z"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.5, -0.5, -0.5]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(logprobs["top_logprobs"], json!([null, {"b": -0.5}, {"c": -0.5}, {"z": -0.5}]));
}

#[tokio::test]
async fn prompts_of_all_kinds_have_their_answers_in_order() {
    let bed = Bed::new(Mock::saying("xyz"));
    let body =
        json!({"prompt": ["a", "bc"], "n": 2, "max_tokens": 3, "ignore_eos": true, "return_token_ids": true});
    let (_, body) = bed.post(PATH, body).await;
    let choices = body["choices"].as_array().unwrap();
    let prompts: Vec<&Value> = choices.iter().map(|choice| &choice["prompt_token_ids"]).collect();
    assert_eq!(prompts, [&json!([97]), &json!([97]), &json!([98, 99]), &json!([98, 99])]);
    assert_eq!(choices[3]["token_ids"], json!([120, 121, 122]));
    assert_eq!((&choices[3]["index"], &body["usage"]["completion_tokens"]), (&json!(3), &json!(12)));
    assert!(bed.mock.last().sampling.ignore_eos);

    let (_, body) =
        bed.post(PATH, json!({"prompt": "ab", "max_tokens": 0, "echo": true, "logprobs": 0})).await;
    assert_eq!((&body["choices"][0]["text"], &body["usage"]["completion_tokens"]), (&json!("ab"), &json!(0)));
    assert_eq!(body["choices"][0]["logprobs"]["tokens"], json!(["a", "b"]));
    let (_, body) = bed.post(PATH, json!({"prompt": "ab"})).await;
    assert_eq!(
        (&body["choices"][0]["finish_reason"], &body["choices"][0]["stop_reason"]),
        (&json!("stop"), &Value::Null)
    );
    assert_eq!(bed.mock.last().sampling.max_tokens, 16);
    for (asked, by) in [(json!({"stop": ["x", "y"]}), json!("x")), (json!({"stop_token_ids": [7]}), json!(7))]
    {
        let mut body = asked;
        body["prompt"] = "ab".into();
        assert_eq!(bed.post(PATH, body.clone()).await.1["choices"][0]["stop_reason"], by, "{body}");
        body["stream"] = true.into();
        let events = bed.stream(PATH, body.clone()).await;
        assert_eq!(events[events.len() - 2]["choices"][0]["stop_reason"], by, "{body}");
    }
    for wrong in [
        json!({"prompt": []}),
        json!({"prompt": {"a": 1}}),
        json!({"prompt": [1, "a"]}),
        json!({}),
        json!({"prompt": ""}),
    ] {
        assert_eq!(bed.post(PATH, wrong.clone()).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_stream_echoes_and_counts_characters() {
    let bed = Bed::new(Mock::saying("xy"));
    let body = json!({"prompt": "ab", "max_tokens": 5, "stream": true, "echo": true, "logprobs": 1});
    let events = bed.stream(PATH, body).await;
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "abxy");
    let offsets =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array().cloned());
    assert_eq!(offsets.flatten().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "stop");
}

/// vLLM's format, in completions and in chats.
#[tokio::test]
async fn log_probabilities_of_a_prompt_are_given_without_an_echo() {
    let bed = Bed::new(Mock::saying("z"));
    let own = |token: &str| json!({"logprob": -0.5, "rank": 1, "decoded_token": token});
    let (status, body) = bed.post(PATH, json!({"prompt": "ab", "prompt_logprobs": 2})).await;
    assert_eq!(status, 200, "{body}");
    let other = json!({"logprob": -1.5, "rank": 2, "decoded_token": "c"});
    assert_eq!(body["choices"][0]["prompt_logprobs"], json!([null, {"98": own("b"), "99": other}]));
    assert_eq!((&body["choices"][0]["text"], &body["choices"][0]["logprobs"]), (&json!("z"), &Value::Null));
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "prompt_logprobs": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        bed.post("/v1/chat/completions", body)
    };
    let (_, body) = chat(json!({})).await;
    assert_eq!(
        (body["prompt_logprobs"].as_array().unwrap().len(), &body["prompt_logprobs"][1]),
        (7, &json!({"115": own("s")}))
    );
    for wrong in [json!({"stream": true}), json!({"prompt_logprobs": 21}), json!({"prompt_logprobs": -1})] {
        assert_eq!(chat(wrong.clone()).await.0, 400, "{wrong}");
    }
    let (_, body) =
        bed.post("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})).await;
    assert!(body.get("prompt_logprobs").is_none());
}

/// Perplexity over windows of the whole context.
#[tokio::test]
async fn a_prompt_that_is_echoed_may_fill_the_context() {
    let bed = Bed::new(Mock::saying("z"));
    let ask = |tokens: usize, stream: bool| json!({"prompt": "a".repeat(tokens), "max_tokens": 0, "echo": true, "logprobs": 1, "n": 2, "stream": stream, "stream_options": {"include_usage": true}});
    let (status, whole) = bed.post(PATH, ask(1000, false)).await;
    assert_eq!(status, 200, "{whole}");
    assert_eq!(whole["choices"][1]["logprobs"]["tokens"].as_array().unwrap().len(), 1000);
    assert_eq!(bed.mock.last().sampling.max_tokens, 0);
    let events = bed.stream(PATH, ask(1000, true)).await;
    let used = &events[events.len() - 2]["usage"];
    assert_eq!((used, &used["completion_tokens"]), (&whole["usage"], &json!(0)));
    let (status, wrong) = bed.post(PATH, ask(1001, false)).await;
    assert_eq!((status, &wrong["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[tokio::test]
async fn a_search_over_beams_is_asked_for_in_vllms_words() {
    let bed = Bed::new(Mock::saying("z"));
    let ask = |body: Value| async { bed.post(PATH, body).await };
    let (status, body) =
        ask(json!({"prompt": "a", "use_beam_search": true, "n": 3, "length_penalty": 0.5})).await;
    assert_eq!((status, body["choices"].as_array().unwrap().len()), (200, 3), "{body}");
    let want = Beams { width: 3, length_penalty: 0.5, early_stopping: EarlyStopping::Likely };
    assert_eq!((bed.mock.last().beams, bed.mock.last().answers), (Some(want), 3));
    for (said, early_stopping) in [
        (json!(true), EarlyStopping::First),
        (json!("never"), EarlyStopping::Never),
        (json!(false), EarlyStopping::Likely),
    ] {
        let body = json!({"prompt": "a", "use_beam_search": true, "beam_width": 5, "early_stopping": said});
        assert_eq!(ask(body).await.0, 200);
        let want = Beams { width: 5, length_penalty: 1.0, early_stopping };
        assert_eq!((bed.mock.last().beams, bed.mock.last().answers), (Some(want), 1));
    }
    for (body, word) in [
        (json!({"prompt": "a", "beam_width": 4}), "beam_width"),
        (json!({"prompt": "a", "length_penalty": 2.0}), "length_penalty"),
        (json!({"prompt": "a", "early_stopping": true}), "early_stopping"),
        (json!({"prompt": "a", "use_beam_search": true, "early_stopping": "soon"}), "early_stopping"),
        (json!({"prompt": "a", "use_beam_search": true, "beam_width": 100}), "beam_width"),
    ] {
        let (status, answer) = ask(body).await;
        assert_eq!(status, 400);
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
    }
    ask(json!({"prompt": "a", "use_beam_search": false, "length_penalty": 1, "early_stopping": false})).await;
    assert_eq!(bed.mock.last().beams, None);
}

/// vLLM's `--generation-config auto`.
#[tokio::test]
async fn what_a_request_does_not_say_of_sampling_its_model_does() {
    let sampling = PartialSampling {
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: Some(0.1),
        repetition_penalty: Some(1.05),
    };
    let bed = Bed::new(Mock { sampling: sampling.clone(), ..Mock::saying("Hi!") });
    let conversation = json!([{"role": "user", "content": "a"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": conversation})),
        ("/v1/responses", json!({"input": "a"})),
        ("/v1/messages", json!({"messages": conversation, "max_tokens": 5})),
        ("/v2/models/mock/generate", json!({"text_input": "a"})),
    ] {
        assert_eq!(bed.post(path, body.clone()).await.0, 200, "{path}");
        let how = bed.mock.last().sampling;
        assert_eq!(sampling.on(how.clone()), how, "{path}");
        let mut asks = body;
        let asked = json!({"temperature": 0, "top_k": -1, "top_p": 1, "min_p": 0, "repetition_penalty": 1});
        asks.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
        assert_eq!(bed.post(path, asks).await.0, 200, "{path}");
        let how = bed.mock.last().sampling;
        assert_eq!((how.temperature, how.top_k, how.top_p, how.min_p), (0.0, 0, 1.0, 0.0), "{path}");
        assert_eq!(how.repetition_penalty, 1.0, "{path}");
    }
    // A beam search does not sample.
    let search = json!({"prompt": "a", "use_beam_search": true, "n": 2});
    assert_eq!((bed.post("/v1/completions", search).await.0, bed.mock.last().sampling.top_k), (200, 0));
}
