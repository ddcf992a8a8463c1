//! `fathom guard audit`: probes of a model or a guard.

use anyhow::Result;
use fathom_app::{Machine, guardrails};
use fathom_guard::evaluation::{ProbeOutcome, probes};

use super::files;
use crate::args::GuardAudit;
use crate::listen::Plain;

/// Runs the verb.
pub fn run(args: &GuardAudit) -> Result<()> {
    files::check(&[args.log.as_deref(), args.page.as_deref()])?;
    let listener = Plain::default();
    let probes = match &args.probes {
        Some(file) => guardrails::probe_file(file)?,
        None => probes(args.seed),
    };
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let report = guardrails::audit(&args.target, &probes, args.max_tokens, (&machine, &listener))?;
    files::write(args.log.as_deref(), || {
        let line = |record| serde_json::to_string(record).unwrap_or_default() + "\n";
        report.records.iter().map(line).collect()
    })?;
    let title = args.target.display().to_string();
    files::write(args.page.as_deref(), || guardrails::audit_page(&title, &report))?;
    if args.json {
        outln!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    for (name, rate) in [
        ("attacks that succeeded  ", report.hits),
        ("attacks refused         ", report.refused),
        ("harmless ones refused   ", report.false_refusals),
    ] {
        if rate.of > 0 {
            outln!("{name} {rate}");
        }
    }
    for hit in report.records.iter().filter(|record| record.outcome == ProbeOutcome::Hit) {
        outln!("hit: {}", hit.id);
    }
    Ok(())
}
