//! Best-fit decreasing in O(N log L): pieces are sorted by counting, samples are found by their remaining room.
//!
//! Open samples are kept in one queue per remaining room, so that among several with the least sufficient room the
//! first opened is filled first, as in TRL's `pack_dataset`; a bit tree over the rooms finds the smallest room that
//! is at least a given length in log64(L) steps.

use std::collections::VecDeque;

use super::pieces::{Doc, Sample, Span, pieces_of};

/// Number of documents packed together. Bounds the memory of the piece list and keeps samples near document order.
const WINDOW: usize = 1 << 20;

pub(super) fn pack(docs: &[Doc], seq_len: u32, lead: u32) -> Vec<Sample> {
    docs.chunks(WINDOW).flat_map(|window| pack_window(window, seq_len, lead)).collect()
}

fn pack_window(docs: &[Doc], seq_len: u32, lead: u32) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut open: Vec<VecDeque<u32>> = vec![VecDeque::new(); seq_len as usize + 1];
    let mut rooms = Rooms::new(seq_len as usize + 1);
    for span in longest_first(docs, seq_len - lead) {
        let len = (span.len + lead) as usize;
        let (number, room) = match rooms.at_least(len).and_then(|room| Some((open[room].pop_front()?, room)))
        {
            Some((number, room)) => {
                if open[room].is_empty() {
                    rooms.clear(room);
                }
                (number, room)
            }
            None => {
                samples.push(Sample::new());
                (samples.len() as u32 - 1, seq_len as usize)
            }
        };
        samples[number as usize].push(span);
        let left = room - len;
        if left > 0 {
            open[left].push_back(number);
            rooms.set(left);
        }
    }
    samples
}

/// Pieces of all documents, longest first, equal lengths in document order (a stable counting sort).
fn longest_first(docs: &[Doc], seq_len: u32) -> Vec<Span> {
    let pieces = || docs.iter().flat_map(|&doc| pieces_of(doc, seq_len));
    let mut starts = vec![0usize; seq_len as usize + 1];
    for span in pieces() {
        starts[span.len as usize] += 1;
    }
    let mut total = 0;
    for start in starts.iter_mut().rev() {
        total += std::mem::replace(start, total);
    }
    let mut sorted = vec![Span { doc: 0, start: 0, len: 0 }; total];
    for span in pieces() {
        let slot = &mut starts[span.len as usize];
        sorted[*slot] = span;
        *slot += 1;
    }
    sorted
}

/// A set of small numbers with a successor query: a tree of 64-bit words in which each bit tells if the word below it
/// is non-empty.
struct Rooms {
    levels: Vec<Vec<u64>>,
}

impl Rooms {
    fn new(size: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = size.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    fn set(&mut self, mut number: usize) {
        for level in &mut self.levels {
            level[number / 64] |= 1 << (number % 64);
            number /= 64;
        }
    }

    fn clear(&mut self, mut number: usize) {
        for level in &mut self.levels {
            level[number / 64] &= !(1 << (number % 64));
            if level[number / 64] != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// Smallest member that is at least `number`.
    fn at_least(&self, mut number: usize) -> Option<usize> {
        for (height, level) in self.levels.iter().enumerate() {
            let word = *level.get(number / 64)? & (u64::MAX << (number % 64));
            if word != 0 {
                let mut found = number / 64 * 64 + word.trailing_zeros() as usize;
                for below in self.levels[..height].iter().rev() {
                    found = found * 64 + below[found].trailing_zeros() as usize;
                }
                return Some(found);
            }
            number = number / 64 + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fullest_sample_with_room_is_chosen() {
        let docs: Vec<Doc> =
            [6, 7, 3, 4].iter().enumerate().map(|(doc, &tokens)| Doc { doc: doc as u64, tokens }).collect();
        let samples = pack(&docs, 10, 0);
        let layout: Vec<Vec<u64>> = samples.iter().map(|s| s.iter().map(|span| span.doc).collect()).collect();
        assert_eq!(layout, [vec![1, 2], vec![0, 3]]);
    }

    /// `bins.json`, written by `oracle/sft.py`, contains bins of TRL 1.16's `pack_dataset` (`bfd_split`), each a list
    /// of rows and lengths.
    #[test]
    fn bins_are_those_of_trl() {
        let text = include_str!("../../../../tests/golden_sft/bins.json");
        let golden: serde_json::Value = serde_json::from_str(text).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let tokens = |value: &serde_json::Value| value.as_u64().unwrap();
            let lengths = case["lengths"].as_array().unwrap().iter().map(tokens);
            let docs: Vec<Doc> =
                lengths.enumerate().map(|(doc, tokens)| Doc { doc: doc as u64, tokens }).collect();
            let bins = pack(&docs, tokens(&case["seq_len"]) as u32, 0).into_iter();
            let bins: Vec<Vec<[u64; 2]>> =
                bins.map(|bin| bin.iter().map(|span| [span.doc, u64::from(span.len)]).collect()).collect();
            assert_eq!(serde_json::json!(bins), case["bins"]);
        }
    }

    proptest! {
        #[test]
        fn rooms_agree_with_a_sorted_set(numbers in prop::collection::vec((0usize..9000, any::<bool>()), 0..80), ask in 0usize..9000) {
            let mut rooms = Rooms::new(9000);
            let mut set = std::collections::BTreeSet::new();
            for (number, insert) in numbers {
                if insert { rooms.set(number); set.insert(number); } else { rooms.clear(number); set.remove(&number); }
            }
            prop_assert_eq!(rooms.at_least(ask), set.range(ask..).next().copied());
        }
    }
}
