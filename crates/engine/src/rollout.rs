//! Answers for training, generated with the trainer's own weights.

use std::cell::RefCell;
use std::rc::Rc;

use fathom_base::{Answer, Event, Flow, GenerateRequest, RequestOutput, Sampling, Stop};
use fathom_model::{ModelView, Rollout, RolloutAnswer, RolloutError, RolloutRequest};
use fathom_text::Tokenizer;

use crate::engine::Engine;
use crate::error::Error;
use crate::limits::Limits;
use crate::parts::with_all_rows;
use crate::schedule::Scheduler;

/// Generates answers by continuous batching, with any model.
pub struct Writer {
    /// The model's tokenizer.
    pub tokenizer: Rc<Tokenizer>,
    /// Maximum tokens read per step.
    pub chunk_tokens: usize,
    /// Maximum number of concurrent sequences; 0: all.
    pub sequences: usize,
}

impl Rollout for Writer {
    fn rollout(
        &self,
        weights: ModelView<'_>,
        asked: &RolloutRequest,
    ) -> Result<Vec<Vec<RolloutAnswer>>, RolloutError> {
        let ModelView { device, model, params } = weights;
        let device = &with_all_rows(device);
        let longest = asked.prompts.iter().map(Vec::len).max().unwrap_or(0) + asked.max_tokens;
        let limits = Limits { context_tokens: longest, chunk_tokens: self.chunk_tokens, ..Limits::default() };
        let greedy = asked.temperature == 0.0;
        let engine = Engine::new(ModelView { device, model, params }, &self.tokenizer, limits);
        let engine = engine.at(if greedy { 1.0 } else { asked.temperature });
        let all = asked.prompts.len() * asked.answers;
        let sequences = if self.sequences == 0 { all } else { self.sequences.min(all) };
        let collected: Vec<RefCell<RequestOutput>> =
            asked.prompts.iter().map(|_| RefCell::new(RequestOutput::of(asked.answers))).collect();
        // Without data all tokens are the same, and none ends an answer.
        let ends = if device.machine.has_data() { self.tokenizer.stops() } else { &[] };
        let mut scheduler = Scheduler::new(&engine, engine.capacity(sequences, longest));
        for ((prompt, seed), collected) in asked.prompts.iter().zip(&asked.seeds).zip(&collected) {
            let sampling = Sampling {
                temperature: if greedy { 0.0 } else { 1.0 },
                top_k: asked.top_k,
                top_p: asked.top_p,
                min_p: asked.min_p,
                seed: *seed,
                max_tokens: asked.max_tokens,
                // The end token is trained on, so it must be reported.
                ignore_eos: true,
                ..Sampling::default()
            };
            let request = GenerateRequest::new(prompt.clone(), sampling);
            let request =
                GenerateRequest { answers: asked.answers, logprobs: Some(0), kept: asked.kept, ..request };
            let listener = move |event| {
                let is_end = |id: &u32| ends.contains(id);
                let ended = matches!(&event, Event::Piece { ids, .. } if ids.iter().any(is_end));
                collected.borrow_mut().push(event);
                if ended { Flow::Stop } else { Flow::Continue }
            };
            scheduler.submit(request, Box::new(listener))?;
        }
        while scheduler.step() {}
        drop(scheduler);
        collected.into_iter().map(|collected| self.answers(collected.into_inner(), ends)).collect()
    }
}

impl Writer {
    /// The answers to a prompt; one ends with the first end token, which is part of it.
    fn answers(&self, collected: RequestOutput, ends: &[u32]) -> Result<Vec<RolloutAnswer>, RolloutError> {
        let RequestOutput { answers, failed, .. } = collected;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let one = |answer: Answer| {
            let stopped = matches!(answer.stop, Some(Stop::EndOfText | Stop::StopToken(_)));
            let ended = stopped || answer.ids.last().is_some_and(|id| ends.contains(id));
            let logps: Vec<f32> = answer.logprobs.iter().map(|token| token.logprob.unwrap_or(0.0)).collect();
            if logps.iter().any(|logp| !logp.is_finite()) {
                return Err(Error::NotFinite { what: "a log-probability" }.into());
            }
            let text = self.tokenizer.decode(&answer.ids[..answer.ids.len() - usize::from(ended)]);
            let kept = answer.logprobs.into_iter().flat_map(|token| token.kept).collect();
            Ok(RolloutAnswer { ids: answer.ids, logps, kept, ended, text })
        };
        answers.into_iter().map(one).collect()
    }
}
