//! The sequences of the batch: those that run, each in a slot of the model's state, and those that wait.

use std::cmp::Reverse;
use std::time::Duration;

use super::sequence::{Sequence, rank};

/// Running and waiting sequences.
pub(super) struct Batch<'e> {
    pub running: Vec<Sequence<'e>>,
    pub waiting: Vec<Sequence<'e>>,
    /// Free slots.
    pub slots: Vec<usize>,
}

impl<'e> Batch<'e> {
    pub fn new(sequences: usize) -> Batch<'e> {
        Batch { running: Vec::new(), waiting: Vec::new(), slots: (0..sequences).rev().collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The sequences of a request, running ones first.
    pub fn of(&self, request: u64) -> impl Iterator<Item = &Sequence<'e>> {
        self.running.iter().chain(&self.waiting).filter(move |sequence| sequence.request == request)
    }

    /// Takes a request's sequences out, and returns the number of those that ran, which are first.
    pub fn take(&mut self, request: u64) -> (Vec<Sequence<'e>>, usize) {
        let is_its = |sequence: &mut Sequence<'_>| sequence.request == request;
        let mut all: Vec<Sequence<'e>> = self.running.extract_if(.., is_its).collect();
        let ran = all.len();
        all.extend(self.waiting.extract_if(.., is_its));
        (all, ran)
    }

    /// True if the source of a waiting sequence can be read now: running sequences' are held up to a number of tokens, and a step reads those of up
    /// to another number, or one.
    pub fn has_room_for(&self, waiting: usize, [held, read]: [usize; 2]) -> bool {
        let Some(source) = &self.waiting[waiting].source else { return true };
        if self.running.is_empty() || self.running.iter().any(|it| it.answers_to(source)) {
            return true;
        }
        let there: usize = self.sources().map(|sequence| sequence.source_tokens()).sum();
        let unread = self.unread_sources();
        there + source.ids.len() <= held && (unread == 0 || unread + source.unread() <= read)
    }

    /// A running sequence for each source.
    fn sources(&self) -> impl Iterator<Item = &Sequence<'e>> {
        self.running.iter().enumerate().filter_map(|(at, sequence)| {
            let source = sequence.source.as_ref()?;
            let known = self.running[..at].iter().any(|other| other.answers_to(source));
            (!known).then_some(sequence)
        })
    }

    /// Tokens of the running sequences' sources that are still to be read.
    pub fn unread_sources(&self) -> usize {
        self.sources().map(Sequence::unread_source).sum()
    }

    /// Gives the source of a sequence that does not run any more up, unless another one reads it.
    pub fn release(&self, sequence: &Sequence<'e>) {
        let source = sequence.source.as_ref();
        if let Some(source) = source.filter(|source| !self.running.iter().any(|it| it.answers_to(source))) {
            source.release();
        }
    }

    /// Answered sequences first, since a prompt can wait for a step; then by rank.
    pub fn sort(&mut self, now: Duration) {
        self.running.sort_by_key(|sequence| (!sequence.answers(), Reverse(rank(sequence, now))));
    }
}
