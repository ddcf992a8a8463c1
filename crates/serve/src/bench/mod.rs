//! Load tests of a server: requests at random times or in a closed loop, their results, and the overhead of the server
//! itself over a pretended model.

pub(crate) mod client;
mod pretended;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::Mutex;
use tokio::time::sleep_until;

use crate::error::Error;
use crate::server::{ServerAddresses, serve};
use crate::settings::Settings;
use crate::shared::{ServeOptions, ServerState};
use client::{Connection, RequestTimes};
use pretended::{Clock, StandInModel};

pub use client::{Target, post_all};

/// Arrival of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// Requests per second, at random times (Poisson).
    PerSecond(f64),
    /// Number of clients, each of which sends a request after its previous response.
    Clients(usize),
}

/// A load.
#[derive(Clone, Debug)]
pub struct Load {
    /// Arrival of requests.
    pub arrival: Arrival,
    /// Total number of requests.
    pub requests: usize,
    /// Words of a prompt: between 0.5 and 1.5 times this number.
    pub prompt_words: usize,
    /// Tokens of an answer, varied in the same way.
    pub answer_tokens: usize,
    /// Share of each prompt that is a common prefix.
    pub shared_share: f64,
    /// True if answers are streamed.
    pub stream: bool,
    /// The model's name; `None` if there is only one.
    pub model: Option<String>,
    /// Limits for a good request: time to the first token, and mean time between tokens, in seconds.
    pub good_s: (f64, f64),
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            arrival: Arrival::Clients(1),
            requests: 100,
            prompt_words: 128,
            answer_tokens: 64,
            shared_share: 0.0,
            stream: true,
            model: None,
            good_s: (1.0, 0.1),
            seed: 0,
        }
    }
}

/// Pseudo-random numbers (splitmix64).
struct Dice(u64);

impl Dice {
    /// From 0 to 1.
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number between 0.5 and 1.5 times `mean`.
    fn around(&mut self, mean: usize) -> usize {
        ((mean as f64 * (0.5 + self.roll())) as usize).max(1)
    }

    fn words(&mut self, count: usize) -> String {
        const WORDS: [&str; 12] = [
            "sea", "line", "deep", "lead", "sound", "mark", "wind", "salt", "stone", "light", "wave", "rope",
        ];
        (0..count).map(|_| WORDS[(self.roll() * 12.0) as usize % 12]).collect::<Vec<_>>().join(" ")
    }
}

/// The request bodies of a load, in order.
fn bodies(load: &Load) -> Vec<String> {
    let mut dice = Dice(load.seed);
    let shared = (load.prompt_words as f64 * load.shared_share.clamp(0.0, 1.0)) as usize;
    let beginning = dice.words(shared);
    let one = |_| {
        let own = dice.around(load.prompt_words).saturating_sub(shared).max(1);
        let prompt = format!("{beginning} {}", dice.words(own));
        let mut body = json!({
            "prompt": prompt.trim(),
            "max_tokens": dice.around(load.answer_tokens),
            "temperature": 0,
            "ignore_eos": true,
            "stream": load.stream,
        });
        if load.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        if let Some(model) = &load.model {
            body["model"] = model.clone().into();
        }
        body.to_string()
    };
    (0..load.requests).map(one).collect()
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(0.0)
}

fn spread(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    let at = |share| (quantile(&values, share) * 1e6).round() / 1e3;
    json!({"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "count": values.len()})
}

/// Applies a load to a server; returns the results, with times in milliseconds.
///
/// # Errors
/// The server cannot be reached.
pub fn run(target: &Target, load: &Load) -> Result<Value, Error> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let started = Instant::now();
    let seen = runtime.block_on(offer(target, load))?;
    Ok(report(load, &seen, started.elapsed().as_secs_f64()))
}

async fn offer(target: &Target, load: &Load) -> Result<Vec<RequestTimes>, Error> {
    // An unreachable server is reported before any load.
    drop(Connection::open(target).await?);
    let (bodies, target) = (Arc::new(bodies(load)), Arc::new(target.clone()));
    let mut tasks = Vec::new();
    match load.arrival {
        Arrival::Clients(clients) => {
            let next = Arc::new(AtomicUsize::new(0));
            for _ in 0..clients.max(1) {
                let (bodies, target, next) = (bodies.clone(), target.clone(), next.clone());
                tasks.push(tokio::spawn(async move {
                    let (mut connection, mut seen) = (None, Vec::new());
                    while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                        seen.push(client::ask(&target, &mut connection, body).await);
                    }
                    seen
                }));
            }
        }
        Arrival::PerSecond(rate) => {
            let idle: Arc<Mutex<Vec<Connection>>> = Arc::default();
            let (mut dice, mut due) = (Dice(load.seed ^ 1), tokio::time::Instant::now());
            for at in 0..bodies.len() {
                sleep_until(due).await;
                due += Duration::from_secs_f64(-(1.0 - dice.roll()).ln() / rate.max(1e-3));
                let (bodies, target, idle) = (bodies.clone(), target.clone(), idle.clone());
                tasks.push(tokio::spawn(async move {
                    let mut connection = idle.lock().await.pop();
                    let seen = client::ask(&target, &mut connection, &bodies[at]).await;
                    idle.lock().await.extend(connection);
                    vec![seen]
                }));
            }
        }
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap_or_default());
    }
    Ok(all)
}

fn report(load: &Load, seen: &[RequestTimes], seconds: f64) -> Value {
    let answered: Vec<&RequestTimes> =
        seen.iter().filter(|seen| seen.status == 200 && !seen.failed).collect();
    let refused: Vec<f64> = seen.iter().filter(|seen| seen.status == 429).map(|seen| seen.whole_s).collect();
    let tokens: usize = answered.iter().map(|seen| seen.tokens).sum();
    let good = answered.iter().filter(|seen| {
        let between = seen.gaps.iter().sum::<f64>() / seen.gaps.len().max(1) as f64;
        seen.first_s.unwrap_or(seen.whole_s) <= load.good_s.0 && between <= load.good_s.1
    });
    let all = |values: &dyn Fn(&RequestTimes) -> Vec<f64>| {
        spread(answered.iter().flat_map(|&seen| values(seen)).collect())
    };
    json!({
        "sent": seen.len(),
        "answered": answered.len(),
        "refused": refused.len(),
        "failed": seen.len() - answered.len() - refused.len(),
        "seconds": seconds,
        "answered_per_s": answered.len() as f64 / seconds,
        "goodput_per_s": good.count() as f64 / seconds,
        "output_tokens_per_s": tokens as f64 / seconds,
        "first_ms": all(&|seen| seen.first_s.into_iter().collect()),
        "between_ms": all(&|seen| seen.gaps.clone()),
        "whole_ms": all(&|seen| vec![seen.whole_s]),
        "refused_ms": spread(refused),
    })
}

/// Applies a load to a server with a pretended model that answers at once; returns the results of [`run`].
///
/// # Errors
/// The server cannot be started.
pub fn run_at_once(load: &Load) -> Result<Value, Error> {
    over(StandInModel::at_once(), Settings::default(), |target| run(target, load))
}

/// The overhead of the server itself: over a model that answers at once, over one that writes 64 streams of 50 tokens
/// per second, and at four times its admission limit. One row each.
///
/// # Errors
/// A server cannot be started.
pub fn own_cost(requests: usize) -> Result<Vec<Value>, Error> {
    let named = |mut row: Value, name: &str| {
        row["what"] = name.into();
        row
    };
    let alone = Load { requests, prompt_words: 32, answer_tokens: 8, stream: false, ..Load::default() };
    let first = run_at_once(&alone)?;
    let streams = Load {
        arrival: Arrival::Clients(64),
        requests: 128,
        prompt_words: 32,
        answer_tokens: 250,
        ..Load::default()
    };
    let clock = Clock::new();
    let mut second = over(StandInModel::paced(50.0, &clock), Settings::default(), |target| {
        run(&target.timed(&clock), &streams)
    })?;
    second["added_ms"] = spread(clock.take());
    // A token takes 20 ms, so an answer of about 25 tokens half a second: 16 at once are 32 per second.
    let few = Settings { max_requests: 16, sequences: 16, ..Settings::default() };
    let peak = Load {
        arrival: Arrival::Clients(16),
        requests: 160,
        prompt_words: 32,
        answer_tokens: 25,
        good_s: (0.1, 0.03),
        ..Load::default()
    };
    let full = over(StandInModel::paced(50.0, &clock), few.clone(), |target| run(target, &peak))?;
    let per_s = full["answered_per_s"].as_f64().unwrap_or(1.0);
    let flood = Load { arrival: Arrival::PerSecond(4.0 * per_s), requests: (20.0 * per_s) as usize, ..peak };
    let mut third = over(StandInModel::paced(50.0, &clock), few, |target| run(target, &flood))?;
    third["of_peak"] = json!(third["goodput_per_s"].as_f64().unwrap_or(0.0) / per_s);
    Ok(vec![
        named(first, "one client"),
        named(second, "64 streams of 50 tokens/s"),
        named(full, "16 clients, the most"),
        named(third, "four times as many"),
    ])
}

/// Runs `work` against a server with a pretended model.
fn over<T>(
    model: StandInModel,
    settings: Settings,
    work: impl FnOnce(&Target) -> Result<T, Error>,
) -> Result<T, Error> {
    let server = Arc::new(ServerState::new(ServeOptions { settings, ..ServeOptions::default() }));
    server.add("pretended", Arc::new(model))?;
    let (stop, (send, receive)) = (AtomicBool::new(false), channel());
    let at = ServerAddresses { host: "127.0.0.1".into(), port: 0, admin_port: None, tls: None };
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let send = send;
            serve(&server, &at, &stop, |addresses| _ = send.send(addresses[0]))
        });
        let done = match receive.recv() {
            Ok(address) => work(&Target::at(&address.to_string())),
            Err(_) => Err(Error::Refused("the server did not start".into())),
        };
        stop.store(true, Ordering::Relaxed);
        match serving.join() {
            Ok(served) => served.and(done),
            Err(_) => done,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_was_seen() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&sorted, 0.5), quantile(&sorted, 0.99), quantile(&[], 0.5)), (50.0, 99.0, 0.0));
    }
}
