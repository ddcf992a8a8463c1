//! `fathom bench serve`: load on a server, or the overhead of our own.

use anyhow::{Context, Result, bail};
use fathom_serve::bench::{Arrival, Load, Target, own_cost, run as offer};

use crate::args::bench::Offer;

/// Prints a row for each load.
pub fn run(args: &Offer) -> Result<()> {
    let Some(url) = &args.url else {
        for row in own_cost(10 * args.requests)? {
            outln!("{row}");
        }
        return Ok(());
    };
    let mut target = Target::parse(url)?;
    if let Some(file) = &args.key_file {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        target.key = text.lines().next().map(|line| line.trim().to_string());
    }
    let [first_ms, between_ms] = args.good[..] else {
        bail!("--good: give two numbers of milliseconds, to the first token and between tokens");
    };
    let load = Load {
        arrival: args.rate.map_or(Arrival::Clients(args.clients), Arrival::PerSecond),
        requests: args.requests,
        prompt_words: args.prompt,
        answer_tokens: args.answer,
        shared_share: args.shared,
        stream: true,
        model: args.model.clone(),
        good_s: (first_ms / 1e3, between_ms / 1e3),
        seed: args.seed,
    };
    outln!("{}", offer(&target, &load)?);
    Ok(())
}
