//! Single-threaded speed of Unicode repair: `unicode_bench [MB] [FILE]` measures generated text with mojibake in one
//! line of twenty, and writes it to FILE as JSON lines, on which `oracle/curate/unicode.py bench` runs ftfy.
//! `unicode_bench cases FILE` counts the lines `[broken, curator, ftfy]` of FILE that are repaired as expected.

#[path = "shared/english.rs"]
mod english;

use fathom_prose::clean::{UnicodeFixer, UnicodeOptions};
use std::io::Write;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, path] = args.as_slice()
        && word == "cases"
    {
        return cases(path);
    }
    let megabytes: usize = args.first().map_or(Ok(32), |a| a.parse())?;
    let mut random = english::Random(3);
    let documents: Vec<String> = english::English::new(2)
        .documents(megabytes << 20)
        .iter()
        .map(|text| text.split('\n').map(|line| spoil(line, &mut random)).collect::<Vec<_>>().join("\n"))
        .collect();
    if let Some(path) = args.get(1) {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for text in &documents {
            writeln!(file, "{}", serde_json::to_string(&serde_json::json!({ "text": text }))?)?;
        }
    }
    let fixer = UnicodeFixer::new(&UnicodeOptions::default());
    let bytes: usize = documents.iter().map(String::len).sum();
    let mut best = f64::INFINITY;
    let mut changed = 0;
    for _ in 0..5 {
        let start = Instant::now();
        changed = documents.iter().filter(|text| fixer.fix(text) != text.as_str()).count();
        best = best.min(start.elapsed().as_secs_f64());
    }
    let row = serde_json::json!({
        "bench": "curate", "stage": "unicode", "mb_per_s": bytes as f64 / 1e6 / best,
        "docs_per_s": documents.len() as f64 / best, "threads": 1, "documents": documents.len(), "changed": changed,
    });
    println!("{row}");
    Ok(())
}

/// Reads one line in twenty as Windows-1252 instead of UTF-8, and adds entities to one in forty.
fn spoil(line: &str, random: &mut english::Random) -> String {
    match random.below(40) {
        0 | 1 => line.replace('’', "â€™").replace('ï', "Ã¯") + " â€œendâ€\u{9d}",
        2 => line.replace('’', "&rsquo;") + " &amp; more",
        _ => line.to_string(),
    }
}

fn cases(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(path)?;
    for (column, options) in [(1, UnicodeOptions::default()), (2, UnicodeOptions::ftfy())] {
        let fixer = UnicodeFixer::new(&options);
        let (mut right, mut all) = (0, 0);
        for line in text.lines() {
            let case: Vec<Option<String>> = serde_json::from_str(line)?;
            let (Some(Some(broken)), Some(Some(expected))) = (case.first(), case.get(column)) else {
                continue;
            };
            let fixed = fixer.fix(broken);
            all += 1;
            right += usize::from(fixed == expected.as_str());
            if fixed != expected.as_str() {
                println!("{broken:?}\n  ours     {fixed:?}\n  expected {expected:?}");
            }
        }
        println!("{right} of {all}");
    }
    Ok(())
}
