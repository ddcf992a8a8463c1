//! `fathom guard eval`: a guard on an interaction set.

use anyhow::Result;
use fathom_app::{Machine, guardrails};

use super::files;
use crate::args::GuardEval;
use crate::listen::Plain;

/// Misses that are printed.
const LISTED: usize = 20;

/// Runs the verb.
pub fn run(args: &GuardEval) -> Result<()> {
    files::check(&[args.figures.page.as_deref()])?;
    let machine = Machine::of_kind(args.figures.machine.kind(), 0, &Plain::default());
    let report = guardrails::evaluate(&args.config, &args.set, &guardrails::needs(&machine))?;
    let title = args.set.display().to_string();
    files::write(args.figures.page.as_deref(), || guardrails::evaluation_page(&title, &report))?;
    if args.figures.json {
        outln!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    outln!("as expected      {}", report.agreement);
    for (name, rate) in [
        ("blocked         ", report.blocked),
        ("rewritten       ", report.rewritten),
        ("false refusals  ", report.false_refusals),
        ("a rail failed   ", report.failed),
    ] {
        if rate.of > 0 {
            outln!("{name} {rate}");
        }
    }
    outln!("latency          {:.2} ms, 99 % within {:.2} ms", report.latency.p50_ms, report.latency.p99_ms);
    for (name, rail) in &report.rails {
        outln!(
            "rail {name}: acted on {} as expected and on {} others, passed {} that it should not, failed on {}",
            rail.true_positives,
            rail.false_positives,
            rail.false_negatives,
            rail.failures
        );
    }
    for miss in report.misses.iter().take(LISTED) {
        let (expected, decision) = (format!("{:?}", miss.expected), format!("{:?}", miss.decision));
        let (expected, decision) = (expected.to_lowercase(), decision.to_lowercase());
        outln!("interaction {}: expected {expected}, was {decision} ({})", miss.id, miss.rails.join(", "));
    }
    Ok(())
}
