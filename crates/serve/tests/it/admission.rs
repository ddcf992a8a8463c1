//! Admission control, disconnecting clients, and shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use fathom_serve::{ServeOptions, ServerAddresses, Settings, serve};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use tower::ServiceExt;

use crate::mock::{Bed, Mock, post};

const PATH: &str = "/v1/completions";

fn bed(mock: Mock, settings: Settings) -> Bed {
    Bed::with(mock, ServeOptions { settings, ..ServeOptions::default() })
}

#[tokio::test]
async fn a_full_server_says_so_at_once_and_those_who_leave_make_room() {
    let hangs = || Mock { hangs: true, ..Mock::default() };
    let bed = bed(hangs(), Settings { max_requests: 2, ..Settings::default() });
    let body = json!({"prompt": "a"}).to_string();
    let ask = || tokio::spawn(bed.router.clone().oneshot(post(PATH, &body)));
    let (first, second) = (ask(), ask());
    while bed.mock.open.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    let (status, headers, text) = bed.send(post(PATH, &body)).await;
    assert_eq!((status, headers["retry-after"].to_str().unwrap()), (429, "1"), "{text}");
    assert!(text.contains("rate_limit"));
    // A client leaves while it waits for a whole answer: its ticket is dropped, and its permit is free.
    first.abort();
    _ = first.await;
    assert_eq!(bed.mock.open.load(Ordering::SeqCst), 1);
    // The same holds for a dropped stream.
    let stream = json!({"prompt": "a", "stream": true}).to_string();
    let response = bed.router.clone().oneshot(post(PATH, &stream)).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    assert_eq!(bed.mock.open.load(Ordering::SeqCst), 2);
    assert_eq!(bed.send(post(PATH, &body)).await.0, 429);
    drop(response);
    assert_eq!(bed.mock.open.load(Ordering::SeqCst), 1);
    second.abort();
    _ = second.await;
    assert_eq!(bed.server.requests.used(), 0);
    assert!(bed.get("/metrics").await.1.contains("fathom:request_failure_total{err=\"dropped\"} 3"));
}

#[tokio::test]
async fn tokens_and_waits_have_limits() {
    let settings = Settings { max_tokens: Some(100), max_first_token_s: 0.5, ..Settings::default() };
    let bed = bed(Mock { hangs: true, per_s: 10.0, ..Mock::default() }, settings);
    let ask = |prompt: usize, max_tokens: usize| {
        let body = json!({"prompt": "a".repeat(prompt), "max_tokens": max_tokens}).to_string();
        tokio::spawn(bed.router.clone().oneshot(post(PATH, &body)))
    };
    let held = ask(4, 60);
    while bed.mock.open.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    let (status, body) = bed.post(PATH, json!({"prompt": "a", "max_tokens": 60})).await;
    assert!(
        status == 429 && body["error"]["message"].as_str().unwrap().contains("serve.max_tokens"),
        "{body}"
    );
    let second = ask(10, 10);
    while bed.mock.open.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    let (status, body) = bed.post(PATH, json!({"prompt": "a", "max_tokens": 1})).await;
    assert!(status == 429 && body["error"]["message"].as_str().unwrap().contains("first token"), "{body}");
    // Each further prompt of a request needs a permit of its own.
    held.abort();
    second.abort();
}

/// Starts a server on its own port.
fn start(mock: Mock, settings: Settings) -> (Arc<AtomicBool>, u16, thread::JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (send, receive) = channel();
    let flag = stop.clone();
    let thread = thread::spawn(move || {
        let bed = bed(mock, settings);
        let at = ServerAddresses { host: "127.0.0.1".into(), port: 0, admin_port: None, tls: None };
        serve(&bed.server, &at, &flag, |addresses| send.send(addresses[0].port()).unwrap()).unwrap();
    });
    (stop, receive.recv().unwrap(), thread)
}

fn write(port: u16, head: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = body.len();
    let text = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

fn line(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 1024];
    let read = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

#[test]
fn a_drained_server_ends_what_it_has_started_and_takes_nothing_new() {
    let mock = Mock { pace: Duration::from_millis(100), ..Mock::saying("0123456789") };
    let (stop, port, thread) = start(mock, Settings::default());
    let mut running =
        write(port, "POST /v1/completions", r#"{"prompt": "a", "stream": true, "max_tokens": 10}"#);
    assert!(line(&mut running).starts_with("HTTP/1.1 200"));
    stop.store(true, Ordering::Relaxed);
    thread::sleep(Duration::from_millis(100));
    assert!(line(&mut write(port, "GET /health/ready", "")).starts_with("HTTP/1.1 503"));
    assert!(line(&mut write(port, "GET /health/live", "")).starts_with("HTTP/1.1 200"));
    assert!(line(&mut write(port, "POST /v1/completions", r#"{"prompt": "a"}"#)).starts_with("HTTP/1.1 503"));
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"9\"") && rest.contains("[DONE]") && !rest.contains("error"), "{rest}");
    thread.join().unwrap();
}

#[test]
fn what_takes_too_long_is_reported() {
    let mock = Mock { hangs: true, ..Mock::default() };
    let (stop, port, thread) =
        start(mock, Settings { drain_s: 0.2, keep_alive_s: 0.05, ..Settings::default() });
    let started = Instant::now();
    let mut running = write(port, "POST /v1/completions", r#"{"prompt": "a", "stream": true}"#);
    let mut whole = write(port, "POST /v1/completions", r#"{"prompt": "a"}"#);
    assert!(line(&mut running).starts_with("HTTP/1.1 200"));
    thread::sleep(Duration::from_millis(120));
    stop.store(true, Ordering::Relaxed);
    let (mut rest, mut refused) = (String::new(), String::new());
    running.read_to_string(&mut rest).unwrap();
    whole.read_to_string(&mut refused).unwrap();
    assert!(
        rest.contains(": keep-alive") && rest.contains("shutting_down") && rest.contains("[DONE]"),
        "{rest}"
    );
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    thread.join().unwrap();
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bed = Bed::new(Mock::default());
    let at = ServerAddresses {
        host: "127.0.0.1".into(),
        port: taken.local_addr().unwrap().port(),
        admin_port: None,
        tls: None,
    };
    let error = serve(&bed.server, &at, &AtomicBool::new(false), |_| ()).unwrap_err().to_string();
    assert!(error.contains("another program listens there"), "{error}");
    let at = ServerAddresses { port: 0, admin_port: Some(0), ..at };
    let error = serve(&bed.server, &at, &AtomicBool::new(false), |_| ()).unwrap_err().to_string();
    assert!(error.contains("--api-key-file"), "{error}");
    assert!(bed.server.add("mock", bed.mock.clone()).unwrap_err().to_string().contains("--name"));
}
