//! What a ladder is asked for, and what it has found.

use std::path::PathBuf;

use fathom_base::recipe::Loaded;
use fathom_train::Outcome;
use fathom_train::recipe::Recipe;
use serde::Serialize;

use super::fits::{Expected, Fits, Trained};
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
pub struct Scaled {
    /// The rungs, and what they were expected to cost.
    pub ladder: Ladder,
    /// Trained rungs, in the order of the ladder.
    pub trained: Vec<Trained>,
    /// Laws fitted to all rungs but the held-out one.
    pub fits: Fits,
    /// Prediction of the held-out rung, made before it was trained.
    pub expected: Option<Expected>,
    /// Budgets of a GPU; empty without a fit.
    pub gpus: Vec<OnGpu>,
    /// Path of the page.
    #[serde(skip)]
    pub page: PathBuf,
}

/// End of a call.
pub enum Climbed {
    /// All rungs are trained.
    Finished(Box<Scaled>),
    /// The ladder was asked to stop.
    Interrupted,
}

impl Climbed {
    /// Finished or interrupted.
    pub fn outcome(&self) -> Outcome {
        match self {
            Climbed::Finished(_) => Outcome::Finished,
            Climbed::Interrupted => Outcome::Interrupted,
        }
    }
}
