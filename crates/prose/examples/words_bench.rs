//! Single-threaded speed of word segmentation: `words_bench FILE ...` counts the words of each file by spaces, by the
//! Unicode rules and by dictionary. `oracle/curate/words.py` writes files in several languages and counts with Python
//! packages.

use fathom_prose::filter::{FilterOptions, Filters, Scratch, WordRule};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        let documents: Vec<&str> = text.split("\n\n").filter(|text| !text.trim().is_empty()).collect();
        for (rule, words) in [
            ("spaces", WordRule::Spaces),
            ("unicode", WordRule::Unicode),
            ("dictionary", WordRule::Dictionary),
        ] {
            let options =
                FilterOptions { sets: vec![], with: vec!["word_count".into()], words, ..Default::default() };
            let filters = Filters::new(&options)?;
            let (mut scratch, mut scores) = (Scratch::default(), Vec::new());
            let (mut best, mut found) = (f64::INFINITY, 0.0);
            for _ in 0..5 {
                let started = Instant::now();
                found = 0.0;
                for text in &documents {
                    // Only the word count matters here.
                    let _ = filters.scores(text, &mut scratch, &mut scores);
                    found += scores.iter().find(|score| score.name == "word_count").map_or(0.0, |s| s.value);
                }
                best = best.min(started.elapsed().as_secs_f64());
            }
            let bytes: usize = documents.iter().map(|text| text.len()).sum();
            let row = serde_json::json!({
                "bench": "curate", "stage": "words", "file": path, "rule": rule, "words": found,
                "mb_per_s": bytes as f64 / 1e6 / best, "docs_per_s": documents.len() as f64 / best, "threads": 1,
            });
            println!("{row}");
        }
    }
    Ok(())
}
