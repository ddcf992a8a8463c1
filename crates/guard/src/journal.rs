//! The rails' account of one request, for its answer and its trace: decisions and times, never text. Runs of a rail in one
//! direction, such as those of a stream's windows, are one entry.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fathom_base::Usage;
use serde_json::{Value, json};

use crate::verdict::{Decision, Direction, Verdict};

/// Parts of a journal that an answer shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalParts {
    /// The rails that ran.
    pub activated_rails: bool,
    /// The calls of models by rails.
    pub llm_calls: bool,
}

/// All runs of a rail in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct RailRun {
    /// Name of the rail in the configuration.
    pub rail: String,
    /// Direction.
    pub direction: Direction,
    /// The decisions, each once.
    pub decisions: Vec<Decision>,
    /// True if the rail failed.
    pub failed: bool,
    /// Number of runs.
    pub runs: usize,
    /// Start of the first run.
    pub began: SystemTime,
    /// Time of all runs together.
    pub took: Duration,
}

impl RailRun {
    /// Returns whether the rail ended the request.
    pub fn stops(&self) -> bool {
        self.decisions.contains(&Decision::Block)
    }
}

/// A call of a model by a rail.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCall {
    /// Name of the rail.
    pub rail: String,
    /// Name of the model.
    pub model: String,
    /// Start.
    pub began: SystemTime,
    /// Duration.
    pub took: Duration,
    /// Its tokens.
    pub usage: Usage,
}

#[derive(Debug, Default)]
struct Entries {
    runs: Vec<RailRun>,
    calls: Vec<ModelCall>,
}

/// Account of one request: runs of rails and calls of models.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Entries>);

impl Journal {
    fn with<T>(&self, work: impl FnOnce(&mut Entries) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes a verdict that has just been reached.
    pub(crate) fn ran(&self, verdict: &Verdict) {
        self.with(|entries| {
            let same = |it: &&mut RailRun| it.rail == verdict.rail && it.direction == verdict.direction;
            if let Some(run) = entries.runs.iter_mut().find(same) {
                run.runs += 1;
                run.took += verdict.took;
                run.failed |= verdict.failed;
                if !run.decisions.contains(&verdict.decision) {
                    run.decisions.push(verdict.decision);
                }
                return;
            }
            entries.runs.push(RailRun {
                rail: verdict.rail.clone(),
                direction: verdict.direction,
                decisions: vec![verdict.decision],
                failed: verdict.failed,
                runs: 1,
                began: SystemTime::now() - verdict.took,
                took: verdict.took,
            });
        });
    }

    /// Notes a call of a model that has ended.
    pub(crate) fn called(&self, call: ModelCall) {
        self.with(|entries| entries.calls.push(call));
    }

    /// The rails that ran, in the order of their first runs.
    pub fn runs(&self) -> Vec<RailRun> {
        self.with(|entries| entries.runs.clone())
    }

    /// The calls of models by rails.
    pub fn calls(&self) -> Vec<ModelCall> {
        self.with(|entries| entries.calls.clone())
    }

    /// The log of an answer, in NeMo Guardrails' fields; times are seconds.
    pub fn json(&self, shown: JournalParts) -> Value {
        let (runs, calls) = self.with(|entries| (entries.runs.clone(), entries.calls.clone()));
        let mut log = json!({"stats": stats(&runs, &calls)});
        if shown.activated_rails {
            log["activated_rails"] = runs.iter().map(|run| run_json(run, &calls)).collect();
        }
        if shown.llm_calls {
            log["llm_calls"] = calls.iter().map(call_json).collect();
        }
        log
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn run_json(run: &RailRun, calls: &[ModelCall]) -> Value {
    json!({
        "type": run.direction,
        "name": run.rail,
        "decisions": run.decisions,
        "stop": run.stops(),
        "failed": run.failed,
        "runs": run.runs,
        "llm_calls": calls.iter().filter(|call| call.rail == run.rail).count(),
        "started_at": seconds(run.began),
        "duration": run.took.as_secs_f64(),
    })
}

fn call_json(call: &ModelCall) -> Value {
    json!({
        "task": call.rail,
        "llm_model_name": call.model,
        "started_at": seconds(call.began),
        "finished_at": seconds(call.began + call.took),
        "duration": call.took.as_secs_f64(),
        "prompt_tokens": call.usage.prompt_tokens,
        "cached_tokens": call.usage.cached_tokens,
        "completion_tokens": call.usage.answer_tokens,
        "total_tokens": call.usage.prompt_tokens + call.usage.answer_tokens,
    })
}

fn stats(runs: &[RailRun], calls: &[ModelCall]) -> Value {
    let mut stats = json!({
        "llm_calls_count": calls.len(),
        "llm_calls_duration": calls.iter().map(|call| call.took).sum::<Duration>().as_secs_f64(),
        "llm_calls_total_prompt_tokens": calls.iter().map(|call| call.usage.prompt_tokens).sum::<usize>(),
        "llm_calls_total_completion_tokens": calls.iter().map(|call| call.usage.answer_tokens).sum::<usize>(),
    });
    for direction in Direction::ALL {
        let of = runs.iter().filter(|run| run.direction == direction);
        let took: Duration = of.map(|run| run.took).sum();
        if !took.is_zero() {
            stats[format!("{}_rails_duration", direction.name())] = took.as_secs_f64().into();
        }
    }
    stats
}
