//! Tokenizing on one thread against the `tokenizers` crate: same text, same run, ids compared.
//!
//! ```text
//! tokenize_bench DIR [MEGABYTES] [REPEATS]
//! ```
//!
//! DIR holds vocabularies `*.json` and texts `*.txt`, as `oracle/curate/vocabularies.py` writes them. Each text is cut
//! into documents of about 4 KiB. Our engine starts each repeat without any word in its memory; the rival keeps its
//! own. One JSON row per vocabulary and text.
#![allow(clippy::unwrap_used)]

use fathom_text::Tokenizer;
use std::path::{Path, PathBuf};
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir =
        PathBuf::from(arguments.next().unwrap_or_else(|| panic!("name the folder with *.json and *.txt")));
    let most = arguments.next().map_or(f64::INFINITY, |text| text.parse().unwrap()) * 1e6;
    let repeats = arguments.next().map_or(3, |text| text.parse().unwrap());
    for vocabulary in files(&dir, "json") {
        for text in files(&dir, "txt") {
            bench(&vocabulary, &text, most as usize, repeats);
        }
    }
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        all.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

fn bench(vocabulary: &Path, text_path: &Path, most: usize, repeats: usize) {
    let text = std::fs::read_to_string(text_path).unwrap();
    let documents = cut(&text[..text.floor_char_boundary(most)]);
    let bytes: usize = documents.iter().map(|text| text.len()).sum();
    let mut rival = tokenizers::Tokenizer::from_file(vocabulary).unwrap();
    rival.set_encode_special_tokens(true);
    let begun = Instant::now();
    let wanted: Vec<Vec<u32>> =
        documents.iter().map(|text| rival.encode_fast(*text, false).unwrap().get_ids().to_vec()).collect();
    let rival_s = begun.elapsed().as_secs_f64();
    let mut times = Vec::new();
    let mut ready_s = 0.0;
    for _ in 0..repeats {
        let ours = Tokenizer::from_file(vocabulary).unwrap();
        let begun = Instant::now();
        ours.encode(&"a ".repeat(50_000)).unwrap();
        ready_s = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let ids: Vec<Vec<u32>> = documents.iter().map(|text| ours.encode(text).unwrap()).collect();
        times.push(begun.elapsed().as_secs_f64());
        for (number, (ids, wanted)) in ids.iter().zip(&wanted).enumerate() {
            assert_eq!(ids, wanted, "document {number}: {:?}", documents[number]);
        }
    }
    times.sort_by(f64::total_cmp);
    let ours_s = times[times.len() / 2];
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    let tokens: usize = wanted.iter().map(Vec::len).sum();
    println!(
        "{{\"bench\":\"curate\",\"stage\":\"tokenize\",\"vocabulary\":\"{}\",\"text\":\"{}\",\"bytes\":{bytes},\"tokens\":{tokens},\
         \"mb_per_s\":{:.1},\"docs_per_s\":{:.0},\"threads\":1,\"rival_mb_per_s\":{:.2},\"ratio\":{:.1},\"ready_ms\":{:.0},\"same_ids\":true}}",
        name(vocabulary),
        name(text_path),
        bytes as f64 / ours_s / 1e6,
        documents.len() as f64 / ours_s,
        bytes as f64 / rival_s / 1e6,
        rival_s / ours_s,
        ready_s * 1e3,
    );
}

/// Documents of about 4 KiB, cut after a line where there is one.
fn cut(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let least = rest.floor_char_boundary(4096);
        let line = rest[least..].find('\n').filter(|&at| at < 4096);
        let (document, tail) = rest.split_at(line.map_or(least.max(1), |at| least + at + 1));
        documents.push(document);
        rest = tail;
    }
    documents
}
