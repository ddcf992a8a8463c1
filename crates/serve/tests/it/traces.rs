//! Spans of requests, received by a small collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::thread;
use std::time::Duration;

use fathom_serve::{ServeOptions, ServerAddresses, ServerState, Settings, serve};
use serde_json::{Value, json};

use crate::mock::Mock;

/// Receives posts and answers them; returns its address, and a channel with paths and bodies.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            loop {
                let (mut line, mut length) = (String::new(), 0);
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    break;
                }
                let path = line.split(' ').nth(1).unwrap_or_default().to_string();
                loop {
                    let mut header = String::new();
                    reader.read_line(&mut header).unwrap();
                    if header.trim().is_empty() {
                        break;
                    }
                    let (name, value) = header.split_once(':').unwrap();
                    if name.eq_ignore_ascii_case("content-length") {
                        length = value.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                send.send((path, serde_json::from_slice(&body).unwrap())).unwrap();
                reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            }
        }
    });
    (address, receive)
}

/// Posts to a server; returns the raw response.
fn ask(at: &str, headers: &str, path: &str, body: &Value) -> String {
    let (body, mut stream) = (body.to_string(), std::net::TcpStream::connect(at).unwrap());
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_collector_receives_the_span_of_each_request() {
    let (collector, received) = collector();
    let settings = Settings { otlp: Some(collector), ..Settings::default() };
    let opening = ServeOptions { settings, version: "9.9".into(), ..ServeOptions::default() };
    let (server, stop) = (Arc::new(ServerState::new(opening)), Arc::new(AtomicBool::new(false)));
    server.add("mock", Arc::new(Mock { pace: Duration::from_millis(2), ..Mock::saying("Hello") })).unwrap();
    let (heard, address) = channel();
    let (serving, asked) = (server.clone(), stop.clone());
    let thread = thread::spawn(move || {
        let at = ServerAddresses { host: "127.0.0.1".into(), port: 0, admin_port: None, tls: None };
        serve(&serving, &at, &asked, |addresses| heard.send(addresses[0]).unwrap()).unwrap();
    });
    let at = address.recv().unwrap().to_string();
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let below = format!("traceparent: 00-{trace}-{parent}-01\r\n");
    let body = json!({"model": "tuned", "messages": [{"role": "user", "content": "secret words"}], "max_tokens": 3, "temperature": 0.5});
    assert!(ask(&at, &below, "/v1/chat/completions", &body).contains("Hel"));
    // A request whose caller does not trace it, and one without a caller's trace.
    let not = format!("traceparent: 00-{trace}-{parent}-00\r\n");
    ask(&at, &not, "/v1/completions", &json!({"prompt": "unseen"}));
    ask(&at, "", "/v1/completions", &json!({"prompt": "b", "stream": true}));
    // Spans of earlier requests are sent before the server ends.
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert_eq!(server.traces_lost(), 0);
    let mut spans = Vec::new();
    while let Ok((path, body)) = received.try_recv() {
        assert_eq!(path, "/v1/traces");
        assert!(!body.to_string().contains("secret"));
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "fathom");
        assert_eq!(resource["scopeSpans"][0]["scope"]["version"], "9.9");
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    assert_eq!(spans.len(), 2, "{spans:?}");
    let value = |span: &Value, key: &str| -> Value {
        let all = span["attributes"].as_array().unwrap();
        all.iter().find(|it| it["key"] == key).map_or(Value::Null, |it| it["value"].clone())
    };
    let chat = &spans[0];
    assert_eq!(
        (&chat["name"], &chat["kind"], &chat["status"]),
        (&json!("chat tuned"), &json!(2), &json!({}))
    );
    assert_eq!((&chat["traceId"], &chat["parentSpanId"]), (&json!(trace), &json!(parent)));
    assert_eq!(value(chat, "gen_ai.operation.name"), json!({"stringValue": "chat"}));
    assert_eq!(value(chat, "gen_ai.request.max_tokens"), json!({"intValue": "3"}));
    assert_eq!(value(chat, "gen_ai.request.temperature"), json!({"doubleValue": 0.5}));
    assert_eq!(value(chat, "gen_ai.usage.output_tokens"), json!({"intValue": "3"}));
    let reasons = json!({"arrayValue": {"values": [{"stringValue": "length"}]}});
    assert_eq!(value(chat, "gen_ai.response.finish_reasons"), reasons);
    assert!(value(chat, "gen_ai.latency.time_to_first_token")["doubleValue"].as_f64().unwrap() > 0.0);
    let nanos = |key: &str| chat[key].as_str().unwrap().parse::<u128>().unwrap();
    assert!(nanos("endTimeUnixNano") > nanos("startTimeUnixNano") + 4_000_000);
    let plain = &spans[1];
    assert_eq!((&plain["name"], &plain["parentSpanId"]), (&json!("text_completion mock"), &Value::Null));
    assert_eq!((plain["traceId"].as_str().unwrap().len(), plain["spanId"].as_str().unwrap().len()), (32, 16));
    assert_ne!(plain["traceId"], trace);
}

#[test]
fn an_address_that_is_none_keeps_the_server_from_starting() {
    let settings = Settings { otlp: Some("grpc://here:4317".into()), ..Settings::default() };
    let server = Arc::new(ServerState::new(ServeOptions { settings, ..ServeOptions::default() }));
    let at = ServerAddresses { host: "127.0.0.1".into(), port: 0, admin_port: None, tls: None };
    let error = serve(&server, &at, &AtomicBool::new(true), |_| ()).unwrap_err().to_string();
    assert!(error.contains("grpc://here:4317"), "{error}");
}

#[test]
fn a_collector_that_answers_without_end_takes_the_spans_and_no_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let (send, written) = channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut some = [0; 512];
        _ = stream.read(&mut some).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n").unwrap();
        let (piece, mut bytes) = (vec![b' '; 1 << 20], 0u64);
        // The stream ends when its reader leaves.
        while stream.write_all(&piece).is_ok() {
            bytes += piece.len() as u64;
        }
        send.send(bytes).unwrap();
    });
    let settings = Settings { otlp: Some(collector), ..Settings::default() };
    let opening = ServeOptions { settings, ..ServeOptions::default() };
    let (server, stop) = (Arc::new(ServerState::new(opening)), Arc::new(AtomicBool::new(false)));
    server.add("mock", Arc::new(Mock::saying("Hello"))).unwrap();
    let (heard, address) = channel();
    let (own, flag) = (server.clone(), stop.clone());
    let thread = thread::spawn(move || {
        let at = ServerAddresses { host: "127.0.0.1".into(), port: 0, admin_port: None, tls: None };
        serve(&own, &at, &flag, |addresses| heard.send(addresses[0].to_string()).unwrap()).unwrap();
    });
    let at = address.recv().unwrap();
    assert!(ask(&at, "", "/v1/completions", &json!({"prompt": "a"})).starts_with("HTTP/1.1 200"));
    // The system's buffers of a connection add to the bytes read.
    assert!(written.recv().unwrap() < 64 << 20);
    assert_eq!(server.traces_lost(), 0);
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}
