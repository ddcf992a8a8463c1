//! Byte-pair merges in the exact order of the vocabulary's ranks: lowest rank first, ties from the left.
//!
//! For words of few symbols all pairs are scanned at each step, which takes a few vector instructions; longer ones
//! keep the ranks in a tree, so a megabyte of one letter costs n log n. Initial symbols are bytes, or whole
//! characters if that makes no difference ([`super::chars`]).

use super::alphabet;
use super::chars::{Chars, Crossings};
use super::tree::{NONE, Tree};
use super::whole::Whole;
use serde::Deserialize;
use tokenizers::models::bpe::BPE;

/// Two ids and a rank share 64 bits.
const ID_BITS: u32 = 20;
const RANK_BITS: u32 = 24;

/// Merges of a model as lookup tables.
#[derive(Debug)]
pub(super) struct Bpe {
    /// Id of each byte.
    of_byte: Vec<u32>,
    /// Rank of each pair of bytes, indexed by the first byte times 256 plus the second.
    of_bytes: Vec<u32>,
    pairs: Pairs,
    /// Id produced by the merge of each rank.
    made: Vec<u32>,
    /// Id of rank zero if ids follow the ranks; true for most vocabularies, and saves a table lookup.
    made_from: Option<u32>,
    chars: Chars,
    /// With `ignore_merges`, words that are tokens and are not merged.
    whole: Whole,
}

/// Working memory for one word, reused between calls.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Symbols, and the ranks of their pairs, which are one fewer.
    ids: Vec<u32>,
    starts: Vec<u32>,
    next: Vec<u32>,
    prev: Vec<u32>,
    ranks: Tree,
}

/// Fields extracted from a model's JSON, which is the only way to access its merges in order.
#[derive(Deserialize)]
struct Merges {
    merges: Vec<(String, String)>,
}

impl Bpe {
    /// Builds the tables of a byte-level model; `None` if it has an unsupported feature.
    pub(super) fn of(model: &BPE) -> Option<Self> {
        let absent = |affix: &Option<String>| affix.as_ref().is_none_or(String::is_empty);
        let plain = model.dropout.is_none_or(|dropout| dropout == 0.0)
            && absent(&model.continuing_subword_prefix)
            && absent(&model.end_of_word_suffix);
        let vocabulary = plain.then(|| model.get_vocab())?;
        // The `tokenizers` crate distinguishes merges by the id they produce, so two spellings of one id would change
        // its behavior.
        let mut ids: Vec<u32> = vocabulary.values().copied().collect();
        ids.sort_unstable();
        let distinct = ids.windows(2).all(|pair| pair[0] < pair[1]);
        let fit = ids.last().is_some_and(|&last| last < (1 << ID_BITS) - 1);
        if !distinct || !fit {
            return None;
        }
        let of_byte: Vec<u32> = (0..=255u8)
            .map(|byte| vocabulary.get(alphabet::char_of(byte).to_string().as_str()).copied())
            .collect::<Option<_>>()?;
        let json = serde_json::to_string(model).ok()?;
        let Merges { merges } = serde_json::from_str(&json).ok()?;
        if merges.len() >= (1 << RANK_BITS) - 1 {
            return None;
        }
        let mut pairs = Pairs::with_room_for(merges.len());
        let mut made = Vec::with_capacity(merges.len());
        let mut spelling = String::new();
        let mut crossings = Crossings::default();
        for (left, right) in &merges {
            spelling.clear();
            spelling.push_str(left);
            spelling.push_str(right);
            let id = |token: &str| vocabulary.get(token).copied();
            crossings.add(&alphabet::bytes_of(left)?, &alphabet::bytes_of(right)?, made.len() as u32);
            pairs.insert(id(left)?, id(right)?, made.len() as u32);
            made.push(id(&spelling)?);
        }
        let mut of_bytes = vec![NONE; 1 << 16];
        for (index, rank) in of_bytes.iter_mut().enumerate() {
            *rank = pairs.rank(of_byte[index >> 8], of_byte[index & 0xFF]);
        }
        let made_from =
            made.first().copied().filter(|&first| (first..).zip(&made).all(|(wanted, &id)| wanted == id));
        let mut spelled: Vec<(u32, Vec<u8>)> =
            vocabulary.iter().filter_map(|(token, &id)| Some((id, alphabet::bytes_of(token)?))).collect();
        spelled.sort_unstable();
        let (chars, whole) = (Chars::default(), Whole::default());
        let mut bpe = Self { of_byte, of_bytes, pairs, made, made_from, chars, whole };
        let tokens = || spelled.iter().map(|(id, bytes)| (*id, &bytes[..]));
        bpe.chars = Chars::of(tokens(), &crossings, |bytes| bpe.own_rank(bytes));
        if model.ignore_merges {
            bpe.whole = Whole::of(tokens());
        }
        Some(bpe)
    }

    /// Highest rank of the merges that turn a word into a single token; `None` if it ends as several.
    fn own_rank(&self, word: &[u8]) -> Option<u32> {
        let mut ids: Vec<u32> = word.iter().map(|&byte| self.of_byte[usize::from(byte)]).collect();
        let mut highest = 0;
        while ids.len() > 1 {
            let ranks = ids.windows(2).map(|pair| self.pairs.rank(pair[0], pair[1]));
            let (at, rank) = ranks.enumerate().min_by_key(|&(at, rank)| (rank, at))?;
            if rank == NONE {
                return None;
            }
            ids[at] = self.made(rank);
            ids.remove(at + 1);
            highest = highest.max(rank);
        }
        Some(highest)
    }

    /// Returns true if a character is an initial symbol.
    #[cfg(test)]
    pub(super) fn is_closed(&self, c: char) -> bool {
        self.chars.at(c.encode_utf8(&mut [0; 4]).as_bytes(), 0).is_some()
    }

    /// Appends the ids of a non-empty word; `hash` must be its [`super::cache::hash`].
    pub(super) fn encode(&self, word: &[u8], hash: u64, chain: &mut Chain, ids: &mut Vec<u32>) {
        if let Some(id) = self.whole.get(word, hash) {
            ids.push(id);
            return;
        }
        self.start(word, chain);
        match chain.ids.len() {
            0..=16 => self.merge_flat::<16>(&chain.ids, &chain.starts, ids),
            17..=32 => self.merge_flat::<32>(&chain.ids, &chain.starts, ids),
            33..=64 => self.merge_flat::<64>(&chain.ids, &chain.starts, ids),
            65..=128 => self.merge_flat::<128>(&chain.ids, &chain.starts, ids),
            _ => self.merge_many(chain, ids),
        }
    }

    /// Initial symbols of a word, and the ranks of their pairs.
    fn start(&self, word: &[u8], chain: &mut Chain) {
        let Chain { ids, starts, .. } = chain;
        ids.clear();
        starts.clear();
        if word.is_ascii() {
            ids.extend(word.iter().map(|&byte| self.of_byte[usize::from(byte)]));
            starts.extend(word.windows(2).map(|pair| self.of_bytes[pair_of(pair[0], pair[1])]));
            return;
        }
        let mut at = 0;
        // The preceding byte, if it is a symbol of its own.
        let mut byte_before = None;
        while at < word.len() {
            let (id, byte, bytes) = match self.chars.at(word, at) {
                Some((id, bytes)) => (id, None, bytes),
                None => (self.of_byte[usize::from(word[at])], Some(word[at]), 1),
            };
            if let Some(&before) = ids.last() {
                starts.push(match (byte_before, byte) {
                    (Some(left), Some(right)) => self.of_bytes[pair_of(left, right)],
                    _ => self.pairs.rank(before, id),
                });
            }
            ids.push(id);
            (byte_before, at) = (byte, at + bytes);
        }
    }

    /// Merges a word of at most `N` symbols, `N` a power of two up to 128. The pairs' keys, combining rank and
    /// position in one number, are stored contiguously; their minimum is the next merge.
    fn merge_flat<const N: usize>(&self, symbols: &[u32], starts: &[u32], out: &mut Vec<u32>) {
        let place_bits = N.trailing_zeros();
        let key = |rank: u32, at: usize| {
            if rank == NONE { i32::MAX } else { (rank << place_bits | at as u32) as i32 }
        };
        let count = symbols.len();
        let (mut ids, mut next, mut prev, mut keys) = ([0u32; N], [0u8; N], [0u8; N], [i32::MAX; N]);
        ids[..count].copy_from_slice(symbols);
        for at in 0..count {
            (next[at], prev[at]) = (at as u8 + 1, (at as u8).wrapping_sub(1));
        }
        for (at, &rank) in starts.iter().enumerate() {
            keys[at] = key(rank, at);
        }
        loop {
            let least = keys.iter().copied().fold(i32::MAX, i32::min);
            if least == i32::MAX {
                break;
            }
            let (rank, at) = (least as u32 >> place_bits, least as usize & (N - 1));
            let gone = usize::from(next[at]) & (N - 1);
            let id = self.made(rank);
            ids[at] = id;
            next[at] = next[gone];
            keys[gone] = i32::MAX;
            keys[at] = i32::MAX;
            let after = usize::from(next[at]);
            if after < count {
                prev[after] = at as u8;
                keys[at] = key(self.pairs.rank(id, ids[after]), at);
            }
            if at > 0 {
                let before = usize::from(prev[at]) & (N - 1);
                keys[before] = key(self.pairs.rank(ids[before], id), before);
            }
        }
        let mut at = 0;
        while at < count {
            out.push(ids[at]);
            at = usize::from(next[at]);
        }
    }

    /// Merges a word of any length: symbols in a linked list, ranks of pairs in a tree.
    fn merge_many(&self, chain: &mut Chain, out: &mut Vec<u32>) {
        let Chain { ids, starts, next, prev, ranks } = chain;
        let count = ids.len() as u32;
        next.clear();
        next.extend(1..=count);
        prev.clear();
        prev.extend((0..count).map(|at| at.wrapping_sub(1)));
        // The last symbol has no pair, but still a slot.
        ranks.fill(starts.iter().copied().chain([NONE]));
        while let Some((rank, at)) = ranks.lowest() {
            let gone = next[at] as usize;
            let (id, after) = (self.made(rank), next[gone]);
            ids[at] = id;
            next[at] = after;
            ranks.set(gone, NONE);
            let mut rank = NONE;
            if after < count {
                prev[after as usize] = at as u32;
                rank = self.pairs.rank(id, ids[after as usize]);
            }
            ranks.set(at, rank);
            if at > 0 {
                let before = prev[at] as usize;
                ranks.set(before, self.pairs.rank(ids[before], id));
            }
        }
        let mut at = 0;
        while at < count {
            out.push(ids[at as usize]);
            at = next[at as usize];
        }
    }

    /// Id produced by the merge of this rank.
    #[inline(always)]
    fn made(&self, rank: u32) -> u32 {
        match self.made_from {
            Some(first) => first + rank,
            None => self.made[rank as usize],
        }
    }
}

/// Index of two bytes in a table of pairs.
#[inline(always)]
fn pair_of(left: u8, right: u8) -> usize {
    usize::from(left) << 8 | usize::from(right)
}

/// Maps a pair of ids to the rank of its merge: open addressing, with a pair and its rank in eight bytes. Most
/// looked-up pairs have no merge; a filter of one byte per merge, small enough for the nearest caches, rejects most
/// of them.
#[derive(Debug)]
struct Pairs {
    slots: Vec<u64>,
    slot_shift: u32,
    filter: Vec<u64>,
    filter_shift: u32,
}

impl Pairs {
    const EMPTY: u64 = u64::MAX;

    fn with_room_for(count: usize) -> Self {
        let slots = (count * 2).next_power_of_two().max(64);
        let bits = slots * 4;
        let shift = |places: usize| 64 - places.trailing_zeros();
        let (slot_shift, filter_shift) = (shift(slots), shift(bits));
        Self { slots: vec![Self::EMPTY; slots], slot_shift, filter: vec![0; bits / 64], filter_shift }
    }

    #[inline(always)]
    fn key(left: u32, right: u32) -> u64 {
        u64::from(left) << ID_BITS | u64::from(right)
    }

    #[inline(always)]
    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn insert(&mut self, left: u32, right: u32, rank: u32) {
        let key = Self::key(left, right);
        let bit = Self::hash(key) >> self.filter_shift;
        self.filter[(bit >> 6) as usize] |= 1 << (bit & 63);
        let mut slot = (Self::hash(key) >> self.slot_shift) as usize;
        while self.slots[slot] != Self::EMPTY {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = key << RANK_BITS | u64::from(rank);
    }

    #[inline(always)]
    fn rank(&self, left: u32, right: u32) -> u32 {
        let key = Self::key(left, right);
        let hash = Self::hash(key);
        let bit = hash >> self.filter_shift;
        if self.filter[(bit >> 6) as usize] >> (bit & 63) & 1 == 0 {
            return NONE;
        }
        let mask = self.slots.len() - 1;
        let mut slot = (hash >> self.slot_shift) as usize;
        loop {
            let found = self.slots[slot & mask];
            if found >> RANK_BITS == key {
                return (found & ((1 << RANK_BITS) - 1)) as u32;
            }
            if found == Self::EMPTY {
                return NONE;
            }
            slot += 1;
        }
    }
}
