//! Repeats with a clock, watching the machine's other load.

use std::sync::Once;
use std::time::Instant;

use crate::console;

/// Times of repeated runs.
pub struct RunTimes {
    /// Median seconds.
    pub median_s: f64,
    /// Least seconds.
    pub best_s: f64,
    /// Whether other processes were computing.
    pub loaded: bool,
}

/// Time limit for repeating a row, after at least two samples.
const ROW_S: f64 = 20.0;
/// Duration from which a warm-up counts as a sample.
const LONG_S: f64 = 10.0;
/// Share of one core that other processes may use.
const OTHERS: f64 = 0.1;

/// Runs `work` once to warm up, then up to `repeat` times.
pub fn measure(repeat: usize, mut work: impl FnMut()) -> RunTimes {
    let mut once = || {
        let started = Instant::now();
        work();
        started.elapsed().as_secs_f64()
    };
    let warm_s = once();
    let watch = Watch::begin();
    let mut samples = if warm_s > LONG_S { vec![warm_s] } else { Vec::new() };
    while samples.len() < repeat.max(1) && (samples.len() < 2 || watch.seconds() < ROW_S) {
        samples.push(once());
    }
    samples.sort_by(f64::total_cmp);
    RunTimes { median_s: median(&samples), best_s: samples[0], loaded: watch.loaded() }
}

/// Runs `work` once, including its first touch of memory.
pub fn measure_once(work: &mut dyn FnMut()) -> RunTimes {
    let watch = Watch::begin();
    work();
    let seconds = watch.seconds();
    RunTimes { median_s: seconds, best_s: seconds, loaded: watch.loaded() }
}

/// Median of sorted samples.
pub fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// Processor time of all processes and of this one, since a moment.
pub struct Watch {
    started: Instant,
    busy: Option<(u64, u64)>,
}

impl Watch {
    /// Starts.
    pub fn begin() -> Watch {
        Watch { started: Instant::now(), busy: busy() }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Returns whether others used more than a tenth of a core since the start; warns once on standard error. False
    /// if the system does not report it.
    pub fn loaded(&self) -> bool {
        let (Some(before), Some(after)) = (self.busy, busy()) else { return false };
        let [all, own] = [after.0 - before.0, after.1 - before.1];
        let others = all.saturating_sub(own);
        // The kernel counts hundredths of a second: below five, rounding dominates.
        let loaded = others >= 5 && others as f64 / 100.0 > OTHERS * self.seconds();
        if loaded {
            static WARNED: Once = Once::new();
            let cores = others as f64 / 100.0 / self.seconds();
            WARNED.call_once(|| {
                console::line(&format!(
                    "warning: other processes use {cores:.1} cores; rows with \"loaded\":true were measured meanwhile and judge nothing"
                ));
            });
        }
        loaded
    }
}

/// Busy time of all processors, and of this process, in hundredths of a second.
fn busy() -> Option<(u64, u64)> {
    let all = std::fs::read_to_string("/proc/stat").ok()?;
    let own = std::fs::read_to_string("/proc/self/stat").ok()?;
    Some((all_busy(&all)?, own_busy(&own)?))
}

/// Sum of user, nice, system, irq, softirq and steal in line `cpu`; without idle and iowait.
fn all_busy(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let used = [0, 1, 2, 5, 6, 7];
    (ticks.len() > 4).then(|| used.iter().filter_map(|index| ticks.get(*index)).sum())
}

/// utime and stime: the twelfth and thirteenth field after the parenthesized name.
fn own_busy(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_counts() {
        assert_eq!(all_busy("cpu  10 2 30 400 5 6 7 8 0 0\ncpu0 1 1 1"), Some(63));
        let own = "77 (a) b) R 1 2 3 4 5 6 7 8 9 10 21 22 0 0";
        assert_eq!(own_busy(own), Some(43));
        assert_eq!(median(&[1.0, 2.0, 4.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
    }
}
