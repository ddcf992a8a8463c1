//! `fathom generate`: continues a prompt, streaming.

use std::io::{IsTerminal, Read, Write};

use anyhow::{Context, Result, bail};
use fathom_app::generate::SplitModel;
use fathom_app::{Machine, generate, models};
use fathom_base::{Flow, PartialSampling, Sampling};
use fathom_train::recipe::Precision;

use crate::listen::Plain;
use crate::{args, console};

/// Runs the verb.
pub fn run(args: &args::Generate) -> Result<()> {
    let listener = Plain::default();
    let dtype = args.precision.map(Precision::dtype);
    let machine = Machine::of_kind(args.machine.kind(), args.threads, &listener);
    let mesh = args.mesh.asked();
    let over_ranks = mesh.is_spread();
    if over_ranks && args.adapter.is_some() {
        bail!(
            "--adapter is for one rank; leave out --tp and --pp, or merge the adapter first (fathom export)"
        );
    }
    let request = generate::Request {
        prompt: prompt(args)?,
        sampling: chosen(&args.sampling).on(ends(&args.sampling)),
        max_tokens: args.sampling.max_tokens,
        context_tokens: args.context,
    };
    let (mut out, mut unwritten) = (std::io::stdout(), None);
    let mut stream = |text: &str| {
        let written =
            if args.ids { Ok(()) } else { out.write_all(text.as_bytes()).and_then(|()| out.flush()) };
        unwritten = written.err();
        if unwritten.is_none() { Flow::Continue } else { Flow::Stop }
    };
    let answer = if over_ranks {
        let (model, events) = (args.model.as_path(), &listener);
        SplitModel { model, dtype, machine: &machine, mesh, events }.generate(&request, &mut stream)?
    } else {
        let model = models::open_writer(&args.model, args.adapter.as_deref(), dtype, &machine, &listener)?;
        generate(&model, &request, &mut stream)?
    };
    if let Some(error) = unwritten {
        crate::console::unprinted(&error);
    }
    if args.ids {
        outln!("{}", serde_json::json!(answer.ids));
        return Ok(());
    }
    outln!();
    let decoded = answer.ids.len().saturating_sub(1) as f64 / answer.decode_s.max(1e-9);
    console::note(&format!(
        "[{} prompt tokens in {:.2} s, {} new tokens at {decoded:.1} tokens/s]",
        answer.prompt_tokens,
        answer.prefill_s,
        answer.ids.len()
    ));
    Ok(())
}

fn prompt(args: &args::Generate) -> Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    if std::io::stdin().is_terminal() {
        console::line("prompt (end with ctrl-D):");
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the prompt from standard input")?;
    Ok(text)
}

/// The seed, and the stop strings.
pub fn ends(args: &args::Sampling) -> Sampling {
    Sampling { seed: args.seed, stop: args.stop.clone(), ..Sampling::default() }
}

/// Sampling settings, as far as they are given.
pub fn chosen(args: &args::Sampling) -> PartialSampling {
    let args::Sampling { temperature, top_k, top_p, min_p, repetition_penalty, .. } = *args;
    PartialSampling { temperature, top_k, top_p, min_p, repetition_penalty }
}
