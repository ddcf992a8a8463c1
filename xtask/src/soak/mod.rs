//! A server under misbehaving clients: checks that it leaks neither pages nor memory and keeps answering. Run by hand,
//! with a small model.

pub mod client;
pub mod marathon;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use client::{Answer, Client};

use crate::kill_test::build;
use crate::random::Random;

/// Number of concurrent clients.
const CLIENTS: u64 = 8;
/// Maximum growth of memory after the first tenth of the load, in bytes.
const GROWTH: f64 = (32 << 20) as f64;
/// Context length in tokens that the server is started with.
const CONTEXT: usize = 1024;
/// A prompt whose answer is the same after every restart of the server.
const CANARY: &str =
    r#"{"model":"m","prompt":"The quick brown fox","max_tokens":8,"temperature":0,"return_token_ids":true}"#;

/// A process that is terminated on drop; its children get a chance to end first.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let since = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && since.elapsed() < Duration::from_secs(40) {
            sleep(Duration::from_millis(50));
        }
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Sends `aborts` requests and disconnects from each, then `minutes` of mixed load; returns complaints about what was
/// lost.
pub fn run(model: &str, aborts: u64, minutes: f64) -> Result<Vec<String>, String> {
    let client = Client { port: free_port()? };
    let mut command = serve(&build()?, model, client.port);
    let _server = ChildGuard(command.spawn().map_err(|error| error.to_string())?);
    ready(client, Duration::from_secs(120))?;
    let canary = token_ids(client).ok_or("the server does not answer")?;

    let since = Instant::now();
    let left = AtomicU64::new(0);
    scope(|threads| {
        for seed in 0..CLIENTS {
            let left = &left;
            threads.spawn(move || {
                let mut random = Random(seed);
                while left.fetch_add(1, Ordering::Relaxed) < aborts {
                    let after = Duration::from_micros((150_000.0 * random.unit().powi(3)) as u64);
                    client.leave(&completion(client, &mut random), after);
                }
            });
        }
    });
    let mut complaints = settled(client, &canary);
    println!("{aborts} requests were left in {:.0} s", since.elapsed().as_secs_f64());

    let counts = Counts::default();
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let over = AtomicBool::new(false);
    scope(|threads| {
        for seed in 0..CLIENTS {
            let (counts, over) = (&counts, &over);
            threads.spawn(move || {
                let mut random = Random(1000 + seed);
                while !over.load(Ordering::Relaxed) {
                    mixed(client, &mut random, counts, over);
                }
            });
        }
        let started = Instant::now();
        let (mut early, mut most) = (0.0f64, 0.0f64);
        while Instant::now() < end {
            sleep(Duration::from_secs(1));
            let now = gauge(client, "fathom:anonymous_memory_bytes").unwrap_or(0.0);
            most = most.max(now);
            if started.elapsed().as_secs_f64() < 6.0 * minutes {
                early = early.max(now);
            }
        }
        over.store(true, Ordering::Relaxed);
        let growth = most - early;
        println!(
            "{} in {minutes} minutes; memory {:.0} MB, {:+.1} MiB after the first tenth",
            counts.said(),
            most / 1e6,
            growth / f64::from(1 << 20)
        );
        if growth > GROWTH {
            complaints.push(format!("memory grew by {:.1} MiB", growth / f64::from(1 << 20)));
        }
    });
    complaints.extend(settled(client, &canary));
    if counts.wrong.load(Ordering::Relaxed) > 0 {
        complaints.push(format!(
            "{} requests were not answered as they should",
            counts.wrong.load(Ordering::Relaxed)
        ));
    }
    Ok(complaints)
}

/// A port that nothing listens on.
fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

/// The command of a server for a model, under the name `m`.
fn serve(binary: &Path, model: &str, port: u16) -> Command {
    let mut command = Command::new(binary);
    command.args(["serve", model, "--name", "m", "--quiet", "--port", &port.to_string()]);
    command.args([&format!("serve.context_tokens={CONTEXT}"), "serve.head_s=2", "serve.body_s=2"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits until the server is ready.
fn ready(client: Client, patience: Duration) -> Result<(), String> {
    let since = Instant::now();
    while since.elapsed() < patience {
        if client.get("/health/ready").is_some_and(|answer| answer.status == 200) {
            return Ok(());
        }
        sleep(Duration::from_millis(100));
    }
    Err(format!("the server was not ready after {} s", patience.as_secs()))
}

/// The value of one of the server's gauges.
fn gauge(client: Client, name: &str) -> Option<f64> {
    let text = client.get("/metrics")?.body;
    text.lines().find(|line| line.starts_with(name))?.rsplit(' ').next()?.parse().ok()
}

/// The token ids of the canary's answer.
fn token_ids(client: Client) -> Option<Vec<u64>> {
    let answer = client.ask(&client.post("/v1/completions", CANARY))?;
    let value: serde_json::Value = serde_json::from_str(&answer.body).ok()?;
    value["choices"][0]["token_ids"].as_array()?.iter().map(serde_json::Value::as_u64).collect()
}

/// Checks that nothing is running, the canary's answer is unchanged, and a request that needs the whole context gets
/// its pages.
fn settled(client: Client, canary: &[u64]) -> Vec<String> {
    let open = || {
        ["vllm:num_requests_running", "vllm:num_requests_waiting"]
            .iter()
            .any(|name| gauge(client, name) != Some(0.0))
    };
    let since = Instant::now();
    while open() && since.elapsed() < Duration::from_secs(30) {
        sleep(Duration::from_millis(100));
    }
    let mut complaints = Vec::new();
    if open() {
        complaints.push("requests that were left still run after 30 s".to_string());
    }
    if token_ids(client).as_deref() != Some(canary) {
        complaints.push("the canary's answer is another".to_string());
    }
    // One sequence for each that runs concurrently, each as long as the context: they need all pages.
    let body = format!(
        r#"{{"model":"m","prompt":{:?},"n":16,"max_tokens":{},"ignore_eos":true,"temperature":1}}"#,
        vec![5; 64],
        CONTEXT - 64
    );
    if client.ask(&client.post("/v1/completions", &body)).is_none_or(|answer| answer.status != 200) {
        complaints.push("sixteen answers as long as the context are not written: pages are lost".to_string());
    }
    complaints
}

/// A random completion request.
fn completion(client: Client, random: &mut Random) -> Vec<u8> {
    let ids: Vec<u64> = (0..1 + random.below(300)).map(|_| 3 + random.below(200)).collect();
    let body = format!(
        r#"{{"model":"m","prompt":{ids:?},"max_tokens":{},"n":{},"stream":{},"temperature":1,"ignore_eos":true}}"#,
        1 + random.below(200),
        1 + random.below(3),
        random.below(2) == 0
    );
    client.post("/v1/completions", &body)
}

/// Number of requests by outcome.
#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    refused: AtomicU64,
    left: AtomicU64,
    stalled: AtomicU64,
    garbage: AtomicU64,
    wrong: AtomicU64,
}

impl Counts {
    fn said(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} requests answered, {} refused, {} left, {} stalled, {} garbage, {} wrong",
            of(&self.answered),
            of(&self.refused),
            of(&self.left),
            of(&self.stalled),
            of(&self.garbage),
            of(&self.wrong)
        )
    }
}

/// One random action of a client.
fn mixed(client: Client, random: &mut Random, counts: &Counts, over: &AtomicBool) {
    let count = |of: &AtomicU64| of.fetch_add(1, Ordering::Relaxed);
    match random.below(8) {
        0..4 => match client.ask(&completion(client, random)) {
            Some(Answer { status: 200, .. }) => count(&counts.answered),
            Some(Answer { status: 429, .. }) => count(&counts.refused),
            _ => count(&counts.wrong),
        },
        4 | 5 => {
            client.leave(&completion(client, random), Duration::from_micros(random.below(100_000)));
            count(&counts.left)
        }
        6 => {
            let request = completion(client, random);
            let part = random.below(request.len() as u64) as usize;
            let until = Instant::now() + Duration::from_millis(random.below(3000));
            client.stall(&request[..part], || Instant::now() > until || over.load(Ordering::Relaxed));
            count(&counts.stalled)
        }
        _ => {
            let bad = garbage(client, random);
            if client.ask(&bad).is_some_and(|answer| answer.status < 400 || answer.status >= 500) {
                count(&counts.wrong);
            }
            count(&counts.garbage)
        }
    };
}

/// A malformed request; the response should be neither 200 nor 500.
fn garbage(client: Client, random: &mut Random) -> Vec<u8> {
    let body = match random.below(6) {
        0 => "[".repeat(20_000),
        1 => r#"{"model":"m","prompt":"#.to_string(),
        2 => r#"{"model":"absent","prompt":"a"}"#.to_string(),
        3 => r#"{"model":"m","prompt":[1e99],"max_tokens":-1}"#.to_string(),
        4 => format!(r#"{{"model":"m","prompt":"a","max_tokens":4,"stop":{:?}}}"#, vec!["a"; 1000]),
        _ => return (0..random.below(4000)).map(|_| random.word() as u8).chain(*b"\r\n\r\n").collect(),
    };
    client.post("/v1/completions", &body)
}
