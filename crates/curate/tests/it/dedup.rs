//! Deduplication through the public interface: recall, determinism, spilling, hostile input.

use std::path::Path;

use fathom_curate::Error;
use fathom_curate::dedup::{
    Digest, Duplicates, Engine, FuzzyOptions, NearDuplicates, Scheme, exact, exact_needs, fuzzy, fuzzy_needs,
    jaccard, recall,
};

fn run(options: &FuzzyOptions, texts: &[String], threads: usize) -> Duplicates {
    let work = tempfile::tempdir().unwrap();
    let engine = Engine::new(64 << 20, threads, &work.path().join("spill")).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let documents =
        || Ok(texts.iter().enumerate().map(|(number, text)| Ok::<_, Error>((number as u64, text))));
    pool.install(|| fuzzy(options, documents, work.path(), &engine)).unwrap()
}

fn texts(seed: u64, documents: u64, copies: u64) -> Vec<String> {
    let corpus = NearDuplicates::new(seed, documents, copies).shaped(140, 0.2);
    corpus.iter().map(|(_, text)| text).collect()
}

fn with_scheme(scheme: Scheme) -> FuzzyOptions {
    FuzzyOptions { scheme, ..FuzzyOptions::default() }
}

#[test]
fn recall_follows_theory() {
    let corpus = NearDuplicates::new(3, 2400, 6).shaped(70, 0.12);
    let texts: Vec<String> = corpus.iter().map(|(_, text)| text).collect();
    for options in [FuzzyOptions::default(), FuzzyOptions::datatrove(), with_scheme(Scheme::OnePermutation)] {
        let buckets = recall(&options, &texts).unwrap();
        for (i, bucket) in buckets.iter().enumerate().filter(|(_, bucket)| bucket.pairs >= 300) {
            let difference = bucket.recall() - bucket.theory();
            // Pairs of one family are dependent, so this is three standard errors of a small sample.
            assert!(difference.abs() < 0.12, "{options:?}, range {i}: {bucket:?}");
        }
        let alike: Vec<_> = buckets[18..].iter().map(|bucket| (bucket.found, bucket.pairs)).collect();
        let (found, pairs) = alike.iter().fold((0, 0), |sum, x| (sum.0 + x.0, sum.1 + x.1));
        assert!(pairs > 200 && found as f64 >= 0.98 * pairs as f64, "{options:?}: {alike:?}");
    }
}

#[test]
fn families_are_found_whatever_the_number_of_threads() {
    let texts = texts(5, 2400, 4);
    let one = run(&FuzzyOptions::default(), &texts, 1);
    assert_eq!(one, run(&FuzzyOptions::default(), &texts, 3));
    let corpus = NearDuplicates::new(5, 2400, 4);
    assert!(
        one.pairs()
            .all(|(document, first)| first < document && corpus.family(document) == corpus.family(first))
    );
    let removed = one.removed().count();
    assert!((700..1800).contains(&removed), "{removed} removed");
    assert_eq!(one.sizes().iter().map(|(size, count)| (size - 1) * count).sum::<u64>(), removed as u64);
}

#[test]
fn the_check_leaves_no_pair_below_the_threshold() {
    let texts = texts(6, 1600, 8);
    let unchecked = run(&FuzzyOptions::default(), &texts, 2);
    for threshold in [0.8, 0.95] {
        let options = FuzzyOptions { check: Some(threshold), ..FuzzyOptions::default() };
        let checked = run(&options, &texts, 2);
        let similarity =
            |(a, b): (u64, u64)| jaccard(&texts[a as usize], &texts[b as usize], options.shingles);
        assert!(checked.pairs().all(|pair| similarity(pair) >= threshold));
        assert!(checked.removed().count() < unchecked.removed().count());
        assert!(checked.removed().count() > 100);
        let below = unchecked.pairs().filter(|&pair| similarity(pair) < threshold).count();
        assert!(below > 0, "the case does not try the check");
    }
}

#[test]
fn numbers_may_have_gaps() {
    let work = tempfile::tempdir().unwrap();
    let engine = Engine::new(64 << 20, 1, work.path()).unwrap();
    let text = "the same text, long enough for a window of twenty-four characters";
    let rows = [(7, text), (100, "something else altogether, of a decent length too"), (1 << 40, text)];
    let found =
        fuzzy(&FuzzyOptions::default(), || Ok(rows.map(Ok::<_, Error>).into_iter()), work.path(), &engine)
            .unwrap();
    assert_eq!(found.pairs().collect::<Vec<_>>(), [(1 << 40, 7)]);
    assert_eq!([7, 100, 1 << 40, 8].map(|n| found.representative(n)), [Some(7), Some(100), Some(7), None]);
    let descending = [(3, "a"), (2, "b")];
    let refused = fuzzy(
        &FuzzyOptions::default(),
        || Ok(descending.map(Ok::<_, Error>).into_iter()),
        work.path(),
        &engine,
    );
    assert!(refused.unwrap_err().to_string().contains("2 after 3"));
}

fn bytes_under(folder: &Path) -> u64 {
    walkdir::WalkDir::new(folder)
        .into_iter()
        .flatten()
        .filter_map(|e| e.metadata().ok())
        .map(|m| m.len())
        .sum()
}

#[test]
fn sorts_spill_within_what_was_announced() {
    // 150,000 documents of one short line: a partition has 2.4 MB of rows, and the sort may use 4 MiB in total.
    let work = tempfile::tempdir().unwrap();
    let documents = 150_000u64;
    let options = FuzzyOptions { bands: 2, rows: 2, ..FuzzyOptions::default() };
    let engine = Engine::new(4 << 20, 1, &work.path().join("spill")).unwrap();
    let largest = std::cell::Cell::new(0);
    let texts = || {
        Ok((0..documents).map(|number| {
            if number == documents - 1 {
                largest.set(bytes_under(work.path()));
            }
            Ok::<_, Error>((number, format!("line {} of the file, all different", number / 3)))
        }))
    };
    let found = fuzzy(&options, texts, work.path(), &engine).unwrap();
    assert!(found.removed().count() as u64 >= documents / 3 * 2);
    let needs = fuzzy_needs(&options, documents, documents * 35, 4 << 20);
    assert!(
        largest.get() <= needs.disk_bytes,
        "{} bytes on disk, {} announced",
        largest.get(),
        needs.disk_bytes
    );
    assert!(bytes_under(work.path()) < 100_000, "the work folder is not empty");
    let more = fuzzy_needs(&options, 10 * documents, 350 * documents, 4 << 20);
    assert!(more.disk_bytes > 9 * needs.disk_bytes / 2 && more.memory_bytes > needs.memory_bytes);
}

#[test]
fn equal_texts_are_found_exactly() {
    let work = tempfile::tempdir().unwrap();
    let engine = Engine::new(16 << 20, 2, work.path()).unwrap();
    let texts: Vec<String> = (0..5000).map(|i| format!("text {}", i % 1700)).collect();
    for digest in [Digest::Xxh3, Digest::Md5] {
        let documents = texts.iter().enumerate().map(|(number, text)| Ok((number as u64, text)));
        let found = exact(digest, documents, work.path(), &engine).unwrap();
        let expected: Vec<(u64, u64)> = (1700..5000).map(|number| (number, number % 1700)).collect();
        assert_eq!(found.pairs().collect::<Vec<_>>(), expected);
    }
    assert!(exact_needs(1 << 33, 1 << 30).memory_bytes > 8 << 33);
}

#[test]
fn hostile_texts_take_linear_time() {
    let large = "a line that never ends ".repeat(1 << 20);
    let mut texts: Vec<String> =
        vec![String::new(), "a".to_string(), "é".to_string(), "\0".repeat(4000), large.clone()];
    texts.push(large);
    texts.extend((0..20_000).map(|_| "the very same document, which everybody has copied".to_string()));
    texts.push(String::new());
    for options in [
        FuzzyOptions::default(),
        FuzzyOptions { check: Some(0.8), ..FuzzyOptions::default() },
        FuzzyOptions::datatrove(),
        with_scheme(Scheme::OnePermutation),
    ] {
        let found = run(&options, &texts, 2);
        assert_eq!(found.removed().count(), 1 + 19_999, "{options:?}");
        assert_eq!(found.representative(5), Some(4));
        assert!(found.unhashed >= 2);
    }
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let refused = |options: FuzzyOptions| {
        fathom_curate::dedup::Bands::new(&options).map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused(FuzzyOptions { bands: 0, ..FuzzyOptions::default() }).contains("0 bands"));
    assert!(
        refused(FuzzyOptions { check: Some(1.5), ..FuzzyOptions::default() }).contains("between 0 and 1")
    );
    assert!(refused(FuzzyOptions { bands: 1000, rows: 1000, ..FuzzyOptions::default() }).contains("65536"));
    assert!(serde_json::from_str::<FuzzyOptions>(r#"{"band": 3}"#).is_err());
    let shape = r#"{"shingles": {"words": 5}, "bands": 14, "rows": 8, "seed": 1, "scheme": "permutations"}"#;
    let shape: FuzzyOptions = serde_json::from_str(shape).unwrap();
    assert_eq!(shape, FuzzyOptions { preset: shape.preset, ..FuzzyOptions::datatrove() });
}
