//! Splits a text into overlapping pieces (shingles) and hashes them to 32 bits, a few thousand at a time, so that
//! memory does not depend on the size of the text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dedup::murmur::{WindowScratch, murmur3, windows};
use crate::dedup::words::Words;

/// Elements of a text's set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Shingles {
    /// Windows of so many characters of the text as it is (Curator: 24). A shorter text is one shingle.
    Chars(usize),
    /// Windows of so many normalised words (datatrove: 5): lower case, without accents and punctuation, each
    /// run of digits `0`. A text of fewer words is one shingle.
    Words(usize),
}

impl Shingles {
    /// Number of characters or words in a shingle.
    pub fn width(self) -> usize {
        match self {
            Shingles::Chars(width) | Shingles::Words(width) => width,
        }
    }
}

/// Shingles hashed per call.
const CHUNK: usize = 2048;

/// Scratch memory for hashing, reused between texts.
#[derive(Default)]
pub(super) struct ShingleScratch {
    windows: WindowScratch,
    hashes: Vec<u32>,
    chosen: Vec<u32>,
    starts: Vec<usize>,
    words: Words,
}

/// Passes the hashes of all shingles of `text` to `take`, at most some thousands at a time; none for a text without
/// characters (or without words).
#[inline(always)]
pub(super) fn hash_shingles(
    text: &str,
    shingles: Shingles,
    seed: u32,
    scratch: &mut ShingleScratch,
    mut take: impl FnMut(&[u32]),
) {
    match shingles {
        Shingles::Words(width) => {
            let hashes = &mut scratch.hashes;
            hashes.clear();
            scratch.words.shingles(text, width, seed, |hash| {
                hashes.push(hash as u32);
                if hashes.len() == CHUNK {
                    take(hashes);
                    hashes.clear();
                }
            });
            if !hashes.is_empty() {
                take(hashes);
            }
        }
        Shingles::Chars(width) if text.is_ascii() => {
            let bytes = text.as_bytes();
            if bytes.len() <= width {
                if !bytes.is_empty() {
                    take(&[murmur3(bytes, seed)]);
                }
                return;
            }
            let count = bytes.len() - width + 1;
            for start in (0..count).step_by(CHUNK) {
                let end = (start + CHUNK).min(count) + width - 1;
                windows(&bytes[start..end], width, seed, &mut scratch.windows, &mut scratch.hashes);
                take(&scratch.hashes);
            }
        }
        Shingles::Chars(width) => hash_wide(text, width, seed, scratch, take),
    }
}

/// Windows of characters that may have several bytes. A window with as many bytes as characters (most windows, in
/// Latin scripts) takes its hash from the pass over all byte positions; the others are hashed one by one.
#[inline(always)]
fn hash_wide(
    text: &str,
    width: usize,
    seed: u32,
    scratch: &mut ShingleScratch,
    mut take: impl FnMut(&[u32]),
) {
    let bytes = text.as_bytes();
    let mut starts = text.char_indices().map(|(at, _)| at);
    let marks = &mut scratch.starts;
    marks.clear();
    loop {
        let before = marks.len();
        marks.extend(starts.by_ref().take(CHUNK + width - before));
        let ended = marks.len() < CHUNK + width;
        if ended {
            marks.push(bytes.len());
        }
        let Some(count) = marks.len().checked_sub(width).filter(|&count| count > 0) else {
            // Only the first round can end here: later ones begin with `width` marks and add the end as one more.
            take(&[murmur3(bytes, seed)]);
            return;
        };
        let (first, last) = (marks[0], marks[marks.len() - 1]);
        let mostly_narrow = last - first < 2 * marks.len();
        if mostly_narrow {
            windows(&bytes[first..last], width, seed, &mut scratch.windows, &mut scratch.hashes);
        }
        scratch.chosen.clear();
        scratch.chosen.extend((0..count).map(|i| {
            let (start, end) = (marks[i], marks[i + width]);
            if mostly_narrow && end - start == width {
                scratch.hashes[start - first]
            } else {
                murmur3(&bytes[start..end], seed)
            }
        }));
        take(&scratch.chosen);
        if ended {
            return;
        }
        marks.drain(..count);
    }
}
