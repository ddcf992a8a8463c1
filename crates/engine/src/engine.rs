//! The engine: a model with everything needed to answer requests. The scheduler decides how requests share it.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use fathom_base::{Prompt, TokenLogprob};
use fathom_grad::{Batch, Counters, Params, Scope};
use fathom_model::{Model, ModelView, Sentence};
use fathom_tensor::choice::LeaveOut;
use fathom_tensor::{Category, DType, Device, PAGE_ROWS, SUM_CHUNK, Tensor};
use fathom_text::Tokenizer;

use crate::adapted::AdaptedModel;
use crate::bounds::Bounds;
use crate::error::Error;
use crate::limits::{CHECKPOINT_TOKENS, Capacity, Limits};
use crate::pages::{Feed, FeedMemory, Pages, pages_for, state_bytes};

/// Generates with a borrowed model.
pub struct Engine<'a> {
    pub(crate) device: &'a Device,
    pub(crate) model: &'a Model,
    pub(crate) params: &'a Params,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) temperature: f64,
    /// Loaded adapters by name.
    pub(crate) adapters: RefCell<BTreeMap<String, Rc<AdaptedModel>>>,
    /// Device memory in bytes that adapters must leave free.
    pub(crate) reserved_bytes: u64,
    /// The draft model's engine.
    pub(crate) draft: Option<&'a Engine<'a>>,
    /// Pooling of hidden states to a vector, if the folder specifies it.
    pub(crate) sentence: Option<Sentence>,
}

impl<'a> Engine<'a> {
    /// An engine over a model's weights.
    pub fn new(
        ModelView { device, model, params }: ModelView<'a>,
        tokenizer: &'a Tokenizer,
        limits: Limits,
    ) -> Engine<'a> {
        Engine {
            device,
            model,
            params,
            tokenizer,
            limits: limits.over(&model.spec, 1),
            counters: Counters::default(),
            temperature: 1.0,
            adapters: RefCell::default(),
            reserved_bytes: 0,
            draft: None,
            sentence: None,
        }
    }

    pub(crate) fn view(&self) -> ModelView<'a> {
        ModelView { device: self.device, model: self.model, params: self.params }
    }

    /// Sets the pooling of hidden states to vectors.
    pub fn pooling(self, sentence: Option<Sentence>) -> Engine<'a> {
        Engine { sentence, ..self }
    }

    /// Adds a small draft model, whose guesses the model verifies. Answers do not change.
    ///
    /// # Errors
    /// The draft model has another vocabulary; its layers store more than keys and values.
    pub fn drafting(self, draft: &'a Engine<'a>) -> Result<Engine<'a>, Error> {
        if self.model.spec.source > 0 {
            return Err(Error::Unsupported(
                "a draft goes on with a text of one stream, and this model is an encoder-decoder; serve it without a draft (--draft)".into(),
            ));
        }
        check_vocabulary(self.tokenizer, draft.tokenizer)?;
        if draft.has_states() {
            return Err(Error::Unsupported(
                "layers of the draft model remember more than keys and values, so its guesses cannot be taken back; serve without a draft \
                 (--draft)"
                    .into(),
            ));
        }
        Ok(Engine { draft: Some(draft), ..self })
    }

    /// The capacity that this model needs for the sequences of another model's capacity.
    pub fn alongside(&self, other: &Capacity) -> Capacity {
        let most = other.pages.iter().copied().max().unwrap_or(0);
        let (windows, chunk) = (self.model.spec.windows(), self.limits.chunk_tokens);
        let pages = pages_for(&windows, other.sequences, most * PAGE_ROWS, chunk);
        Capacity {
            sequences: other.sequences,
            pages: pages.into_iter().map(|pages| pages.min(most)).collect(),
            on_disk: 0,
        }
    }

    /// Sets the temperature of the model itself: logits are divided by it before sampling and for log-probabilities. A
    /// request's own temperature divides them again.
    pub fn at(self, temperature: f64) -> Engine<'a> {
        Engine { temperature, ..self }
    }

    /// A capacity for this many sequences of up to `tokens` tokens.
    pub fn capacity(&self, sequences: usize, tokens: usize) -> Capacity {
        let pages = pages_for(&self.model.spec.windows(), sequences, tokens, self.limits.chunk_tokens);
        Capacity { sequences, pages, on_disk: 0 }
    }

    /// Most tokens of one prompt that a step reads.
    pub fn piece_tokens(&self) -> usize {
        let most = if self.has_states() { CHECKPOINT_TOKENS } else { usize::MAX };
        self.limits.chunk_tokens.min(most)
    }

    /// Bytes of the states of this many sequences, besides keys and values.
    pub fn state_bytes(&self, sequences: usize) -> u64 {
        state_bytes(self.model, sequences, self.guesses())
    }

    /// Reads new tokens of several sequences; returns the hidden states of all of them, [tokens, hidden].
    pub(crate) fn forward(&self, pages: &Pages, feeds: &[Feed<'_>]) -> Tensor {
        let (batch, mut memory) = FeedMemory::new((self.device, self.model), pages, feeds);
        let scope = Scope {
            device: self.device,
            params: self.params,
            batch: (&batch).into(),
            counters: &self.counters,
        };
        self.through(&scope, &mut memory)
    }

    /// Divisor of logits.
    pub(crate) fn temperature(&self) -> f64 {
        self.temperature
    }

    /// f32 logits of some rows of hidden states, [rows, vocab].
    pub(crate) fn head(&self, hidden: &Tensor, rows: &[usize]) -> Tensor {
        let picked = self.device.empty(rows.len(), hidden.cols(), hidden.dtype(), Category::Activations);
        for (to, from) in rows.iter().enumerate() {
            self.device.machine.copy(&hidden.view_rows(*from..from + 1), &picked.view_rows(to..to + 1));
        }
        self.with_scope(|scope| self.logits(scope, &picked))
    }

    /// Log-probability of each label after its row of hidden states, with the `top` most likely tokens.
    pub(crate) fn logprobs(&self, hidden: &Tensor, labels: &[u32], top: usize) -> Vec<TokenLogprob> {
        let mut all = Vec::with_capacity(labels.len());
        for (tile, labels) in labels.chunks(SUM_CHUNK).enumerate() {
            let start = tile * SUM_CHUNK;
            let rows: Vec<usize> = (start..start + labels.len()).collect();
            all.extend(self.judge(&self.head(hidden, &rows), labels, top));
        }
        all
    }

    /// [`Engine::logprobs`] from existing logits, [labels, vocab].
    pub(crate) fn judge(&self, logits: &Tensor, labels: &[u32], top: usize) -> Vec<TokenLogprob> {
        let losses = self.surprises(logits, labels, None);
        let row = |row: usize| logits.view_rows(row..row + 1);
        labels
            .iter()
            .zip(losses)
            .enumerate()
            .flat_map(|(at, (id, loss))| self.ranked(&row(at), (*id, -loss), top))
            .collect()
    }

    /// Negative natural log-probability of a label for each row of logits, over the columns in `kept` if given
    /// ([`LeaveOut::kept`]).
    pub(crate) fn surprises(&self, logits: &Tensor, labels: &[u32], kept: Option<&Tensor>) -> Vec<f32> {
        let among = kept.map(|kept| {
            let [rows, cols] = logits.shape();
            let logits_kept = self.device.empty(rows, cols, DType::F32, Category::Activations);
            self.device.machine.copy(logits, &logits_kept);
            self.device.machine.leave_out(&LeaveOut { logits: &logits_kept, kept, first: 0 });
            logits_kept
        });
        let logits = among.as_ref().unwrap_or(logits);
        let ids: Vec<i32> = labels.iter().map(|id| *id as i32).collect();
        let ids = self.device.from_i32(&ids, Category::Data);
        let loss = self.device.empty(1, labels.len(), DType::F32, Category::Data);
        self.entropy(logits, &ids, &loss);
        self.device.to_f32(&loss)
    }

    /// A token with its log-probability and rank in its row of logits, [1, vocab]; none on a machine without data.
    pub(crate) fn ranked(
        &self,
        logits: &Tensor,
        (id, logprob): (u32, f32),
        top: usize,
    ) -> Option<TokenLogprob> {
        let row = self.device.to_f32(logits);
        (!row.is_empty()).then(|| ranked(id, logprob, &row, top))
    }

    /// Runs `work` with a scope without tokens, for the head alone.
    fn with_scope<T>(&self, work: impl FnOnce(&Scope<'_>) -> T) -> T {
        let none = self.device.from_i32(&[0], Category::Data);
        let batch = Batch { tokens: 0, ..Batch::new(none.clone(), none) };
        work(&Scope {
            device: self.device,
            params: self.params,
            batch: (&batch).into(),
            counters: &self.counters,
        })
    }

    /// The model's specification.
    pub fn spec(&self) -> &fathom_model::Spec {
        &self.model.spec
    }

    /// Maximum tokens of a sequence, not counting an adapter's virtual ones.
    pub(crate) fn room(&self) -> usize {
        let learned = self.model.spec.learned_positions.unwrap_or(usize::MAX);
        self.limits.context_tokens.min(learned).saturating_sub(self.lead())
    }

    /// Virtual tokens of an adapter before every sequence.
    pub(crate) fn lead(&self) -> usize {
        self.model.spec.virtual_tokens()
    }

    /// True if next tokens are guessed, so that states may have to be taken back.
    pub(crate) fn guesses(&self) -> bool {
        self.limits.draft_tokens > 0 || self.draft.is_some()
    }

    /// True if layers remember more than keys and values: prefixes then end at checkpoints.
    pub(crate) fn has_states(&self) -> bool {
        self.model.spec.has_states()
    }

    /// Limits of requests for a given capacity.
    pub fn bounds(&self, capacity: Capacity) -> Bounds {
        let (vocab, windows) = (self.model.spec.vocab, self.model.spec.windows());
        let lead = self.lead();
        let source = self.model.spec.source > 0;
        Bounds { vocab, room: self.room(), lead, windows, source, limits: self.limits, capacity }
    }

    pub(crate) fn check(&self, prompt: &[u32], new: usize) -> Result<(), Error> {
        self.bounds(Capacity::default()).prompt(prompt, new)
    }

    pub(crate) fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>, Error> {
        self.bounds(Capacity::default()).ids(self.tokenizer, prompt)
    }
}

/// Checks that a draft model has the same tokens as the model.
///
/// # Errors
/// A draft model's tokens are not the model's.
fn check_vocabulary(own: &Tokenizer, draft: &Tokenizer) -> Result<(), Error> {
    let [many, other] = [own, draft].map(Tokenizer::vocab_size);
    let differ = (0..many.max(other) as u32).find(|id| own.token(*id) != draft.token(*id));
    let Some(id) = differ else { return Ok(()) };
    let [here, there] =
        [own, draft].map(|it| it.token(id).map_or("none".into(), |token| format!("`{token}`")));
    Err(Error::Unsupported(format!(
        "the draft model has another vocabulary ({other} tokens, and {many} here): token {id} is {there} there and {here} here; name a \
         smaller model of the same family (--draft)"
    )))
}

/// A token's log-probability and rank in its row of logits, with the `top` most likely tokens.
pub(crate) fn ranked(id: u32, logprob: f32, row: &[f32], top: usize) -> TokenLogprob {
    let own = row[id as usize];
    let count = |row: &[f32], better: fn(f32, f32) -> bool| -> u32 {
        row.iter().map(|logit| u32::from(better(*logit, own))).sum()
    };
    let rank = count(row, |logit, own| logit > own) + count(&row[..id as usize], |logit, own| logit == own);
    let top = top.min(row.len());
    let mut order: Vec<usize> = if top > 0 { (0..row.len()).collect() } else { Vec::new() };
    let by = |at: &usize| (Reverse(OrderedLogit(row[*at])), *at);
    if top > 0 && top < row.len() {
        order.select_nth_unstable_by_key(top - 1, by);
    }
    order.truncate(top);
    order.sort_unstable_by_key(by);
    let top = order.into_iter().map(|other| (other as u32, logprob + (row[other] - own))).collect();
    TokenLogprob { id, logprob: Some(logprob), rank: Some(rank), top, kept: Vec::new() }
}

/// A logit with a total order.
#[derive(PartialEq)]
struct OrderedLogit(f32);

impl Eq for OrderedLogit {}

impl PartialOrd for OrderedLogit {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedLogit {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
