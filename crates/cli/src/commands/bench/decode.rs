//! Generation of one sequence: tokens/s from the first new token to the last.

use anyhow::{Result, bail};
use fathom_base::{Flow, Generate, GenerateRequest};
use fathom_engine::{Engine, Limits};
use fathom_grad::Params;
use fathom_model::{Init, Model, initialise};
use fathom_text::Tokenizer;

use super::random::Random;
use super::row::Row;
use super::watch::{Watch, median};
use super::{Bed, llama};
use crate::args::Bench;
use crate::device;

/// Runs the benchmark.
pub fn run(args: &Bench) -> Result<()> {
    if args.prompt == 0 || args.new == 0 {
        bail!("--prompt {} --new {}: both must be at least 1", args.prompt, args.new);
    }
    let bed = Bed::new(args)?;
    // One token more, so that `new` tokens follow the first one, which the prompt gives.
    let context_tokens = args.prompt + args.new + 1;
    let (model, params) = model(args, &bed, context_tokens)?;
    let tokenizer = silent_tokenizer()?;
    let limits = Limits { context_tokens, ..Limits::default() };
    let mut engine = Engine::new(&bed.device, &model, &params, &tokenizer, limits);
    let mut random = Random::new(1);
    let ids: Vec<u32> = (0..args.prompt).map(|_| random.below(model.spec.vocab) as u32).collect();
    let request = GenerateRequest::greedy(ids, args.new + 1);
    engine.generate(&request, &mut |_| Flow::Continue)?;
    let watch = Watch::begin();
    let (mut rates, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..args.repeat.max(1) {
        let answer = engine.generate(&request, &mut |_| Flow::Continue)?;
        rates.push(args.new as f64 / answer.decode_s);
        firsts.push(answer.prefill_s);
    }
    rates.sort_by(f64::total_cmp);
    firsts.sort_by(f64::total_cmp);
    let rate = median(&rates);
    Row::new("decode")
        .with("dtype", args.dtype.as_str())
        .with("prompt_tokens", args.prompt)
        .with("new_tokens", args.new)
        .with("threads", bed.threads())
        .figure("tokens_per_s", rate)
        .figure("ms_per_token", 1e3 / rate)
        .figure("first_token_ms", median(&firsts) * 1e3)
        .figure("tokens_per_s_best", rates[rates.len() - 1])
        .with("isa", bed.cpu.isa().name())
        .print(watch.loaded());
    Ok(())
}

fn model(args: &Bench, bed: &Bed, tokens: usize) -> Result<(Model, Params)> {
    if let Some(path) = &args.model {
        let loaded = device::load(&bed.device, &device::model_folder(path)?, Some(bed.dtype))?;
        return Ok((loaded.model, loaded.params));
    }
    let (model, mut params) = Model::declare(&bed.device, &llama(args, tokens)?, bed.dtype);
    initialise(&bed.device, &model, &mut params, Init::new(1));
    Ok((model, params))
}

/// A tokenizer that knows no token: ids are made and counted, no text, and none of them ends a sequence.
pub fn silent_tokenizer() -> Result<Tokenizer> {
    let json = br#"{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}"#;
    Ok(Tokenizer::from_bytes(json, std::path::Path::new("no tokenizer"))?)
}
