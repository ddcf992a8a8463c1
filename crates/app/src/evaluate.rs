//! Bits per byte, loss by position and needles of a model in a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::clock::{Clock, Deadline};
use fathom_base::recipe::Layers;
use fathom_base::{LanguageModel, human};
use fathom_curate::{ReadOptions, altered, group_documents, store_prefix};
use fathom_eval::{HeldOut, Limits, NeedleSpec, Needles, bits_per_byte, find_needles, loss_of_sequences};
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::{Stores, needs_corpus};

use crate::error::{Context, Result, refuse};
use crate::events::Events;
use crate::figures::Figures;
use crate::host::{Host, HostOptions};
use crate::library::resolve;
use crate::machine::Machine;
use crate::measure::{ANSWER_TOKENS, held_out, needle_filler, needle_lengths};
use crate::models;

/// Default limit on sequence length; a model's own context may be a million.
const LONGEST: usize = 32 << 10;
/// Upper limit on sequence length, the same as in training.
const MOST: usize = 1 << 24;
/// Default context for bits per byte, without `--tokens`.
const CONTEXT: usize = 2048;
/// Limit on the size of text given by the user.
const MOST_BYTES: usize = 16 << 20;
/// Upper estimate of the bytes per token in joined documents.
const BYTES_PER_TOKEN: usize = 5;
/// Shares of the time limit: bits per byte, loss by position, needles.
const SHARES: [f64; 3] = [0.2, 0.3, 0.5];
/// Depths at which the needle is placed.
const DEPTHS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// Options of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// Adapter over it: its folder, or that of its run.
    pub adapter: Option<PathBuf>,
    /// Text to measure on; if empty, the documents that the model's run held out.
    pub data: Vec<PathBuf>,
    /// Longest sequence; `None` for the model's context, up to 32768.
    pub tokens: Option<usize>,
    /// Time limit; `None` measures all of the text.
    pub seconds: Option<f64>,
    /// Trials per length and depth of the needle test; 0 skips it.
    pub needle_trials: usize,
}

/// Result of an evaluation.
pub struct EvaluationResult {
    /// The figures.
    pub figures: Figures,
    /// Context of the bits per byte, in tokens.
    pub context_tokens: usize,
    /// Context of the model itself, in tokens.
    pub trained_tokens: usize,
}

/// Measures bits per byte, loss by position and needles of a model in a folder.
///
/// # Errors
/// No model there; nothing to measure on; lengths that the model does not support.
pub fn evaluate(request: &Request, machine: &Machine, events: &dyn Events) -> Result<EvaluationResult> {
    let folder = models::model_folder(&request.model)?;
    let spec = fathom_model::open_config(&folder)?.0;
    let trained_tokens = spec.max_positions;
    let tokens = request.tokens.unwrap_or(trained_tokens.min(LONGEST));
    let tokens = check_tokens(tokens, spec.learned_positions)?;
    let options = HostOptions {
        adapter: request.adapter.clone(),
        sequences: request.needle_trials.min(1),
        context_tokens: Some(tokens + ANSWER_TOKENS),
        ..HostOptions::new(&request.model, machine)
    };
    let host = Host::open_writer(options, events)?;
    let tokenizer = &host.facts().tokenizer;
    let documents = documents(request, &folder, tokenizer, tokens, events)?;
    let context_tokens = request.tokens.unwrap_or(CONTEXT).min(tokens);
    let figures = measure(request, &host, tokenizer, &documents, [tokens, context_tokens])?;
    Ok(EvaluationResult { figures, context_tokens, trained_tokens })
}

/// Returns the length after checking it against the limits and the number of learned positions.
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
    model: &dyn LanguageModel,
    tokenizer: &Tokenizer,
    documents: &[HeldOut],
    [tokens, context]: [usize; 2],
) -> Result<Figures> {
    let clock = Clock::start();
    // Each part starts when the one before has ended.
    let until = |share: f64| request.seconds.map(|seconds| clock.within((seconds * share).max(0.0)));
    let [bits_share, position_share, needle_share] = SHARES;
    let limits = |share| Limits { documents: usize::MAX, deadline: until(share) };
    let bits = if documents.is_empty() {
        None
    } else {
        let texts = documents.iter().cloned();
        Some(bits_per_byte(model, tokenizer, texts, context, &limits(bits_share))?)
    };
    let ids: Vec<Vec<u32>> = documents.iter().map(|document| document.ids.clone()).collect();
    let position = loss_of_sequences(model, &ids, (tokens, tokenizer.eos()), &limits(position_share))?;
    let needles = match request.needle_trials {
        0 => None,
        trials => needles(model, tokenizer, documents, [tokens, trials], until(needle_share))?,
    };
    Ok(Figures { bits, position, needles, ..Figures::default() })
}

fn needles(
    model: &dyn LanguageModel,
    tokenizer: &Tokenizer,
    documents: &[HeldOut],
    [tokens, trials]: [usize; 2],
    deadline: Option<Deadline>,
) -> Result<Option<Needles>> {
    let lengths_tokens = needle_lengths(tokens, model.max_tokens());
    if lengths_tokens.is_empty() {
        return Ok(None);
    }
    let filler = needle_filler(documents.iter().map(|document| document.text.clone()));
    let spec = NeedleSpec { lengths_tokens, depths: DEPTHS.to_vec(), trials, seed: 0, filler, deadline };
    Ok(Some(find_needles(model, tokenizer, &spec)?))
}

/// Returns the user's text, or the documents that the model's run held out.
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
