//! Guardrails: what rails need from other crates, and measurements of guards and models with their pages.

mod measure;
mod models;
mod page;

use std::sync::Arc;

use fathom_base::clock::Clock;
use fathom_guard::Needs;

use crate::error::Result;
use crate::machine::Machine;

pub use measure::{audit, calibrated, evaluate, interactions, open, probe_file};
pub use models::GuardModels;
pub use page::{audit_page, calibration_page, evaluation_page};

/// Needs of rails, whose models are opened on this machine.
///
/// # Errors
/// None without detectors.
pub fn needs(machine: &Machine) -> Result<Needs> {
    let models = Arc::new(GuardModels::new(machine));
    Ok(Needs { models: Some(models), clock: Clock::default(), ..Needs::default() })
}
