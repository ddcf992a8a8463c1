//! Recall of near-duplicates against all pairs: `dedup_bench --recall [--documents N] [--copies N] [--words N] [--seed N] [--hash-seed N]
//! [--hash-seeds N]
//! [--shape default|permutations|datatrove|one-permutation]`. Prints one line per Jaccard interval of 0.05; with
//! several hash seeds, aggregated over all of them.
#![allow(clippy::unwrap_used)] // A measurement has no caller to report errors to.

use fathom_curate::dedup::{NearDuplicates, RECALL_BUCKETS, RecallBucket, recall};

mod common;

use common::{number, shape};

fn main() {
    assert!(std::env::args().any(|a| a == "--recall"), "dedup_bench measures one thing so far: --recall");

    let documents = number("--documents", 20_000);
    let corpus = NearDuplicates::new(number("--seed", 1), documents, number("--copies", 80));
    let corpus = corpus.shaped(number("--words", 110) as usize, 0.12);
    let texts: Vec<String> = corpus.iter().map(|(_, text)| text).collect();
    let mut options = shape();
    let mut buckets = [RecallBucket::default(); RECALL_BUCKETS];
    let first = number("--hash-seed", u64::from(options.seed));
    for seed in first..first + number("--hash-seeds", 1) {
        options.seed = seed as u32;
        let found = recall(&options, &texts).unwrap();
        buckets.iter_mut().zip(&found).for_each(|(sum, bucket)| sum.add(bucket));
    }
    for (i, bucket) in buckets.iter().enumerate() {
        println!(
            "{{\"bench\":\"curate\",\"stage\":\"fuzzy_recall\",\"jaccard\":[{:.2},{:.2}],\"pairs\":{},\"recall\":{:.4},\"theory\":{:.4},\"difference\":{:.4}}}",
            i as f64 * 0.05,
            (i + 1) as f64 * 0.05,
            bucket.pairs,
            bucket.recall(),
            bucket.theory(),
            bucket.recall() - bucket.theory(),
        );
    }
    let alike = buckets[18..].iter().fold(RecallBucket::default(), |mut sum, bucket| {
        sum.add(bucket);
        sum
    });
    println!(
        "{{\"bench\":\"curate\",\"stage\":\"fuzzy_recall\",\"jaccard\":[0.9,1.0],\"pairs\":{},\"recall\":{:.4},\"theory\":{:.4}}}",
        alike.pairs,
        alike.recall(),
        alike.theory()
    );
}
