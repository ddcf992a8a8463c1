//! MinHash signatures per second on one core: `minhash_bench [--shape default|permutations|datatrove|one-permutation]
//! [--documents N] [--write FILE | --text FILE]`. FILE holds NUL-terminated documents, so that another program can
//! hash the same text.
#![allow(clippy::unwrap_used)] // A measurement has no caller to report errors to.

use std::hint::black_box;
use std::time::Instant;

use fathom_curate::dedup::{MinHash, MinHashOptions, MinHashScratch, NearDuplicates, Scheme};

mod common;

use common::{number, value};

fn main() {
    let texts: Vec<String> = match value("--text") {
        Some(path) => {
            std::fs::read_to_string(path).unwrap().split_terminator('\0').map(str::to_string).collect()
        }
        None => NearDuplicates::new(1, number("--documents", 8192), 4).iter().map(|(_, text)| text).collect(),
    };
    if let Some(path) = value("--write") {
        std::fs::write(path, texts.iter().map(|text| format!("{text}\0")).collect::<String>()).unwrap();
        return;
    }
    let shape = value("--shape").unwrap_or_else(|| "default".to_string());
    let options = match shape.as_str() {
        "default" => MinHashOptions::default(),
        "permutations" => MinHashOptions { scheme: Scheme::Permutations, ..MinHashOptions::default() },
        "datatrove" => MinHashOptions::datatrove(),
        "one-permutation" => MinHashOptions { scheme: Scheme::OnePermutation, ..MinHashOptions::default() },
        other => panic!("--shape is {other}; choose default, permutations, datatrove or one-permutation"),
    };
    let hash = MinHash::new(&options).unwrap();
    let mut scratch = MinHashScratch::default();
    let bytes: usize = texts.iter().map(String::len).sum();
    let mut seconds: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            for text in &texts {
                black_box(hash.signature(text, &mut scratch));
            }
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let (mb, documents) = (bytes as f64 / 1e6 / seconds[2], texts.len() as f64 / seconds[2]);
    println!(
        "{{\"bench\":\"curate\",\"stage\":\"minhash\",\"shape\":\"{shape}\",\"mb_per_s\":{mb:.1},\"docs_per_s\":{documents:.0},\"threads\":1}}"
    );
}
