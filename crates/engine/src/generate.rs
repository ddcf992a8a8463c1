//! Whole answers: requests that are computed together, for a caller on the engine's own thread.

use std::cell::RefCell;

use fathom_base::{Event, Flow, GenerateRequest, Generation, Prompt, RequestOutput};

use crate::engine::Engine;
use crate::error::Error;
use crate::schedule::Scheduler;

impl Engine<'_> {
    /// Answers several requests together; returns each request's answers, in order.
    ///
    /// # Errors
    /// The first request that is refused or fails.
    pub fn generate_all(&self, requests: Vec<GenerateRequest>) -> Result<Vec<Vec<Generation>>, Error> {
        let mut tokens = 0;
        for request in &requests {
            tokens = tokens.max(self.ids(&request.prompt)?.len().saturating_add(request.sampling.max_tokens));
        }
        // The scheduler refuses requests beyond the context before pages are needed for them.
        let sequences = requests.iter().map(|request| request.sequences().max(1)).sum();
        let capacity = self.capacity(sequences, tokens.min(self.room()) + self.lead());
        let collected: Vec<RefCell<RequestOutput>> =
            requests.iter().map(|request| RefCell::new(RequestOutput::of(request.answers))).collect();
        let mut scheduler = Scheduler::new(self, capacity);
        for (request, collected) in requests.into_iter().zip(&collected) {
            let listener = |event| {
                collected.borrow_mut().push(event);
                Flow::Continue
            };
            scheduler.submit(request, Box::new(listener))?;
        }
        while scheduler.step() {}
        drop(scheduler);
        collected.into_iter().map(|it| it.into_inner().generations().map_err(Error::Failed)).collect()
    }

    /// Generates the first answer to a request, calling `on_text` with each piece of final text (whole characters, and
    /// never the beginning of a stop text).
    ///
    /// # Errors
    /// A request that is refused or fails.
    pub fn generate(
        &self,
        request: &GenerateRequest,
        on_text: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Generation, Error> {
        let ids = self.ids(&request.prompt)?;
        self.check(&ids, request.sampling.max_tokens)?;
        let tokens = self.lead() + ids.len() + request.sampling.max_tokens;
        let request = GenerateRequest { prompt: Prompt::Ids(ids), answers: 1, ..request.clone() };
        let capacity = self.capacity(request.sequences().max(1), tokens);
        let collected = RefCell::new(RequestOutput::of(1));
        let mut scheduler = Scheduler::new(self, capacity);
        let listener = |event| {
            let flow = match &event {
                Event::Piece { text, .. } if !text.is_empty() => on_text(text),
                _ => Flow::Continue,
            };
            collected.borrow_mut().push(event);
            flow
        };
        scheduler.submit(request, Box::new(listener))?;
        while scheduler.step() {}
        drop(scheduler);
        Ok(collected.into_inner().generations().map_err(Error::Failed)?.swap_remove(0))
    }

    /// Greedy continuations of several prompts, computed together: `max_tokens` new ids each, or fewer up to an
    /// end-of-text token.
    ///
    /// # Errors
    /// A prompt that is empty, has unknown ids, or is too long; non-finite logits.
    pub fn greedy(&self, prompts: &[Vec<u32>], max_tokens: usize) -> Result<Vec<Vec<u32>>, Error> {
        let request = |prompt: &Vec<u32>| GenerateRequest::greedy(prompt.clone(), max_tokens);
        let answers = self.generate_all(prompts.iter().map(request).collect())?;
        Ok(answers.into_iter().flatten().map(|answer| answer.ids).collect())
    }
}
