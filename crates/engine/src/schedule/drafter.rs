//! Guesses of a small model with the same vocabulary (speculative decoding: Leviathan et al., 2023, arXiv:2211.17192).
//!
//! The draft model reads the tokens of the answered sequences into its own pages, and each guess is chosen by a copy of
//! the sequence's sampler, with the draw that the actual token will use: if both models find the same tokens likely,
//! they choose the same. The token that the sampler then chooses from the model's own logits counts, so no answer
//! changes, sampled or not. If guessing makes generation slower, it is disabled for a while.

use fathom_tensor::{Device, Tensor};

use super::draft::Draft;
use super::sequence::Sequence;
use crate::engine::Engine;
use crate::limits::Capacity;
use crate::pages::{Feed, Pages};
use crate::sampler::Sampler;
use crate::structure::Constraint;

/// Number of steps for trying one mode.
const TRIED: u32 = 16;
/// Number of steps for which the better mode is kept before the other is tried again.
const KEPT: u32 = 512;

/// The draft model, with its pages.
pub(super) struct Drafter<'e> {
    engine: &'e Engine<'e>,
    pages: Pages,
    pub worth: Worth,
    /// Number of sequences being answered in this step.
    answering: usize,
    /// True if it read missed tokens in this step, besides the last ones.
    behind: bool,
}

/// Guessed continuation of an answer on a rank with a draft model; may be empty.
#[derive(Clone)]
pub(crate) struct Guess {
    pub request: u64,
    pub answer: usize,
    pub ids: Vec<u32>,
    /// True if the draft model guessed.
    pub guessed: bool,
}

/// The guesses of a sequence in progress.
struct GuessProgress {
    index: usize,
    /// The tokens to read next.
    ids: Vec<u32>,
    most: usize,
    sampler: Sampler,
    structure: Option<Constraint>,
}

impl GuessProgress {
    /// Chooses the next guess; false if there are to be no more.
    fn next(&mut self, device: &Device, logits: &Tensor, drafts: &mut Vec<u32>) -> bool {
        let allowed = self.structure.as_mut().map(Constraint::mask).transpose();
        // There is no guess if no token may follow, or logits are not finite.
        let Ok(id) = allowed.and_then(|allowed| self.sampler.next(device, logits, allowed)) else {
            return false;
        };
        drafts.push(id);
        self.ids = vec![id];
        let goes_on = self.structure.as_mut().is_none_or(|structure| matches!(structure.take(id), Ok(false)));
        goes_on && drafts.len() < self.most && !self.sampler.ends().contains(&id)
    }
}

impl<'e> Drafter<'e> {
    /// A drafter with pages for the tokens of a capacity of the model.
    pub fn new(engine: &'e Engine<'e>, capacity: &Capacity) -> Drafter<'e> {
        let dtype = engine.model.dtype(engine.params);
        let capacity = engine.alongside(capacity);
        let room = (&capacity.pages[..], capacity.sequences, false);
        let pages = Pages::new(engine.device, engine.model, (dtype, engine.limits.kv), room);
        Drafter { engine, pages, worth: Worth::default(), answering: 0, behind: false }
    }

    /// Number of pages in use.
    pub fn used(&self) -> usize {
        let [pages, free] = self.pages.counts(0);
        pages - free
    }

    /// Frees the pages of a sequence.
    pub fn release(&mut self, mut draft: Draft) {
        self.pages.clear(&mut draft.table);
    }

    /// Guesses the next tokens of the answered sequences that have no guesses yet. `lead` is the number of virtual
    /// tokens before each, which the draft model does not read.
    pub fn guess(&mut self, running: &mut [Sequence<'_>], lead: usize) {
        self.behind = false;
        self.answering = running.iter().filter(|sequence| sequence.answers()).count();
        if self.answering == 0 || !self.worth.wants(self.answering) {
            return;
        }
        let (mut left, mut open) = (self.engine.limits.chunk_tokens, Vec::new());
        for index in 0..running.len() {
            if let Some(guessing) = self.begin(running, index, (lead, left)) {
                left -= guessing.ids.len();
                open.push(guessing);
            }
        }
        while !open.is_empty() {
            let hidden = self.read(running, &open);
            let (mut end, mut rows) = (0, Vec::new());
            open.retain(|guessing| {
                let Sequence { ids, drafts, draft, .. } = &mut running[guessing.index];
                end += guessing.ids.len();
                let Some(draft) = draft else { return false };
                draft.held += guessing.ids.len();
                let all = draft.held == ids.len() - lead + drafts.len();
                rows.extend(all.then_some(end - 1));
                all
            });
            if rows.is_empty() {
                return;
            }
            let (logits, mut row) = (self.engine.head(&hidden, &rows), 0..rows.len());
            open.retain_mut(|guessing| {
                let at = row.next().unwrap_or_default();
                let sequence = &mut running[guessing.index];
                sequence.guessed = true;
                guessing.next(self.engine.device, &logits.view_rows(at..at + 1), &mut sequence.drafts)
            });
        }
    }

    /// The first tokens to read of a sequence, at most `left`; `None` if nothing is to be guessed.
    fn begin(
        &mut self,
        running: &mut [Sequence<'_>],
        index: usize,
        (lead, left): (usize, usize),
    ) -> Option<GuessProgress> {
        let sequence = &mut running[index];
        if left == 0 || !sequence.guesses() || !sequence.drafts.is_empty() {
            return None;
        }
        let tokens = sequence.ids.len() - lead;
        let room = sequence.writer.left().saturating_sub(1);
        let most = sequence.guessing.many(room.min(self.engine.room().saturating_sub(tokens)));
        if most == 0 {
            return None;
        }
        let draft = match running[index].draft.take() {
            Some(draft) => draft,
            None => self.first(running, index, lead)?,
        };
        let sequence = &mut running[index];
        let draft = sequence.draft.insert(draft);
        // Guesses of a step that did not run are not part of the sequence.
        draft.keep(tokens - 1);
        let unread = &sequence.ids[lead + draft.held..];
        self.behind |= unread.len() > self.engine.limits.draft_tokens + 2;
        let ids = unread[..unread.len().min(left)].to_vec();
        self.pages.slide(&mut draft.table, draft.held);
        let grown = self.pages.grow(&mut draft.table, draft.held + ids.len() + most, false);
        let vocab = self.engine.model.spec.vocab;
        if grown.is_err() || ids.iter().any(|id| *id as usize >= vocab) {
            sequence.draft.take().into_iter().for_each(|draft| self.release(draft));
            sequence.guessing.judge(1, 0);
            return None;
        }
        let structure = sequence.structure.as_mut().map(Constraint::again);
        Some(GuessProgress { index, ids, most, sampler: sequence.sampler.guessing(), structure })
    }

    /// The draft state of a new sequence: it shares the prompt of another answer that has been read; `None` while
    /// another answer is being read.
    fn first(&mut self, running: &[Sequence<'_>], index: usize, lead: usize) -> Option<Draft> {
        let Sequence { request, prompt, .. } = &running[index];
        let held = prompt - lead;
        let mut others =
            running.iter().filter(|it| it.request == *request).filter_map(|it| it.draft.as_ref());
        let other = others.clone().find(|draft| draft.held >= held);
        if other.is_none() && others.next().is_some() {
            return None;
        }
        // Layers with a window have freed the prompt's pages.
        let whole = (0..self.pages.classes()).all(|class| self.pages.window(class).is_none());
        let table = other.filter(|_| whole).and_then(|other| {
            let forked = self.pages.fork(self.engine.device, &other.table, held);
            Some(Draft { table: forked.ok()?, held })
        });
        Some(table.unwrap_or_else(|| Draft { table: self.pages.table(), held: 0 }))
    }

    /// The hidden states of the tokens read next.
    fn read(&mut self, running: &[Sequence<'_>], open: &[GuessProgress]) -> Tensor {
        let mut feeds = Vec::with_capacity(open.len());
        for GuessProgress { index, ids, .. } in open {
            let Some(Draft { table, held }) = &running[*index].draft else { continue };
            feeds.push(Feed {
                ids,
                held: *held,
                table,
                known: held + ids.len(),
                slot: 0,
                terms: None,
                source: None,
            });
        }
        self.engine.forward(&self.pages, &feeds)
    }

    /// Records the duration of a step, including guesses, and its answer tokens; it read `sequences`. Steps that read
    /// prompts do not count.
    pub fn took(&mut self, sequences: usize, tokens: u64, seconds: f64) {
        if !self.behind && sequences == self.answering {
            self.worth.took(self.answering, tokens as f64, seconds);
        }
    }
}

/// Measures whether guesses pay off: answer tokens per second with and without them, by number of answered sequences.
#[derive(Debug, Default)]
pub(super) struct Worth(Vec<Ways>);

/// Two modes, one of which is tried or kept at a time.
#[derive(Clone, Debug)]
struct Ways {
    /// Tokens and seconds, of steps without guesses and with them.
    took: [[f64; 2]; 2],
    guesses: bool,
    /// Remaining steps of the current mode.
    left: u32,
    /// True if the mode is kept rather than tried.
    kept: bool,
}

impl Worth {
    fn ways(&mut self, answering: usize) -> &mut Ways {
        let at = answering.max(1).ilog2() as usize;
        if self.0.len() <= at {
            let new = Ways { took: [[0.0; 2]; 2], guesses: true, left: TRIED, kept: false };
            self.0.resize(at + 1, new);
        }
        &mut self.0[at]
    }

    /// True if there should be guesses for this number of answered sequences.
    pub fn wants(&mut self, answering: usize) -> bool {
        self.ways(answering).guesses
    }

    fn took(&mut self, answering: usize, tokens: f64, seconds: f64) {
        let ways = self.ways(answering);
        let [all, spent] = &mut ways.took[usize::from(ways.guesses)];
        (*all, *spent) = (*all + tokens, *spent + seconds);
        ways.left -= 1;
        if ways.left == 0 {
            ways.turn();
        }
    }
}

impl Ways {
    /// Switches modes: after one was kept, the other is tried; once both are measured, the better is kept.
    fn turn(&mut self) {
        let [without, with] = self.took;
        let other = self.took[usize::from(!self.guesses)];
        if self.kept || other[1] == 0.0 {
            self.guesses = !self.guesses;
            self.took[usize::from(self.guesses)] = [0.0; 2];
            (self.left, self.kept) = (TRIED, false);
            return;
        }
        self.guesses = with[0] * without[1] >= without[0] * with[1];
        self.took[usize::from(self.guesses)] = [0.0; 2];
        (self.left, self.kept) = (KEPT, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of steps with guesses out of 2000, if these take `seconds` for `tokens` tokens, and one token without
    /// guesses takes a second.
    fn guessed(tokens: f64, seconds: f64) -> usize {
        let mut worth = Worth::default();
        let step = |_: &usize| {
            let guesses = worth.wants(3);
            let (tokens, seconds) = if guesses { (tokens, seconds) } else { (1.0, 1.0) };
            worth.took(3, tokens, seconds);
            guesses
        };
        (0..2000).filter(step).count()
    }

    #[test]
    fn guesses_that_lose_are_left() {
        assert!(guessed(2.0, 1.5) > 1900);
        assert!(guessed(1.2, 1.5) < 100);
        // If both are equally fast, guesses are kept.
        assert!(guessed(1.5, 1.5) > 1900);
        // Each number of concurrent sequences is measured separately.
        let mut worth = Worth::default();
        for _ in 0..40 {
            let seconds = if worth.wants(8) { 9.0 } else { 1.0 };
            worth.took(8, 1.0, seconds);
        }
        assert!(!worth.wants(8) && !worth.wants(15) && worth.wants(7) && worth.wants(16));
    }
}
