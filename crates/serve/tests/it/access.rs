//! Access rules: every route without a key, with a wrong one and with a right one.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use fathom_serve::{ADMIN, Access, ApiKeys, ROUTES, Route, ServeOptions, Settings, router};
use serde_json::json;

use crate::mock::{Bed, Mock, post};

fn keyed(settings: Settings) -> Bed {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "secret\n").unwrap();
    let opening = ServeOptions { keys: ApiKeys::read(&file).unwrap(), settings, ..ServeOptions::default() };
    Bed::with(Mock::saying("Hi!"), opening)
}

async fn walk(mut bed: Bed, routes: &'static [Route]) {
    bed.router = router(&Arc::clone(&bed.server), routes);
    for route in routes {
        for (key, good) in [(None, false), (Some("Bearer wrong"), false), (Some("Bearer secret"), true)] {
            let path =
                route.path.replace("{*name}", "mock").replace("{name}", "mock").replace("{version}", "1");
            let mut request =
                Request::builder().method(route.method).uri(&path).header("host", "models.example");
            request = request.header("content-type", "application/json");
            if let Some(key) = key {
                request = request.header("authorization", key);
            }
            let (status, headers, _) = bed.send(request.body(Body::from("{}")).unwrap()).await;
            let let_in = status != 401;
            assert_eq!(
                let_in,
                good || route.access == Access::Open,
                "{} {path} with {key:?}: {status}",
                route.method
            );
            assert!(headers.contains_key("content-security-policy") && headers.contains_key("x-request-id"));
        }
    }
    let open: Vec<&str> = routes.iter().filter(|it| it.access == Access::Open).map(|it| it.path).collect();
    assert!(
        open.iter().all(|path| ["/", "/health/live", "/health/ready", "/healthz"].contains(path)),
        "{open:?}"
    );
}

#[tokio::test]
async fn every_route_is_walked() {
    walk(keyed(Settings::default()), ROUTES).await;
    walk(keyed(Settings::default()), ADMIN).await;
}

#[tokio::test]
async fn what_is_not_there_wants_a_key_too() {
    let bed = keyed(Settings::default());
    assert_eq!(bed.get("/metricz").await.0, 401);
    let request = Request::get("/metricz")
        .header("host", "x")
        .header("x-api-key", "secret")
        .body(Body::empty())
        .unwrap();
    assert_eq!(bed.send(request).await.0, 404);
    let request = Request::delete("/v1/models").header("host", "x").body(Body::empty()).unwrap();
    assert_eq!(bed.send(request).await.0, 401);
}

#[tokio::test]
async fn foreign_pages_and_odd_bodies_are_refused() {
    let settings =
        Settings { body_bytes: 100, origins: vec!["https://chat.lan".into()], ..Settings::default() };
    let bed = Bed::with(Mock::saying("Hi!"), ServeOptions { settings, ..ServeOptions::default() });
    let small = r#"{"prompt": "a"}"#;
    let from = |name: &'static str, value: &str| {
        let mut request = post("/v1/completions", small);
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    for (name, value, expected) in [
        ("host", "evil.example", 403),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "http://localhost", 200),
        ("origin", "https://chat.lan", 200),
        ("content-type", "text/plain", 415),
        ("content-encoding", "gzip", 415),
        ("content-type", "application/json; charset=utf-8", 200),
    ] {
        let (status, headers, _) = bed.send(from(name, value)).await;
        assert_eq!(status, expected, "{name}: {value}");
        assert_eq!(headers.contains_key("access-control-allow-origin"), value == "https://chat.lan");
    }
    for (name, value, expected) in
        [("accept", "*/*", 200), ("origin", "http://localhost", 415), ("sec-fetch-site", "none", 415)]
    {
        let mut request = from(name, value);
        request.headers_mut().remove("content-type");
        assert_eq!(bed.send(request).await.0, expected, "nothing is said of the body; {name}: {value}");
    }
    let mut asked = from("origin", "https://chat.lan");
    *asked.method_mut() = axum::http::Method::OPTIONS;
    assert_eq!(bed.send(asked).await.0, 204);
    assert_eq!(bed.post("/v1/completions", json!({"prompt": "a".repeat(200)})).await.0, 413);
    assert_eq!(bed.send(post("/v1/completions", "{\"prompt\"")).await.0, 400);
    let deep = format!("{}1{}", "[".repeat(48), "]".repeat(48));
    assert_eq!(bed.send(post("/v1/completions", &deep)).await.0, 400);
}

#[tokio::test]
async fn prefixes_are_shared_within_a_key_and_a_salt() {
    let bed = keyed(Settings::default());
    for (salt, expected) in [(None, "/"), (Some("s"), "/s")] {
        let mut request = post("/v1/completions", &json!({"prompt": "a", "cache_salt": salt}).to_string());
        request.headers_mut().insert("authorization", "Bearer secret".parse().unwrap());
        assert_eq!(bed.send(request).await.0, 200);
        let scope = bed.mock.last().scope;
        assert!(scope.ends_with(expected) && scope.len() > 10 && !scope.contains("secret"), "{scope}");
    }
}
