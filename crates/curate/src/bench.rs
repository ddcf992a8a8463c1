//! Single-threaded throughput of each curation component on generated text: the rows of `fathom bench curate`.

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

use fathom_text::tokenizer::Tokenizer;

use crate::dedup::{Engine, FuzzyOptions, MinHash, MinHashOptions, MinHashScratch, NearDuplicates, fuzzy};
use crate::error::Error;
use fathom_prose::clean::{CleanOptions, Cleaner};
use fathom_prose::extract::labelled::pages;
use fathom_prose::extract::{Html, HtmlOptions};
use fathom_prose::filter::{FilterOptions, Filters, Scratch};

/// Names of the measured components.
pub const STAGES: [&str; 6] = ["heuristics", "minhash", "tokenize", "extract", "unicode", "fuzzy_dedup"];

/// Documents in the benchmark text, about 32 MB.
const DOCUMENTS: u64 = 8192;
/// Multiple of [`DOCUMENTS`] that the end-to-end deduplication benchmark processes.
const DEDUP_TIMES: u64 = 8;
/// Repetitions per measurement; the median is reported.
const REPEATS: usize = 5;
/// Web pages in the extraction benchmark.
const PAGES: usize = 1000;
/// Vocabulary size of the tokenizer trained when none is given.
const VOCAB: usize = 8192;

/// One benchmark result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Always `curate`.
    pub bench: &'static str,
    /// Name of the measured component.
    pub stage: &'static str,
    /// Megabytes (10^6 bytes) of text per second.
    pub mb_per_s: f64,
    /// Documents per second.
    pub docs_per_s: f64,
    /// Threads.
    pub threads: usize,
}

/// Measures one component; `None` if no component has this name.
///
/// # Errors
/// A component cannot be constructed, or the disk cannot be written.
pub fn run(stage: &str) -> Result<Option<Row>, Error> {
    let Some(stage) = STAGES.into_iter().find(|name| *name == stage) else { return Ok(None) };
    match stage {
        "fuzzy_dedup" => return whole_dedup(stage).map(Some),
        "extract" => {
            let html = Html::new(&HtmlOptions::default())?;
            let pages: Vec<String> = pages(4, PAGES).into_iter().map(|page| page.html).collect();
            let row = measure(stage, &pages, |page| drop(black_box(html.extract(page))));
            return Ok(Some(row));
        }
        _ => {}
    }
    let texts: Vec<String> = NearDuplicates::new(1, DOCUMENTS, 4).iter().map(|(_, text)| text).collect();
    let row = match stage {
        "heuristics" => {
            let filters = Filters::new(&FilterOptions::default())?;
            let (mut scratch, mut scores) = (Scratch::default(), Vec::new());
            // Every filter scores every text, so early exits do not flatter the figure.
            measure(stage, &texts, |text| {
                black_box(filters.scores(text, &mut scratch, &mut scores).is_ok());
            })
        }
        "minhash" => {
            let hash = MinHash::new(&MinHashOptions::default())?;
            let mut scratch = MinHashScratch::default();
            measure(stage, &texts, |text| {
                black_box(hash.signature(text, &mut scratch));
            })
        }
        "unicode" => {
            let cleaner = Cleaner::new(&CleanOptions::default());
            measure(stage, &texts, |text| {
                black_box(cleaner.clean(text).len());
            })
        }
        _ => {
            let sample = texts.iter().take(512).cloned();
            let tokenizer = Tokenizer::train_bpe(sample, VOCAB, &["<|endoftext|>"])?;
            let mut failed = None;
            let row = measure(stage, &texts, |text| match tokenizer.encode(text) {
                Ok(ids) => drop(black_box(ids)),
                Err(error) => failed = Some(error),
            });
            if let Some(error) = failed {
                return Err(error.into());
            }
            row
        }
    };
    Ok(Some(row))
}

fn measure(stage: &'static str, texts: &[String], mut each: impl FnMut(&str)) -> Row {
    texts.iter().take(64).for_each(|text| each(text));
    let mut seconds: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let started = Instant::now();
            texts.iter().for_each(|text| each(text));
            started.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let bytes = texts.iter().map(String::len).sum::<usize>();
    row(stage, bytes as f64, texts.len() as f64, seconds[REPEATS / 2])
}

fn row(stage: &'static str, bytes: f64, documents: f64, seconds: f64) -> Row {
    Row {
        bench: "curate",
        stage,
        mb_per_s: bytes / 1e6 / seconds,
        docs_per_s: documents / seconds,
        threads: 1,
    }
}

/// Measures end-to-end fuzzy deduplication; the documents are in memory before the clock starts.
fn whole_dedup(stage: &'static str) -> Result<Row, Error> {
    let texts: Vec<String> =
        NearDuplicates::new(1, DEDUP_TIMES * DOCUMENTS, 4).iter().map(|(_, text)| text).collect();
    let work = std::env::temp_dir().join(format!("fathom-bench-{}", std::process::id()));
    std::fs::create_dir(&work).map_err(|e| Error::write("create", &work, e))?;
    let engine = Engine::new(256 << 20, 1, &work.join("sort"))?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let pool = pool.map_err(|e| Error::Threads { detail: e.to_string() })?;
    let documents = || Ok((0u64..).zip(texts.iter().map(String::as_str)).map(Ok::<_, Error>));
    let started = Instant::now();
    let found = pool.install(|| fuzzy(&FuzzyOptions::default(), documents, &work, &engine))?;
    let seconds = started.elapsed().as_secs_f64();
    black_box(found.documents());
    drop(engine);
    std::fs::remove_dir_all(&work).map_err(|e| Error::write("remove", &work, e))?;
    let bytes = texts.iter().map(String::len).sum::<usize>();
    Ok(row(stage, bytes as f64, texts.len() as f64, seconds))
}
