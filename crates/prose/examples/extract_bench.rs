//! Main content of labelled pages: `write FILE` writes the generated set, `run FILE [METHOD]` measures every method on a
//! set, one JSON row each. The rival is `oracle/curate/extract.py` on the same file.

use std::io::{BufRead, BufWriter, Write};
use std::time::Instant;

use fathom_prose::extract::labelled::{LabelledPage, Score, pages};
use fathom_prose::extract::{Html, HtmlOptions, Method};

/// Pages of the generated set.
const PAGES: usize = 1000;
/// Its seed.
const SEED: u64 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["write", file] => write(file),
        ["run", file] => run(file, None),
        ["run", file, method] => run(file, Some(method)),
        ["misses", file] => misses(file),
        _ => Err("usage: extract_bench write FILE | run FILE [METHOD] | misses FILE".into()),
    }
}

fn write(file: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut out = BufWriter::new(std::fs::File::create(file)?);
    for page in pages(SEED, PAGES) {
        writeln!(out, "{}", serde_json::to_string(&page)?)?;
    }
    Ok(out.flush()?)
}

fn read(file: &str) -> Result<Vec<LabelledPage>, Box<dyn std::error::Error>> {
    let lines = std::io::BufReader::new(std::fs::File::open(file)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

fn run(file: &str, only: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    let pages = read(file)?;
    let bytes: usize = pages.iter().map(|p| p.html.len()).sum();
    let usual = HtmlOptions::default();
    let methods = [
        ("dense", usual.clone()),
        ("trafilatura_fast", HtmlOptions { method: Method::Trafilatura, fallback: false, ..usual.clone() }),
        ("trafilatura", HtmlOptions { method: Method::Trafilatura, ..usual.clone() }),
        ("justext", HtmlOptions { method: Method::Justext, ..usual }),
    ];
    for (name, options) in methods.iter().filter(|(name, _)| only.is_none_or(|o| o == *name)) {
        let html = Html::new(options)?;
        let (mut score, mut refused, mut seconds) = (Score::default(), 0, 0.0);
        for page in &pages {
            let start = Instant::now();
            let text = html.extract(&page.html);
            seconds += start.elapsed().as_secs_f64();
            refused += usize::from(text.is_err());
            score.add(page, &text.unwrap_or_default());
        }
        let row = serde_json::json!({
            "bench": "curate", "stage": "extract", "method": name, "threads": 1, "refused": refused,
            "mb_per_s": (bytes as f64 / 1e4 / seconds).round() / 100.0,
            "docs_per_s": (pages.len() as f64 * 10.0 / seconds).round() / 10.0,
            "precision": (score.precision() * 1e4).round() / 1e4,
            "recall": (score.recall() * 1e4).round() / 1e4,
            "f1": (score.f1() * 1e4).round() / 1e4,
        });
        println!("{row}");
    }
    Ok(())
}

/// What the default method gets wrong, page by page.
fn misses(file: &str) -> Result<(), Box<dyn std::error::Error>> {
    let html = Html::default();
    for (number, page) in read(file)?.iter().enumerate() {
        let text = html.extract(&page.html).unwrap_or_default();
        let one = |with: &[String], without: &[String]| {
            let mut score = Score::default();
            let page = LabelledPage { html: String::new(), with: with.to_vec(), without: without.to_vec() };
            score.add(&page, &text);
            score
        };
        for segment in page.with.iter().filter(|s| one(&[s.to_string()], &[]).false_negatives > 0) {
            println!("{number}\tmissing\t{segment}");
        }
        for segment in page.without.iter().filter(|s| one(&[], &[s.to_string()]).false_positives > 0) {
            println!("{number}\tunwanted\t{segment}");
        }
    }
    Ok(())
}
