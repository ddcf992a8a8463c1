//! Characters that may be taken as one symbol from the start, though merges build them byte by byte.
//!
//! A character of several bytes is *closed* between its neighbours where its own merges, which make one token of it, all
//! come before (have a lower rank than) every merge that joins a part of it with something outside that ends or begins
//! with the neighbour's byte. The lowest rank is always merged first, so a closed character becomes its token before
//! its parts meet anything, and to begin with that token gives the same ids. A word of ten Chinese characters then has
//! some ten symbols instead of thirty.

use std::collections::HashMap;

/// No merge; no character.
const NONE: u32 = u32::MAX;

/// The tokens of characters that are closed between most neighbours.
#[derive(Debug, Default)]
pub(super) struct Chars {
    /// By number of the character: its token and the place of its guard.
    places: Vec<(u32, u32)>,
    guards: Vec<Guard>,
}

/// Bytes between which a character is not closed, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Guard {
    before: [u64; 4],
    after: [u64; 4],
}

/// The lowest rank of a merge with something outside, by the part of a character that it takes and the byte next to it.
#[derive(Debug, Default)]
pub(super) struct Crossings {
    /// Parts at a character's beginning, which stand at the end of a merge's right side.
    heads: HashMap<Vec<u8>, Vec<u32>>,
    /// Parts at a character's end, which stand at the beginning of a merge's left side.
    tails: HashMap<Vec<u8>, Vec<u32>>,
}

impl Crossings {
    /// Takes note of a merge. Merges come by rising rank.
    pub(super) fn add(&mut self, left: &[u8], right: &[u8], rank: u32) {
        if left.is_empty() || right.first().is_none_or(|&byte| is_inner(byte)) {
            // It joins parts of one character.
            return;
        }
        let note = |parts: &mut HashMap<Vec<u8>, Vec<u32>>, part: &[u8], neighbour: u8| {
            let ranks = parts.entry(part.to_vec()).or_insert_with(|| vec![NONE; 256]);
            let known = &mut ranks[usize::from(neighbour)];
            *known = rank.min(*known);
        };
        let tail = left.iter().take_while(|&&byte| is_inner(byte)).count();
        if tail > 0 {
            note(&mut self.tails, &left[..tail], *left.get(tail).unwrap_or(&right[0]));
        }
        let inner = right.iter().rev().take_while(|&&byte| is_inner(byte)).count();
        let (before, head) = right.split_at(right.len() - inner - 1);
        if inner + 1 < bytes_of_char(head[0]) {
            note(&mut self.heads, head, *before.last().unwrap_or(&left[left.len() - 1]));
        }
    }

    /// The bytes between which a character is not closed whose own merges end with `rank`.
    fn guard(&self, character: &[u8], rank: u32) -> Guard {
        let mut guard = Guard::default();
        let note = |side: &mut [u64; 4], ranks: Option<&Vec<u32>>| {
            for (byte, _) in
                ranks.iter().flat_map(|ranks| ranks.iter().enumerate()).filter(|&(_, &r)| r < rank)
            {
                side[byte >> 6] |= 1 << (byte & 63);
            }
        };
        for at in 1..character.len() {
            note(&mut guard.before, self.heads.get(&character[..at]));
            note(&mut guard.after, self.tails.get(&character[at..]));
        }
        guard
    }
}

impl Chars {
    /// The characters among `tokens`, ids with their bytes. `own` gives the highest rank of the merges that make one
    /// token of these bytes alone, or nothing if they end as several.
    pub(super) fn of<'t>(
        tokens: impl Iterator<Item = (u32, &'t [u8])>,
        crossings: &Crossings,
        own: impl Fn(&[u8]) -> Option<u32>,
    ) -> Self {
        let mut chars = Self::default();
        let mut known: HashMap<Guard, u32> = HashMap::new();
        for (id, bytes) in tokens.filter(|(_, bytes)| (2..=3).contains(&bytes.len())) {
            let mut spelled = std::str::from_utf8(bytes).unwrap_or("").chars();
            let (Some(c), None, Some(rank)) = (spelled.next(), spelled.next(), own(bytes)) else { continue };
            let guard = crossings.guard(bytes, rank);
            let place = *known.entry(guard).or_insert(chars.guards.len() as u32);
            if place as usize == chars.guards.len() {
                chars.guards.push(guard);
            }
            let number = u32::from(c) as usize;
            chars.places.resize(chars.places.len().max(number + 1), (NONE, 0));
            chars.places[number] = (id, place);
        }
        chars
    }

    /// The token of the character that begins at byte `at`, where it is closed, and its bytes. `word` is UTF-8.
    #[inline(always)]
    pub(super) fn at(&self, word: &[u8], at: usize) -> Option<(u32, usize)> {
        let inner = |by: usize| u32::from(word[at + by] & 0x3F);
        let first = u32::from(word[at]);
        let (number, bytes) = match first {
            0xC2..=0xDF => ((first & 0x1F) << 6 | inner(1), 2),
            0xE0..=0xEF => ((first & 0x0F) << 12 | inner(1) << 6 | inner(2), 3),
            _ => return None,
        };
        let &(id, place) = self.places.get(number as usize)?;
        if id == NONE {
            return None;
        }
        let guard = &self.guards[place as usize];
        let open = |side: &[u64; 4], byte: u8| side[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1;
        let open_before = at > 0 && open(&guard.before, word[at - 1]);
        let open_after = word.get(at + bytes).is_some_and(|&byte| open(&guard.after, byte));
        (!open_before && !open_after).then_some((id, bytes))
    }
}

/// Whether a byte stands inside of a character of UTF-8 and not at its beginning.
fn is_inner(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// The bytes of a character by its first one; 1 for what begins none.
fn bytes_of_char(first: u8) -> usize {
    match first {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether é, whose own merges end with rank 5, is closed in a text with one other merge.
    fn closed(left: &[u8], right: &[u8], rank: u32, text: &str) -> bool {
        let mut crossings = Crossings::default();
        crossings.add(left, right, rank);
        let chars = Chars::of([(300, "é".as_bytes())].into_iter(), &crossings, |_| Some(5));
        chars.at(text.as_bytes(), text.find('é').unwrap()) == Some((300, 2))
    }

    #[test]
    fn a_character_is_closed_where_its_own_merges_come_first() {
        let e = "é".as_bytes();
        // A space with the first byte, the last byte with a letter: before and after the character's own.
        assert!(!closed(b" ", &e[..1], 4, " é"));
        assert!(closed(b" ", &e[..1], 6, " é"));
        assert!(!closed(&e[1..], b"t", 4, "ét"));
        assert!(closed(&e[1..], b"t", 6, "ét"));
        // Other neighbours, or none.
        assert!(closed(b" ", &e[..1], 4, "xé") && closed(b" ", &e[..1], 4, "é"));
        assert!(closed(&e[1..], b"t", 4, "éx") && closed(&e[1..], b"t", 4, "é"));
        // Whole characters, and the bytes of other ones.
        assert!(closed(b" ", e, 4, " é"));
        assert!(closed(e, b"t", 4, "ét"));
        assert!(closed(b" ", &[0xC2], 4, " é"));
        assert!(closed(&e[..1], &e[1..], 4, "ééé"));
        // A part behind whole characters: what stands next to the part decides.
        assert!(!closed(b" ", &[b't', e[0]], 4, " té"));
        assert!(closed(b" ", &[b't', e[0]], 4, "t é"));
        assert!(!closed(&[e[1], b't'], b"u", 4, "étu"));
        assert!(!closed(&e[1..], &e[..1], 4, "éé"));
    }

    #[test]
    fn parts_of_longer_characters_are_distinguished() {
        let c = "中".as_bytes();
        let mut crossings = Crossings::default();
        crossings.add(b" ", &c[..2], 9);
        crossings.add(b" ", &c[..1], 3);
        crossings.add(&c[2..], b"a", 7);
        let closed = |rank: u32, text: &str| {
            let chars = Chars::of([(300, c)].into_iter(), &crossings, |_| Some(rank));
            chars.at(text.as_bytes(), text.find('中').unwrap()).is_some()
        };
        assert!(closed(2, " 中a") && closed(6, "x中a"));
        assert!(!closed(4, " 中a") && !closed(8, "x中a"));
        let none = Chars::of([(1, c)].into_iter(), &crossings, |_| None);
        assert_eq!(none.at(c, 0), None);
    }
}
