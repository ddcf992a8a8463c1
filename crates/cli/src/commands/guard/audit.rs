//! `fathom guard audit`: probes of a model or a guard.

use anyhow::{Context, Result};
use fathom_app::{Machine, guardrails};
use fathom_guard::evaluation::{ProbeOutcome, probes};
use fathom_serve::bench::Target;

use super::files;
use crate::args::GuardAudit;
use crate::listen::Plain;

/// Runs the verb.
pub fn run(args: &GuardAudit) -> Result<()> {
    files::check(&[args.log.as_deref(), args.figures.page.as_deref()])?;
    let listener = Plain::default();
    let probes = match &args.probes {
        Some(file) => guardrails::probe_file(file)?,
        None => probes(args.seed),
    };
    let report = match args.target.to_str().filter(|target| target.contains("://")) {
        Some(url) => {
            let mut target = Target::parse(url)?;
            if let Some(file) = &args.key_file {
                let text = std::fs::read_to_string(file);
                let text = text.with_context(|| format!("cannot read {}", file.display()))?;
                target.key = text.lines().next().map(|line| line.trim().to_string());
            }
            guardrails::audit_server(&target, args.model.as_deref(), &probes, args.max_tokens)?
        }
        None => {
            let machine = Machine::of_kind(args.figures.machine.kind(), 0, &listener);
            guardrails::audit(&args.target, &probes, args.max_tokens, (&machine, &listener))?
        }
    };
    files::write(args.log.as_deref(), || {
        let line = |record| serde_json::to_string(record).unwrap_or_default() + "\n";
        report.records.iter().map(line).collect()
    })?;
    let title = args.target.display().to_string();
    files::write(args.figures.page.as_deref(), || guardrails::audit_page(&title, &report))?;
    if args.figures.json {
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
