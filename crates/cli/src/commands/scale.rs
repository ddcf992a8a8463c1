//! `fathom scale`: scaling laws of a recipe.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use fathom_app::library::{layers, load};
use fathom_app::scale::{Ladder, LadderOutcome, LadderResult, OnGpu, Request, climb, dry_run};
use fathom_app::train::Order;
use fathom_base::human;
use fathom_train::Outcome;

use crate::exit::{ExitCode, RESUME};
use crate::listen::Plain;
use crate::{args, live, program, signals};

/// Runs the verb.
pub fn run(args: &args::Scale) -> Result<ExitCode> {
    let mut from = layers(&args.recipe, &args.settings);
    if let Some(out) = &args.out {
        from = from.flag("--out", "run.out", &out.display().to_string());
    }
    // A ladder gives every rung its steps.
    let loaded =
        load(from.flag("the ladder", "run.minutes", "none").flag("the ladder", "stage.0.steps", "1"))?;
    let request = Request { loaded, budget_s: args.budget };
    if args.dry_run {
        let ladder = dry_run(&request, &Plain::default())?;
        if args.json {
            outln!("{}", serde_json::to_string(&ladder)?);
        } else {
            print_ladder(&ladder);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Arc::new(AtomicBool::new(false));
    signals::ask(&stop)?;
    let command = format!("fathom {}", program::words().join(" ")).trim().to_string();
    let climbed = climb(&request, &Order { command, stop, ..Order::default() }, &live::Run::new())?;
    match &climbed {
        LadderOutcome::Finished(scaled) if args.json => outln!("{}", serde_json::to_string(scaled)?),
        LadderOutcome::Finished(scaled) => print(scaled),
        LadderOutcome::Interrupted => {}
    }
    Ok(match climbed.outcome() {
        Outcome::Finished => ExitCode::SUCCESS,
        Outcome::Interrupted => ExitCode::from(RESUME),
    })
}

fn print_ladder(ladder: &Ladder) {
    let speed = if ladder.measured { "measured" } else { "planned" };
    outln!(
        "  rung            layers  parameters      tokens    steps       FLOPs      memory        time ({speed})"
    );
    for rung in &ladder.rungs {
        let size = ladder.size(rung);
        outln!(
            "  {:<14} {:>7} {:>11} {:>11} {:>8} {:>11} {:>11} {:>11}",
            rung.name,
            size.layers,
            human::count(size.params),
            human::count(rung.tokens),
            rung.steps,
            human::si(rung.flops),
            human::bytes(size.peak_bytes),
            human::seconds(rung.seconds)
        );
    }
    let seconds: f64 = ladder.rungs.iter().map(|rung| rung.seconds).sum();
    outln!("  all rungs: {}", human::seconds(seconds));
}

fn print(scaled: &LadderResult) {
    outln!("  rung            parameters      tokens       FLOPs        loss");
    for rung in &scaled.trained {
        let (params, tokens) = (human::count(rung.params as u64), human::count(rung.tokens as u64));
        outln!(
            "  {:<14} {params:>11} {tokens:>11} {:>11} {:>11.4}",
            rung.name,
            human::si(rung.flops),
            rung.loss
        );
    }
    if let Some(surface) = &scaled.fits.surface {
        let law = surface.fit.law;
        outln!(
            "law: L = {:.4} + {}/N^{:.3} + {}/D^{:.3}, error {}",
            law.irreducible,
            human::number(law.a),
            law.alpha,
            human::number(law.b),
            law.beta,
            human::percent(surface.fit.rms())
        );
    }
    if let (Some(expected), Some(held_out)) = (&scaled.expected, scaled.trained.last()) {
        outln!("{}", expected.judged(held_out.loss));
    }
    scaled.gpus.iter().for_each(print_gpu);
    outln!("{}", scaled.page.display());
}

fn print_gpu(of: &OnGpu) {
    outln!(
        "  {} GPU hours: {} parameters (width {}) on {} tokens, loss {:.3} ({} x the compute of the largest rung)",
        human::number(of.hours),
        human::count(of.params as u64),
        of.hidden,
        human::count(of.tokens as u64),
        of.loss,
        human::number(of.beyond)
    );
}
