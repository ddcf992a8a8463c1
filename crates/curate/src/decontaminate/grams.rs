//! The n-grams of evaluation sets, and their removal from texts.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::DecontaminateOptions;
use super::words::{Words, power};
use crate::error::Error;

/// An n-gram of one or more evaluation sets.
#[derive(Debug)]
pub(super) struct Gram {
    pub(super) text: String,
    /// Indices of the sets that contain it, ascending.
    pub(super) tasks: Vec<u32>,
    hash: u64,
}

/// An evaluation set and its counts.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) texts: u64,
    pub(super) too_short: u64,
}

/// The n-grams of all evaluation sets.
#[derive(Debug)]
pub struct Decontaminator {
    pub(super) options: DecontaminateOptions,
    pub(super) tasks: Vec<Task>,
    /// Files that the sets were read from.
    pub(super) files: Vec<PathBuf>,
    pub(super) grams: Vec<Gram>,
    /// Used only for lookups, so its order is irrelevant.
    index: HashMap<String, u32>,
    /// Bit filter over the n-gram hashes; rules out most positions of a document.
    filter: Vec<u64>,
    /// N-gram lengths that occur, with their [`power`]s, in the order tried: the maximum length first, then
    /// ascending.
    lengths: Vec<(usize, u64)>,
}

/// Number of matches per n-gram. Counts of parts of a corpus can be merged in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matches {
    /// Counts by n-gram index.
    pub counts: Vec<u64>,
    /// Documents with a match.
    pub documents: u64,
}

impl Matches {
    /// Adds the result of [`Decontaminator::find`] for one document.
    pub fn add(&mut self, found: &[u32]) {
        for &gram in found {
            let gram = gram as usize;
            if self.counts.len() <= gram {
                self.counts.resize(gram + 1, 0);
            }
            self.counts[gram] += 1;
        }
        self.documents += u64::from(!found.is_empty());
    }

    /// Adds the counts of another part of the corpus.
    pub fn merge(&mut self, other: &Matches) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.documents += other.documents;
    }
}

/// The n-grams to remove: those found, but not too often.
#[derive(Clone, Debug)]
pub struct Removable(Vec<bool>);

/// Result of cleaning a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleaningOutcome<'t> {
    /// Nothing was removed.
    Whole,
    /// Its clean pieces in order, at least one.
    Pieces(Vec<&'t str>),
    /// The document is dropped; the reason.
    Dropped(&'static str),
}

/// A match: index of its first word, number of words, and n-gram index.
type NgramMatch = (usize, usize, u32);

impl Decontaminator {
    /// Reads the evaluation sets named in the options.
    ///
    /// # Errors
    /// An option is invalid, there is no set, a set cannot be read or has no text, or all texts are too short to
    /// match.
    pub fn new(options: &DecontaminateOptions) -> Result<Self, Error> {
        let mut this = Self::empty(options)?;
        if options.sets.is_empty() {
            return Err(Error::Setting {
                key: "sets",
                found: "empty".into(),
                advice:
                    "name the evaluation sets: sets = [{ name = \"quiz\", path = \"quiz.jsonl\", fields = \
                         [\"question\"] }], or just their paths where the field is `text`"
                        .into(),
            });
        }
        for set in &options.sets {
            if this.tasks.iter().any(|task| task.name == set.name) {
                return Err(Error::Setting {
                    key: "sets",
                    found: format!("with two sets called `{}`", set.name),
                    advice: "give them names of their own".into(),
                });
            }
            this.add_set(set)?;
        }
        if this.grams.is_empty() {
            return Err(Error::Setting {
                key: "min_ngram_words",
                found: options.min_ngram_words.to_string(),
                advice: format!(
                    "all texts of the sets have fewer words ({}); choose less",
                    this.short_sets().join(", ")
                ),
            });
        }
        Ok(this)
    }

    /// Sets that can never match because all their texts are too short.
    fn short_sets(&self) -> Vec<&str> {
        let short = |task: &&Task| task.too_short == task.texts;
        self.tasks.iter().filter(short).map(|task| task.name.as_str()).collect()
    }

    /// Files that the sets were read from.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Distinct names of the sets that contain the n-grams returned by [`Decontaminator::find`], in set order.
    pub fn sets_of(&self, found: &[u32]) -> Vec<&str> {
        let tasks: BTreeSet<u32> =
            found.iter().flat_map(|&gram| self.grams[gram as usize].tasks.iter().copied()).collect();
        tasks.into_iter().map(|task| self.tasks[task as usize].name.as_str()).collect()
    }

    /// Creates an instance without evaluation sets; [`Decontaminator::add`] adds their texts.
    ///
    /// # Errors
    /// The n-gram lengths are zero or out of order.
    pub fn empty(options: &DecontaminateOptions) -> Result<Self, Error> {
        let (least, most) = (options.min_ngram_words, options.max_ngram_words);
        if most == 0 || least > most {
            return Err(Error::Setting {
                key: "max_ngram_words",
                found: format!("{most} with min_ngram_words {least}"),
                advice: "the maximum is at least 1 and at least the minimum".into(),
            });
        }
        let (tasks, files, grams, index) = (Vec::new(), Vec::new(), Vec::new(), HashMap::new());
        let (filter, lengths) = (vec![0; 16], Vec::new());
        Ok(Self { options: options.clone(), tasks, files, grams, index, filter, lengths })
    }

    /// Adds a text of an evaluation set.
    pub fn add(&mut self, task: &str, text: &str) {
        let number = self.task(task);
        self.tasks[number as usize].texts += 1;
        let words = Words::of(text);
        let (least, most) = (self.options.min_ngram_words.max(1), self.options.max_ngram_words);
        if words.len() < least {
            self.tasks[number as usize].too_short += 1;
        } else if words.len() < most {
            self.add_gram(number, &words, 0, words.len());
        } else {
            (0..=words.len() - most).for_each(|first| self.add_gram(number, &words, first, most));
        }
    }

    /// Index of a set by name; adds the set if it is unknown.
    pub(super) fn task(&mut self, name: &str) -> u32 {
        let known = self.tasks.iter().position(|task| task.name == name);
        let number = known.unwrap_or_else(|| {
            self.tasks.push(Task { name: name.to_owned(), ..Task::default() });
            self.tasks.len() - 1
        });
        number as u32
    }

    fn add_gram(&mut self, task: u32, words: &Words, first: usize, count: usize) {
        let text = words.gram(first, count);
        if let Some(&known) = self.index.get(text) {
            let tasks = &mut self.grams[known as usize].tasks;
            if let Err(place) = tasks.binary_search(&task) {
                tasks.insert(place, task);
            }
            return;
        }
        self.index.insert(text.to_owned(), self.grams.len() as u32);
        let hash = words.hash(first, count, power(count));
        self.grams.push(Gram { text: text.to_owned(), tasks: vec![task], hash });
        if !self.lengths.iter().any(|&(length, _)| length == count) {
            self.lengths.push((count, power(count)));
            let most = self.options.max_ngram_words;
            self.lengths.sort_unstable_by_key(|&(length, _)| (length != most, length));
        }
        if self.grams.len() * 4 > self.filter.len() * 64 {
            // Sixteen bits per n-gram after growing, four before it grows again.
            self.filter = vec![0; (self.grams.len() / 4).next_power_of_two()];
            for number in 0..self.grams.len() {
                self.mark(self.grams[number].hash);
            }
        } else {
            self.mark(hash);
        }
    }

    /// Number of n-grams.
    pub fn num_grams(&self) -> usize {
        self.grams.len()
    }

    /// First pass: the indices of the n-grams that occur in a document, one per occurrence, without overlaps.
    pub fn find(&self, text: &str) -> Vec<u32> {
        let words = Words::of(text);
        let (mut found, mut from) = (Vec::new(), 0);
        while let Some((first, count, gram)) = self.next_match(&words, from, |_| true) {
            found.push(gram);
            from = first + count;
        }
        found
    }

    /// Between the passes: selects the n-grams to remove.
    pub fn removable(&self, matches: &Matches) -> Removable {
        let few = |&count: &u64| count > 0 && count <= self.options.max_matches;
        Removable(matches.counts.iter().map(few).collect())
    }

    /// Second pass: removes the matches from a document.
    pub fn clean<'t>(&self, text: &'t str, removable: &Removable) -> CleaningOutcome<'t> {
        let words = Words::of(text);
        let goes = |gram: u32| removable.0.get(gram as usize).copied().unwrap_or(false);
        let mut pieces = Vec::new();
        // Start of the unprocessed text; `None` once too little is left.
        let mut start = Some(0);
        let mut from = 0;
        while let Some(begin) = start {
            let Some((first, count, _)) = self.next_match(&words, from, goes) else { break };
            let (before, after) = self.cut(text, begin, words.place(first, count));
            pieces.extend(before.filter(|piece| self.is_long(piece)));
            if pieces.len() > self.options.max_splits {
                return CleaningOutcome::Dropped("contaminated_too_often");
            }
            start = after.filter(|&after| self.is_long(&text[after..]));
            from = words.first_from(after.unwrap_or(text.len()));
        }
        match start {
            Some(0) => return CleaningOutcome::Whole,
            Some(begin) => pieces.push(&text[begin..]),
            None => {}
        }
        match pieces.len() {
            0 => CleaningOutcome::Dropped("contaminated"),
            count if count > self.options.max_splits => CleaningOutcome::Dropped("contaminated_too_often"),
            _ => CleaningOutcome::Pieces(pieces),
        }
    }

    fn is_long(&self, piece: &str) -> bool {
        piece.chars().nth(self.options.min_chars).is_some()
    }

    /// The piece from `begin` to the last sentence end before the match, and the start of the following piece.
    fn cut<'t>(
        &self,
        text: &'t str,
        begin: usize,
        found: std::ops::Range<usize>,
    ) -> (Option<&'t str>, Option<usize>) {
        let ends_sentence = |c: char| matches!(c, '.' | '!' | '?');
        let aside = self.options.remove_chars;
        // One character more than the margin: the piece may end with the character just before it.
        let before = text[begin..found.start].char_indices().rev().nth(aside.saturating_sub(1));
        let before = before.and_then(|(last, c)| {
            let head = &text[begin..begin + last + c.len_utf8()];
            let end = head.rfind(ends_sentence)?;
            (end > 0).then(|| &head[..=end])
        });
        let last =
            text[found.clone()].char_indices().next_back().map_or(found.end, |(at, _)| found.start + at);
        let after = text[last..].char_indices().nth(aside).and_then(|(at, _)| {
            let end = last + at + text[last + at..].find(ends_sentence)?;
            (end + 1 < text.len()).then_some(end + 1)
        });
        (before, after)
    }

    /// First match at or after the word `from` whose n-gram `wanted` accepts.
    fn next_match(&self, words: &Words, from: usize, wanted: impl Fn(u32) -> bool) -> Option<NgramMatch> {
        for first in from..words.len() {
            for &(count, power) in &self.lengths {
                if first + count > words.len() || !self.is_marked(words.hash(first, count, power)) {
                    continue;
                }
                let gram = self.index.get(words.gram(first, count)).copied();
                if let Some(gram) = gram.filter(|&gram| wanted(gram)) {
                    return Some((first, count, gram));
                }
            }
        }
        None
    }

    fn mark(&mut self, hash: u64) {
        let (word, bit) = self.bit(hash);
        self.filter[word] |= bit;
    }

    #[inline]
    fn is_marked(&self, hash: u64) -> bool {
        let (word, bit) = self.bit(hash);
        self.filter[word] & bit != 0
    }

    /// Filter position of a hash. The upper bits of a product are the better mixed ones.
    #[inline]
    fn bit(&self, hash: u64) -> (usize, u64) {
        ((hash >> 6) as usize & (self.filter.len() - 1), 1 << (hash & 63))
    }
}
