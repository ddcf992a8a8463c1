//! The engine: prompts in chunks, then token by token, several sequences at once.

use std::time::Instant;

use fathom_base::{Flow, Generate, GenerateRequest, Generation, Prompt, Sampling, Score, Stop};
use fathom_grad::{Batch, Counters, Eval, Labels, Params, Scope};
use fathom_model::{Caps, Model, Packed};
use fathom_tensor::{Category, DType, Device, SUM_CHUNK, Tensor};
use fathom_text::Tokenizer;

use crate::error::Error;
use crate::kv::{Cache, Feed};
use crate::sampler::{Sampler, choose};
use crate::stop::{Passed, StopFilter};

/// Sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of prompt and answer together.
    pub context_tokens: usize,
    /// Tokens of a prompt that run at once.
    pub chunk_tokens: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { context_tokens: 4096, chunk_tokens: 1024 }
    }
}

/// Generates with a model that it borrows.
pub struct Engine<'a> {
    pub(crate) device: &'a Device,
    pub(crate) model: &'a Model,
    pub(crate) params: &'a Params,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) limits: Limits,
    counters: Counters,
}

impl<'a> Engine<'a> {
    /// An engine over a model's weights.
    pub fn new(
        device: &'a Device,
        model: &'a Model,
        params: &'a Params,
        tokenizer: &'a Tokenizer,
        limits: Limits,
    ) -> Engine<'a> {
        Engine { device, model, params, tokenizer, limits, counters: Counters::default() }
    }

    /// Memory for `regions` sequences of up to `tokens` tokens.
    pub fn cache(&self, regions: usize, tokens: usize) -> Cache {
        let dtype = self.model.dtype(self.params);
        Cache::new(self.device, self.model, dtype, regions, tokens)
    }

    /// Runs new tokens of some sequences; returns the hidden states of all of them, [tokens, hidden].
    pub fn run(&self, cache: &mut Cache, feeds: &[Feed<'_>]) -> Tensor {
        for feed in feeds {
            if let Some(ids) = cache.stale(self.model, feed) {
                self.read(cache, feed.region, &ids);
            }
        }
        self.forward(cache, feeds)
    }

    fn forward(&self, cache: &mut Cache, feeds: &[Feed<'_>]) -> Tensor {
        let batch = cache.batch(self.device, self.model, feeds);
        let scope = Scope {
            device: self.device,
            params: self.params,
            batch: (&batch).into(),
            counters: &self.counters,
        };
        let hidden = self.model.forward(&mut Eval::new(scope, None, Some(cache)));
        cache.commit();
        hidden
    }

    /// f32 logits of some rows of hidden states, one vector a row.
    pub fn logits(&self, hidden: &Tensor, rows: &[usize]) -> Vec<Vec<f32>> {
        let vocab = self.model.spec.vocab;
        self.device.to_f32(&self.head(hidden, rows)).chunks_exact(vocab).map(<[f32]>::to_vec).collect()
    }

    /// Logits of some rows of hidden states, [rows, vocab].
    fn head(&self, hidden: &Tensor, rows: &[usize]) -> Tensor {
        let picked = self.device.empty(rows.len(), hidden.cols(), hidden.dtype(), Category::Activations);
        for (to, from) in rows.iter().enumerate() {
            self.device.machine.copy(&hidden.view_rows(*from..from + 1), &picked.view_rows(to..to + 1));
        }
        self.with_scope(|scope| self.model.head(0.0).logits(scope, &picked))
    }

    /// A scope without tokens, for the head alone.
    fn with_scope<T>(&self, work: impl FnOnce(&Scope<'_>) -> T) -> T {
        let none = self.device.from_i32(&[0], Category::Data);
        let (ids, positions) = (none.clone(), none);
        let batch = Batch { tokens: 0, ids, positions, masks: vec![], ropes: vec![], context: None };
        work(&Scope {
            device: self.device,
            params: self.params,
            batch: (&batch).into(),
            counters: &self.counters,
        })
    }

    /// Reads ids in chunks; returns the hidden states of the last chunk.
    fn read(&self, cache: &mut Cache, region: usize, ids: &[u32]) -> Option<Tensor> {
        let chunks = ids.chunks(self.limits.chunk_tokens.max(1));
        chunks.map(|ids| self.forward(cache, &[Feed { region, ids }])).last()
    }

    /// Reads a prompt in chunks; returns the logits after its last token.
    fn prefill(&self, cache: &mut Cache, region: usize, ids: &[u32]) -> Tensor {
        cache.expect(region, ids.len());
        let Some(hidden) = self.read(cache, region, ids) else { panic!("prefill of an empty prompt") };
        self.head(&hidden, &[hidden.rows() - 1])
    }

    /// Greedy continuations of several prompts, advanced together: `max_tokens` new ids each, or fewer up to an
    /// end-of-text token.
    ///
    /// # Errors
    /// A prompt that is empty, has unknown ids, or is too long; a model that gives no numbers.
    pub fn greedy(&self, prompts: &[Vec<u32>], max_tokens: usize) -> Result<Vec<Vec<u32>>, Error> {
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        for prompt in prompts {
            self.check(prompt, max_tokens)?;
        }
        let mut cache = self.cache(prompts.len(), longest + max_tokens);
        let mut next = Vec::new();
        for (region, prompt) in prompts.iter().enumerate() {
            next.extend(choose(self.device, &self.prefill(&mut cache, region, prompt), None)?);
        }
        let mut answers: Vec<Vec<u32>> = vec![Vec::new(); prompts.len()];
        let mut open: Vec<usize> = (0..prompts.len()).collect();
        loop {
            open.retain(|region| {
                !self.tokenizer.stops().contains(&next[*region]) && answers[*region].len() < max_tokens
            });
            open.iter().for_each(|region| answers[*region].push(next[*region]));
            open.retain(|region| answers[*region].len() < max_tokens);
            if open.is_empty() {
                return Ok(answers);
            }
            let feeds: Vec<Feed<'_>> = open
                .iter()
                .map(|region| Feed { region: *region, ids: std::slice::from_ref(&next[*region]) })
                .collect();
            let hidden = self.run(&mut cache, &feeds);
            let rows: Vec<usize> = (0..open.len()).collect();
            let chosen = choose(self.device, &self.head(&hidden, &rows), None)?;
            open.iter().zip(chosen).for_each(|(region, id)| next[*region] = id);
        }
    }

    /// Tokens that a sequence can have.
    pub(crate) fn room(&self) -> usize {
        let learned = self.model.spec.learned_positions.unwrap_or(usize::MAX);
        self.limits.context_tokens.min(learned)
    }

    pub(crate) fn check(&self, prompt: &[u32], new: usize) -> Result<(), Error> {
        let vocab = self.model.spec.vocab;
        if prompt.is_empty() {
            return Err(Error::Empty);
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::Vocabulary { id: *id, vocab });
        }
        let room = self.room();
        if prompt.len().saturating_add(new) > room {
            return Err(Error::TooLong { prompt: prompt.len(), new, room });
        }
        Ok(())
    }

    fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>, Error> {
        match prompt {
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Text(text) => {
                let ids = self.tokenizer.encode_prompt(text)?;
                Ok(if ids.is_empty() { self.tokenizer.bos().into_iter().collect() } else { ids })
            }
        }
    }

    fn answer(
        &self,
        ids: &[u32],
        how: &Sampling,
        on_text: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Generation, Error> {
        self.check(ids, how.max_tokens)?;
        let mut sampler = Sampler::new(how, ids)?;
        let mut cache = self.cache(1, ids.len() + how.max_tokens);
        let begun = Instant::now();
        let mut logits = self.prefill(&mut cache, 0, ids);
        let prefill_s = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let mut writer = Writer::new(self.tokenizer.stream_after(ids), how, on_text);
        let mut answer = Vec::new();
        let stop = loop {
            if answer.len() == how.max_tokens {
                break Stop::Length;
            }
            let id = sampler.next(self.device, &logits)?;
            if self.tokenizer.stops().contains(&id) {
                break Stop::EndOfText;
            }
            answer.push(id);
            if let Some(stop) = writer.push(id) {
                break stop;
            }
            if answer.len() < how.max_tokens {
                let hidden = self.run(&mut cache, &[Feed { region: 0, ids: &[id] }]);
                logits = self.head(&hidden, &[0]);
            }
        };
        let text = writer.finish(stop);
        let decode_s = begun.elapsed().as_secs_f64();
        Ok(Generation { text, ids: answer, stop, prompt_tokens: ids.len(), prefill_s, decode_s })
    }
}

/// Streams the answer's text.
struct Writer<'t, 'f> {
    stream: fathom_text::tokenizer::Stream<'t>,
    filter: StopFilter,
    text: String,
    on_text: &'f mut dyn FnMut(&str) -> Flow,
}

impl<'t, 'f> Writer<'t, 'f> {
    fn new(
        stream: fathom_text::tokenizer::Stream<'t>,
        how: &Sampling,
        on_text: &'f mut dyn FnMut(&str) -> Flow,
    ) -> Writer<'t, 'f> {
        Writer { stream, filter: StopFilter::new(&how.stop), text: String::new(), on_text }
    }

    fn push(&mut self, id: u32) -> Option<Stop> {
        let piece = self.stream.push(id)?;
        match self.filter.push(&piece) {
            Passed::Text(text) => self.give(&text),
            Passed::Stopped(text) => {
                self.give(&text);
                Some(Stop::StopText)
            }
        }
    }

    fn give(&mut self, text: &str) -> Option<Stop> {
        self.text.push_str(text);
        let flow = if text.is_empty() { Flow::Continue } else { (self.on_text)(text) };
        (flow == Flow::Stop).then_some(Stop::Receiver)
    }

    fn finish(mut self, stop: Stop) -> String {
        if matches!(stop, Stop::Length | Stop::EndOfText) {
            let rest = std::mem::take(&mut self.filter).finish();
            self.give(&rest);
        }
        self.text
    }
}

impl Generate for Engine<'_> {
    fn generate(
        &mut self,
        request: &GenerateRequest,
        on_text: &mut dyn FnMut(&str) -> Flow,
    ) -> fathom_base::Result<Generation> {
        let ids = self.ids(&request.prompt)?;
        Ok(self.answer(&ids, &request.sampling, on_text)?)
    }
}

impl Score for Engine<'_> {
    fn losses(&mut self, ids: &[u32]) -> fathom_base::Result<Vec<f64>> {
        self.check(ids, 0)?;
        let host: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        let labels: Vec<i32> = host[1..].iter().copied().chain([-1]).collect();
        let positions: Vec<i32> = (0..host.len() as i32).collect();
        let whole = 0..host.len();
        let packed = Packed { ids: &host, positions: &positions, docs: std::slice::from_ref(&whole) };
        let batch = self.model.batch(self.device, packed, Caps { docs: 1, seq_tokens: host.len() });
        let losses = &self.packed_losses(&batch, &labels)[..host.len() - 1];
        if losses.iter().any(|loss| !loss.is_finite()) {
            return Err(Error::NotFinite { what: "a loss" }.into());
        }
        Ok(losses.iter().map(|loss| f64::from(*loss)).collect())
    }

    fn max_tokens(&self) -> usize {
        self.room()
    }
}

impl Engine<'_> {
    /// Hidden states of a packed batch behind the last norm, without memory of earlier tokens: [tokens, hidden]. What
    /// works token by token runs in tiles of a prompt's chunk.
    pub(crate) fn packed_hidden(&self, batch: &Batch) -> Tensor {
        let scope =
            Scope { device: self.device, params: self.params, batch: batch.into(), counters: &self.counters };
        let tile_rows = self.limits.chunk_tokens.next_multiple_of(SUM_CHUNK);
        self.model.forward(&mut Eval::new(scope, Some(tile_rows), None))
    }

    /// Per-token losses of a packed batch: f32 in the order of the tokens, 0 where `labels` is below zero.
    fn packed_losses(&self, batch: &Batch, labels: &[i32]) -> Vec<f32> {
        let hidden = self.packed_hidden(batch);
        let scope =
            Scope { device: self.device, params: self.params, batch: batch.into(), counters: &self.counters };
        let labels = Labels { ids: self.device.from_i32(labels, Category::Data), weights: None };
        let losses = self.device.empty(1, batch.tokens, DType::F32, Category::Data);
        self.model.head(0.0).losses(&scope, &hidden, &labels, &losses);
        self.device.to_f32(&losses)
    }
}
