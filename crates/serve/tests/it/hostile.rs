//! Small requests for a lot of work: each is refused before the work, or runs where no connection waits for it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fathom_base::Error;
use fathom_serve::{ServeOptions, ServerAddresses, ServerState, Settings, serve};
use serde_json::{Value, json};

use crate::mock::{Bed, Mock, post};

fn bed(mock: Mock, settings: Settings) -> Bed {
    Bed::with(mock, ServeOptions { settings, ..ServeOptions::default() })
}

/// A server on its own port.
struct TestServer {
    shared: Arc<ServerState>,
    stop: Arc<AtomicBool>,
    port: u16,
    thread: JoinHandle<()>,
}

fn start(mock: Mock, settings: Settings) -> TestServer {
    let Bed { server: shared, .. } = bed(mock, settings);
    let (stop, (send, receive)) = (Arc::new(AtomicBool::new(false)), channel());
    let (own, flag) = (shared.clone(), stop.clone());
    let thread = thread::spawn(move || {
        let at = ServerAddresses { host: "127.0.0.1".into(), port: 0, admin_port: None, tls: None };
        serve(&own, &at, &flag, |addresses| send.send(addresses[0].port()).unwrap()).unwrap();
    });
    TestServer { shared, stop, port: receive.recv().unwrap(), thread }
}

impl TestServer {
    /// Sends a request whose header announces a body of `bytes` bytes.
    fn send(&self, request: &str, body: &str, bytes: usize) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        stream
    }

    fn ask(&self, request: &str, body: &str) -> String {
        let mut answer = String::new();
        self.send(request, body, body.len()).read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until `count` requests are open.
    fn until_open(&self, count: u64) {
        while self.shared.requests.used() != count {
            thread::yield_now();
        }
    }
}

/// The field's name is escaped, so that it does not appear literally in the body.
const COMPILES: &str = r#"{"prompt":"a","guided\u005fjson":{"type":"number","multipleOf":1000003}}"#;

#[test]
fn structures_that_compile_for_ever_hold_up_no_request_and_end_when_their_clients_leave() {
    let serving = start(
        Mock { compiles: true, ..Mock::saying("b") },
        Settings { drain_s: 0.05, ..Settings::default() },
    );
    let all = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"].map(|path| {
        let more = r#""messages":[{"role":"user","content":"a"}],"input":"a","max_tokens":5,"#;
        let body = COMPILES.replace(
            r#""prompt":"a","#,
            if path.ends_with("v1/completions") { r#""prompt":"a","# } else { more },
        );
        serving.send(&format!("POST {path}"), &body, body.len())
    });
    serving.until_open(all.len() as u64);
    assert!(serving.ask("GET /health/live", "").starts_with("HTTP/1.1 200"));
    assert!(serving.ask("POST /v1/completions", r#"{"prompt":"a"}"#).starts_with("HTTP/1.1 200"));
    drop(all);
    serving.until_open(0);
    // A client that stays delays shutdown no longer than any other request.
    let stays = serving.send("POST /v1/completions", COMPILES, COMPILES.len());
    serving.until_open(1);
    serving.stop.store(true, Ordering::Relaxed);
    serving.thread.join().unwrap();
    drop(stays);
}

#[test]
fn bodies_that_are_being_read_have_a_limit_together() {
    let serving = start(Mock::saying("b"), Settings { body_bytes: 100, ..Settings::default() });
    let all = [0; 4].map(|_| serving.send("POST /tokenize", "", 100));
    serving.until_open(4);
    let mut answer = String::new();
    // Each waits for its body, and has already taken its permit.
    while !answer.starts_with("HTTP/1.1 429") {
        answer = serving.ask("POST /tokenize", r#"{"prompt":"a"}"#);
    }
    assert!(answer.contains("serve.body_bytes"), "{answer}");
    drop(all);
    serving.until_open(0);
    assert!(serving.ask("POST /tokenize", r#"{"prompt":"a"}"#).starts_with("HTTP/1.1 200"));
    serving.stop.store(true, Ordering::Relaxed);
    serving.thread.join().unwrap();
}

async fn refused(bed: &Bed, path: &str, body: &Value, part: &str) {
    let (status, said) = bed.post(path, body.clone()).await;
    let message = said["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains(part), "{path}: {status} {said}");
    assert!(bed.mock.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn texts_are_counted_before_they_are_repeated() {
    let bed = bed(Mock::default(), Settings { body_bytes: 1 << 20, ..Settings::default() });
    let (long, many) = ("a".repeat(200_000), vec!["b"; 40_000]);
    refused(&bed, "/v1/score", &json!({"text_1": long, "text_2": many}), "is 40000; 256 are the most").await;
    refused(&bed, "/v1/rerank", &json!({"query": long, "documents": many}), "is 40000").await;
    refused(&bed, "/v1/score", &json!({"text_1": many, "text_2": many}), "is 40000").await;
    refused(&bed, "/v1/embeddings", &json!({"input": many}), "is 40000").await;
    refused(&bed, "/v1/completions", &json!({"prompt": many}), "is 40000").await;
    // A few texts, whose repetition is large.
    let few = vec!["b"; 200];
    refused(&bed, "/v1/score", &json!({"text_1": long, "text_2": few}), "40000200 bytes together").await;
    refused(&bed, "/v1/rerank", &json!({"query": long, "documents": few}), "40000200 bytes together").await;
}

#[tokio::test]
async fn log_probabilities_of_all_answers_have_a_limit_together() {
    let bed = bed(Mock::saying("b"), Settings { max_listed_logprobs: 10_000, ..Settings::default() });
    let prompt = "a".repeat(600);
    let ask = |n: usize| json!({"prompt": prompt, "prompt_logprobs": 20, "n": n, "max_tokens": 1});
    refused(&bed, "/v1/completions", &ask(1), "12600 log-probabilities, and 10000 are the most").await;
    let echo = json!({"prompt": prompt, "echo": true, "logprobs": 1, "n": 9, "max_tokens": 1});
    refused(&bed, "/v1/completions", &echo, "10818 log-probabilities").await;
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 900, "n": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let many = chat(json!({"logprobs": true, "top_logprobs": 20}));
    refused(&bed, "/v1/chat/completions", &many, "37800 log-probabilities").await;
    assert_eq!(bed.post("/v1/chat/completions", chat(json!({"logprobs": true}))).await.0, 200);
}

#[tokio::test]
async fn tokenisers_take_a_permit_too() {
    let bed =
        bed(Mock { hangs: true, ..Mock::default() }, Settings { max_requests: 1, ..Settings::default() });
    let body = json!({"prompt": "a"}).to_string();
    let held = tokio::spawn(tower::ServiceExt::oneshot(bed.router.clone(), post("/v1/completions", &body)));
    while bed.mock.open.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    for (path, body) in [
        ("/tokenize", json!({"prompt": "a"})),
        ("/detokenize", json!({"tokens": [97]})),
        ("/v1/messages/count_tokens", json!({"messages": [{"role": "user", "content": "a"}]})),
    ] {
        assert_eq!(bed.post(path, body.clone()).await.0, 429, "{path}");
    }
    held.abort();
    _ = held.await;
    let (_, body) = bed.post("/tokenize", json!({"prompt": "hé", "return_token_strs": true})).await;
    let strs = json!(["h", "\u{fffd}", "\u{fffd}"]);
    assert_eq!(
        (&body["count"], &body["tokens"], &body["token_strs"]),
        (&json!(3), &json!([104, 195, 169]), &strs)
    );
    assert_eq!(bed.post("/tokenize", json!({"prompt": "a"})).await.1["token_strs"], Value::Null);
}

#[tokio::test]
async fn the_schema_of_tools_has_the_limits_of_others() {
    let bed = bed(Mock::saying("{}"), Settings { schema_bytes: 1000, ..Settings::default() });
    let parameters = json!({"type": "object", "properties": {"a": {"enum": vec!["b"; 1000]}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let named = json!({"type": "function", "function": {"name": "f"}});
    for choice in [json!("required"), named] {
        let body =
            json!({"messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": choice});
        refused(&bed, "/v1/chat/completions", &body, "serve.schema_bytes").await;
    }
}

#[tokio::test]
async fn what_shows_only_while_it_is_answered_is_the_requests_fault_where_it_is() {
    type Case = (fn() -> Error, u16, Value);
    let cases: [Case; 3] = [
        (|| Error::Unmet { what: "no answer meets it".into() }, 400, Value::Null),
        (|| Error::Missing { what: "no adapter".into() }, 404, "model_not_found".into()),
        (|| Error::product("broken"), 500, Value::Null),
    ];
    for (fails, expected, code) in cases {
        let bed = Bed::new(Mock { fails: Some(fails), ..Mock::default() });
        let (status, said) = bed.post("/v1/completions", json!({"prompt": "a"})).await;
        assert_eq!((status, &said["error"]["code"]), (expected, &code), "{said}");
    }
}
