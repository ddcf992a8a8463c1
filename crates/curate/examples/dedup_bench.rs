//! Recall of near-duplicates against all pairs: `dedup_bench --recall [--documents N] [--copies N]
//! [--shape curator|datatrove|one-permutation]`. One line per range of 0.05 in Jaccard similarity.
#![allow(clippy::unwrap_used)] // A measurement has nobody to report errors to.

use fathom_curate::dedup::{FuzzyOptions, NearDuplicates, RecallBucket, Scheme, recall};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value =
        |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1)).cloned();
    let number = |name: &str, otherwise: u64| value(name).map_or(otherwise, |v| v.parse().unwrap());
    assert!(arguments.iter().any(|a| a == "--recall"), "dedup_bench measures one thing so far: --recall");

    let documents = number("--documents", 20_000);
    let corpus = NearDuplicates {
        words: number("--words", 160) as usize,
        edits: 0.12,
        ..NearDuplicates::new(number("--seed", 1), documents, number("--copies", 80))
    };
    let texts: Vec<String> = corpus.iter().map(|(_, text)| text).collect();
    let options = match value("--shape").as_deref().unwrap_or("curator") {
        "curator" => FuzzyOptions::default(),
        "datatrove" => FuzzyOptions::datatrove(),
        "one-permutation" => FuzzyOptions { scheme: Scheme::OnePermutation, ..FuzzyOptions::default() },
        other => panic!("--shape is {other}; choose curator, datatrove or one-permutation"),
    };
    let buckets = recall(&options, &texts).unwrap();
    for (i, bucket) in buckets.iter().enumerate() {
        println!(
            "{{\"bench\":\"curate\",\"stage\":\"fuzzy_recall\",\"jaccard\":[{:.2},{:.2}],\"pairs\":{},\"recall\":{:.4},\"theory\":{:.4},\"difference\":{:+.4}}}",
            i as f64 * 0.05,
            (i + 1) as f64 * 0.05,
            bucket.pairs,
            bucket.recall(),
            bucket.theory(),
            bucket.recall() - bucket.theory(),
        );
    }
    let alike = buckets[18..].iter().fold(RecallBucket::default(), |mut sum, bucket| {
        sum.pairs += bucket.pairs;
        sum.found += bucket.found;
        sum.expected += bucket.expected;
        sum
    });
    println!(
        "{{\"bench\":\"curate\",\"stage\":\"fuzzy_recall\",\"jaccard\":[0.9,1.0],\"pairs\":{},\"recall\":{:.4},\"theory\":{:.4}}}",
        alike.pairs,
        alike.recall(),
        alike.theory()
    );
}
