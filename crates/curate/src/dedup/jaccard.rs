//! Exact Jaccard similarity of two texts, and the check that every duplicate is similar enough to the kept document.
//!
//! A component may be held together by chains whose ends are dissimilar. Its documents are therefore processed in
//! order: the first is kept; each later one is compared with the kept ones, removed if one is similar enough, and
//! otherwise kept too. Kept texts are stored on disk; memory holds one entry per kept document of an open component.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use crate::dedup::components::Components;
use crate::dedup::numbering::NumberRuns;
use crate::dedup::shingle::Shingles;
use crate::dedup::words::Words;
use crate::error::Error;

/// Limit of kept documents that a document is compared with: more in one component means that the band pairs were
/// wrong, and the work must stay linear. A document similar to none of them is kept.
const MOST_COMPARED: usize = 32;

/// Shingles per pass over a text; larger texts are compared by ranges of their hashes.
const PASS_SHINGLES: usize = 1 << 21;
const MOST_PASSES: u64 = 16;

/// Cached shingle sets of kept documents with many duplicates.
const REMEMBERED: usize = 8;

/// Sorted distinct hashes of the shingles of `text` that fall into range `pass` of `passes`.
pub(super) fn set(text: &str, shingles: Shingles, pass: u64, passes: u64) -> Vec<u64> {
    let mut hashes = Vec::new();
    let mut take = |hash: u64| {
        if passes == 1 || ((u128::from(hash) * u128::from(passes)) >> 64) as u64 == pass {
            hashes.push(hash);
        }
    };
    match shingles {
        Shingles::Words(width) => Words::default().shingles(text, width, 0, take),
        Shingles::Chars(width) => each_window(text, width, |window| take(XxHash3_64::oneshot(window))),
    }
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}

fn each_window(text: &str, width: usize, mut take: impl FnMut(&[u8])) {
    let bytes = text.as_bytes();
    if text.is_ascii() {
        if bytes.len() > width {
            bytes.windows(width).for_each(take);
        } else if !bytes.is_empty() {
            take(bytes);
        }
        return;
    }
    let starts = || text.char_indices().map(|(at, _)| at);
    let ends = starts().chain([bytes.len()]).skip(width);
    let mut any = false;
    for (start, end) in starts().zip(ends) {
        take(&bytes[start..end]);
        any = true;
    }
    if !any {
        take(bytes);
    }
}

/// Number of elements common to two ascending lists.
fn shared(a: &[u64], b: &[u64]) -> u64 {
    let (mut i, mut j, mut count) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        count += u64::from(a[i] == b[j]);
        let (left, right) = (a[i], b[j]);
        i += usize::from(left <= right);
        j += usize::from(right <= left);
    }
    count
}

fn passes(bytes: usize) -> u64 {
    (bytes.div_ceil(PASS_SHINGLES) as u64).clamp(1, MOST_PASSES)
}

fn ratio(shared: u64, a: u64, b: u64) -> f64 {
    let union = a + b - shared;
    if union == 0 { 0.0 } else { shared as f64 / union as f64 }
}

/// Jaccard similarity of the shingle sets of two texts: size of the intersection over size of the union, 0 if both
/// are empty. Shingles are compared by 64-bit hashes. Texts above 2 MiB are hashed several times, which keeps memory
/// below 32 MiB up to 32 MiB of text, and below two bytes per byte of text beyond.
pub fn jaccard(a: &str, b: &str, shingles: Shingles) -> f64 {
    let passes = passes(a.len().max(b.len()));
    let (mut common, mut in_a, mut in_b) = (0, 0, 0);
    for pass in 0..passes {
        let (a, b) = (set(a, shingles, pass, passes), set(b, shingles, pass, passes));
        common += shared(&a, &b);
        in_a += a.len() as u64;
        in_b += b.len() as u64;
    }
    ratio(common, in_a, in_b)
}

/// A kept document on disk.
#[derive(Clone, Copy)]
struct StoredText {
    document: u64,
    offset: u64,
    bytes: usize,
}

/// Kept texts, and the shingle sets of some.
struct Store {
    file: File,
    path: PathBuf,
    end: u64,
    recent: Vec<(u64, Vec<u64>)>,
    shingles: Shingles,
}

impl Store {
    fn create(path: PathBuf, shingles: Shingles) -> Result<Store, Error> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path).map_err(|e| Error::write("create", &path, e))?;
        Ok(Store { file, path, end: 0, recent: Vec::new(), shingles })
    }

    fn keep(&mut self, document: u64, text: &str) -> Result<StoredText, Error> {
        let written =
            self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(text.as_bytes()));
        written.map_err(|e| Error::write("write", &self.path, e))?;
        let kept = StoredText { document, offset: self.end, bytes: text.len() };
        self.end += text.len() as u64;
        Ok(kept)
    }

    fn text(&mut self, kept: StoredText) -> Result<String, Error> {
        let mut bytes = vec![0; kept.bytes];
        let read =
            self.file.seek(SeekFrom::Start(kept.offset)).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|e| Error::read(&self.path, e))?;
        String::from_utf8(bytes).map_err(|e| Error::read(&self.path, std::io::Error::other(e)))
    }

    /// Returns true if `text` is at least `threshold` similar to a kept document; `own` is its shingle set if it is
    /// small.
    fn similar(&mut self, text: &str, own: &[u64], kept: StoredText, threshold: f64) -> Result<bool, Error> {
        if passes(text.len().max(kept.bytes)) > 1 {
            // Size differences cannot rule out similarity, since texts may repeat themselves; every pair is compared.
            let other = self.text(kept)?;
            return Ok(jaccard(text, &other, self.shingles) >= threshold);
        }
        let known = self.recent.iter().position(|(document, _)| *document == kept.document);
        let at = match known {
            Some(at) => at,
            None => {
                let other = set(&self.text(kept)?, self.shingles, 0, 1);
                if self.recent.len() == REMEMBERED {
                    self.recent.remove(0);
                }
                self.recent.push((kept.document, other));
                self.recent.len() - 1
            }
        };
        let other = &self.recent[at].1;
        Ok(ratio(shared(own, other), own.len() as u64, other.len() as u64) >= threshold)
    }
}

/// Number of remaining members of each component, at its representative's index.
fn members(components: &Components) -> Vec<u32> {
    let mut members = vec![0u32; components.documents() as usize];
    for document in 0..components.documents() {
        let count = &mut members[components.parent(document) as usize];
        *count = count.saturating_add(1);
    }
    members
}

/// Recomputes the components so that each removed document is at least `threshold` similar to its representative.
/// `documents` must be those the components were built from; their texts are stored in a file under `work` meanwhile.
pub(super) fn check<S: AsRef<str>>(
    components: &Components,
    numbering: &NumberRuns,
    (shingles, threshold): (Shingles, f64),
    documents: impl Iterator<Item = Result<(u64, S), Error>>,
    work: &Path,
) -> Result<Components, Error> {
    let mut checked = Components::new(components.documents());
    let mut to_come = members(components);
    let mut open: BTreeMap<u64, Vec<StoredText>> = BTreeMap::new();
    let mut store = Store::create(work.join("representatives.bin"), shingles)?;
    for (place, document) in documents.enumerate() {
        let ((number, text), place) = (document?, place as u64);
        if numbering.place(number) != Some(place) {
            let found = format!("{number} at place {place}");
            let advice = "opened again, the documents must be the same in the same order";
            return Err(Error::setting("document number", found, advice));
        }
        let component = components.parent(place);
        let alone = component == place && to_come[place as usize] == 1;
        if alone {
            continue;
        }
        let text = text.as_ref();
        let kept = open.entry(component).or_default();
        let own =
            if passes(text.len()) == 1 && !kept.is_empty() { set(text, shingles, 0, 1) } else { Vec::new() };
        let mut like = None;
        for &candidate in kept.iter().take(MOST_COMPARED) {
            if store.similar(text, &own, candidate, threshold)? {
                like = Some(candidate.document);
                break;
            }
        }
        match like {
            Some(representative) => checked.assign(place, representative),
            None if kept.len() < MOST_COMPARED => kept.push(store.keep(place, text)?),
            None => {}
        }
        let left = &mut to_come[component as usize];
        *left -= 1;
        if *left == 0 {
            open.remove(&component);
        }
    }
    std::fs::remove_file(&store.path).map_err(|e| Error::write("remove", &store.path, e))?;
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_of_small_sets() {
        let chars = Shingles::Chars(3);
        assert_eq!(jaccard("abcdef", "abcdef", chars), 1.0);
        // {abc bcd cde def} and {abc bcd cdx}: 2 of 5.
        assert_eq!(jaccard("abcdef", "abcdx", chars), 0.4);
        assert_eq!(jaccard("ab", "ab", chars), 1.0);
        assert_eq!(jaccard("", "", chars), 0.0);
        assert_eq!(jaccard("aaaaaaa", "aaa", chars), 1.0);
        // {éab aba} and {éab abx}.
        assert_eq!(jaccard("éaba", "éabx", chars), 1.0 / 3.0);
        assert_eq!(jaccard("One two three.", "one, two three", Shingles::Words(2)), 1.0);
    }

    #[test]
    fn large_texts_are_compared_by_ranges() {
        let text: String = (0..400_000).map(|i| format!("{i} ")).collect();
        let other = text.replacen("100000 ", "x", 1);
        let whole = {
            let (a, b) = (set(&text, Shingles::Chars(8), 0, 1), set(&other, Shingles::Chars(8), 0, 1));
            ratio(shared(&a, &b), a.len() as u64, b.len() as u64)
        };
        assert!(passes(text.len()) > 1 && whole > 0.99 && whole < 1.0);
        assert_eq!(jaccard(&text, &other, Shingles::Chars(8)), whole);
    }
}
