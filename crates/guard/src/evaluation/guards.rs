//! Measurements of a guard itself: interaction sets, scores of one of its rails, and probes without a model.

use std::sync::Arc;
use std::time::Instant;

use fathom_base::clock::Clock;

use super::audit::{AuditReport, ProbeAnswer, audit};
use super::calibrate::LabelledScore;
use super::interactions::{EvaluationReport, Expectation, Interaction, Judgement, evaluate};
use super::probes::Probe;
use crate::config::Config;
use crate::engine::{Engine, Subject};
use crate::rail::{Context, RailInput, Until};
use crate::verdict::Direction;

/// Judges an interaction set by a guard.
pub fn evaluate_guard(engine: &Engine, set: &[Interaction]) -> EvaluationReport {
    let judge = |one: &Interaction| {
        let begin = Instant::now();
        let outcome = engine.judge(&one.judged_text(), &Subject::new(one.direction, Arc::new(context(one))));
        Ok::<_, std::convert::Infallible>(Judgement::of(&outcome.verdicts, begin.elapsed().as_secs_f64()))
    };
    match evaluate(set, judge) {
        Ok(report) => report,
        Err(never) => match never {},
    }
}

fn context(one: &Interaction) -> Context {
    Context { messages: one.conversation(), evidence: one.evidence.clone(), ..Context::default() }
}

/// Scores that a rail of a guard gives an interaction set; those that are expected to be blocked or rewritten are to be
/// condemned.
///
/// # Errors
/// There is no such rail, it has no scores, or it fails.
pub fn rail_scores(config: &Config, rail: &str, set: &[Interaction]) -> Result<Vec<LabelledScore>, String> {
    let names: Vec<&str> = config.rails.iter().map(|rail| &*rail.setting.name).collect();
    let found = config.rails.iter().find(|it| it.setting.name == rail).ok_or_else(|| {
        format!("there is no rail `{rail}`; {}", fathom_base::recipe::suggest_name(rail, &names, "there are"))
    })?;
    let clock = Clock::default();
    let score = |one: &Interaction| {
        let (text, context) = (one.judged_text(), context(one));
        let judged = RailInput {
            text: &text,
            from: 0,
            whole: true,
            direction: one.direction,
            context: &context,
            tool: None,
        };
        let until = Until::within(&clock, found.setting.timeout_ms as f64 / 1e3);
        let opinion =
            found.rail.judge(&judged, &until).map_err(|why| format!("interaction {}: {why}", one.id))?;
        let score =
            opinion.score.ok_or_else(|| format!("the rail `{rail}` finds by rules and has no scores"))?;
        Ok(LabelledScore { score, condemn: one.expected != Expectation::Allow })
    };
    set.iter().map(score).collect()
}

/// Sends probes to the input rails of a guard. Without a model there are no answers, so only refusals are counted.
pub fn audit_guard(engine: &Engine, probes: &[Probe]) -> AuditReport {
    let without_canaries: Vec<Probe> =
        probes.iter().map(|probe| Probe { canary: None, ..probe.clone() }).collect();
    let answer = |probe: &Probe| {
        let begin = Instant::now();
        let messages = vec![serde_json::json!({"role": "user", "content": probe.text})];
        let context = Context { messages, ..Context::default() };
        let outcome = engine.judge(&probe.text, &Subject::new(Direction::Input, Arc::new(context)));
        let rail = outcome.block().map(|verdict| verdict.rail.clone());
        let took_s = begin.elapsed().as_secs_f64();
        Ok::<_, std::convert::Infallible>(ProbeAnswer { text: String::new(), rail, took_s })
    };
    match audit(&without_canaries, answer) {
        Ok(report) => report,
        Err(never) => match never {},
    }
}
