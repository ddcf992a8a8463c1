//! Adapters at the admin listener, and as names of models in requests.

use std::path::Path;

use fathom_serve::{ADMIN, ROUTES, Router, ServeOptions, Settings, router};
use serde_json::{Value, json};

use crate::mock::{Bed, Mock, post};

/// A server with a folder of adapters that has `good` and a link to outside.
fn bed(root: &Path) -> (Bed, Router) {
    let adapters = root.join("adapters");
    std::fs::create_dir_all(adapters.join("good")).unwrap();
    std::fs::create_dir_all(root.join("outside")).unwrap();
    std::os::unix::fs::symlink(root.join("outside"), adapters.join("link")).unwrap();
    let settings = Settings { adapters: Some(adapters), ..Settings::default() };
    let bed = Bed::with(Mock::saying("Hi!"), ServeOptions { settings, ..ServeOptions::default() });
    let admin = router(&bed.server, ADMIN);
    (bed, admin)
}

/// Posts to the admin listener.
async fn ask(bed: &mut Bed, admin: &Router, path: &str, body: Value) -> (u16, String) {
    let models = std::mem::replace(&mut bed.router, admin.clone());
    let (status, _, text) = bed.send(post(path, &body.to_string())).await;
    bed.router = models;
    (status, text)
}

#[tokio::test]
async fn adapters_come_and_go_under_vllms_words() {
    let root = tempfile::tempdir().unwrap();
    let (mut bed, admin) = bed(root.path());
    let (load, unload) = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter");
    let good = json!({"lora_name": "fresh", "lora_path": "good"});
    let answer = ask(&mut bed, &admin, load, good.clone()).await;
    assert_eq!(answer, (200, "Success: LoRA adapter 'fresh' added successfully.".into()));
    // The absolute path works too.
    let absolute = json!({"lora_name": "other", "lora_path": root.path().join("adapters/good")});
    assert_eq!(ask(&mut bed, &admin, load, absolute).await.0, 200);
    let names = |text: &str| -> Vec<(String, Value)> {
        let body: Value = serde_json::from_str(text).unwrap();
        let one = |it: &Value| (it["id"].as_str().unwrap().to_string(), it["parent"].clone());
        body["data"].as_array().unwrap().iter().map(one).collect()
    };
    let adapter = |name: &str| (name.to_string(), json!("mock"));
    let base = ("mock".to_string(), Value::Null);
    assert_eq!(
        names(&bed.get("/v1/models").await.1),
        [base.clone(), adapter("fresh"), adapter("other"), adapter("tuned")]
    );
    assert_eq!(bed.get("/v1/models/fresh").await.0, 200);
    let (status, body) = bed.post("/v1/completions", json!({"model": "fresh", "prompt": "a"})).await;
    assert_eq!((status, &body["model"]), (200, &json!("fresh")));
    assert_eq!(body["system_fingerprint"], "fp_mock_fresh");
    assert_eq!(bed.mock.last().adapter.as_deref(), Some("fresh"));
    bed.post("/v1/completions", json!({"model": "mock", "prompt": "a"})).await;
    assert_eq!(bed.mock.last().adapter, None);
    let metrics = bed.get("/metrics").await.1;
    let line = metrics.lines().find(|line| line.starts_with("vllm:lora_requests_info{")).unwrap();
    assert!(line.contains(r#"max_lora="3""#) && line.contains(r#"running_lora_adapters="","#), "{line}");
    for name in ["fresh", "other"] {
        let answer = ask(&mut bed, &admin, unload, json!({"lora_name": name})).await;
        assert_eq!(answer, (200, format!("Success: LoRA adapter '{name}' removed successfully.")));
    }
    assert_eq!(names(&bed.get("/v1/models").await.1), [base, adapter("tuned")]);
    let (status, body) = bed.post("/v1/completions", json!({"model": "fresh", "prompt": "a"})).await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")));
    assert!(body["error"]["message"].as_str().unwrap().contains("mock, tuned"), "{body}");
}

#[tokio::test]
async fn adapters_that_cannot_be_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let (mut bed, admin) = bed(root.path());
    let load = |name: &str, path: &str| json!({"lora_name": name, "lora_path": path});
    let mut in_place = load("tuned", "good");
    in_place["load_inplace"] = true.into();
    for (body, part) in [
        (json!({"lora_name": "a"}), "`lora_path` is missing"),
        (json!({"lora_path": "good"}), "`lora_name` is missing"),
        (load("", "good"), "is empty"),
        (load("tuned", "good"), "The lora adapter 'tuned' has already been loaded."),
        (load("mock", "good"), "already"),
        (in_place, "unload the adapter first"),
        (load("a", "none"), "no folder below serve.adapters"),
        (load("a", "link"), "no folder below serve.adapters"),
        (load("a", "../outside"), "no folder below serve.adapters"),
        (load("wrong base", "good"), "of another base"),
    ] {
        let (status, text) = ask(&mut bed, &admin, "/v1/load_lora_adapter", body.clone()).await;
        assert!(status == 400 && text.contains(part), "{body}: {status} {text}");
    }
    for name in ["absent", "mock"] {
        let (status, text) =
            ask(&mut bed, &admin, "/v1/unload_lora_adapter", json!({"lora_name": name})).await;
        assert!(status == 404 && text.contains(&format!("'{name}' cannot be found")), "{status} {text}");
    }
    let plain = Bed::new(Mock::default());
    let admin = router(&plain.server, ADMIN);
    let mut plain = Bed { router: router(&plain.server, ROUTES), ..plain };
    let (status, text) = ask(&mut plain, &admin, "/v1/load_lora_adapter", load("a", "good")).await;
    assert!(status == 400 && text.contains("serve.adapters"), "{status} {text}");
}

#[tokio::test]
async fn an_adapter_gives_no_vectors_and_no_two_things_have_one_name() {
    let bed = Bed::new(Mock::default());
    let (status, body) = bed.post("/v1/embeddings", json!({"input": "x", "model": "tuned"})).await;
    assert!(status == 400 && body["error"]["message"].as_str().unwrap().contains("ask mock"), "{body}");
    for name in ["mock", "tuned"] {
        assert!(bed.server.add(name, bed.mock.clone()).is_err());
    }
}
