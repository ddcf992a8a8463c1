//! A step: expired requests end, guesses are made, the chosen sequences read their next tokens, and the following
//! tokens are chosen.

use std::cmp::Reverse;
use std::time::Instant;

use super::sequence::rank;
use super::{Ready, Scheduler};

/// Number of steps in [`fathom_base::Load::step_tokens`].
const STEPS: usize = 64;

impl Scheduler<'_> {
    /// Reads the next tokens of the sequences; false if there are none and no disk read is in progress. A request with
    /// non-finite logits fails.
    pub fn step(&mut self) -> bool {
        self.prepare();
        self.run()
    }

    /// First half of a step: ends expired requests, and guesses the next tokens of answered sequences.
    pub(crate) fn prepare(&mut self) {
        self.clock.look();
        self.started = Instant::now();
        self.expire();
        // Answers come first; a prompt can wait for a step.
        let now = self.clock.now();
        self.running.sort_by_key(|sequence| (!sequence.answers(), Reverse(rank(sequence, now))));
        self.guess();
    }

    /// Second half of a step; false if there was nothing to read.
    pub(crate) fn run(&mut self) -> bool {
        self.take_reads();
        let answered = self.totals.answer_tokens;
        let chosen = self.choose();
        if chosen.is_empty() {
            return self.await_read();
        }
        let began = Instant::now();
        let hidden = self.read(&chosen);
        let mut read = 0;
        let mut row = 0;
        let mut ready = Vec::new();
        for (index, count) in &chosen {
            let sequence = &mut self.running[*index];
            let rows = row..row + count;
            (row, read) = (row + count, read + count);
            let count = count - sequence.drafts.len();
            let known = sequence.held + 1..sequence.held + count + 1;
            sequence.held += count;
            self.keep(*index);
            let sequence = &mut self.running[*index];
            self.pages.slide(&mut sequence.table, sequence.held);
            self.prompt_logprobs(*index, &hidden, rows.clone(), known);
            if self.running[*index].held == self.running[*index].ids.len() {
                ready.push(Ready { index: *index, rows: rows.start + count - 1..rows.end });
            }
        }
        self.answer(&hidden, &ready);
        self.count(&chosen, read, began.elapsed().as_secs_f64());
        if let Some(drafter) = &mut self.drafter {
            let tokens = self.totals.answer_tokens - answered;
            drafter.took(chosen.len(), tokens, self.started.elapsed().as_secs_f64());
        }
        true
    }

    fn count(&mut self, chosen: &[(usize, usize)], read: usize, seconds: f64) {
        if self.totals.step_tokens.len() == STEPS {
            self.totals.step_tokens.remove(0);
        }
        self.totals.step_tokens.push(read as u32);
        let prompts = chosen.iter().filter(|(_, count)| *count > self.engine.limits.draft_tokens + 1);
        let prompts: usize = prompts.map(|(_, count)| count).sum();
        self.totals.prompt_tokens += prompts as u64;
        if 2 * prompts > read {
            // A decaying average over the last few seconds of reading.
            let keep = if self.prefilled[1] > 10.0 { 0.5 } else { 1.0 };
            self.prefilled = [self.prefilled[0] * keep + read as f64, self.prefilled[1] * keep + seconds];
        }
    }
}
