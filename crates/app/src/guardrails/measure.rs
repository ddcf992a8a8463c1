//! Measurements of guards and models: interaction sets, thresholds, probes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fathom_guard::audit::verify;
use fathom_guard::evaluation::{
    AuditReport, Calibration, EvaluationReport, Interaction, Probe, ProbeAnswer, audit_guard, audit_model,
    calibrate, evaluate_guard, rail_scores, read_interactions, read_probes,
};
use fathom_guard::report::{AuditReport as LogReport, report};
use fathom_guard::{Config, Engine, FILE, Metrics, Needs};
use fathom_serve::bench::{Target, post_all};
use serde_json::{Value, json};

use super::needs;
use crate::error::{Result, refuse};
use crate::events::Events;
use crate::host::{Host, HostOptions};
use crate::machine::Machine;

/// Probes that a model answers at once.
const SEQUENCES: usize = 16;

/// Loads the guard of a folder; its rails open their models on this machine.
///
/// # Errors
/// The configuration is refused.
pub fn open(folder: &Path, needs: &Needs) -> Result<Engine> {
    match Config::load(folder, needs) {
        Ok(config) => Ok(Engine::new(Arc::new(config), needs.clock.clone(), Arc::new(Metrics::default()))),
        Err(error) => refuse!("{error}"),
    }
}

fn text(file: &Path) -> Result<String> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text),
        Err(error) => refuse!("cannot read {}: {error}", file.display()),
    }
}

/// Summary of a configuration's audit log, after its chain has been verified.
///
/// # Errors
/// The configuration has no audit log; a line that was changed, dropped or added.
pub fn audited(folder: &Path) -> Result<LogReport> {
    let settings = match Config::read_settings(folder) {
        Ok(settings) => settings.audit,
        Err(error) => refuse!("{error}"),
    };
    let Some(audit) = settings else {
        refuse!("{}: it has no [guard.audit], so nothing is recorded", folder.join(FILE).display());
    };
    if let Err(tampered) = verify(&folder.join(&audit.folder), &folder.join(&audit.secret))? {
        refuse!("the audit log was changed: {tampered}");
    }
    Ok(report(&folder.join(&audit.folder))?)
}

/// Reads an interaction set.
///
/// # Errors
/// The file, its line and the problem.
pub fn interactions(file: &Path) -> Result<Vec<Interaction>> {
    match read_interactions(&text(file)?) {
        Ok(set) if set.is_empty() => refuse!("{} has no interactions", file.display()),
        Ok(set) => Ok(set),
        Err((line, why)) => refuse!("{}:{line}: {why}", file.display()),
    }
}

/// Reads probes of our own form, or a file of CyberSecEval.
///
/// # Errors
/// The file, its entry and the problem.
pub fn probe_file(file: &Path) -> Result<Vec<Probe>> {
    match read_probes(&text(file)?) {
        Ok(probes) if probes.is_empty() => refuse!("{} has no probes", file.display()),
        Ok(probes) => Ok(probes),
        Err((entry, why)) => refuse!("{}: entry {entry} {why}", file.display()),
    }
}

/// Judges an interaction set by a guard.
///
/// # Errors
/// The configuration or the set is refused.
pub fn evaluate(folder: &Path, set: &Path, needs: &Needs) -> Result<EvaluationReport> {
    let set = interactions(set)?;
    Ok(evaluate_guard(&open(folder, needs)?, &set))
}

/// Calibrates the threshold of a rail to a false positive rate.
///
/// # Errors
/// The configuration or the set is refused; there is no such rail, or it has no scores; the set has one label alone.
pub fn calibrated(
    folder: &Path,
    rail: &str,
    set: &Path,
    most_false_positives: f64,
    needs: &Needs,
) -> Result<Calibration> {
    let set = interactions(set)?;
    let engine = open(folder, needs)?;
    let found = rail_scores(engine.config(), rail, &set);
    match found.and_then(|scores| calibrate(&scores, most_false_positives)) {
        Ok(found) => Ok(found),
        Err(why) => refuse!("{why}"),
    }
}

/// Sends probes to a server that speaks OpenAI's chat completions; `model` names one of its models.
///
/// # Errors
/// The server cannot be reached, or refuses a request for another reason than its rails.
pub fn audit_server(
    target: &Target,
    model: Option<&str>,
    probes: &[Probe],
    max_tokens: usize,
) -> Result<AuditReport> {
    const PATH: &str = "/v1/chat/completions";
    let answer = |probe: &Probe| {
        let system = probe.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> =
            system.chain(std::iter::once(json!({"role": "user", "content": probe.text}))).collect();
        let mut body = json!({"messages": messages, "max_tokens": max_tokens, "temperature": 0});
        if let Some(model) = model {
            body["model"] = model.into();
        }
        let begin = Instant::now();
        let (status, found) = post_all(target, PATH, &[body.to_string()])?.swap_remove(0);
        let took_s = begin.elapsed().as_secs_f64();
        let choice = &found["choices"][0];
        let blocked =
            choice["finish_reason"] == "content_filter" || found["error"]["type"] == "guardrails_violation";
        if status != 200 && !blocked {
            refuse!(
                "{PATH} answered {status}: {}",
                found["error"]["message"].as_str().unwrap_or("no reason")
            );
        }
        let rail = || choice["stop_reason"].as_str().unwrap_or("the server").to_string();
        Ok(ProbeAnswer {
            text: choice["message"]["content"].as_str().unwrap_or_default().to_string(),
            rail: blocked.then(rail),
            took_s,
        })
    };
    fathom_guard::evaluation::audit(probes, answer)
}

/// Sends probes to a model, or to the input rails of a guard's folder.
///
/// # Errors
/// Neither is there; the model fails.
pub fn audit(
    target: &Path,
    probes: &[Probe],
    max_tokens: usize,
    (machine, events): (&Machine, &dyn Events),
) -> Result<AuditReport> {
    if target.join(FILE).is_file() {
        return Ok(audit_guard(&open(target, &needs(machine))?, probes));
    }
    let options = HostOptions { sequences: SEQUENCES, ..HostOptions::new(target, machine) };
    let host = Host::open_writer(options, events)?;
    let converses = fathom_base::Describe::card(&**host.service()).converses;
    audit_model(probes, &host, converses, max_tokens).map_err(|error| host.cause(error))
}
