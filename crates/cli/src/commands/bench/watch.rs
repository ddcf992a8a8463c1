//! Repeats with a clock, and an eye on what else the machine does meanwhile.

use std::sync::Once;
use std::time::Instant;

use crate::console;

/// Times of repeated runs.
pub struct Timed {
    /// Median seconds.
    pub median_s: f64,
    /// Least seconds.
    pub best_s: f64,
    /// Other processes computed meanwhile.
    pub loaded: bool,
}

/// Repeating a row ends after this time (with two samples at least).
const ROW_S: f64 = 20.0;
/// A warm-up that takes this long is a sample as well.
const LONG_S: f64 = 10.0;
/// Share of one core that others may use.
const OTHERS: f64 = 0.1;

/// Runs `work` once to warm up, then up to `repeat` times.
pub fn measure(repeat: usize, mut work: impl FnMut()) -> Timed {
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
    Timed { median_s: median(&samples), best_s: samples[0], loaded: watch.loaded() }
}

/// Runs `work` once, with its first touch of memory.
pub fn measure_once(work: &mut dyn FnMut()) -> Timed {
    let watch = Watch::begin();
    work();
    let seconds = watch.seconds();
    Timed { median_s: seconds, best_s: seconds, loaded: watch.loaded() }
}

/// The middle of sorted samples; of an even number, the mean of the middle two.
pub fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// Processor time of everybody and of this process since a moment.
pub struct Watch {
    started: Instant,
    busy: Option<(u64, u64)>,
}

impl Watch {
    /// Starts.
    pub fn begin() -> Watch {
        Watch { started: Instant::now(), busy: busy() }
    }

    /// Seconds since.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// True when others used more than a tenth of a core since; warns once on standard error. False where the system
    /// does not tell.
    pub fn loaded(&self) -> bool {
        let (Some(before), Some(after)) = (self.busy, busy()) else { return false };
        let [all, own] = [after.0 - before.0, after.1 - before.1];
        let others = all.saturating_sub(own);
        // The kernel counts in hundredths of a second: below five of them it is rounding.
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

/// Hundredths of a second that all processors were busy, and that this process was.
fn busy() -> Option<(u64, u64)> {
    let all = std::fs::read_to_string("/proc/stat").ok()?;
    let own = std::fs::read_to_string("/proc/self/stat").ok()?;
    Some((all_busy(&all)?, own_busy(&own)?))
}

/// user, nice, system, irq, softirq and steal of the line `cpu`; not idle and waiting for disks.
fn all_busy(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let used = [0, 1, 2, 5, 6, 7];
    (ticks.len() > 4).then(|| used.iter().filter_map(|index| ticks.get(*index)).sum())
}

/// utime and stime: the twelfth and thirteenth field after the name in parentheses.
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
