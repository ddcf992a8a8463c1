//! Servers of MLflow and OpenTelemetry that only take notes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::channel;

use serde_json::Value;

use super::*;

/// A server of one connection a request, which answers with what `answer` makes of each path; requests come back.
fn pretended(answer: fn(&str) -> &'static str) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_string();
            let text = answer(&path);
            if send.send((path, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
            let length = text.len();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}")
                .unwrap();
        }
    });
    (address, receive)
}

fn job(folder: &std::path::Path, settings: &[String]) -> Job {
    let mut all = vec![format!("run.out={:?}", folder.display().to_string()), "data.paths=[\"x\"]".into()];
    all.extend_from_slice(settings);
    let loaded = crate::library::load(crate::library::layers("quickstart", &all)).unwrap();
    Job::new(loaded, &crate::events::Silent).unwrap()
}

fn step(at: u64) -> fathom_base::metrics::events::Step {
    fathom_base::metrics::events::Step { step: at, loss: 2.0, grad_norm: f64::NAN, ..Default::default() }
}

#[test]
fn mlflow_gets_a_run_with_its_recipe_and_steps_and_a_resumed_run_goes_on_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (address, heard) = pretended(|path| match path.rsplit('/').next() {
        Some("search") => r#"{"experiments":[{"experiment_id":"7"}]}"#,
        Some("create") => r#"{"run":{"info":{"run_id":"abc"}}}"#,
        _ => "{}",
    });
    let job = job(folder.path(), &[format!("run.mlflow={address}")]);
    let mut sinks = open(&job, 0).unwrap();
    sinks.step(10.0, &step(1)).unwrap();
    sinks.step(11.0, &step(2)).unwrap();
    sinks.end().unwrap();
    drop(sinks);
    let calls: Vec<(String, Value)> = heard.try_iter().collect();
    let (path, made) = &calls[1];
    assert_eq!((path.as_str(), &made["experiment_id"]), ("/api/2.0/mlflow/runs/create", &"7".into()));
    let params: Vec<&Value> =
        calls.iter().filter_map(|(_, body)| body["params"].as_array()).flatten().collect();
    assert!(params.iter().any(|param| param["key"] == "optimizer.lr"));
    let metrics: Vec<&Value> =
        calls.iter().filter_map(|(_, body)| body["metrics"].as_array()).flatten().collect();
    let loss = metrics.iter().find(|of| of["key"] == "train/loss" && of["step"] == 2).unwrap();
    assert_eq!((&loss["value"], &loss["timestamp"]), (&2.0.into(), &11_000.into()));
    assert!(!metrics.iter().any(|of| of["key"] == "train/grad_norm"), "no number is left out");
    let (path, end) = calls.last().unwrap();
    assert_eq!((path.as_str(), &end["status"]), ("/api/2.0/mlflow/runs/update", &"FINISHED".into()));

    let mut again = open(&job, 2).unwrap();
    again.step(12.0, &step(3)).unwrap();
    drop(again);
    let calls: Vec<(String, Value)> = heard.try_iter().collect();
    assert!(
        calls.iter().all(|(path, body)| path.ends_with("log-batch") && body["run_id"] == "abc"),
        "{calls:?}"
    );
}

#[test]
fn a_collector_gets_gauges_and_one_that_is_gone_does_not_stop_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (address, heard) = pretended(|_| "{}");
    let mut sinks = open(&job(folder.path(), &[format!("run.otlp={address}/v1")]), 0).unwrap();
    sinks.step(10.5, &step(4)).unwrap();
    drop(sinks);
    let (path, body) = heard.try_recv().unwrap();
    assert_eq!(path, "/v1/metrics");
    let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
    let loss = metrics.iter().find(|metric| metric["name"] == "fathom.train.loss").unwrap();
    let point = &loss["gauge"]["dataPoints"][0];
    assert_eq!((&point["asDouble"], &point["timeUnixNano"]), (&2.0.into(), &"10500000000".into()));
    assert_eq!(point["attributes"][0]["value"]["intValue"], "4");

    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut sinks = open(&job(folder.path(), &[format!("run.otlp=http://{free}")]), 0).unwrap();
    sinks.step(10.5, &step(4)).unwrap();
    sinks.end().unwrap();
    let said = open(&job(folder.path(), &["run.mlflow=ftp://x".into()]), 0).err().unwrap().to_string();
    assert!(said.contains("http://"), "{said}");
}

#[test]
fn files_of_other_tools_are_written_by_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["run.tensorboard=true", "run.wandb=true", "run.trackio=true"].map(String::from);
    let mut sinks = open(&job(folder.path(), &keys), 0).unwrap();
    sinks.step(1.0, &step(1)).unwrap();
    sinks.end().unwrap();
    for name in ["tensorboard", "wandb", "trackio.jsonl"] {
        assert!(folder.path().join(name).exists(), "{name}");
    }
}
