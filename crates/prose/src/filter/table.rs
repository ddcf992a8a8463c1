//! Hashes, and the open-addressing table for counting repeated words, lines and n-grams.
//!
//! Items are equal if their 64-bit hashes are: with a million distinct items per document, one collision is expected
//! in forty million documents, and its effect is a single repetition counted too many.

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd6e8_feb8_6659_fd93;

/// XOR of the two halves of a 128-bit product: every input bit affects every output bit.
#[inline(always)]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hash of an n-gram from the hash of its first n-1 words and that of its last.
#[inline(always)]
pub(crate) fn extend(gram: u64, word: u64) -> u64 {
    fold(gram.rotate_left(23) ^ word ^ K0, K1)
}

/// 64-bit hash of `bytes`.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut h = K0 ^ bytes.len() as u64;
    let mut pieces = bytes.chunks_exact(8);
    for piece in &mut pieces {
        h = fold(h ^ word_of(piece), K1);
    }
    let rest = pieces.remainder();
    fold(h ^ tail_of(rest), K0 ^ K1)
}

/// Hash of `text[start..end]`, equal to [`hash`] of that slice; a short word needs a single load if the text
/// continues for eight bytes.
#[inline(always)]
pub(crate) fn hash_at(text: &[u8], start: usize, end: usize) -> u64 {
    let len = end - start;
    if len < 8
        && let Some(piece) = text.get(start..start + 8)
    {
        let value = word_of(piece) & !(u64::MAX << (8 * len));
        return fold(K0 ^ len as u64 ^ value, K0 ^ K1);
    }
    hash(&text[start..end])
}

#[inline(always)]
fn word_of(piece: &[u8]) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(piece);
    u64::from_le_bytes(word)
}

fn tail_of(rest: &[u8]) -> u64 {
    let mut word = [0u8; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

/// Finds the first item equal to each item. One table serves all purposes of a thread in turn.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<u64>,
    mask: usize,
}

impl Table {
    /// Clears the table and makes room for `items` distinct items.
    pub(crate) fn reset(&mut self, items: usize) {
        let slots = (items * 2).next_power_of_two().max(16);
        self.slots.clear();
        self.slots.resize(slots, 0);
        self.mask = slots - 1;
    }

    /// Position passed with the first item of this hash since the last [`reset`](Self::reset): `position` itself if
    /// there was none. `hashes[p]` must be the hash that was passed with position `p`.
    #[inline(always)]
    pub(crate) fn first(&mut self, hash: u64, position: u32, hashes: &[u64]) -> u32 {
        let tag = hash & 0xffff_ffff_0000_0000;
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                self.slots[at] = tag | u64::from(position.wrapping_add(1));
                return position;
            }
            let earlier = (slot as u32).wrapping_sub(1);
            if slot & 0xffff_ffff_0000_0000 == tag && hashes[earlier as usize] == hash {
                return earlier;
            }
            at = at.wrapping_add(1) & self.mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_in_a_text_hashes_as_on_its_own() {
        let text = b"a bc def ghij klmnopq rstuvwxy zabcdefghijklmnop q";
        for start in 0..text.len() {
            for end in start..=text.len() {
                assert_eq!(hash_at(text, start, end), hash(&text[start..end]));
            }
        }
    }

    #[test]
    fn first_positions() {
        let items = ["x", "y", "x", "z", "y"];
        let hashes: Vec<u64> = items.iter().map(|s| hash(s.as_bytes())).collect();
        let mut table = Table::default();
        table.reset(items.len());
        let first: Vec<u32> = (0..items.len()).map(|p| table.first(hashes[p], p as u32, &hashes)).collect();
        assert_eq!(first, [0, 1, 0, 3, 1]);
    }
}
