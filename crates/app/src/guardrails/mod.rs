//! Guardrails: what rails need from other crates, their use by a server, and measurements with their pages.

mod log_page;
mod measure;
mod models;
mod page;
mod prose;
mod served;
mod server;

use std::path::Path;
use std::sync::Arc;

use fathom_base::clock::Clock;
use fathom_guard::Needs;

use crate::error::Result;
use crate::machine::Machine;

pub use log_page::log_page;
pub use measure::{audit, audit_server, audited, calibrated, evaluate, interactions, open, probe_file};
pub use models::GuardModels;
pub use page::{audit_page, calibration_page, evaluation_page};
pub use served::{ServedModels, Starter};
pub use server::Guardrails;

/// Needs of rails, whose models are opened on this machine.
pub fn needs(machine: &Machine) -> Needs {
    needs_with(machine, Arc::default())
}

/// Needs of rails, whose models are those of a server, or opened on this machine.
fn needs_with(machine: &Machine, served: Arc<ServedModels>) -> Needs {
    Needs {
        models: Some(Arc::new(GuardModels::new(machine, served))),
        personal_data: Some(Arc::new(prose::Detectors)),
        languages: Some(Arc::new(prose::Detector::default())),
        clock: Clock::default(),
        ..Needs::default()
    }
}

/// The guardrails of a folder, for a server of these models.
///
/// # Errors
/// A configuration that is refused, with file and line.
pub(crate) fn rails(folder: &Path, machine: &Machine, served: Arc<ServedModels>) -> Result<Arc<Guardrails>> {
    let needs = needs_with(machine, served.clone());
    Ok(Arc::new(Guardrails::load(folder, &needs)?.serving(served)))
}
