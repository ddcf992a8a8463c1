//! Counts repeated n-grams of all required lengths in one ascending pass.
//!
//! An n-gram can only repeat where both (n-1)-grams inside it repeat. Pairs are therefore counted at all positions,
//! and every longer length only at the surviving positions, which are a few percent in ordinary text. The work is
//! linear in the number of words times the longest length, even for hostile text.

use super::table::{Table, extend};

/// Maximum supported n-gram length.
pub(crate) const LONGEST: usize = 16;

/// Required n-gram facts of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NgramRequest {
    /// Longest required length; 0 for none.
    pub(crate) longest: usize,
    /// Rule for counting duplicates.
    pub(crate) rule: DupRule,
}

/// Words of a text, as input of the n-gram pass.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    /// One hash per word.
    pub(crate) hashes: &'a [u64],
    /// Number of characters in all preceding words; one more entry than words.
    pub(crate) chars: &'a [u32],
    /// For each word the number of gaps between words up to it; empty if there is a gap between any two words.
    pub(crate) gaps: &'a [u32],
}

/// Rule for the characters that count as duplicated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum DupRule {
    /// Curator: every occurrence after the first; overlapping characters and spaces are counted once.
    #[default]
    Overlap,
    /// datatrove: from left to right, a repeated n-gram is counted without spaces and skipped; n-grams that begin
    /// inside it are not recorded.
    Skip,
}

/// Most frequent n-gram of one length; among ties the earliest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Top {
    /// Index of its first word.
    pub(crate) word: u32,
    /// Number of occurrences, including overlapping ones; 0 if the text has fewer words than the length.
    pub(crate) count: u32,
}

/// Results by length n, from 2 up to the longest required one.
#[derive(Clone, Debug, Default)]
pub(crate) struct NgramCounts {
    pub(crate) top: [Top; LONGEST + 1],
    pub(crate) dup_chars: [u64; LONGEST + 1],
}

/// Working memory of the n-gram pass.
#[derive(Default)]
pub(crate) struct NGrams {
    gram: Vec<u64>,
    first: Vec<u32>,
    count: Vec<u32>,
    places: Vec<u32>,
    seen: Vec<u32>,
}

impl NGrams {
    /// Counts the n-grams of the words in `row`.
    pub(crate) fn climb(
        &mut self,
        row: Row<'_>,
        wanted: &NgramRequest,
        table: &mut Table,
        found: &mut NgramCounts,
    ) {
        *found = NgramCounts::default();
        let Row { hashes, chars, .. } = row;
        let words = hashes.len();
        if wanted.longest < 2 || words < 2 {
            return;
        }
        self.gram.clear();
        self.gram.extend_from_slice(hashes);
        self.first.resize(words.max(self.first.len()), 0);
        self.count.resize(words.max(self.count.len()), 0);
        self.places.clear();
        self.places.extend(0..words as u32 - 1);
        for n in 2..=wanted.longest.min(LONGEST).min(words) {
            self.group(hashes, n, table);
            found.top[n] = self.top();
            found.dup_chars[n] = match wanted.rule {
                DupRule::Overlap => self.overlapping(row, n),
                DupRule::Skip => self.skipping(chars, n),
            };
            self.survivors(n, words);
        }
    }

    /// Fills `first` and `count` for the n-grams that begin at `places`.
    fn group(&mut self, hashes: &[u64], n: usize, table: &mut Table) {
        table.reset(self.places.len());
        let NGrams { gram, first, count, places, .. } = self;
        for &p in places.iter() {
            let at = p as usize;
            let hash = extend(gram[at], hashes[at + n - 1]);
            gram[at] = hash;
            let earlier = table.first(hash, p, gram);
            first[at] = earlier;
            if earlier == p {
                count[at] = 1;
            } else {
                count[earlier as usize] += 1;
            }
        }
    }

    fn top(&self) -> Top {
        let mut top = Top { word: 0, count: 1 };
        for &p in &self.places {
            let at = p as usize;
            if self.first[at] == p && self.count[at] > top.count {
                top = Top { word: p, count: self.count[at] };
            }
        }
        top
    }

    fn overlapping(&self, Row { chars, gaps, .. }: Row<'_>, n: usize) -> u64 {
        let mut total = 0;
        let mut covered_to = 0usize;
        for &p in &self.places {
            let at = p as usize;
            if self.first[at] == p {
                continue;
            }
            let overlap = covered_to.saturating_sub(at).min(n);
            let spaces = match gaps {
                [] => (n - overlap).min(n - 1) as u64,
                gaps => u64::from(gaps[at + n - 1] - gaps[at + overlap.max(1) - 1]),
            };
            total += u64::from(chars[at + n] - chars[at + overlap]) + spaces;
            covered_to = at + n;
        }
        total
    }

    fn skipping(&mut self, chars: &[u32], n: usize) -> u64 {
        let mark = n as u32;
        if n == 2 {
            self.seen.clear();
        }
        self.seen.resize(self.gram.len(), 0);
        let mut total = 0;
        let mut next = 0usize;
        for &p in &self.places {
            let at = p as usize;
            if at < next {
                continue;
            }
            let seen = &mut self.seen[self.first[at] as usize];
            if *seen == mark {
                total += u64::from(chars[at + n] - chars[at]);
                next = at + n;
            } else {
                *seen = mark;
            }
        }
        total
    }

    /// Keeps the positions at which an (n+1)-gram may repeat.
    fn survivors(&mut self, n: usize, words: usize) {
        let mut kept = 0;
        for i in 0..self.places.len() {
            let p = self.places[i];
            let at = p as usize;
            let next = self.places.get(i + 1).copied();
            if next == Some(p + 1) && at + n < words && self.repeats(at) && self.repeats(at + 1) {
                self.places[kept] = p;
                kept += 1;
            }
        }
        self.places.truncate(kept);
    }

    #[inline(always)]
    fn repeats(&self, at: usize) -> bool {
        self.count[self.first[at] as usize] > 1
    }
}
