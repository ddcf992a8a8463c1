//! Generation of one sequence: tokens/s from the first new token to the last.

use anyhow::{Result, bail};
use fathom_app::{Job, models};
use fathom_base::{Flow, GenerateRequest};
use fathom_engine::{Engine, Limits};
use fathom_grad::{Params, Value};
use fathom_model::{Init, LoadedModel, Model, ModelView, initialise};
use fathom_tensor::{Device, Tensor};
use fathom_text::Tokenizer;

use super::peaks::scored;
use super::random::Random;
use super::row::Row;
use super::subject;
use super::watch::{Watch, median};
use crate::args::bench::{Decode, Scores};
use crate::listen::Plain;

/// The measured phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Prefill,
    Decode,
}

/// Runs `fathom bench decode`.
pub fn run(args: &Decode) -> Result<()> {
    each(args, Phase::Decode)
}

/// Runs `fathom bench prefill`.
pub fn prefill(args: &Decode) -> Result<()> {
    each(args, Phase::Prefill)
}

fn each(args: &Decode, phase: Phase) -> Result<()> {
    if args.prompt == 0 || args.new == 0 {
        bail!("--prompt {} --new {}: both must be at least 1", args.prompt, args.new);
    }
    let job = subject::job(&args.trained.recipe, &["machine", "model", "moe"])?;
    // Weights from a folder have trained scores.
    match job.recipe().model.from {
        Some(_) => measured(args, &job, None, phase),
        None => {
            args.peaks.each().into_iter().try_for_each(|scores| measured(args, &job, Some(scores), phase))
        }
    }
}

/// Measures and prints the row of one kind of scores.
fn measured(args: &Decode, job: &Job, scores: Option<Scores>, phase: Phase) -> Result<()> {
    let device = subject::open(job)?;
    // One more, so that `new` tokens follow the first one, which the prompt's pass gives.
    let new = if phase == Phase::Prefill { 0 } else { args.new };
    let context_tokens = args.prompt + new + 1;
    let (model, params) = model(job, &device, scores)?;
    let tokenizer = silent_tokenizer()?;
    let limits = Limits { context_tokens, ..Limits::default() };
    let engine =
        Engine::new(ModelView { device: &device, model: &model, params: &params }, &tokenizer, limits);
    let mut random = Random::new(1);
    let ids: Vec<u32> = (0..args.prompt).map(|_| random.below(model.spec.vocab) as u32).collect();
    let request = GenerateRequest::greedy(ids, new + 1);
    engine.generate(&request, &mut |_| Flow::Continue)?;
    let watch = Watch::begin();
    let (mut rates, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..args.trained.repeat.max(1) {
        let answer = engine.generate(&request, &mut |_| Flow::Continue)?;
        rates.push(match phase {
            Phase::Prefill => args.prompt as f64 / answer.prefill_s,
            Phase::Decode => new as f64 / answer.decode_s,
        });
        firsts.push(answer.prefill_s);
    }
    rates.sort_by(f64::total_cmp);
    firsts.sort_by(f64::total_cmp);
    let rate = median(&rates);
    let name = if phase == Phase::Prefill { "prefill" } else { "decode" };
    // Weights that a step reads: an untied embedding counts only by its looked-up rows.
    let table = model.embed.filter(|_| !model.spec.tied).map(|embed| &params.get(embed.tokens).value);
    let bytes = weight_bytes(&params).saturating_sub(table.map_or(0, held_bytes)) as f64;
    let steps = if phase == Phase::Prefill { rate / args.prompt as f64 } else { rate };
    Row::new(name)
        .with("dtype", job.recipe().model.precision.name())
        .with("prompt_tokens", args.prompt)
        .with("new_tokens", new)
        .with("scores", scores.map_or("trained", Scores::name))
        .with("threads", device.machine.profile().threads)
        .figure("tokens_per_s", rate)
        .figure("ms_per_token", 1e3 / rate)
        .figure("bytes_per_s", bytes * steps)
        .figure("first_token_ms", median(&firsts) * 1e3)
        .figure("tokens_per_s_best", rates[rates.len() - 1])
        .with("isa", device.machine.profile().isa.as_str())
        .print(watch.loaded());
    Ok(())
}

/// Size of all weights.
fn weight_bytes(params: &Params) -> u64 {
    params.iter().map(|(_, param)| held_bytes(&param.value)).sum()
}

/// Size of a weight.
fn held_bytes(value: &Value) -> u64 {
    let plain = |value: &Value| (value.len() * value.dtype().bytes()) as u64;
    let unblocked = || value.as_packed().map_or(plain(value), |(_, bytes)| plain(bytes));
    value.as_blocked().map_or_else(unblocked, Tensor::bytes)
}

/// A recipe's model: read from its folder, otherwise with random weights and the given scores.
fn model(job: &Job, device: &Device, scores: Option<Scores>) -> Result<(Model, Params)> {
    let dtype = job.recipe().model.precision.dtype();
    if let Some(folder) = job.start()? {
        let LoadedModel { model, params, .. } =
            models::load_stored(device, &folder, Some(dtype), &Plain::default())?;
        return Ok((model, params));
    }
    let deviation = job.recipe().model.init_std;
    let spec = scored(&job.stages[0].spec, scores.unwrap_or(Scores::Flat), deviation);
    let (model, mut params) = Model::declare(device, &spec, dtype);
    initialise(device, &model, &mut params, Init { deviation, seed: 1 });
    Ok((model, params))
}

/// A tokenizer without tokens: ids are generated and counted, without text or an end token.
pub fn silent_tokenizer() -> Result<Tokenizer> {
    let json = br#"{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}"#;
    Ok(Tokenizer::from_bytes(json, std::path::Path::new("no tokenizer"))?)
}
