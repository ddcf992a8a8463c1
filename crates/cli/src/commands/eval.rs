//! `fathom eval`: bits per byte, loss by position and needles of a model that lies in a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fathom_base::metrics::Event;
use fathom_base::recipe::Layers;
use fathom_base::{Score, human};
use fathom_curate::{ReadOptions, altered, group_documents, store_prefix};
use fathom_engine::{Engine, Limits as EngineLimits};
use fathom_eval::{Bits, ByPosition, HeldOut, Limits, Moment, NeedleSpec, Needles};
use fathom_eval::{bits_per_byte, find_needles, loss_by_position, loss_by_position_same_documents};
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::{Stores, needs_corpus};

use crate::args::Eval;
use crate::library::resolve;
use crate::measure::{ANSWER_TOKENS, held_out, needle_filler, needle_lengths};
use crate::{console, device};

/// Longest sequence unless told otherwise: a model's own may be a million.
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

/// What was measured.
struct Figures {
    bits: Option<Bits>,
    position: Option<ByPosition>,
    needles: Option<Needles>,
}

/// Runs the verb.
pub fn run(args: &Eval) -> Result<()> {
    let folder = device::model_folder(&args.model)?;
    let tokenizer = device::tokenizer(&folder)?;
    let device = device::open(&device::on(args.machine))?;
    let loaded = device::load(&device, &folder, None)?;
    let own = loaded.model.spec.max_positions;
    let tokens = args.tokens.unwrap_or(own.min(LONGEST));
    if tokens < 2 {
        bail!("--tokens {tokens}: at least 2 are needed, one to predict the other from");
    }
    if tokens > MOST {
        bail!("--tokens {tokens}: at most {}", human::grouped(MOST as u64));
    }
    if let Some(rows) = loaded.model.spec.learned_positions.filter(|rows| *rows < tokens) {
        bail!("--tokens {tokens}: the model has learned positions for {rows}");
    }
    let documents = documents(args, &folder, &tokenizer, tokens)?;
    let context = args.tokens.unwrap_or(CONTEXT).min(tokens);
    let limits = EngineLimits { context_tokens: tokens + ANSWER_TOKENS, ..EngineLimits::default() };
    let mut engine = Engine::new(&device, &loaded.model, &loaded.params, &tokenizer, limits);
    let figures = measure(args, &mut engine, &tokenizer, &documents, [tokens, context])?;
    if args.json {
        print_json(&figures, own)
    } else {
        print(&figures, context);
        Ok(())
    }
}

fn measure(
    args: &Eval,
    engine: &mut Engine<'_>,
    tokenizer: &Tokenizer,
    documents: &[HeldOut],
    [tokens, context]: [usize; 2],
) -> Result<Figures> {
    let [bits_s, position_s, needle_s] =
        SHARES.map(|share| Duration::try_from_secs_f64((args.seconds? * share).max(0.0)).ok());
    let limits = |budget| Limits { documents: usize::MAX, budget };
    let bits = if documents.is_empty() {
        None
    } else {
        Some(bits_per_byte(engine, tokenizer, documents.iter().cloned(), context, &limits(bits_s))?)
    };
    // The longest first: they fill most buckets.
    let mut by_length: Vec<&HeldOut> = documents.iter().collect();
    by_length.sort_by_key(|document| std::cmp::Reverse(document.ids.len()));
    let ids = || by_length.iter().map(|document| document.ids.clone());
    let longest = by_length.first().map_or(0, |document| document.ids.len());
    let position = match longest {
        0 => None,
        long if long >= tokens => {
            Some(loss_by_position_same_documents(engine, ids(), tokens, &limits(position_s))?)
        }
        _ => Some(loss_by_position(engine, ids(), tokens, &limits(position_s))?),
    };
    let needles = match args.needle_trials {
        0 => None,
        trials => needles(engine, tokenizer, documents, [tokens, trials], needle_s)?,
    };
    Ok(Figures { bits, position, needles })
}

fn needles(
    engine: &mut Engine<'_>,
    tokenizer: &Tokenizer,
    documents: &[HeldOut],
    [tokens, trials]: [usize; 2],
    budget: Option<Duration>,
) -> Result<Option<Needles>> {
    let lengths_tokens = needle_lengths(tokens, engine.max_tokens());
    if lengths_tokens.is_empty() {
        return Ok(None);
    }
    let filler = needle_filler(documents.iter().map(|document| document.text.clone()));
    let spec = NeedleSpec { lengths_tokens, depths: DEPTHS.to_vec(), trials, seed: 0, filler, budget };
    Ok(Some(find_needles(engine, tokenizer, &spec)?))
}

/// The user's text, or the documents that the model's run held out.
fn documents(args: &Eval, folder: &Path, tokenizer: &Tokenizer, tokens: usize) -> Result<Vec<HeldOut>> {
    if !args.data.is_empty() {
        return from_files(&args.data, tokenizer, tokens);
    }
    let parent = folder.parent().map(Path::to_path_buf);
    let run = [Some(args.model.clone()), parent]
        .into_iter()
        .flatten()
        .find(|run| run.join("recipe.toml").is_file());
    let Some(run) = run else {
        bail!(
            "{}: not inside a run with held-out documents; name text with --data PATH",
            args.model.display()
        );
    };
    let recipe = resolve(Layers::new().file(run.join("recipe.toml")))?;
    if let Some(path) = altered(&run.join("data")) {
        bail!(
            "{}: was altered since the run made it (its hash differs); name text with --data PATH",
            path.display()
        );
    }
    let own =
        needs_corpus(&recipe.value).then(|| Store::open(store_prefix(&run.join("data")))).transpose()?;
    let stores = Stores::open(&recipe.value, own.map(Arc::new), tokenizer.vocab_size())?;
    held_out(&stores, tokenizer)
}

fn from_files(paths: &[PathBuf], tokenizer: &Tokenizer, tokens: usize) -> Result<Vec<HeldOut>> {
    let (mut documents, mut bytes) = (Vec::new(), 0);
    let records = fathom_curate::open(paths, &ReadOptions::default())?;
    let mut joined = group_documents(records, tokens.saturating_mul(BYTES_PER_TOKEN));
    for document in joined.by_ref() {
        let text = document?.text;
        bytes += text.len();
        documents.push(HeldOut::from_text(text, tokenizer).context("cannot encode the text")?);
        if bytes >= MOST_BYTES {
            console::note(&format!("measuring on the first {} of the text", human::bytes(bytes as u64)));
            break;
        }
    }
    let counters = joined.into_inner();
    if counters.counters().dropped_documents() > 0 {
        console::note(&format!("not measured: {}", counters.counters().summary()));
    }
    Ok(documents)
}

fn print_json(figures: &Figures, trained_tokens: usize) -> Result<()> {
    let moment = Moment { when: "eval".into(), step: 0, trained_tokens: trained_tokens as u64 };
    let events = [
        figures.bits.as_ref().map(|bits| Event::EvalBits(bits.to_event("eval", &moment))),
        figures.position.as_ref().map(|position| Event::EvalPosition(position.to_event(&moment))),
        figures.needles.as_ref().map(|needles| Event::Needle(needles.to_event(&moment))),
    ];
    for event in events.into_iter().flatten() {
        println!("{}", serde_json::to_string(&event)?);
    }
    Ok(())
}

fn print(figures: &Figures, context: usize) {
    if let Some(bits) = &figures.bits {
        println!("bits per byte  {:.4}   (gzip -9: {:.4})", bits.bits_per_byte, bits.gzip_bits_per_byte);
        let (documents, bytes) = (human::grouped(bits.documents as u64), human::bytes(bits.bytes));
        println!(
            "  {documents} documents, {bytes}, {} tokens, context {context}",
            human::grouped(bits.tokens)
        );
    }
    if let Some(position) = &figures.position {
        println!("\nloss by position ({} documents)", position.documents);
        for bucket in &position.buckets {
            println!("  {:>8} to {:<8} {:.4}", bucket.from, bucket.to, bucket.loss);
        }
    }
    let Some(needles) = &figures.needles else { return };
    println!("\nneedle found, by length and depth");
    let depths: Vec<String> =
        needles.depths.iter().map(|depth| format!("{:>6.0} %", depth * 100.0)).collect();
    println!("  {:>8} {}", "tokens", depths.join(" "));
    for length in &needles.lengths {
        let share = |right: &usize| format!("{:>6.0} %", 100.0 * *right as f64 / length.trials as f64);
        let row: Vec<String> = length.right.iter().map(share).collect();
        println!("  {:>8} {}   ({} trials each)", length.tokens, row.join(" "), length.trials);
    }
    if !needles.untried_tokens.is_empty() {
        println!("  no time for {:?}", needles.untried_tokens);
    }
}
