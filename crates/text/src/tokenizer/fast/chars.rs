//! Characters that can be taken as one initial symbol, although merges build them byte by byte.
//!
//! A multi-byte character is *closed* between its neighbours if its own merges, which turn it into one token, all
//! precede (have a lower rank than) every merge that joins a part of it with something outside that ends or begins
//! with the neighbour's byte. The lowest rank is always merged first, so a closed character becomes its token before
//! its parts merge with anything else, and starting with that token gives the same ids. A word of ten Chinese
//! characters then has about ten symbols instead of thirty.

use std::collections::HashMap;

/// Marker for no merge or no character.
const NONE: u32 = u32::MAX;

/// Tokens of the characters that are closed between most neighbours.
#[derive(Debug, Default)]
pub(super) struct Chars {
    /// Token and guard index, by character code.
    places: Vec<(u32, u32)>,
    guards: Vec<Guard>,
}

/// Bytes between which a character is not closed, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Guard {
    before: [u64; 4],
    after: [u64; 4],
}

/// Lowest rank of a merge across a character's boundary, by the part of the character involved and the adjacent byte.
#[derive(Debug, Default)]
pub(super) struct Crossings {
    /// Parts at a character's beginning, found at the end of a merge's right side.
    heads: HashMap<Vec<u8>, Vec<u32>>,
    /// Parts at a character's end, found at the beginning of a merge's left side.
    tails: HashMap<Vec<u8>, Vec<u32>>,
}

impl Crossings {
    /// Registers a merge. Merges must come in ascending rank order.
    pub(super) fn add(&mut self, left: &[u8], right: &[u8], rank: u32) {
        if left.is_empty() || right.first().is_none_or(|&byte| is_inner(byte)) {
            // Joins parts of one character.
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

    /// Bytes between which a character whose own merges end with `rank` is not closed.
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
    /// Selects the closed characters among `tokens`, ids with their bytes. `own` returns the highest rank of the
    /// merges that turn these bytes into one token, or `None` if they end as several.
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

    /// Token of the character that begins at byte `at`, if it is closed, and its length in bytes. `word` is UTF-8.
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

/// Returns true for a UTF-8 continuation byte.
fn is_inner(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// Length of a character by its first byte; 1 if it does not begin a character.
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

    /// Returns true if é, whose own merges end with rank 5, is closed in a text with one other merge.
    fn closed(left: &[u8], right: &[u8], rank: u32, text: &str) -> bool {
        let mut crossings = Crossings::default();
        crossings.add(left, right, rank);
        let chars = Chars::of([(300, "é".as_bytes())].into_iter(), &crossings, |_| Some(5));
        chars.at(text.as_bytes(), text.find('é').unwrap()) == Some((300, 2))
    }

    #[test]
    fn a_character_is_closed_where_its_own_merges_come_first() {
        let e = "é".as_bytes();
        // A space with the first byte, and the last byte with a letter: before and after the character's own merges.
        assert!(!closed(b" ", &e[..1], 4, " é"));
        assert!(closed(b" ", &e[..1], 6, " é"));
        assert!(!closed(&e[1..], b"t", 4, "ét"));
        assert!(closed(&e[1..], b"t", 6, "ét"));
        // Other neighbours, or none.
        assert!(closed(b" ", &e[..1], 4, "xé") && closed(b" ", &e[..1], 4, "é"));
        assert!(closed(&e[1..], b"t", 4, "éx") && closed(&e[1..], b"t", 4, "é"));
        // Whole characters, and bytes of other characters.
        assert!(closed(b" ", e, 4, " é"));
        assert!(closed(e, b"t", 4, "ét"));
        assert!(closed(b" ", &[0xC2], 4, " é"));
        assert!(closed(&e[..1], &e[1..], 4, "ééé"));
        // A part adjacent to whole characters: the character next to the part is decisive.
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
