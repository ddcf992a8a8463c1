//! Reloading a model while a stream of the old one runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use fathom_base::{Error, Service};
use fathom_serve::{ADMIN, Reload, Router, ServeOptions, Settings, router};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::mock::{Bed, Mock, post};

/// A server whose model slowly says `old`; reloaded, it says the next of `answers`, or fails to load.
fn bed(answers: Vec<Option<&'static str>>) -> (Bed, Router, Arc<Mutex<Vec<Arc<Mock>>>>) {
    let loaded: Arc<Mutex<Vec<Arc<Mock>>>> = Arc::default();
    let (kept, at) = (loaded.clone(), AtomicUsize::new(0));
    let reload: Reload = Arc::new(move |name| {
        assert_eq!(name, "mock");
        match answers[at.fetch_add(1, Ordering::SeqCst)] {
            Some(answer) => {
                let mock = Arc::new(Mock::saying(answer));
                kept.lock().unwrap().push(mock.clone());
                Ok(mock as Arc<dyn Service>)
            }
            None => Err(Error::product("mock takes 8 GiB next to the one that answers, and 2 GiB are free")),
        }
    });
    let settings = Settings { adapters: Some(std::env::temp_dir()), ..Settings::default() };
    let opening = ServeOptions { reload: Some(reload), settings, ..ServeOptions::default() };
    let mock = Mock { pace: Duration::from_millis(20), ..Mock::saying("old words") };
    let bed = Bed::with(mock, opening);
    let admin = router(&bed.server, ADMIN);
    (bed, admin, loaded)
}

async fn ask(router: &Router, path: &str, body: Value) -> (u16, String) {
    let response = router.clone().oneshot(post(path, &body.to_string())).await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn said(bed: &Bed) -> String {
    let (_, body) = bed.post("/v1/completions", json!({"prompt": "a"})).await;
    body["choices"][0]["text"].as_str().unwrap().to_string()
}

#[tokio::test]
async fn running_streams_end_with_the_old_model_and_new_requests_have_the_new() {
    let (bed, admin, loaded) = bed(vec![Some("new"), None, Some("newer")]);
    let request = post("/v1/completions", &json!({"prompt": "a", "stream": true}).to_string());
    let mut stream = bed.router.clone().oneshot(request).await.unwrap().into_body();
    let first = stream.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"data: "));
    let (status, body) = ask(&admin, "/reload", json!({})).await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["status"], &body["model"], &body["was"]),
        (&json!("reloaded"), &json!("mock"), &json!("fp_mock"))
    );
    // The new model answers while the old one's stream continues to its end.
    assert_eq!(said(&bed).await, "new");
    let old = Arc::strong_count(&bed.mock);
    let rest = stream.collect().await.unwrap().to_bytes();
    let text = String::from_utf8([first, rest].concat()).unwrap();
    let words: String = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .filter_map(|chunk| Some(chunk["choices"][0]["text"].as_str()?.to_string()))
        .collect();
    assert_eq!(words, "old words");
    assert!(text.trim_end().ends_with("data: [DONE]") && text.contains("\"finish_reason\":\"stop\""));
    // The old model is dropped with its last request.
    for _ in 0..100 {
        if Arc::strong_count(&bed.mock) < old && bed.mock.open.load(Ordering::SeqCst) == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((Arc::strong_count(&bed.mock), bed.mock.open.load(Ordering::SeqCst)), (1, 0));
    // A failed reload changes nothing.
    let (status, body) = ask(&admin, "/reload", json!({"model": "mock"})).await;
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("2 GiB are free"), "{body}");
    assert_eq!(said(&bed).await, "new");
    assert_eq!(ask(&admin, "/reload", json!({"model": "none"})).await.0, 404);
    // Adapters loaded at run time are loaded over the new model.
    let adapter = std::env::temp_dir().join(format!("fathom-reload-{}", std::process::id()));
    std::fs::create_dir_all(&adapter).unwrap();
    let (status, body) =
        ask(&admin, "/v1/load_lora_adapter", json!({"lora_name": "mine", "lora_path": adapter})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(ask(&admin, "/reload", json!({})).await.0, 200);
    std::fs::remove_dir(&adapter).unwrap();
    assert_eq!(said(&bed).await, "newer");
    assert_eq!(*loaded.lock().unwrap()[1].adapters.lock().unwrap(), ["mine"]);
    let models = bed.get("/v1/models").await.1;
    assert!(models.contains("\"mine\""), "{models}");
}

#[tokio::test]
async fn what_cannot_be_loaded_again_is_reported() {
    let bed = Bed::new(Mock::saying("a"));
    let admin = router(&bed.server, ADMIN);
    let (status, body) = ask(&admin, "/reload", json!({})).await;
    assert!(status == 400 && body.contains("start the server again"), "{body}");
    let get = Request::get("/reload").header("host", "localhost").body(Body::empty()).unwrap();
    assert_eq!(admin.oneshot(get).await.unwrap().status().as_u16(), 404);
}
