//! Guesses of a step: from earlier repetitions in a sequence, or by the draft model.

use fathom_tensor::PAGE_ROWS;

use super::Scheduler;
use super::draft::{LEAST_MATCH, LONG_MATCH};
use super::drafter::Guess;
use super::sequence::Sequence;
use crate::pages::pages_of;

impl Scheduler<'_> {
    /// Guesses the next tokens of the answered sequences: from earlier repetitions, or else by the draft model, which
    /// is preferred to a short match if it was right recently.
    pub(super) fn guess(&mut self) {
        let answering = self.batch.running.iter().filter(|sequence| sequence.answers()).count();
        let small = self.drafter.as_mut().is_some_and(|drafter| drafter.worth.wants(answering));
        for sequence in &mut self.batch.running {
            sequence.drafts.clear();
            sequence.guessed = false;
            if sequence.guesses() {
                let room = sequence.writer.left().saturating_sub(1);
                let least = if small && sequence.guessing.is_right() { LONG_MATCH } else { LEAST_MATCH };
                sequence.drafts = sequence.drafting.draft(&sequence.ids, room, least);
            }
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.guess(&mut self.batch.running, self.bounds.lead);
        }
    }

    /// The guesses of this step, for ranks without a draft model; empty if this rank has none either.
    pub(crate) fn guesses(&self) -> Vec<Guess> {
        let answers = self.batch.running.iter().filter(|it| self.drafter.is_some() && it.answers());
        let of = |it: &Sequence<'_>| Guess {
            request: it.request,
            answer: it.answer,
            ids: it.drafts.clone(),
            guessed: it.guessed,
        };
        answers.map(of).collect()
    }

    /// Replaces guesses by those of the first rank.
    pub(crate) fn take_guesses(&mut self, guesses: Vec<Guess>) {
        for Guess { request, answer, ids, guessed } in guesses {
            let of = |it: &&mut Sequence<'_>| it.request == request && it.answer == answer;
            if let Some(sequence) = self.batch.running.iter_mut().find(of) {
                (sequence.drafts, sequence.guessed) = (ids, guessed);
            }
        }
    }

    /// Drops the guesses that do not fit into a step of `left` tokens, or into the sequence's pages and free ones.
    pub(super) fn trim(&mut self, index: usize, left: usize) {
        let (held, unread) = (self.batch.running[index].held, self.batch.running[index].unread());
        let free = (0..self.memory.pages.classes())
            .map(|class| self.memory.pages.counts(class)[1])
            .min()
            .unwrap_or(0);
        let room = (pages_of(held + unread) + free) * PAGE_ROWS - held - unread;
        self.batch.running[index].drafts.truncate(left.saturating_sub(unread).min(room));
        // A sequence that becomes a long one is read again.
        let sequence = &self.batch.running[index];
        if !sequence.long
            && sequence.is_long_at(self.engine.spec(), sequence.ids.len() + sequence.drafts.len())
        {
            self.batch.running[index].drafts.clear();
        }
        let drafts = self.batch.running[index].drafts.len() as u64;
        self.answers.totals.drafted_tokens += drafts;
        self.answers.totals.drafts += drafts.min(1);
    }

    /// Records that `right` of the `drafted` guesses of a sequence were right.
    pub(super) fn judge(&mut self, index: usize, drafted: usize, right: usize) {
        let places = &mut self.answers.totals.accepted_at;
        places.resize(places.len().max(right), 0);
        places[..right].iter_mut().for_each(|place| *place += 1);
        self.answers.totals.accepted_tokens += right as u64;
        let (sequence, lead) = (&mut self.batch.running[index], self.bounds.lead);
        let guessing = if sequence.guessed { &mut sequence.guessing } else { &mut sequence.drafting };
        guessing.judge(drafted, right);
        if let Some(draft) = &mut sequence.draft {
            draft.keep(sequence.ids.len() - lead - 1);
        }
    }
}
