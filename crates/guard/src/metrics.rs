//! Counters of the guard: decisions, failures and latency by rail, refusals by direction, and the work of streams.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::verdict::{Decision, Direction, Verdict};

/// Upper bounds of the latency histogram, in seconds.
const BOUNDS_S: [f64; 12] = [1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0, 5.0, 10.0];

/// Counters of one rail in one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RailCounters {
    /// Verdicts by decision, in the order of [`Decision`].
    pub decisions: [u64; 4],
    /// Verdicts of failed rails.
    pub failed: u64,
    /// Sum of latencies.
    pub seconds: f64,
    /// Verdicts whose latency is at most each bound, and all others.
    pub buckets: [u64; BOUNDS_S.len() + 1],
}

/// Counters since the start.
#[derive(Default)]
pub struct Metrics {
    rails: Mutex<BTreeMap<(String, Direction), RailCounters>>,
    requests: AtomicU64,
    errors: AtomicU64,
    blocked: [AtomicU64; Direction::ALL.len()],
    late: AtomicU64,
    held_bytes: AtomicU64,
    first_release_us: AtomicU64,
    first_releases: AtomicU64,
    request_us: AtomicU64,
}

impl Metrics {
    /// Counts a verdict.
    pub fn judged(&self, verdict: &Verdict) {
        let mut rails = self.rails.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (verdict.rail.clone(), verdict.direction);
        let counters = rails.entry(key).or_default();
        counters.decisions[verdict.decision as usize] += 1;
        counters.failed += u64::from(verdict.failed);
        let took = verdict.took.as_secs_f64();
        counters.seconds += took;
        let bucket = BOUNDS_S.iter().position(|bound| took <= *bound).unwrap_or(BOUNDS_S.len());
        counters.buckets[bucket] += 1;
    }

    /// Counts a request and its time.
    pub fn request(&self, took: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.request_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// Counts a request that failed for another reason than a verdict.
    pub fn error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a refusal.
    pub fn blocked(&self, direction: Direction) {
        self.blocked[direction as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a text that was condemned after its beginning had been released.
    pub fn late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the bytes that a stream holds; the most is kept.
    pub fn held(&self, bytes: usize) {
        self.held_bytes.fetch_max(bytes as u64, Ordering::Relaxed);
    }

    /// Records the time from a stream's first piece to its first release.
    pub fn first_release(&self, took: Duration) {
        self.first_releases.fetch_add(1, Ordering::Relaxed);
        self.first_release_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// Refusals in a direction.
    pub fn blocked_in(&self, direction: Direction) -> u64 {
        self.blocked[direction as usize].load(Ordering::Relaxed)
    }

    /// Texts that were condemned too late.
    pub fn late_count(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// The counters of rails by name and direction.
    pub fn rails(&self) -> BTreeMap<(String, Direction), RailCounters> {
        self.rails.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All counters in Prometheus' text format.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counter = |name: &str, value: String| {
            _ = writeln!(out, "# TYPE {name} counter\n{name} {value}");
        };
        counter("guardrails_requests_total", load(&self.requests).to_string());
        counter("guardrails_requests_errors_total", load(&self.errors).to_string());
        counter(
            "guardrails_request_duration_seconds_sum",
            format!("{}", load(&self.request_us) as f64 / 1e6),
        );
        counter("guardrails_late_total", load(&self.late).to_string());
        counter(
            "guardrails_first_release_seconds_sum",
            format!("{}", load(&self.first_release_us) as f64 / 1e6),
        );
        counter("guardrails_first_release_seconds_count", load(&self.first_releases).to_string());
        _ = writeln!(
            out,
            "# TYPE guardrails_held_bytes_max gauge\nguardrails_held_bytes_max {}",
            load(&self.held_bytes)
        );
        _ = writeln!(out, "# TYPE guardrails_requests_blocked_total counter");
        for direction in Direction::ALL {
            let (name, count) = (direction.name(), self.blocked_in(direction));
            _ = writeln!(out, "guardrails_requests_blocked_total{{direction=\"{name}\"}} {count}");
        }
        _ = writeln!(out, "# TYPE guardrails_rail_decisions_total counter");
        let rails = self.rails();
        for ((rail, direction), counters) in &rails {
            for decision in [Decision::Allow, Decision::Flag, Decision::Rewrite, Decision::Block] {
                let (name, count) =
                    (format!("{decision:?}").to_lowercase(), counters.decisions[decision as usize]);
                let direction = direction.name();
                _ = writeln!(
                    out,
                    "guardrails_rail_decisions_total{{rail=\"{rail}\",direction=\"{direction}\",decision=\"{name}\"}} {count}"
                );
            }
        }
        for (name, kind) in
            [("guardrails_rail_failures_total", "counter"), ("guardrails_rail_seconds", "histogram")]
        {
            _ = writeln!(out, "# TYPE {name} {kind}");
            for ((rail, direction), counters) in &rails {
                let labels = format!("rail=\"{rail}\",direction=\"{}\"", direction.name());
                if kind == "counter" {
                    _ = writeln!(out, "{name}{{{labels}}} {}", counters.failed);
                    continue;
                }
                let mut sum = 0;
                for (bound, count) in BOUNDS_S.iter().zip(counters.buckets) {
                    sum += count;
                    _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
                }
                sum += counters.buckets[BOUNDS_S.len()];
                _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {sum}");
                _ = writeln!(
                    out,
                    "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {sum}",
                    counters.seconds
                );
            }
        }
        out
    }
}
