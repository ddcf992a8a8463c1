//! Fuzzy deduplication end to end on generated near-duplicates: `fuzzy_bench [--mb N] [--threads N]
//! [--memory-mb N] [--check T] [--shape default|permutations|datatrove|one-permutation]`. Documents are generated on
//! the fly; prints the rate with and without generation time, and peak memory.
#![allow(clippy::unwrap_used)] // A measurement has no caller to report errors to.

use std::hint::black_box;
use std::time::Instant;

use fathom_curate::Error;
use fathom_curate::dedup::{Engine, NearDuplicates, fuzzy, fuzzy_needs};

mod common;

use common::{number, shape, value};

/// Value of a field of `/proc/self/status`, in MiB.
fn status_mib(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn main() {
    let (mb, threads) = (number("--mb", 300), number("--threads", 1) as usize);
    let memory_bytes = number("--memory-mb", 256) << 20;

    let documents = mb * 1_000_000 / 4200;
    let corpus = NearDuplicates::new(1, documents, 4);
    let mut options = shape();
    options.check = value("--check").map(|v| v.parse().unwrap());

    let start = Instant::now();
    let bytes: u64 = corpus.iter().map(|(_, text)| black_box(text).len() as u64).sum();
    let generating = start.elapsed().as_secs_f64() * if options.check.is_some() { 2.0 } else { 1.0 };

    let needs = fuzzy_needs(&options, documents, bytes, memory_bytes);
    let work = tempfile::tempdir().unwrap();
    let engine = Engine::new(memory_bytes, threads, &work.path().join("spill")).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let start = Instant::now();
    let texts = || Ok(corpus.iter().map(Ok::<_, Error>));
    let found = pool.install(|| fuzzy(&options, texts, work.path(), &engine)).unwrap();
    let seconds = start.elapsed().as_secs_f64();

    let removed = found.removed().count();
    let rate = bytes as f64 / 1e6 / seconds;
    println!(
        "{{\"bench\":\"curate\",\"stage\":\"fuzzy_dedup\",\"mb_per_s\":{rate:.1},\"docs_per_s\":{:.0},\"threads\":{threads},\
         \"mb\":{:.0},\"documents\":{documents},\"removed\":{removed},\"seconds\":{seconds:.1},\"generating_s\":{generating:.1},\
         \"mb_per_s_without_generating\":{:.1},\"peak_mib\":{:.0},\"predicted_mib\":{:.0},\"predicted_disk_mib\":{:.0}}}",
        documents as f64 / seconds,
        bytes as f64 / 1e6,
        bytes as f64 / 1e6 / (seconds - generating).max(1e-9),
        status_mib("VmHWM"),
        needs.memory_bytes as f64 / (1 << 20) as f64,
        needs.disk_bytes as f64 / (1 << 20) as f64,
    );
}
