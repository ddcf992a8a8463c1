//! Generates crawl-like text for benchmarking whole curations: `crawl_text DIR GIGABYTES` writes JSON lines in files
//! of about 256 MB. Documents are English-like; one in ten is a near-duplicate of an earlier one in its file, one in
//! fifty an exact copy, and one in twenty is mojibake.

#[allow(dead_code)] // Other examples take many documents at once.
#[path = "shared/english.rs"]
mod english;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use english::{English, Random};

const FILE_BYTES: u64 = 256 << 20;
/// Number of earlier documents that a later one may copy.
const REMEMBERED: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("name the folder")?);
    let gigabytes: f64 = args.next().ok_or("say how many gigabytes")?.parse()?;
    std::fs::create_dir_all(&folder)?;
    let mut left = (gigabytes * 1e9) as u64;
    let mut number = 0;
    while left > 0 {
        let path = folder.join(format!("crawl-{number:03}.jsonl"));
        left = left.saturating_sub(write_file(&path, number, left.min(FILE_BYTES))?);
        number += 1;
    }
    Ok(())
}

fn write_file(path: &Path, number: u64, bytes: u64) -> Result<u64, Box<dyn std::error::Error>> {
    let mut file = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let (mut english, mut random) = (English::new(1 + number), Random(number ^ 0x5eed));
    let mut before: Vec<String> = Vec::new();
    let mut written = 0;
    let mut document = 0u64;
    while written < bytes {
        let earlier = before.get(random.below(before.len().max(1))).cloned();
        let text = match (random.below(100), earlier) {
            (0..10, Some(text)) => near_copy(&text, &mut random),
            (10..12, Some(text)) => text,
            (12..17, _) => mojibake(&english.document()),
            _ => english.document(),
        };
        let url = format!("https://site-{}.example.org/{number}/{document}", random.below(1000));
        let line = serde_json::to_string(&serde_json::json!({ "text": text, "url": url }))?;
        file.write_all(line.as_bytes())?;
        file.write_all(b"\n")?;
        written += line.len() as u64 + 1;
        document += 1;
        if before.len() < REMEMBERED {
            before.push(text);
        } else {
            before[random.below(REMEMBERED)] = text;
        }
    }
    file.flush()?;
    Ok(written)
}

/// Removes up to three percent of the words.
fn near_copy(text: &str, random: &mut Random) -> String {
    let share = random.unit() * 0.03;
    let kept = text.split_inclusive(' ').filter(|_| random.unit() >= share);
    kept.collect()
}

/// Reads UTF-8 as Latin-1, including the typographic apostrophe.
fn mojibake(text: &str) -> String {
    text.bytes().map(char::from).collect()
}
