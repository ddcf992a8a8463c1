//! A request for a ladder, and its result.

use std::path::PathBuf;

use fathom_base::recipe::Loaded;
use fathom_train::Outcome;
use fathom_train::recipe::Recipe;
use serde::Serialize;

use super::fits::{Fits, Prediction, RungResult};
use super::gpus::OnGpu;
use super::rungs::Ladder;

/// A ladder to climb.
pub struct Request {
    /// The recipe, whose `scale` table describes the ladder; `run.out` is the ladder's folder.
    pub loaded: Loaded<Recipe>,
    /// Seconds for all rungs together.
    pub budget_s: f64,
}

/// Everything that a ladder has found, as `scale.json` has it.
#[derive(Clone, Debug, Serialize)]
pub struct LadderResult {
    /// The rungs, and what they were expected to cost.
    pub ladder: Ladder,
    /// Trained rungs, in the order of the ladder.
    pub trained: Vec<RungResult>,
    /// Laws fitted to all rungs but the held-out one.
    pub fits: Fits,
    /// Prediction of the held-out rung, made before it was trained.
    pub expected: Option<Prediction>,
    /// Budgets of a GPU; empty without a fit.
    pub gpus: Vec<OnGpu>,
    /// Path of the page.
    #[serde(skip)]
    pub page: PathBuf,
}

/// End of a call.
pub enum LadderOutcome {
    /// All rungs are trained.
    Finished(Box<LadderResult>),
    /// The ladder was asked to stop.
    Interrupted,
}

impl LadderOutcome {
    /// Finished or interrupted.
    pub fn outcome(&self) -> Outcome {
        match self {
            LadderOutcome::Finished(_) => Outcome::Finished,
            LadderOutcome::Interrupted => Outcome::Interrupted,
        }
    }
}
