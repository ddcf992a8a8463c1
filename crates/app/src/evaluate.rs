//! Bits per byte, loss by position and needles of a model that lies in a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::clock::{Clock, Deadline};
use fathom_base::recipe::Layers;
use fathom_base::{Score, human};
use fathom_curate::{ReadOptions, altered, group_documents, store_prefix};
use fathom_engine::{Engine, Limits as EngineLimits};
use fathom_eval::{HeldOut, Limits, NeedleSpec, Needles, bits_per_byte, find_needles, loss_of_sequences};
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::{Stores, needs_corpus};

use crate::error::{Context, Result, caught, refuse};
use crate::events::Events;
use crate::figures::Figures;
use crate::library::resolve;
use crate::machine::Machine;
use crate::measure::{ANSWER_TOKENS, held_out, needle_filler, needle_lengths};
use crate::models::{self, TextModel};

/// Longest sequence by default: a model's own may be a million.
const LONGEST: usize = 32 << 10;
/// No sequence is longer, as in training.
const MOST: usize = 1 << 24;
/// Context of bits per byte unless `--tokens` says otherwise.
const CONTEXT: usize = 2048;
/// Text of the user's own is read up to this size.
const MOST_BYTES: usize = 16 << 20;
/// Bytes of a token in joined documents, generously.
const BYTES_PER_TOKEN: usize = 5;
/// Shares of the time: bits per byte, loss by position, needles.
const SHARES: [f64; 3] = [0.2, 0.3, 0.5];
/// Depths of the needle.
const DEPTHS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// What is measured.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// The adapter on it: its folder, or that of its run.
    pub adapter: Option<PathBuf>,
    /// Text to measure on; none for the documents that the model's run held out.
    pub data: Vec<PathBuf>,
    /// Longest sequence; none for the model's context, up to 32768.
    pub tokens: Option<usize>,
    /// Time limit; none measures all of the text.
    pub seconds: Option<f64>,
    /// Trials per length and depth of the needle test; 0 leaves it out.
    pub needle_trials: usize,
}

/// What was found.
pub struct Evaluated {
    /// The figures.
    pub figures: Figures,
    /// Tokens of context of the bits per byte.
    pub context_tokens: usize,
    /// Tokens of the model's own context.
    pub trained_tokens: usize,
}

/// Measures a model that lies in a folder: bits per byte, loss by position, needles.
///
/// # Errors
/// No model there, nothing to measure on, lengths that the model does not have.
pub fn evaluate(request: &Request, machine: &Machine, events: &dyn Events) -> Result<Evaluated> {
    let TextModel { folder, tokenizer, loaded } =
        models::open_writer(&request.model, request.adapter.as_deref(), None, machine, events)?;
    let (tokens, spec) = (request.tokens, &loaded.model.spec);
    models::check_writes(&folder, spec)?;
    caught(|| {
        let trained_tokens = spec.max_positions;
        let tokens = check_tokens(tokens.unwrap_or(trained_tokens.min(LONGEST)), spec.learned_positions)?;
        let documents = documents(request, &folder, &tokenizer, tokens, events)?;
        let context_tokens = request.tokens.unwrap_or(CONTEXT).min(tokens);
        let limits = EngineLimits { context_tokens: tokens + ANSWER_TOKENS, ..EngineLimits::default() };
        let mut engine = Engine::new(loaded.view(), &tokenizer, limits);
        let figures = measure(request, &mut engine, &tokenizer, &documents, [tokens, context_tokens])?;
        Ok(Evaluated { figures, context_tokens, trained_tokens })
    })
}

/// The length, if a model with so many learned positions can have it.
fn check_tokens(tokens: usize, learned_positions: Option<usize>) -> Result<usize> {
    if tokens < 2 {
        refuse!("--tokens {tokens}: at least 2 are needed, one to predict the other from");
    }
    if tokens > MOST {
        refuse!("--tokens {tokens}: at most {}", human::grouped(MOST as u64));
    }
    if let Some(rows) = learned_positions.filter(|rows| *rows < tokens) {
        refuse!("--tokens {tokens}: the model has learned positions for {rows}");
    }
    Ok(tokens)
}

fn measure(
    request: &Request,
    engine: &mut Engine<'_>,
    tokenizer: &Tokenizer,
    documents: &[HeldOut],
    [tokens, context]: [usize; 2],
) -> Result<Figures> {
    let clock = Clock::start();
    // Each part begins where the one before has ended.
    let until = |share: f64| request.seconds.map(|seconds| clock.within((seconds * share).max(0.0)));
    let [bits_share, position_share, needle_share] = SHARES;
    let limits = |share| Limits { documents: usize::MAX, deadline: until(share) };
    let bits = if documents.is_empty() {
        None
    } else {
        let texts = documents.iter().cloned();
        Some(bits_per_byte(engine, tokenizer, texts, context, &limits(bits_share))?)
    };
    let ids: Vec<Vec<u32>> = documents.iter().map(|document| document.ids.clone()).collect();
    let position = loss_of_sequences(engine, &ids, (tokens, tokenizer.eos()), &limits(position_share))?;
    let needles = match request.needle_trials {
        0 => None,
        trials => needles(engine, tokenizer, documents, [tokens, trials], until(needle_share))?,
    };
    Ok(Figures { bits, position, needles, ..Figures::default() })
}

fn needles(
    engine: &mut Engine<'_>,
    tokenizer: &Tokenizer,
    documents: &[HeldOut],
    [tokens, trials]: [usize; 2],
    deadline: Option<Deadline>,
) -> Result<Option<Needles>> {
    let lengths_tokens = needle_lengths(tokens, engine.max_tokens());
    if lengths_tokens.is_empty() {
        return Ok(None);
    }
    let filler = needle_filler(documents.iter().map(|document| document.text.clone()));
    let spec = NeedleSpec { lengths_tokens, depths: DEPTHS.to_vec(), trials, seed: 0, filler, deadline };
    Ok(Some(find_needles(engine, tokenizer, &spec)?))
}

/// The user's text, or the documents that the model's run held out.
fn documents(
    request: &Request,
    folder: &Path,
    tokenizer: &Tokenizer,
    tokens: usize,
    events: &dyn Events,
) -> Result<Vec<HeldOut>> {
    if !request.data.is_empty() {
        return from_files(&request.data, tokenizer, tokens, events);
    }
    let parent = folder.parent().map(Path::to_path_buf);
    let run = [Some(request.model.clone()), parent]
        .into_iter()
        .flatten()
        .find(|run| run.join("recipe.toml").is_file());
    let Some(run) = run else {
        refuse!(
            "{}: not inside a run with held-out documents; name text with --data PATH",
            request.model.display()
        );
    };
    let recipe = resolve(Layers::new().file(run.join("recipe.toml")))?;
    if let Some(path) = altered(&run.join("data")) {
        refuse!(
            "{}: was altered since the run made it (its hash differs); name text with --data PATH",
            path.display()
        );
    }
    let own =
        needs_corpus(&recipe.value).then(|| Store::open(store_prefix(&run.join("data")))).transpose()?;
    let stores = Stores::open(&recipe.value, own.map(Arc::new), tokenizer.vocab_size())?;
    held_out(&stores, tokenizer)
}

fn from_files(
    paths: &[PathBuf],
    tokenizer: &Tokenizer,
    tokens: usize,
    events: &dyn Events,
) -> Result<Vec<HeldOut>> {
    let (mut documents, mut bytes) = (Vec::new(), 0);
    let records = fathom_curate::open(paths, &ReadOptions::default())?;
    let mut joined = group_documents(records, tokens.saturating_mul(BYTES_PER_TOKEN));
    for document in joined.by_ref() {
        let text = document?.text;
        bytes += text.len();
        documents.push(HeldOut::from_text(text, tokenizer).context("cannot encode the text")?);
        if bytes >= MOST_BYTES {
            events.note(&format!("measuring on the first {} of the text", human::bytes(bytes as u64)));
            break;
        }
    }
    let counters = joined.into_inner();
    if counters.counters().dropped_documents() > 0 {
        events.note(&format!("not measured: {}", counters.counters().summary()));
    }
    Ok(documents)
}
