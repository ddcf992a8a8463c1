//! Cache of encoded words: from the bytes of a word to its ids.
//!
//! Keys are compared in full, so the cache affects only speed, never results. Its size is fixed. Text consists of few
//! distinct words, most of them short: a word of up to 15 bytes and up to 4 ids is one entry of 32 bytes, two entries
//! share a cache line, and a new word replaces the less used of the two. Everything else goes to a list that is
//! cleared when it is full.

/// Maximum bytes of a key of the first table.
pub(super) const SHORT: usize = 15;
/// Ids per entry of the first table.
pub(super) const FEW_IDS: usize = 4;
/// Maximum bytes of a cached word.
pub(super) const LONG: usize = 256;

/// Lines of the first table: 2 MiB in total.
const LINES: usize = 1 << 15;
/// Slots and maximum words of the second table.
const SLOTS: usize = 1 << 15;
const WORDS: usize = 1 << 14;

/// A short word: its bytes, with its length in the highest byte. Never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    low: u64,
    high: u64,
}

impl Key {
    /// Key of the `length` bytes at `at`, 1 to [`SHORT`] of them.
    #[inline(always)]
    pub(super) fn of(text: &[u8], at: usize, length: usize) -> Self {
        let bytes = match text.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
            Some(bytes) => u128::from_le_bytes(*bytes),
            None => Self::at_the_end(text, at),
        };
        let kept = bytes & (u128::MAX >> (128 - 8 * length));
        Self { low: kept as u64, high: (kept >> 64) as u64 | (length as u64) << 56 }
    }

    #[inline(never)]
    fn at_the_end(text: &[u8], at: usize) -> u128 {
        text[at..].iter().rev().fold(0, |all, &byte| all << 8 | u128::from(byte))
    }

    #[inline(always)]
    fn line(self) -> usize {
        fold(self.low, self.high) as usize & (LINES - 1)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: Key,
    ids: [u32; FEW_IDS],
}

/// Two entries, the more used one first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([Entry; 2]);

/// A word of the second table.
#[derive(Clone, Copy, Debug)]
struct Long {
    hash: u64,
    bytes: (u32, u32),
    ids: (u32, u32),
}

/// Both tables.
#[derive(Debug)]
pub(super) struct Cache {
    lines: Vec<Line>,
    /// Index of a word plus one; zero means empty.
    slots: Vec<u32>,
    words: Vec<Long>,
    bytes: Vec<u8>,
    ids: Vec<u32>,
}

/// Filler after the ids of an entry.
const NO_ID: u32 = u32::MAX;

impl Cache {
    pub(super) fn new() -> Self {
        let (words, bytes, ids) = (Vec::new(), Vec::new(), Vec::new());
        Self { lines: vec![Line::default(); LINES], slots: vec![0; SLOTS], words, bytes, ids }
    }

    /// Ids of a short word and their number; the rest of the array holds no ids.
    #[inline(always)]
    pub(super) fn short(&mut self, key: Key) -> Option<([u32; FEW_IDS], usize)> {
        let Line(entries) = &mut self.lines[key.line()];
        if entries[0].key != key {
            if entries[1].key != key {
                return None;
            }
            entries.swap(0, 1);
        }
        let ids = entries[0].ids;
        Some((ids, ids.iter().map(|&id| usize::from(id != NO_ID)).sum()))
    }

    /// Stores the ids of a short word.
    pub(super) fn keep_short(&mut self, key: Key, ids: &[u32]) {
        let mut entry = Entry { key, ids: [NO_ID; FEW_IDS] };
        entry.ids[..ids.len()].copy_from_slice(ids);
        self.lines[key.line()].0[1] = entry;
    }

    /// Ids of a word of any length.
    pub(super) fn long(&self, word: &[u8], hash: u64) -> Option<&[u32]> {
        let mut slot = hash as usize & (SLOTS - 1);
        loop {
            let found = self.words.get((self.slots[slot] as usize).checked_sub(1)?)?;
            if found.hash == hash && &self.bytes[range(found.bytes)] == word {
                return Some(&self.ids[range(found.ids)]);
            }
            slot = (slot + 1) & (SLOTS - 1);
        }
    }

    /// Stores the ids of a word that is not in the table.
    pub(super) fn keep_long(&mut self, word: &[u8], hash: u64, ids: &[u32]) {
        if self.words.len() == WORDS {
            self.slots.fill(0);
            self.words.clear();
            self.bytes.clear();
            self.ids.clear();
        }
        let place = |all: usize, more: usize| (all as u32, (all + more) as u32);
        let (bytes, places) = (place(self.bytes.len(), word.len()), place(self.ids.len(), ids.len()));
        self.words.push(Long { hash, bytes, ids: places });
        self.bytes.extend_from_slice(word);
        self.ids.extend_from_slice(ids);
        let mut slot = hash as usize & (SLOTS - 1);
        while self.slots[slot] != 0 {
            slot = (slot + 1) & (SLOTS - 1);
        }
        self.slots[slot] = self.words.len() as u32;
    }
}

fn range((first, past): (u32, u32)) -> std::ops::Range<usize> {
    first as usize..past as usize
}

/// XOR of both halves of a product of two numbers: every bit depends on every bit.
#[inline(always)]
fn fold(low: u64, high: u64) -> u64 {
    let (low, high) = (low ^ 0x9E37_79B9_7F4A_7C15, high ^ 0xD6E8_FEB8_6659_FD93);
    let product = u128::from(low).wrapping_mul(u128::from(high));
    product as u64 ^ (product >> 64) as u64
}

/// Hash of a word for the second table.
pub(super) fn hash(word: &[u8]) -> u64 {
    let (chunks, rest) = word.as_chunks::<16>();
    let halves = |all: u128| (all as u64, (all >> 64) as u64);
    let mut hash = word.len() as u64;
    for chunk in chunks {
        let (low, high) = halves(u128::from_le_bytes(*chunk));
        hash = fold(hash ^ low, high);
    }
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    let (low, high) = halves(u128::from_le_bytes(last));
    fold(hash ^ low, high)
}
