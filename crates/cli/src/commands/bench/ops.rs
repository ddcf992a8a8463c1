//! Time of a training step by kind of operation, longest first.

use std::collections::BTreeMap;

use anyhow::Result;

use super::row::Row;
use super::subject::Subject;
use super::watch::measure;

/// Seconds and calls of one kind of operation.
#[derive(Clone, Copy, Default)]
struct Share {
    seconds: f64,
    calls: usize,
}

/// Runs `repeat` profiled steps and prints each kind of operation's mean milliseconds per step, its share of the
/// step's time, and its calls; `rest` is the unaccounted time.
pub fn print(subject: &mut Subject, repeat: usize) -> Result<()> {
    subject.trainer.counters.reset(true);
    // The warm-up step of `measure` is profiled as well.
    let mut wall = 0.0;
    let timed = measure(repeat, || {
        let started = std::time::Instant::now();
        subject.step();
        wall += started.elapsed().as_secs_f64();
    });
    subject.check()?;
    let spans = subject.trainer.counters.get().spans.unwrap_or_default();
    subject.trainer.counters.reset(false);
    let mut shares: BTreeMap<String, Share> = BTreeMap::new();
    for span in &spans {
        let share = shares.entry(span.name.clone()).or_default();
        share.seconds += span.seconds;
        share.calls += 1;
    }
    let steps = shares.get("adamw").map_or(1, |share| share.calls).max(1);
    let named: f64 = shares.values().map(|share| share.seconds).sum();
    let mut rows: Vec<(String, Share)> = shares.into_iter().collect();
    rows.push(("rest".to_string(), Share { seconds: wall - named, calls: steps }));
    rows.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
    for (name, share) in rows {
        Row::new("op")
            .with("op", name)
            .figure("ms", share.seconds * 1e3 / steps as f64)
            .figure("share", share.seconds / wall)
            .with("calls", share.calls / steps)
            .print(timed.loaded);
    }
    Ok(())
}
