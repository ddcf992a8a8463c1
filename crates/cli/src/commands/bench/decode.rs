//! Generation of one sequence: tokens/s from the first new token to the last.

use anyhow::{Result, bail};
use fathom_base::{Flow, Generate, GenerateRequest};
use fathom_engine::{Engine, Limits};
use fathom_grad::Params;
use fathom_model::{Init, Model, initialise};
use fathom_tensor::Device;
use fathom_text::Tokenizer;
use fathom_train::recipe::Recipe;

use super::peaks::scored;
use super::random::Random;
use super::row::Row;
use super::subject;
use super::watch::{Watch, median};
use crate::args::bench::{Decode, Scores};
use crate::{device, pipeline};

/// Runs the benchmark.
pub fn run(args: &Decode) -> Result<()> {
    if args.prompt == 0 || args.new == 0 {
        bail!("--prompt {} --new {}: both must be at least 1", args.prompt, args.new);
    }
    let recipe = subject::recipe(&args.trained.recipe, &["machine", "model", "moe"])?.value;
    // A folder's weights have the scores that they were trained to.
    match recipe.model.from {
        Some(_) => measured(args, &recipe, None),
        None => args.peaks.each().into_iter().try_for_each(|scores| measured(args, &recipe, Some(scores))),
    }
}

/// The row of such scores.
fn measured(args: &Decode, recipe: &Recipe, scores: Option<Scores>) -> Result<()> {
    let device = subject::open(recipe)?;
    // One token more, so that `new` tokens follow the first one, which the prompt gives.
    let context_tokens = args.prompt + args.new + 1;
    let (model, params) = model(recipe, &device, scores)?;
    let tokenizer = silent_tokenizer()?;
    let limits = Limits { context_tokens, ..Limits::default() };
    let mut engine = Engine::new(&device, &model, &params, &tokenizer, limits);
    let mut random = Random::new(1);
    let ids: Vec<u32> = (0..args.prompt).map(|_| random.below(model.spec.vocab) as u32).collect();
    let request = GenerateRequest::greedy(ids, args.new + 1);
    engine.generate(&request, &mut |_| Flow::Continue)?;
    let watch = Watch::begin();
    let (mut rates, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..args.trained.repeat.max(1) {
        let answer = engine.generate(&request, &mut |_| Flow::Continue)?;
        rates.push(args.new as f64 / answer.decode_s);
        firsts.push(answer.prefill_s);
    }
    rates.sort_by(f64::total_cmp);
    firsts.sort_by(f64::total_cmp);
    let rate = median(&rates);
    Row::new("decode")
        .with("dtype", recipe.model.precision.name())
        .with("prompt_tokens", args.prompt)
        .with("new_tokens", args.new)
        .with("scores", scores.map_or("trained", Scores::name))
        .with("threads", device.machine.profile().threads)
        .figure("tokens_per_s", rate)
        .figure("ms_per_token", 1e3 / rate)
        .figure("first_token_ms", median(&firsts) * 1e3)
        .figure("tokens_per_s_best", rates[rates.len() - 1])
        .with("isa", device.machine.profile().isa.as_str())
        .print(watch.loaded());
    Ok(())
}

/// The model of a recipe: read from its folder, else with random weights and such scores.
fn model(recipe: &Recipe, device: &Device, scores: Option<Scores>) -> Result<(Model, Params)> {
    let dtype = device::precision(recipe.model.precision);
    if let Some(path) = &recipe.model.from {
        let loaded = device::load(device, &device::model_folder(path)?, Some(dtype))?;
        return Ok((loaded.model, loaded.params));
    }
    let deviation = recipe.model.init_std;
    let spec = scored(&pipeline::spec(recipe)?, scores.unwrap_or(Scores::Flat), deviation);
    let (model, mut params) = Model::declare(device, &spec, dtype);
    initialise(device, &model, &mut params, Init { deviation, seed: 1 });
    Ok((model, params))
}

/// A tokenizer that knows no token: ids are made and counted, no text, and none of them ends a sequence.
pub fn silent_tokenizer() -> Result<Tokenizer> {
    let json = br#"{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}"#;
    Ok(Tokenizer::from_bytes(json, std::path::Path::new("no tokenizer"))?)
}
