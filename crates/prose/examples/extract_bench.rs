//! Main-content extraction from labelled pages: `write FILE` writes the generated set, `gather FOLDER HALF FILE` an
//! external set, `run FILE [METHOD]` measures every method on a set, one JSON row each, and `misses FILE` prints the
//! errors of the default method. The competitor is `oracle/curate/extract.py` on the same file.
//!
//! Two folder layouts of public sets are supported: `ground-truth.json` with the articles' text next to
//! `html/NAME.html.gz` (Scrapinghub's benchmark), and `tests/evaldata.json` with segments next to `tests/eval` and
//! `tests/cache` (trafilatura's). `HALF` is `even` or `odd`, by the hash of a page's name, or `all`: rules are
//! developed on one half and measured on the other.

#[path = "shared/folder.rs"]
mod folder;
#[path = "shared/shingles.rs"]
mod shingles;

use std::io::{BufRead, BufWriter, Write};
use std::time::Instant;

use fathom_prose::extract::labelled::{LabelledPage, Score, pages};
use fathom_prose::extract::{Html, HtmlOptions, Method};

use folder::Page;
use shingles::Overlap;

/// Number of pages in the generated set.
const PAGES: usize = 1000;
/// Seed of the generated set.
const SEED: u64 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["write", file] => {
            write(file, pages(SEED, PAGES).into_iter().map(|labels| Page { labels, body: String::new() }))
        }
        ["gather", from, half, file] => write(file, folder::read(from.as_ref(), half)?.into_iter()),
        ["run", file] => run(file, None),
        ["run", file, method] => run(file, Some(method)),
        ["misses", file] => misses(file),
        _ => Err("usage: extract_bench write FILE | gather FOLDER even|odd|all FILE | run FILE [METHOD] | misses FILE".into()),
    }
}

fn write(file: &str, pages: impl Iterator<Item = Page>) -> Result<(), Box<dyn std::error::Error>> {
    let mut out = BufWriter::new(std::fs::File::create(file)?);
    for page in pages {
        writeln!(out, "{}", serde_json::to_string(&page)?)?;
    }
    Ok(out.flush()?)
}

fn read(file: &str) -> Result<Vec<Page>, Box<dyn std::error::Error>> {
    let lines = std::io::BufReader::new(std::fs::File::open(file)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

fn run(file: &str, only: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    let pages = read(file)?;
    let usual = HtmlOptions::default();
    let methods = [
        ("dense", usual.clone()),
        ("trafilatura_fast", HtmlOptions { method: Method::Trafilatura, fallback: false, ..usual.clone() }),
        ("trafilatura", HtmlOptions { method: Method::Trafilatura, ..usual.clone() }),
        ("justext", HtmlOptions { method: Method::Justext, ..usual }),
    ];
    for (name, options) in methods.iter().filter(|(name, _)| only.is_none_or(|o| o == *name)) {
        println!("{}", measured(name, options, &pages)?);
    }
    Ok(())
}

/// Measures one method on a set: by segments, or by shingles if the pages have the whole text.
fn measured(
    name: &str,
    options: &HtmlOptions,
    pages: &[Page],
) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let html = Html::new(options)?;
    let (mut score, mut overlap, mut refused, mut seconds) = (Score::default(), Overlap::default(), 0, 0.0);
    let bytes: usize = pages.iter().map(|p| p.labels.html.len()).sum();
    for page in pages {
        let start = Instant::now();
        let text = html.extract(&page.labels.html);
        seconds += start.elapsed().as_secs_f64();
        refused += usize::from(text.is_err());
        let text = text.unwrap_or_default();
        match page.body.as_str() {
            "" => score.add(&page.labels, &text),
            body => overlap.add(body, &text),
        }
    }
    let (precision, recall, f1) = if pages.iter().any(|p| !p.body.is_empty()) {
        (overlap.precision(), overlap.recall(), overlap.f1())
    } else {
        (score.precision(), score.recall(), score.f1())
    };
    let rounded = |x: f64| (x * 1e4).round() / 1e4;
    Ok(serde_json::json!({
        "bench": "curate", "stage": "extract", "method": name, "threads": 1, "pages": pages.len(),
        "refused": refused, "mb_per_s": (bytes as f64 / 1e4 / seconds).round() / 100.0,
        "docs_per_s": (pages.len() as f64 * 10.0 / seconds).round() / 10.0,
        "precision": rounded(precision), "recall": rounded(recall), "f1": rounded(f1),
    }))
}

/// Prints the errors of the default method, page by page.
fn misses(file: &str) -> Result<(), Box<dyn std::error::Error>> {
    let html = Html::default();
    for (number, page) in read(file)?.iter().enumerate() {
        let text = html.extract(&page.labels.html).unwrap_or_default();
        if !page.body.is_empty() {
            let mut overlap = Overlap::default();
            overlap.add(&page.body, &text);
            println!("{number}\tprecision {:.3}\trecall {:.3}", overlap.precision(), overlap.recall());
        }
        let one = |with: &[String], without: &[String]| {
            let mut score = Score::default();
            let page = LabelledPage { html: String::new(), with: with.to_vec(), without: without.to_vec() };
            score.add(&page, &text);
            score
        };
        for segment in page.labels.with.iter().filter(|s| one(&[s.to_string()], &[]).false_negatives > 0) {
            println!("{number}\tmissing\t{segment}");
        }
        for segment in page.labels.without.iter().filter(|s| one(&[], &[s.to_string()]).false_positives > 0) {
            println!("{number}\tunwanted\t{segment}");
        }
    }
    Ok(())
}
