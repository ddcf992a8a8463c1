//! Answers for training, generated with the trainer's own weights.

use std::cell::RefCell;
use std::rc::Rc;

use fathom_base::{Event, Flow, GenerateRequest, Sampling, Stop};
use fathom_model::{Asked, Failed, ModelView, Rollout, Written};
use fathom_text::Tokenizer;

use crate::engine::{Engine, Limits};
use crate::error::Error;
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

/// Events received for the answers to a prompt.
#[derive(Default)]
struct Heard {
    answers: Vec<Written>,
    failed: Option<fathom_base::Error>,
}

impl Heard {
    /// Processes an event; an answer ends with the first end token, which is part of it.
    fn hear(&mut self, event: Event, ends: &[u32]) -> Flow {
        match event {
            Event::Piece { answer, ids, logprobs, .. } => {
                let written = &mut self.answers[answer];
                written.ids.extend(&ids);
                written.logps.extend(logprobs.iter().map(|token| token.logprob.unwrap_or(0.0)));
                written.kept.extend(logprobs.into_iter().flat_map(|token| token.kept));
                written.ended = ids.iter().any(|id| ends.contains(id));
                if written.ended { Flow::Stop } else { Flow::Continue }
            }
            Event::Ended { answer, stop } => {
                self.answers[answer].ended |= matches!(stop, Stop::EndOfText | Stop::StopToken(_));
                Flow::Continue
            }
            Event::Failed(error) => {
                self.failed = Some(error);
                Flow::Continue
            }
            Event::Started { .. } | Event::Done(_) => Flow::Continue,
        }
    }
}

impl Rollout for Writer {
    fn rollout(&self, weights: ModelView<'_>, asked: &Asked) -> Result<Vec<Vec<Written>>, Failed> {
        let ModelView { device, model, params } = weights;
        let device = &with_all_rows(device);
        let longest = asked.prompts.iter().map(Vec::len).max().unwrap_or(0) + asked.max_tokens;
        let limits = Limits { context_tokens: longest, chunk_tokens: self.chunk_tokens, ..Limits::default() };
        let greedy = asked.temperature == 0.0;
        let engine = Engine::new(ModelView { device, model, params }, &self.tokenizer, limits);
        let engine = engine.at(if greedy { 1.0 } else { asked.temperature });
        let all = asked.prompts.len() * asked.answers;
        let sequences = if self.sequences == 0 { all } else { self.sequences.min(all) };
        let heard: Vec<RefCell<Heard>> = asked.prompts.iter().map(|_| RefCell::default()).collect();
        let mut scheduler = Scheduler::new(&engine, engine.capacity(sequences, longest));
        for ((prompt, seed), heard) in asked.prompts.iter().zip(&asked.seeds).zip(&heard) {
            heard.borrow_mut().answers.resize_with(asked.answers, Written::default);
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
            // Without data all tokens are the same, and none ends an answer.
            let ends = if device.machine.has_data() { self.tokenizer.stops() } else { &[] };
            scheduler.submit(request, Box::new(move |event| heard.borrow_mut().hear(event, ends)))?;
        }
        while scheduler.step() {}
        drop(scheduler);
        heard.into_iter().map(|heard| self.answers(heard.into_inner())).collect()
    }
}

impl Writer {
    fn answers(&self, Heard { mut answers, failed }: Heard) -> Result<Vec<Written>, Failed> {
        if let Some(error) = failed {
            return Err(error.into());
        }
        for written in &mut answers {
            if written.logps.iter().any(|logp| !logp.is_finite()) {
                return Err(Error::NotFinite { what: "a log-probability" }.into());
            }
            let text = written.ids.len() - usize::from(written.ended);
            written.text = self.tokenizer.decode(&written.ids[..text]);
        }
        Ok(answers)
    }
}
