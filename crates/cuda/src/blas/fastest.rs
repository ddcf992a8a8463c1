//! Choice of the fastest of several algorithms for a product, by the device's clock.

use super::Shape;
use crate::Result;
use crate::driver::{Driver, Event, Stream};

/// Timed runs per candidate, after one that is not timed.
const RUNS: u32 = 2;
/// Least length of each side, and least number of multiplications, for which measuring pays off.
const LEAST: u64 = 512;
const LEAST_WORK: u64 = 1 << 31;

/// True if a product takes long enough for a better algorithm to matter.
pub fn is_worth(shape: &Shape) -> bool {
    let sides = [shape.result.rows, shape.result.cols, shape.inner];
    sides.iter().all(|side| *side >= LEAST) && sides.iter().product::<u64>() >= LEAST_WORK
}

/// The index of the fastest of `count` candidates, the first among equals, and also the first if none of them runs.
/// `run` issues a candidate to the stream, which is waited for. `None` during capture of the stream, as nothing runs
/// then.
///
/// # Errors
/// If the device has failed.
pub fn fastest(
    driver: &dyn Driver,
    stream: Stream,
    count: usize,
    mut run: impl FnMut(usize) -> Result<()>,
) -> Result<Option<usize>> {
    if driver.is_capturing(stream)? {
        return Ok(None);
    }
    if count < 2 {
        return Ok(Some(0));
    }
    let [from, to]: [Event; 2] = [driver.event(true)?, driver.event(true)?];
    let mut best = (f64::INFINITY, 0);
    for candidate in 0..count {
        // Candidates that the library refuses after all are skipped.
        let ran = run(candidate)
            .and_then(|()| driver.record(from, stream))
            .and_then(|()| (0..RUNS).try_for_each(|_| run(candidate)))
            .and_then(|()| driver.record(to, stream))
            .and_then(|()| driver.join(to))
            .and_then(|()| driver.seconds(from, to));
        if let Ok(seconds) = ran
            && seconds < best.0
        {
            best = (seconds, candidate);
        }
    }
    driver.end_event(from)?;
    driver.end_event(to)?;
    Ok(Some(best.1))
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::driver::Rows;
    use crate::driver::fake::Fake;

    /// Candidates that take this many operations each, at a microsecond each on the simulated device; zero means
    /// refused.
    fn chosen(costs: &[usize], captured: bool) -> (Option<usize>, usize) {
        let fake = Fake::new(1 << 20);
        let (stream, memory) = (fake.stream().unwrap(), fake.allocate(64).unwrap());
        if captured {
            fake.begin_capture(stream).unwrap();
        }
        let mut calls = 0;
        let found = fastest(&fake, stream, costs.len(), |candidate| {
            calls += 1;
            if costs[candidate] == 0 {
                return Err(Error::NoDevice("refused".into()));
            }
            // SAFETY: memory of this function, whose work is waited for below.
            (0..costs[candidate]).try_for_each(|_| unsafe { fake.clear(Rows::flat(memory, 64), stream) })
        });
        if captured {
            let graph = fake.end_capture(stream).unwrap();
            fake.end_graph(graph).unwrap();
        }
        fake.synchronise(stream).unwrap();
        fake.end_stream(stream).unwrap();
        fake.free(memory).unwrap();
        assert!(fake.is_clean());
        (found.unwrap(), calls)
    }

    #[test]
    fn the_fastest_that_runs_is_taken() {
        for (costs, expected) in
            [(&[3, 2, 5][..], 1), (&[2, 2, 2], 0), (&[0, 9, 8], 2), (&[0, 0], 0), (&[7], 0)]
        {
            assert_eq!(chosen(costs, false).0, Some(expected), "{costs:?}");
        }
    }

    #[test]
    fn nothing_runs_while_the_stream_is_captured() {
        assert_eq!(chosen(&[3, 2], true), (None, 0));
    }
}
