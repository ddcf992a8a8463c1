//! Load tests, as in `fathom bench serve`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use fathom_serve::bench::{Arrival, Load, Target, post_all, run, run_at_once};
use fathom_serve::{ServeOptions, ServerAddresses, ServerState, serve};

use crate::mock::Mock;

#[test]
fn a_load_is_answered_and_counted() {
    let load = Load { arrival: Arrival::Clients(4), requests: 20, answer_tokens: 5, ..Load::default() };
    let row = run_at_once(&load).unwrap();
    assert_eq!((row["answered"].as_u64(), row["failed"].as_u64()), (Some(20), Some(0)), "{row}");
    let poisson = Load { arrival: Arrival::PerSecond(500.0), shared_share: 0.5, ..load };
    let row = run_at_once(&poisson).unwrap();
    assert_eq!(row["answered"].as_u64(), Some(20), "{row}");
    assert!(row["output_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert!(run(&Target::at("127.0.0.1:1"), &Load::default()).is_err());
}

/// The server's certificate has to be of an authority that is trusted, and of the server's name.
#[test]
fn a_client_speaks_tls_to_a_server_that_it_can_trust() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let (server, stop) =
        (Arc::new(ServerState::new(ServeOptions::default())), Arc::new(AtomicBool::new(false)));
    server.add("mock", Arc::new(Mock::saying("Hello"))).unwrap();
    let (heard, address) = channel();
    let (serving, asked) = (server, stop.clone());
    let files = (data.join("server.pem"), data.join("server.key"));
    let thread = thread::spawn(move || {
        let at = ServerAddresses { host: "127.0.0.1".into(), port: 0, admin_port: None, tls: Some(files) };
        serve(&serving, &at, &asked, |addresses| heard.send(addresses[0]).unwrap()).unwrap();
    });
    let port = address.recv().unwrap().port();
    let body = [r#"{"prompt": "Hi", "max_tokens": 9}"#.to_string()];
    let ask = |host: &str, authorities: &str| {
        let mut target = Target::parse(&format!("https://{host}:{port}/v1")).unwrap();
        target.authorities = Some(data.join(authorities));
        post_all(&target, "/v1/completions", &body).map_err(|error| error.to_string())
    };
    let (status, answer) = ask("127.0.0.1", "authority.pem").unwrap().remove(0);
    assert_eq!((status, answer["choices"][0]["text"].as_str()), (200, Some("Hello")), "{answer}");
    assert!(ask("localhost", "authority.pem").is_ok());
    assert!(ask("127.0.0.1", "server.key").unwrap_err().contains("no certificates"));
    assert!(ask("127.0.0.1", "server.pem").unwrap_err().contains("cannot reach"));
    assert!(ask("127.0.0.2", "authority.pem").unwrap_err().contains("cannot reach"));
    assert!(Target::parse("ftp://x").unwrap_err().to_string().contains("https://"));
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}
