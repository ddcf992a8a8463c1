//! Limits of requests that can be checked without the engine, by the thread of the client.

use fathom_base::{Beams, GenerateRequest, Numbers, Prompt, Sampling, TextIds};
use fathom_tensor::PAGE_ROWS;
use fathom_text::Tokenizer;

use crate::error::Error;
use crate::limits::Capacity;
use crate::limits::Limits;
use crate::pages::pages_for;
use crate::sampler;

/// Sizes of a model and its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Rows of the embedding.
    pub vocab: usize,
    /// Maximum tokens of a sequence, not counting virtual ones.
    pub room: usize,
    /// Virtual tokens of an adapter before every sequence.
    pub lead: usize,
    /// The model's windows.
    pub windows: Vec<Option<usize>>,
    /// True if a prompt is the text that the model's source reads.
    pub source: bool,
    /// Sizes of the engine.
    pub limits: Limits,
    /// Capacity for concurrent sequences.
    pub capacity: Capacity,
}

impl Bounds {
    /// The ids of a text or of ids.
    ///
    /// # Errors
    /// The tokenizer's; a prompt of another kind, which a service with a chat template reads.
    pub fn ids(&self, tokenizer: &Tokenizer, prompt: &Prompt) -> Result<Vec<u32>, Error> {
        match prompt {
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Text(text) => {
                let ids = tokenizer.encode_prompt(text)?;
                if self.source {
                    let end = tokenizer.eos().filter(|end| ids.last() != Some(end));
                    return Ok(ids.into_iter().chain(end).collect());
                }
                Ok(if ids.is_empty() { tokenizer.bos().into_iter().collect() } else { ids })
            }
            Prompt::Conversation(_) | Prompt::Parts(_) => Err(Error::Unsupported(
                "an engine reads text and ids; a conversation needs a service with a chat template".into(),
            )),
        }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// A request out of range, or longer than the context or the pages.
    pub fn check(&self, ids: &[u32], asked: &GenerateRequest) -> Result<(), Error> {
        let how = &asked.sampling;
        self.prompt(ids, how.max_tokens)?;
        sampler::check(how)?;
        if asked.answers == 0 {
            return Err(Error::Sampling { key: "answers", message: "must be at least 1".into() });
        }
        let alone = asked.structure.is_none() && asked.beams.is_none() && how.min_tokens == 0;
        if asked.kept && !(alone && sampler::is_plain(how)) {
            let message = "goes with temperature, top_k, top_p and min_p alone".into();
            return Err(Error::Sampling { key: "kept", message });
        }
        if let Some(beams) = asked.beams {
            self.beams(beams, asked)?;
        }
        if self.source && asked.prompt_logprobs.is_some() {
            let message = "is for the tokens of a prompt, and a source is read at once: its tokens have no probabilities";
            return Err(Error::Sampling { key: "prompt_logprobs", message: message.into() });
        }
        let tokens = self.lead + self.longest(ids.len(), how.max_tokens);
        // A source is in memory.
        if !self.fits(tokens) || (self.source && self.exceeds_memory(ids.len())) {
            let memory = self.capacity.pages.iter().min().copied().unwrap_or(0);
            return Err(Error::NoPages { tokens, room: memory.max(self.capacity.on_disk) * PAGE_ROWS });
        }
        if asked.beams.is_some() && self.exceeds_memory(tokens) {
            return Err(Error::Unsupported(format!(
                "{tokens} tokens of prompt and answers are more than the pages in memory hold, and beams need them there; ask without \
                 use_beam_search"
            )));
        }
        Ok(())
    }

    /// Tokens of a prompt with its answer; of the longer one if they are two streams.
    fn longest(&self, prompt: usize, new: usize) -> usize {
        if self.source { prompt.max(new.saturating_add(1)) } else { prompt.saturating_add(new) }
    }

    /// Most tokens of sources that are held at once: as many as there are rows of pages in memory.
    pub(crate) fn source_tokens(&self) -> usize {
        self.capacity.pages.iter().max().map_or(0, |pages| pages * PAGE_ROWS)
    }

    /// True if memory or disk has enough pages for a sequence of `tokens` tokens and its virtual tokens.
    pub fn fits(&self, tokens: usize) -> bool {
        let needed = pages_for(&self.windows, 1, tokens, self.limits.chunk_tokens);
        let all = needed.iter().zip(&self.capacity.pages).zip(&self.windows);
        let disk = |window: &Option<usize>| if window.is_none() { self.capacity.on_disk } else { 0 };
        all.into_iter().all(|((needed, there), window)| *needed <= (*there).max(disk(window)))
    }

    /// True if a sequence of `tokens` tokens needs more pages than there are in memory.
    pub fn exceeds_memory(&self, tokens: usize) -> bool {
        let needed = pages_for(&self.windows, 1, tokens, self.limits.chunk_tokens);
        needed.iter().zip(&self.capacity.pages).any(|(needed, there)| needed > there)
    }

    /// Checks beam search: its range, and the options that it does not support.
    ///
    /// # Errors
    /// An option is out of range, or beam search does not support an option or the model.
    fn beams(&self, beams: Beams, asked: &GenerateRequest) -> Result<(), Error> {
        let refuse = |key, message: String| Err(Error::Sampling { key, message });
        let most = self.capacity.sequences.min(self.vocab / 2);
        if beams.width == 0 || beams.width > most {
            return refuse(
                "beam_width",
                format!("must be from 1 to {most}, the sequences that are answered at once"),
            );
        }
        if asked.answers > beams.width {
            let message = format!("{} are asked for, and {} beams are followed", asked.answers, beams.width);
            return refuse("answers", message);
        }
        if asked.sampling.max_tokens == 0 {
            return refuse("max_tokens", "must be at least 1 for a search over beams".into());
        }
        if !beams.length_penalty.is_finite() {
            return refuse(
                "length_penalty",
                "must be a number; 1 gives the mean log-probability of a token".into(),
            );
        }
        let Sampling { top_k, top_p, min_p, typical_p, repetition_penalty, .. } = asked.sampling;
        let Sampling { frequency_penalty, presence_penalty, ref logit_bias, ref stop, .. } = asked.sampling;
        let asks = [
            ("top_k", top_k != 0),
            ("top_p", top_p != 1.0),
            ("min_p", min_p != 0.0),
            ("typical_p", typical_p != 1.0),
            ("repetition_penalty", repetition_penalty != 1.0),
            ("frequency_penalty", frequency_penalty != 0.0),
            ("presence_penalty", presence_penalty != 0.0),
            ("logit_bias", !logit_bias.is_empty()),
            ("stop", !stop.is_empty()),
            ("structure", asked.structure.is_some()),
        ];
        match asks.into_iter().find(|(_, asks)| *asks) {
            Some((key, _)) => {
                refuse(key, "has no meaning for a search over beams; leave one of them out".into())
            }
            None => Ok(()),
        }
    }

    /// Checks a text whose numbers are wanted: for a model with a source, a source and its answer.
    ///
    /// # Errors
    /// Those of [`Bounds::prompt`], and numbers that a model with a source has not.
    pub fn text(&self, text: &TextIds, at: Numbers) -> Result<(), Error> {
        if !self.source {
            return self.prompt(&text.ids, 0);
        }
        let refuse = |why: &str| Err(Error::Unsupported(format!("this model is an encoder-decoder: {why}")));
        match at {
            Numbers::Vector | Numbers::Classes | Numbers::Relevance | Numbers::Scores => {
                return refuse("it answers texts, and gives no vectors, labels or scores");
            }
            _ if text.first >= text.ids.len() => {
                return refuse("its numbers are those of an answer to a source, and this text has no answer");
            }
            _ => {}
        }
        let (source, answer) = text.ids.split_at(text.first);
        self.prompt(source, answer.len().saturating_sub(1))?;
        self.prompt(answer, 0)
    }

    /// Checks the ids of a prompt.
    ///
    /// # Errors
    /// A prompt that is empty, has unknown ids, or leaves no room for `new` tokens.
    pub fn prompt(&self, ids: &[u32], new: usize) -> Result<(), Error> {
        let Bounds { vocab, room, .. } = *self;
        if ids.is_empty() {
            return Err(Error::Empty);
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::Vocabulary { id: *id, vocab });
        }
        if self.longest(ids.len(), new) > room {
            return Err(Error::TooLong { prompt: ids.len(), new, room });
        }
        Ok(())
    }
}
