//! Which sequences a step reads, and how many tokens of each.

use fathom_tensor::{PAGE_ROWS, SCAN_STEPS};

use super::Scheduler;
use super::memory::{Memory, next_mark};
use super::reading::Fetch;
use super::sequence::{Sequence, rank};
use crate::pages::{Short, pages_for, pages_of};

impl Scheduler<'_> {
    /// The sequences of this step, with the number of tokens that each reads; rows of a pass, and within it those of an
    /// adapter, are adjacent.
    pub(super) fn choose(&mut self) -> Vec<(usize, usize)> {
        let mut chosen = self.that_have_room();
        while chosen.is_empty() {
            // Beams that wait for one without room give up their pages.
            let Some(index) = self.batch.running.iter().rposition(Sequence::waits) else { break };
            self.preempt(index);
            chosen = self.that_have_room();
        }
        let place = |(index, _): &(usize, usize)| {
            let sequence = &self.batch.running[*index];
            (sequence.on_disk, sequence.pass(), sequence.identity())
        };
        chosen.sort_by(|a, b| place(a).cmp(&place(b)));
        chosen
    }

    /// Answered sequences, then prompts within the budget, as far as there are pages.
    fn that_have_room(&mut self) -> Vec<(usize, usize)> {
        let mut left = self.engine.limits.chunk_tokens.max(1);
        // Where layers have states, prompts are read by whole pages: answers and guesses leave one to them.
        let mut page = if self.engine.has_states() { PAGE_ROWS } else { 0 };
        // Tokens that answered sequences have to read, also again after a wrong guess, come before anybody's guesses.
        let mut owed: usize = self.batch.running.iter().filter(|it| it.answers()).map(Sequence::unread).sum();
        let mut chosen = Vec::new();
        let mut index = 0;
        while index < self.batch.running.len() {
            if !self.batch.running[index].answers() {
                left = left.max(std::mem::take(&mut page));
            }
            let sequence = &self.batch.running[index];
            owed = owed.saturating_sub(if sequence.answers() { sequence.unread() } else { 0 });
            self.trim(index, left.saturating_sub(page + owed));
            let sequence = &self.batch.running[index];
            let count = if sequence.answers() {
                // Where tokens are read again, they may wait for the next step.
                if sequence.again > 0 && sequence.unread() > left && !chosen.is_empty() {
                    index += 1;
                    continue;
                }
                sequence.unread() + sequence.drafts.len()
            } else {
                self.chunk(sequence, left)
            };
            if count == 0 && left == 0 {
                break;
            }
            // A beam that is read waits for the others.
            if count > 0 && self.make_room(index, count) {
                chosen.push((index, count));
                left = left.saturating_sub(count);
            }
            index += 1;
        }
        left = left.max(page);
        while left > 0 && self.batch.running.len() < self.bounds.capacity.sequences {
            let Some(count) = self.admit(left) else { break };
            chosen.push((self.batch.running.len() - 1, count));
            left -= count;
        }
        chosen
    }

    /// The next sequence to admit, for which nothing remains to be read from disk.
    fn best(&mut self) -> Option<usize> {
        let (now, mut later) = (self.answers.clock.now(), Vec::new());
        // A step gathers pages from disk for only one sequence.
        let reads_disk = self.batch.running.iter().any(|it| it.on_disk);
        loop {
            let can = |index: &usize| {
                let sequence = &self.batch.waiting[*index];
                let busy = sequence.waits() || self.memory.is_fetching(sequence) || later.contains(index);
                !(busy || (sequence.on_disk && reads_disk))
            };
            let best = (0..self.batch.waiting.len())
                .filter(can)
                .max_by_key(|index| (rank(&self.batch.waiting[*index], now), std::cmp::Reverse(*index)))?;
            let sequence = &mut self.batch.waiting[best];
            let reads_all = self.answers.may_skip(sequence, self.bounds.lead) < usize::MAX;
            match self.memory.fetches(sequence, self.engine.spec(), reads_all) {
                Fetch::Nothing => return Some(best),
                Fetch::Comes => {}
                Fetch::Later => later.push(best),
            }
        }
    }

    /// Admits the next waiting sequence; returns the number of tokens that it reads. `None` if none waits, or there are
    /// too few pages.
    fn admit(&mut self, left: usize) -> Option<usize> {
        let best = self.best()?;
        let most = [self.bounds.source_tokens(), self.engine.limits.chunk_tokens];
        if !self.batch.has_room_for(best, most) {
            return None;
        }
        let mut sequence = self.batch.waiting.remove(best);
        let may_skip = self.answers.may_skip(&sequence, self.bounds.lead);
        let cached = self.memory.begin(self.engine, &mut sequence, may_skip);
        let count = self.chunk(&sequence, left);
        // A prompt is admitted only if all of it has room, unless it would be alone.
        let needed = pages_for(&self.bounds.windows, 1, sequence.ids.len(), self.bounds.limits.chunk_tokens);
        let (held, on_disk) = (pages_of(sequence.held), sequence.on_disk);
        let short = |memory: &mut Memory| {
            needed.iter().enumerate().any(|(class, needed)| {
                let free = memory.pages.free(class, on_disk);
                let missing = needed.saturating_sub(held).saturating_sub(free);
                missing > 0 && !memory.evict(class, (missing, on_disk))
            })
        };
        if !self.batch.running.is_empty() && (count == 0 || short(&mut self.memory)) {
            self.memory.pages.clear(&mut sequence.table);
            (sequence.held, sequence.checkpoint) = (0, None);
            self.batch.waiting.insert(best.min(self.batch.waiting.len()), sequence);
            return None;
        }
        self.memory.forget_read(&sequence);
        sequence.slot = self.batch.slots.pop()?;
        if let Some(checkpoint) = sequence.checkpoint.take() {
            self.memory.pages.restore(self.engine.device, sequence.slot, &checkpoint);
        }
        self.answers.start(&sequence, cached, self.bounds.lead);
        self.batch.running.push(sequence);
        let index = self.batch.running.len() - 1;
        if self.make_room(index, count) {
            return Some(count);
        }
        self.preempt(index);
        None
    }

    /// The number of unread tokens that a sequence reads next, of `left`. Where layers have states, a prompt is cut where these
    /// are kept and at whole pages alone, and an answer's tokens are taken one after the other when they are read again, so
    /// that no bit depends on other sequences, on cached prefixes or on preemption.
    fn chunk(&self, sequence: &Sequence<'_>, left: usize) -> usize {
        let (unread, Sequence { held, prompt, .. }) = (sequence.unread().min(left), sequence);
        if !self.engine.has_states() {
            return unread;
        }
        if held >= prompt {
            return unread.min(SCAN_STEPS);
        }
        let end = next_mark(*held, *prompt).unwrap_or(*prompt);
        if end <= held + left {
            return end - held;
        }
        ((held + left) / PAGE_ROWS * PAGE_ROWS).saturating_sub(*held)
    }

    /// Makes room for a sequence's next tokens, evicting cached pages if need be, and then preempting lower-ranked
    /// sequences. A sequence that becomes a long one is read again.
    fn make_room(&mut self, index: usize, count: usize) -> bool {
        let sequence = &mut self.batch.running[index];
        if !sequence.long && sequence.is_long_at(self.engine.spec(), sequence.held + count) {
            self.memory.restart(sequence, self.engine.spec());
        }
        loop {
            let Sequence { table, held, on_disk, .. } = &mut self.batch.running[index];
            let on_disk = *on_disk;
            let Err(Short { class, pages }) = self.memory.pages.grow(table, *held + count, on_disk) else {
                return true;
            };
            if self.memory.evict(class, (pages, on_disk)) || self.memory.give_up_reads() {
                continue;
            }
            if index + 1 == self.batch.running.len() {
                return false;
            }
            self.preempt(self.batch.running.len() - 1);
        }
    }
}
