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

    /// Answered sequences first, since a prompt can wait for a step; then by rank.
    pub fn sort(&mut self, now: Duration) {
        self.running.sort_by_key(|sequence| (!sequence.answers(), Reverse(rank(sequence, now))));
    }
}
