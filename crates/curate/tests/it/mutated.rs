//! Valid files of every kind with bytes changed, truncated, duplicated and spliced from a seed: in every case a
//! reader terminates, respects its limit and never panics. A small fuzzer that needs no sanitizer and runs with the
//! other tests.

use std::io::{Cursor, Write};

use fathom_curate::{InputFile, RawOptions};

use crate::crawl::{DUMP, crawl, gzip, tarball};

/// Mutated files per valid one.
const ROUNDS: u64 = 400;
/// The reader's limit: small, so that files exceed it.
const LIMIT: usize = 4096;

/// A generator of 64-bit numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Byte strings that are meaningful in the formats.
const WORDS: [&[u8]; 22] = [
    b"WARC/1.0\r\n",
    b"Content-Length: 18446744073709551615\r\n",
    b"Content-Length: -1\r\n",
    b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"BZh9",
    b"<page>",
    b"</page>",
    b"<text>",
    b"<![CDATA[",
    b"&#x110000;",
    b"ustar",
    b"77777777777",
    b"../../",
    b"{\"text\":",
    b"\\ud800",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
];

/// A few changes to a file; `others` are files to splice from.
fn mutate(mut bytes: Vec<u8>, others: &[(String, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let length = 1 + random.below(64);
        let end = (at + length).min(bytes.len());
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => drop(bytes.drain(at..end)),
            3 => bytes.extend_from_within(at..end),
            4 => bytes.truncate(at),
            5 => {
                let (_, other) = &others[random.below(others.len())];
                let from = random.below(other.len());
                let to = (from + 4 * length).min(other.len());
                drop(bytes.splice(at..end, other[from..to].iter().copied()));
            }
            6 => {
                let again = bytes[at..end].repeat(1 + random.below(40));
                drop(bytes.splice(at..end, again));
            }
            _ => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].iter().copied())),
        }
    }
    bytes
}

fn sound_files() -> Vec<(String, Vec<u8>)> {
    let warc = crawl().concat().into_bytes();
    let bz2 = |bytes: &[u8]| {
        let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    };
    let lines =
        b"{\"text\":\"one\",\"url\":\"u\"}\n{\"text\":\"t\\u00e9\\ud83d\\ude00\",\"x\":[1,{\"y\":null}]}\n";
    let papers = tarball(&[
        ("2401/2401.00001.gz", &gzip(b"\\section{One}")),
        ("2401/2401.00002.gz", &gzip(&tarball(&[("main.tex", b"\\input{b}"), ("b.tex", b"b")]))),
    ]);
    let page = b"<!doctype html><meta charset=utf-8><title>T</title><p>Some text of a page.".to_vec();
    [
        ("a.warc", warc.clone()),
        ("a.warc.gz", crawl().iter().flat_map(|r| gzip(r.as_bytes())).collect()),
        ("a.warc.zst", crawl().iter().flat_map(|r| zstd::encode_all(r.as_bytes(), 1).unwrap()).collect()),
        ("w-pages-articles.xml", DUMP.as_bytes().to_vec()),
        ("w-pages-articles.xml.bz2", bz2(DUMP.as_bytes())),
        ("arXiv_src.tar", papers),
        ("a.jsonl", lines.to_vec()),
        ("a.jsonl.gz", gzip(lines)),
        ("a.jsonl.zst", zstd::encode_all(&lines[..], 1).unwrap()),
        ("a.html", page),
        ("a.txt", b"Plain text,\nof two lines.".to_vec()),
        ("b.txt", "\u{feff}Größe, 😀\n".encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("c.txt.gz", gzip(b"caf\xe9, cr\xe8me\n")),
    ]
    .map(|(name, bytes)| (name.to_string(), bytes))
    .into()
}

#[test]
fn changed_files_end_in_records_counts_or_errors() {
    let files = sound_files();
    let options = RawOptions { max_document_bytes: LIMIT, ..RawOptions::default() };
    let mut random = Random(26);
    let mut records = 0;
    for (name, sound) in &files {
        for _ in 0..ROUNDS {
            let bytes = mutate(sound.clone(), &files, &mut random);
            let mut reader = InputFile::read_from(name, Box::new(Cursor::new(bytes)), &options).unwrap();
            for record in reader.by_ref().flatten() {
                // A page or a paper stores its headers and file names next to its text, and one byte of another
                // charset becomes up to three bytes of UTF-8.
                assert!(record.content.len() <= 3 * LIMIT, "{name}: {} bytes", record.content.len());
                records += 1;
            }
        }
    }
    assert!(records > ROUNDS, "most files still hold something: {records} records");
}
