//! Speed of the built-in detector of languages against whatlang's on one thread, and whether both say the same:
//! `language_bench [MB] [FILE]` takes generated English text, or the texts of a file of JSON lines.

#[path = "shared/english.rs"]
mod english;

use fathom_prose::language::{LanguageDetector, LanguageOptions, two_letters};
use std::io::BufRead;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let megabytes: usize = args.next().map_or(Ok(32), |a| a.parse())?;
    let documents = match args.next() {
        Some(path) => read(&path, megabytes << 20)?,
        None => english::English::new(1).documents(megabytes << 20),
    };
    let options = LanguageOptions::default();
    let detector = LanguageDetector::new(&options)?;
    let head = |text: &str| text[..text.floor_char_boundary(options.max_bytes.min(text.len()))].to_owned();
    let heads: Vec<String> = documents.iter().map(|text| head(text)).collect();
    let ours = |text: &String| detector.detect(text).map(|l| (l.code, l.score));
    let theirs = |text: &String| {
        let info = whatlang::detect(text.trim())?;
        Some((two_letters(info.lang().code()).to_string(), info.confidence() as f32))
    };
    let (mut ours_s, mut theirs_s) = (f64::INFINITY, f64::INFINITY);
    let mut differ = 0;
    for _ in 0..3 {
        let (found, seconds) = timed(&heads, &ours);
        ours_s = ours_s.min(seconds);
        let (wanted, seconds) = timed(&heads, &theirs);
        theirs_s = theirs_s.min(seconds);
        differ = found.iter().zip(&wanted).filter(|(a, b)| a != b).count();
    }
    let bytes: usize = documents.iter().map(String::len).sum();
    let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
    let row = serde_json::json!({
        "bench": "curate", "stage": "language", "mb_per_s": rate(ours_s), "whatlang_mb_per_s": rate(theirs_s),
        "ratio": theirs_s / ours_s, "threads": 1, "documents": documents.len(), "differ": differ,
    });
    println!("{row}");
    Ok(())
}

type Found = Option<(String, f32)>;

fn timed(texts: &[String], detect: &dyn Fn(&String) -> Found) -> (Vec<Found>, f64) {
    let begun = Instant::now();
    let found = texts.iter().map(detect).collect();
    (found, begun.elapsed().as_secs_f64())
}

/// Texts of JSON lines, of so many bytes together.
fn read(path: &str, bytes: usize) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let (mut texts, mut sum) = (Vec::new(), 0);
    for line in std::io::BufReader::new(std::fs::File::open(path)?).lines() {
        let line: serde_json::Value = serde_json::from_str(&line?)?;
        let text = line["text"].as_str().unwrap_or_default();
        sum += text.len();
        texts.push(text.to_owned());
        if sum >= bytes {
            break;
        }
    }
    Ok(texts)
}
