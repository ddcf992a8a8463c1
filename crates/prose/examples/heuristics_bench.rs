//! Single-threaded speed of the heuristic filters: `heuristics_bench [MB] [FILE]` measures generated English text and
//! writes it to FILE as JSON lines, on which `oracle/curate/filters.py` runs datatrove's filters.

#[path = "shared/english.rs"]
mod english;

use fathom_prose::filter::{C4, C4Options, FilterOptions, Filters, Scratch, Set};
use std::io::Write;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let megabytes: usize = args.next().map_or(Ok(32), |a| a.parse())?;
    let documents = english::English::new(1).documents(megabytes << 20);
    if let Some(path) = args.next() {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for text in &documents {
            writeln!(file, "{}", serde_json::to_string(&serde_json::json!({ "text": text }))?)?;
        }
    }
    let english = Filters::new(&FilterOptions::default())?;
    let others = FilterOptions {
        sets: vec![Set::GopherRepetition, Set::GopherQuality, Set::FineWeb],
        ..FilterOptions::default()
    };
    let others = Filters::new(&others)?;
    let c4 = C4::new(&C4Options::default())?;
    let mut scratch = Scratch::default();
    let mut scores = Vec::new();
    measure("heuristics", &documents, |text| english.scores(text, &mut scratch, &mut scores).is_ok());
    measure("heuristics_early_exit", &documents, |text| english.check(text, &mut scratch).is_ok());
    measure("gopher_c4_fineweb", &documents, |text| {
        others.check(text, &mut scratch).is_ok() && c4.clean(text).is_ok()
    });
    measure("gopher_c4_fineweb_all", &documents, |text| {
        let verdict = others.scores(text, &mut scratch, &mut scores).is_ok();
        c4.clean(text).is_ok() && verdict
    });
    Ok(())
}

fn measure(stage: &str, documents: &[String], mut keeps: impl FnMut(&str) -> bool) {
    let bytes: usize = documents.iter().map(String::len).sum();
    let mut best = f64::INFINITY;
    let mut kept = 0;
    for _ in 0..5 {
        let start = Instant::now();
        kept = documents.iter().filter(|text| keeps(text)).count();
        best = best.min(start.elapsed().as_secs_f64());
    }
    let row = serde_json::json!({
        "bench": "curate", "stage": stage, "mb_per_s": bytes as f64 / 1e6 / best,
        "docs_per_s": documents.len() as f64 / best, "threads": 1,
        "documents": documents.len(), "kept": kept,
    });
    println!("{row}");
}
