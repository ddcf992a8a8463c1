//! A step: expired requests end, guesses are made, the chosen sequences read their next tokens, and the following
//! tokens are chosen.

use std::time::Instant;

use super::{Ready, Scheduler};

impl Scheduler<'_> {
    /// Reads the next tokens of the sequences; false if there are none and no disk read is in progress. A request with
    /// non-finite logits fails.
    pub fn step(&mut self) -> bool {
        self.prepare();
        self.run()
    }

    /// First half of a step: ends expired requests, and guesses the next tokens of answered sequences.
    pub(crate) fn prepare(&mut self) {
        self.answers.clock.look();
        self.started = Instant::now();
        self.expire();
        self.batch.sort(self.answers.now());
        self.guess();
    }

    /// Second half of a step; false if there was nothing to read.
    pub(crate) fn run(&mut self) -> bool {
        self.memory.take_reads(self.engine.device, &self.batch.waiting);
        let answered = self.answers.totals.answer_tokens;
        let chosen = self.choose();
        if chosen.is_empty() {
            return self.memory.await_read();
        }
        let began = Instant::now();
        let sources = self.batch.unread_sources();
        let hidden = self.read(&chosen);
        let mut read = sources;
        let mut row = 0;
        let mut ready = Vec::new();
        for (index, count) in &chosen {
            let sequence = &mut self.batch.running[*index];
            let rows = row..row + count;
            (row, read) = (row + count, read + count);
            let count = count - sequence.drafts.len();
            let known = sequence.held + 1..sequence.held + count + 1;
            (sequence.held, sequence.again) = (sequence.held + count, 0);
            self.memory.mark(self.engine, sequence);
            self.memory.keep(self.engine.device, sequence);
            self.memory.pages.slide(&mut sequence.table, sequence.saved.unwrap_or(sequence.held));
            self.prompt_logprobs(*index, &hidden, rows.clone(), known);
            if self.batch.running[*index].held == self.batch.running[*index].ids.len() {
                ready.push(Ready { index: *index, rows: rows.start + count - 1..rows.end });
            }
        }
        self.answer(&hidden, &ready);
        let prompts = chosen.iter().filter(|(_, count)| *count > self.engine.limits.draft_tokens + 1);
        let prompts = prompts.map(|(_, count)| count).sum::<usize>() + sources;
        self.answers.count(read, prompts, began.elapsed().as_secs_f64());
        if let Some(drafter) = &mut self.drafter {
            let tokens = self.answers.totals.answer_tokens - answered;
            drafter.took(chosen.len(), tokens, self.started.elapsed().as_secs_f64());
        }
        true
    }
}
