//! Words that are tokens: maps their bytes to their id, using the hash already computed for the cache.

use super::cache;

/// Bits of a slot used by the id; the rest are those of the word's hash.
const ID_BITS: u32 = 20;
const EMPTY: u64 = u64::MAX;

/// Tokens by their bytes: open addressing; the spelling is compared if the hash matches. Empty by default.
#[derive(Debug, Default)]
pub(super) struct Whole {
    slots: Vec<u64>,
    /// End offset of each token's bytes, by id; they start at the end of the previous id's.
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl Whole {
    /// Builds the table from tokens with distinct ascending ids.
    pub(super) fn of<'t>(tokens: impl Iterator<Item = (u32, &'t [u8])>) -> Self {
        let tokens: Vec<(u32, &[u8])> = tokens.collect();
        let slots = vec![EMPTY; (tokens.len() * 2).next_power_of_two().max(64)];
        let mut whole = Self { slots, ..Self::default() };
        for (id, word) in tokens {
            // Ids without a token have no bytes.
            whole.ends.resize(id as usize, whole.bytes.len() as u32);
            whole.bytes.extend_from_slice(word);
            whole.ends.push(whole.bytes.len() as u32);
            let hash = cache::hash(word);
            let mask = whole.slots.len() - 1;
            let mut slot = hash as usize & mask;
            while whole.slots[slot] != EMPTY {
                slot = (slot + 1) & mask;
            }
            whole.slots[slot] = hash >> ID_BITS << ID_BITS | u64::from(id);
        }
        whole
    }

    /// Id of the token equal to this word, whose hash is `hash`.
    #[inline(always)]
    pub(super) fn get(&self, word: &[u8], hash: u64) -> Option<u32> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut slot = hash as usize & mask;
        loop {
            let found = self.slots[slot];
            if found == EMPTY {
                return None;
            }
            let id = (found & ((1 << ID_BITS) - 1)) as usize;
            if found >> ID_BITS == hash >> ID_BITS && self.spelling(id) == word {
                return Some(id as u32);
            }
            slot = (slot + 1) & mask;
        }
    }

    fn spelling(&self, id: usize) -> &[u8] {
        let first = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[first as usize..self.ends[id] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_and_nothing_else() {
        let words: Vec<String> = (0..5000u32).map(|n| format!("w{}", n * n)).collect();
        // Only every third id has a token.
        let tokens = || words.iter().enumerate().map(|(n, word)| (n as u32 * 3, word.as_bytes()));
        let whole = Whole::of(tokens());
        for (id, word) in tokens() {
            assert_eq!(whole.get(word, cache::hash(word)), Some(id));
            let longer = [word, b"x"].concat();
            assert_eq!(whole.get(&longer, cache::hash(&longer)), None);
            // The hash of a token with the bytes of another word.
            assert_eq!(whole.get(&longer, cache::hash(word)), None);
        }
        assert_eq!(Whole::default().get(b"a", cache::hash(b"a")), None);
    }
}
