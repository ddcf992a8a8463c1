//! Arguments of the benchmarks.
#![allow(clippy::unwrap_used, dead_code)] // A measurement has no caller to report errors to; each uses some of it.

use fathom_curate::dedup::{FuzzyOptions, Scheme};

/// The value of `--name value`.
pub fn value(name: &str) -> Option<String> {
    let mut arguments = std::env::args();
    arguments.find(|argument| argument == name)?;
    arguments.next()
}

/// The number of `--name number`.
pub fn number(name: &str, otherwise: u64) -> u64 {
    value(name).map_or(otherwise, |value| value.parse().unwrap())
}

/// The options that `--shape` names.
pub fn shape() -> FuzzyOptions {
    match value("--shape").as_deref().unwrap_or("default") {
        "default" => FuzzyOptions::default(),
        "permutations" => FuzzyOptions { scheme: Scheme::Permutations, ..FuzzyOptions::default() },
        "datatrove" => FuzzyOptions::datatrove(),
        "one-permutation" => FuzzyOptions { scheme: Scheme::OnePermutation, ..FuzzyOptions::default() },
        other => panic!("--shape is {other}; choose default, permutations, datatrove or one-permutation"),
    }
}
