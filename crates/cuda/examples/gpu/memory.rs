//! Transfers between host and device: rates of pinned copies, alone and overlapped with a product, and how much memory
//! can be pinned.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use fathom_cuda::driver::{Rows, Way};
use fathom_cuda::{Cuda, Result};
use fathom_tensor::{DType, Machine, MatMul};

use super::Lines;
use super::rates::{Bench, median};

/// Bytes per copy.
const BYTES: usize = 1 << 30;
/// Bytes pinned at a time.
const PIECE: usize = 4 << 30;
/// Upper limit of pinned bytes, as much as a step of a million tokens may want, and the time limit of the search.
const MOST: usize = 96 << 30;
const LONGEST: Duration = Duration::from_secs(15);

/// Pinned copies each way and both ways at once.
pub fn copies(lines: &mut Lines, cuda: &Cuda) -> Result<()> {
    let driver = cuda.driver().as_ref();
    let (host, back) = (driver.pin(BYTES)?, driver.pin(BYTES)?);
    let device = driver.allocate(2 * BYTES as u64)?;
    let [up, down] = [driver.stream()?, driver.stream()?];
    let go = |way: Way| {
        let (from, to, stream) = match way {
            Way::Up => (host, device, up),
            _ => (device + BYTES as u64, back, down),
        };
        // SAFETY: memory of this function, which waits for both streams before releasing it.
        unsafe { driver.copy(way, Rows::flat(from, BYTES), Rows::flat(to, BYTES), stream) }
    };
    let rate = |seconds: f64| format!("{:.1} GB/s", BYTES as f64 / seconds / 1e9);
    lines.say("host to device", true, rate(median(driver, up, || go(Way::Up))?));
    lines.say("device to host", true, rate(median(driver, down, || go(Way::Down))?));
    let both = median(driver, up, || {
        go(Way::Down)?;
        go(Way::Up)?;
        let joined = driver.event(false)?;
        driver.record(joined, down)?;
        driver.wait(up, joined)?;
        driver.synchronise(up)?;
        driver.end_event(joined)
    })?;
    lines.say("both ways, each", true, rate(both));
    for stream in [up, down] {
        driver.synchronise(stream)?;
        driver.end_stream(stream)?;
    }
    driver.free(device)?;
    driver.unpin(host)?;
    driver.unpin(back)
}

/// Finds how much of the host's memory can be pinned, up to half of what is free.
pub fn pinned(lines: &mut Lines, cuda: &Cuda) -> Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let free = line.and_then(|line| line.trim().split(' ').next()?.parse::<usize>().ok()).unwrap_or(0) * 1024;
    let (driver, started, mut held) = (cuda.driver().as_ref(), Instant::now(), Vec::new());
    let mut refused = String::new();
    while (held.len() + 1) * PIECE <= MOST.min(free / 2) && started.elapsed() < LONGEST {
        match driver.pin(PIECE) {
            Ok(address) => held.push(address),
            Err(error) => {
                refused = format!("; then {error}");
                break;
            }
        }
    }
    let (gib, seconds) = (held.len() * (PIECE >> 30), started.elapsed().as_secs_f64());
    lines.say(
        "pinned",
        refused.is_empty(),
        format!("{gib} GiB in {seconds:.1} s of {} GiB free{refused}", free >> 30),
    );
    held.into_iter().try_for_each(|address| driver.unpin(address))
}

/// Times a product alone and overlapped with copies both ways.
pub fn with_copies(lines: &mut Lines, bench: &Bench) -> Result<()> {
    let driver = bench.cuda.driver().as_ref();
    let (a, b, c) =
        (bench.numbers(8192, 8192), bench.numbers(8192, 8192), bench.empty(8192, 8192, DType::Bf16));
    let op = MatMul { a: &a, a_trans: false, b: &b, b_trans: true, c: &c, accumulate: false };
    let ws = bench.scratch(&op.desc());
    let products = || -> Result<()> {
        (0..10).for_each(|_| bench.cuda.matmul(&op, &ws));
        Ok(())
    };
    products()?;
    let compute = bench.cuda.compute()?;
    let alone = median(driver, compute, products)?;
    let (host, back, device) = (driver.pin(BYTES)?, driver.pin(BYTES)?, driver.allocate(2 * BYTES as u64)?);
    let [up, down] = [driver.stream()?, driver.stream()?];
    let with = median(driver, compute, || {
        // SAFETY: memory of this function, which waits for both streams before releasing it.
        unsafe {
            driver.copy(Way::Up, Rows::flat(host, BYTES), Rows::flat(device, BYTES), up)?;
            let from = Rows::flat(device + BYTES as u64, BYTES);
            driver.copy(Way::Down, from, Rows::flat(back, BYTES), down)?;
        }
        products()
    })?;
    for stream in [up, down] {
        driver.synchronise(stream)?;
        driver.end_stream(stream)?;
    }
    driver.free(device)?;
    driver.unpin(host)?;
    driver.unpin(back)?;
    let share = 100.0 * alone / with;
    lines.say("products overlapped with copies both ways", true, format!("{share:.0} % of their rate alone"));
    Ok(())
}
