//! Exact substring deduplication: cuts out every range of n bytes that occurs earlier (the method of Lee et al. 2022,
//! "Deduplicating Training Data Makes Language Models Better", except that the first occurrence is kept unless a
//! repeat overlaps it).
//!
//! Repeats are found in a suffix array, where suffixes with the same first n bytes are adjacent. Text is processed in
//! chunks that fit in memory; repeats across chunks are found by sorting each pair of chunks together, which is exact
//! but quadratic in the number of chunks; the number of sorts is reported before the start.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use libsais::SuffixArrayConstruction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dedup::fuzzy::Needs;
use crate::error::Error;

/// How repeated substrings are cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SubstringOptions {
    /// Shortest repeat that is cut, in bytes. Lee et al. (2022) take 50 tokens, about 200 bytes of English.
    #[schemars(range(min = 1))]
    pub min_bytes: usize,
    /// Bytes of text whose suffixes are sorted at once, from 4 times `min_bytes` to 512 MiB; memory is 11 times as much,
    /// twice that with `across`.
    pub chunk_bytes: usize,
    /// Whether repeats are sought in all text before, or only within a chunk; its time grows with the square of the number
    /// of chunks.
    pub across: bool,
}

impl Default for SubstringOptions {
    fn default() -> SubstringOptions {
        SubstringOptions { min_bytes: 200, chunk_bytes: 64 << 20, across: true }
    }
}

impl SubstringOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// `min_bytes` is zero, or a chunk holds fewer than four repeats or exceeds 512 MiB.
    pub fn check(&self) -> Result<(), Error> {
        let SubstringOptions { min_bytes, chunk_bytes, .. } = *self;
        if min_bytes == 0 || chunk_bytes / 4 < min_bytes || chunk_bytes > 1 << 29 {
            let key = if min_bytes == 0 { "min_bytes" } else { "chunk_bytes" };
            let found = format!("{chunk_bytes} for repeats of {min_bytes}");
            let advice = "repeats have at least a byte, chunks four times as many and at most 512 MiB";
            return Err(Error::setting(key, found, advice));
        }
        Ok(())
    }
}

/// Separates texts: not a byte of UTF-8, so no repeat contains it.
const SEPARATOR: u8 = 0xff;

/// Resources needed by [`substrings`] for `documents` documents and `bytes` bytes of text, and the number of suffix
/// sorts.
pub fn substring_needs(options: &SubstringOptions, documents: u64, bytes: u64) -> (Needs, u64) {
    let chunk = (options.chunk_bytes as u64).min(bytes.saturating_add(documents));
    let chunks = bytes.div_ceil(chunk.max(1)).max(1);
    let sorts = if options.across { chunks.saturating_mul(chunks + 1) / 2 } else { chunks };
    let at_once = if options.across && chunks > 1 { 2 * chunk } else { chunk };
    let memory_bytes = at_once.saturating_mul(11).saturating_add(documents.saturating_mul(40)) + (16 << 20);
    (Needs { memory_bytes, disk_bytes: bytes }, sorts)
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubstringReport {
    /// Documents processed.
    pub documents: u64,
    /// Documents with at least one cut.
    pub cut_documents: u64,
    /// Bytes processed.
    pub bytes: u64,
    /// Bytes cut.
    pub cut_bytes: u64,
}

/// Marks the bytes of `pieces` that lie in some range of `min_bytes` bytes which also occurs earlier, in the same or
/// an earlier piece. Returns ascending ranges per piece. Memory: 9 bytes per byte of text, excluding the pieces.
fn repeats(pieces: &[&[u8]], min_bytes: usize) -> Result<Vec<Vec<Range<usize>>>, Error> {
    let mut text = Vec::with_capacity(pieces.iter().map(|piece| piece.len() + 1).sum());
    for piece in pieces {
        text.extend_from_slice(piece);
        text.push(SEPARATOR);
    }
    let sorted = SuffixArrayConstruction::for_text(&text).in_owned_buffer32().single_threaded().run();
    let refused =
        |_| Error::setting("chunk_bytes", text.len(), "the suffixes could not be sorted; choose less");
    let sorted = sorted.map_err(refused)?.plcp_construction().single_threaded().run().map_err(refused)?;
    let (suffixes, common) = (sorted.suffix_array(), sorted.plcp());
    let mut again = Bits::new(text.len());
    let long = |suffix: i32| common[suffix as usize] as usize >= min_bytes;
    let mut from = 0;
    while from < suffixes.len() {
        // `common` of a suffix is the length of its common prefix with the preceding one.
        let group = 1 + suffixes[from + 1..].iter().take_while(|&&suffix| long(suffix)).count();
        if group > 1 {
            let group = &suffixes[from..from + group];
            let first = group.iter().min().copied().unwrap_or_default();
            group.iter().filter(|&&suffix| suffix != first).for_each(|&suffix| again.set(suffix as usize));
        }
        from += group;
    }
    let mut start = 0;
    let mut ranges = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let windows = (piece.len() + 1).saturating_sub(min_bytes);
        let mut cut: Vec<Range<usize>> = Vec::new();
        for at in (0..windows).filter(|at| again.get(start + at)) {
            match cut.last_mut() {
                Some(last) if at <= last.end => last.end = at + min_bytes,
                _ => cut.push(at..at + min_bytes),
            }
        }
        ranges.push(cut);
        start += piece.len() + 1;
    }
    Ok(ranges)
}

struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Bits {
        Bits(vec![0; len.div_ceil(64)])
    }

    fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn get(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }
}

/// Union of `ranges`, ascending.
fn union(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// Removes the ascending `ranges` from `text`; a character stays whole if a range ends inside it.
fn cut<'t>(text: &'t str, ranges: &[Range<usize>]) -> Cow<'t, str> {
    if ranges.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut left = String::with_capacity(text.len());
    let mut at = 0;
    for range in ranges {
        let (mut start, mut end) = (range.start, range.end);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        if start < end {
            left.push_str(&text[at..start]);
            at = end;
        }
    }
    left.push_str(&text[at..]);
    Cow::Owned(left)
}

/// A part of a document: bytes `from..to` of the document at index `document`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    document: usize,
    from: usize,
    to: usize,
}

/// Texts in a file, with their offsets.
struct Texts {
    path: PathBuf,
    file: File,
    /// Number and offset of each document; a document ends where the next one begins, the last at `end`.
    documents: Vec<(u64, u64)>,
    end: u64,
}

impl Texts {
    fn write<S: AsRef<str>>(
        path: PathBuf,
        documents: impl Iterator<Item = Result<(u64, S), Error>>,
    ) -> Result<Texts, Error> {
        let failed = |e| Error::write("write", &path, e);
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).map_err(failed)?;
        let mut writer = BufWriter::new(&file);
        let (mut places, mut end) = (Vec::new(), 0);
        for document in documents {
            let (number, text) = document?;
            writer.write_all(text.as_ref().as_bytes()).map_err(failed)?;
            places.push((number, end));
            end += text.as_ref().len() as u64;
        }
        writer.flush().map_err(failed)?;
        drop(writer);
        Ok(Texts { path, file, documents: places, end })
    }

    fn len_of(&self, document: usize) -> usize {
        let end = self.documents.get(document + 1).map_or(self.end, |&(_, offset)| offset);
        (end - self.documents[document].1) as usize
    }

    fn read(&mut self, piece: &Piece) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; piece.to - piece.from];
        let at = SeekFrom::Start(self.documents[piece.document].1 + piece.from as u64);
        let read = self.file.seek(at).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|e| Error::read(&self.path, e))?;
        Ok(bytes)
    }

    fn read_all(&mut self, pieces: &[Piece]) -> Result<Vec<Vec<u8>>, Error> {
        pieces.iter().map(|piece| self.read(piece)).collect()
    }

    /// Splits the documents into chunks of at most `chunk_bytes`. A document that does not fit the remaining space
    /// starts a new chunk; one longer than a chunk is split into pieces that overlap by one byte less than a repeat,
    /// so that every repeat lies completely in some piece.
    fn chunks(&self, chunk_bytes: usize, min_bytes: usize) -> Vec<Vec<Piece>> {
        let mut chunks: Vec<Vec<Piece>> = vec![Vec::new()];
        let mut filled = 0;
        for document in 0..self.documents.len() {
            let len = self.len_of(document);
            let mut from = 0;
            loop {
                let to = len.min(from + chunk_bytes);
                if filled + (to - from) > chunk_bytes && filled > 0 {
                    chunks.push(Vec::new());
                    filled = 0;
                }
                filled += to - from + 1;
                if let Some(chunk) = chunks.last_mut() {
                    chunk.push(Piece { document, from, to });
                }
                if to == len {
                    break;
                }
                from = to - (min_bytes - 1);
            }
        }
        chunks
    }
}

/// Cuts repeats of at least [`SubstringOptions::min_bytes`] out of documents and passes all documents to `emit` in
/// order; a fully cut document is passed as empty text. The texts are stored in a file under `work` meanwhile.
///
/// # Errors
/// A document cannot be read or emitted, the file cannot be written, or the options are invalid.
pub fn substrings<S: AsRef<str>>(
    options: &SubstringOptions,
    documents: impl Iterator<Item = Result<(u64, S), Error>>,
    work: &Path,
    mut emit: impl FnMut(u64, &str) -> Result<(), Error>,
) -> Result<SubstringReport, Error> {
    let SubstringOptions { min_bytes, chunk_bytes, across } = *options;
    options.check()?;
    let mut texts = Texts::write(work.join("texts.bin"), documents)?;
    let chunks = texts.chunks(chunk_bytes, min_bytes);
    let mut report =
        SubstringReport { documents: texts.documents.len() as u64, bytes: texts.end, ..Default::default() };
    let mut open: Vec<Range<usize>> = Vec::new();
    for (at, pieces) in chunks.iter().enumerate() {
        let earlier: &[Vec<Piece>] = if across { &chunks[..at] } else { &[] };
        let ranges = ranges_of(&mut texts, earlier, pieces, min_bytes)?;
        for (piece, ranges) in pieces.iter().zip(ranges) {
            open.extend(ranges.into_iter().map(|range| range.start + piece.from..range.end + piece.from));
            let len = texts.len_of(piece.document);
            if piece.to < len {
                continue;
            }
            let bytes = texts.read(&Piece { document: piece.document, from: 0, to: len })?;
            let text =
                String::from_utf8(bytes).map_err(|e| Error::read(&texts.path, std::io::Error::other(e)))?;
            let left = cut(&text, &union(std::mem::take(&mut open)));
            report.cut_bytes += (len - left.len()) as u64;
            report.cut_documents += u64::from(left.len() < len);
            emit(texts.documents[piece.document].0, &left)?;
        }
    }
    std::fs::remove_file(&texts.path).map_err(|e| Error::write("remove", &texts.path, e))?;
    Ok(report)
}

/// Ranges to cut from each of `pieces`, given all earlier chunks.
fn ranges_of(
    texts: &mut Texts,
    earlier: &[Vec<Piece>],
    pieces: &[Piece],
    min_bytes: usize,
) -> Result<Vec<Vec<Range<usize>>>, Error> {
    let own = texts.read_all(pieces)?;
    let mut all: Vec<Vec<Range<usize>>> = vec![Vec::new(); pieces.len()];
    let mut add = |found: &[Vec<Range<usize>>]| {
        all.iter_mut().zip(found).for_each(|(ranges, found)| ranges.extend(found.iter().cloned()));
    };
    if earlier.is_empty() {
        add(&repeats(&own.iter().map(Vec::as_slice).collect::<Vec<_>>(), min_bytes)?);
    }
    for chunk in earlier {
        let before = texts.read_all(chunk)?;
        let both: Vec<&[u8]> = before.iter().chain(&own).map(Vec::as_slice).collect();
        add(&repeats(&both, min_bytes)?[before.len()..]);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Reference implementation: the kept text, window by window.
    fn slowly(texts: &[String], min_bytes: usize) -> Vec<String> {
        let mut seen = HashSet::new();
        let cut = |text: &String| {
            let bytes = text.as_bytes();
            let mut gone = vec![false; bytes.len()];
            for (at, window) in bytes.windows(min_bytes).enumerate() {
                if !seen.insert(window.to_vec()) {
                    gone[at..at + min_bytes].fill(true);
                }
            }
            let left: Vec<u8> =
                bytes.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(byte, _)| *byte).collect();
            String::from_utf8(left).unwrap()
        };
        texts.iter().map(cut).collect()
    }

    fn cut_all(texts: &[String], options: &SubstringOptions) -> Vec<String> {
        let work = tempfile::tempdir().unwrap();
        let documents = texts.iter().enumerate().map(|(number, text)| Ok((number as u64, text)));
        let mut all = Vec::new();
        let report = substrings(options, documents, work.path(), |number, text| {
            assert_eq!(number as usize, all.len());
            all.push(text.to_string());
            Ok(())
        });
        let left: usize = all.iter().map(String::len).sum();
        let report = report.unwrap();
        assert_eq!(report.bytes - report.cut_bytes, left as u64);
        all
    }

    proptest! {
        #[test]
        fn all_but_first_occurrences_are_cut(texts in prop::collection::vec("[ab]{0,40}", 1..12), min_bytes in 1usize..9) {
            let expected = slowly(&texts, min_bytes);
            for chunk_bytes in [4 * min_bytes, 4 * min_bytes + 7, 1 << 16] {
                let options = SubstringOptions { min_bytes, chunk_bytes, across: true };
                prop_assert_eq!(&cut_all(&texts, &options), &expected, "chunks of {}", chunk_bytes);
            }
        }
    }

    #[test]
    fn characters_stay_whole() {
        let texts = ["the word žluťoučký stands here".to_string(), "xx žluťoučkë stands there".to_string()];
        let options = SubstringOptions { min_bytes: 5, ..SubstringOptions::default() };
        let all = cut_all(&texts, &options);
        assert_eq!(all[0], texts[0]);
        // ý and ë begin with the same byte; it is kept with the rest of its character.
        assert_eq!(all[1], "xxëthere");
    }

    #[test]
    fn a_text_of_one_letter_takes_linear_time() {
        let texts = ["a".repeat(3 << 20), "b".to_string(), "a".repeat(3 << 20)];
        let options = SubstringOptions { min_bytes: 100, chunk_bytes: 4 << 20, across: true };
        let lengths: Vec<usize> = cut_all(&texts, &options).iter().map(String::len).collect();
        // Every window but the first repeats an earlier one, and they overlap: only one letter is in none of them.
        assert_eq!(lengths, [1, 1, 0]);
    }

    #[test]
    fn needs_grow_with_the_square_of_chunks() {
        let options = SubstringOptions::default();
        assert_eq!(substring_needs(&options, 1000, 64 << 20).1, 1);
        assert_eq!(substring_needs(&options, 1000, 640 << 20).1, 55);
        assert_eq!(substring_needs(&SubstringOptions { across: false, ..options }, 1000, 640 << 20).1, 10);
    }
}
