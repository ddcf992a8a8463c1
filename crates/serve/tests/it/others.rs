//! Vectors, scores, tokens, and information about the server.

use serde_json::{Value, json};

use crate::mock::{Bed, Mock};

#[tokio::test]
async fn vectors_come_as_numbers_or_bytes() {
    let bed = Bed::new(Mock::default());
    let (status, body) = bed.post("/v1/embeddings", json!({"input": ["x", "y"], "model": "mock"})).await;
    assert_eq!((status, &body["data"][1]["embedding"]), (200, &json!([0.0, 1.0])));
    assert_eq!(body["usage"], json!({"prompt_tokens": 2, "total_tokens": 2}));
    let (_, body) = bed.post("/v1/embeddings", json!({"input": [120], "encoding_format": "base64"})).await;
    assert_eq!(body["data"][0]["embedding"], "AACAPwAAAAA=");
    for wrong in [
        json!({"input": []}),
        json!({"input": ""}),
        json!({"input": ["a", ""]}),
        json!({"input": [[]]}),
        json!({"input": 1}),
        json!({"input": "a", "dimensions": 5}),
        json!({"input": [[300]]}),
    ] {
        assert_eq!(bed.post("/v1/embeddings", wrong.clone()).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn texts_are_labelled_scored_and_cut() {
    let bed = Bed::new(Mock { labels: vec!["no".into(), "yes".into()], ..Mock::default() });
    let (status, body) = bed.post("/classify", json!({"input": ["x", "y"]})).await;
    let first = json!({"index": 0, "label": "yes", "probs": [0.25, 0.75], "num_classes": 2});
    assert_eq!((status, &body["data"][0]), (200, &first));
    let (status, body) = bed.post("/v1/rerank", json!({"query": "a", "documents": ["b"]})).await;
    assert!(status == 400 && body.to_string().contains("2 labels"), "{body}");
    let bed = Bed::new(Mock::default());
    let (status, body) = bed.post("/score", json!({"text_1": "x", "text_2": ["xy", "y"]})).await;
    assert_eq!(
        (status, &body["data"][0]["score"], &body["data"][1]["score"]),
        (200, &json!(1.0), &json!(0.0))
    );
    let long = "a".repeat(1001);
    let (_, body) = bed.post("/v1/embeddings", json!({"input": long, "truncate_prompt_tokens": -1})).await;
    assert_eq!(body["usage"]["prompt_tokens"], 1000);
    for (route, wrong) in [
        ("/v1/embeddings", json!({"input": long})),
        ("/v1/embeddings", json!({"input": "a", "truncate_prompt_tokens": 0})),
        ("/v1/embeddings", json!({"input": "a", "truncate_prompt_tokens": 1001})),
        ("/v1/embeddings", json!({"input": "a", "truncate_prompt_tokens": "all"})),
        ("/score", json!({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})),
        ("/score", json!({"text_1": "a"})),
        ("/score", json!({"text_1": [], "text_2": []})),
        ("/score", json!({"text_1": 1, "text_2": "a"})),
        ("/rerank", json!({"query": "a", "documents": []})),
        ("/rerank", json!({"query": "a", "documents": [1]})),
        ("/classify", json!({"input": ""})),
    ] {
        let (status, body) = bed.post(route, wrong.clone()).await;
        assert_eq!(status, 400, "{wrong}: {body}");
    }
}

/// An empty text has the vector of the tokens that the tokenizer adds around it. If there are none, the error names the
/// text.
#[tokio::test]
async fn an_empty_text_in_a_batch_has_a_vector_or_is_named() {
    let body = json!({"input": ["a", "", "x"]});
    let bed = Bed::new(Mock { frames: true, ..Mock::default() });
    let (status, whole) = bed.post("/v1/embeddings", body.clone()).await;
    let vectors: Vec<&Value> = whole["data"].as_array().unwrap().iter().map(|it| &it["embedding"]).collect();
    assert_eq!(status, 200);
    assert_eq!(vectors, [&json!([0.0, 1.0]), &json!([0.0, 1.0]), &json!([1.0, 0.0])]);
    let (status, wrong) = Bed::new(Mock::default()).post("/v1/embeddings", body).await;
    assert!(status == 400 && wrong["error"]["message"].as_str().unwrap().contains("text 1 of"), "{wrong}");
}

#[tokio::test]
async fn documents_are_ranked_by_a_classifier_or_by_vectors() {
    let body = json!({"query": "x?", "documents": ["yy", {"text": "x"}, "y"], "top_n": 2});
    let order = |body: &Value| {
        body["results"].as_array().unwrap().iter().map(|it| it["index"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let (status, wrong) =
        Bed::new(Mock::default()).post("/v1/rerank", json!({"query": "a", "documents": ["b", ""]})).await;
    assert!(status == 400 && wrong["error"]["message"].as_str().unwrap().contains("is empty"), "{wrong}");
    let (_, by_vectors) = Bed::new(Mock::default()).post("/v1/rerank", body.clone()).await;
    assert_eq!(order(&by_vectors), [1, 0]);
    let bed = Bed::new(Mock { labels: vec!["relevant".into()], ..Mock::default() });
    let (_, by_classifier) = bed.post("/rerank", body).await;
    assert_eq!(order(&by_classifier), [0, 1]);
    assert_eq!(
        by_classifier["results"][0],
        json!({"index": 0, "relevance_score": 2.0, "document": {"text": "yy"}})
    );
}

#[tokio::test]
async fn a_tokenizer_is_asked_over_http() {
    let bed = Bed::new(Mock::default());
    let (_, body) = bed.post("/tokenize", json!({"prompt": "ab", "return_token_strs": true})).await;
    assert_eq!(
        body,
        json!({"count": 2, "max_model_len": 1000, "tokens": [97, 98], "token_strs": ["a", "b"]})
    );
    let (_, body) = bed.post("/tokenize", json!({"messages": [{"role": "user", "content": "a"}]})).await;
    assert_eq!(body["count"], 7);
    let (_, body) = bed.post("/detokenize", json!({"tokens": [97, 98]})).await;
    assert_eq!(body, json!({"prompt": "ab"}));
    assert_eq!(bed.post("/detokenize", json!({"tokens": [999]})).await.0, 400);
    let info: Value = serde_json::from_str(&bed.get("/tokenizer_info").await.1).unwrap();
    assert_eq!((&info["eos_token_id"], &info["model_max_length"]), (&json!(0), &json!(1000)));
    assert_eq!((&info["pad_token"], &info["chat_template"]), (&json!("<pad>"), &json!("{{ messages }}")));
}

#[tokio::test]
async fn a_server_says_what_it_is() {
    let bed = Bed::new(Mock::saying("Hi!"));
    let models: Value = serde_json::from_str(&bed.get("/v1/models").await.1).unwrap();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["parent"]), (&json!("mock"), &json!("mock")));
    assert_eq!(bed.get("/v1/models/tuned").await.0, 200);
    assert_eq!(bed.get("/v1/models/none").await.0, 404);
    bed.post("/v1/completions", json!({"prompt": "a"})).await;
    let metrics = bed.get("/metrics").await.1;
    for line in [
        "vllm:request_success_total{finished_reason=\"stop\",model_name=\"mock\"} 1",
        "vllm:request_prompt_tokens_count{model_name=\"mock\"} 1",
        "http_requests_total{handler=\"/v1/completions\",status=\"200\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let load: Value = serde_json::from_str(&bed.get("/load").await.1).unwrap();
    assert_eq!(load["models"][0]["name"], "mock");
    let document: Value = serde_json::from_str(&bed.get("/openapi.json").await.1).unwrap();
    assert!(document["paths"]["/v1/chat/completions"]["post"]["requestBody"].is_object());
}
