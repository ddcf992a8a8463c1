//! `gpu-check`, and the record of the sources that it last found nothing to complain about.

use crate::gpu_check;
use crate::gpu_plans;
use crate::record::CheckRecord;

const RECORD: CheckRecord = CheckRecord {
    file: "crates/cuda/gpu-check.toml",
    command: "gpu-check",
    sources: &["crates/cuda/kernels", "crates/cuda/src", "xtask/src/gpu_check.rs", "xtask/src/gpu_plans.rs"],
    endings: &[],
};

/// Unless these very sources were checked before without complaints, checks them ([`run`]).
///
/// # Errors
/// Those of [`run`].
pub fn run_if_changed() -> Result<Vec<String>, String> {
    RECORD.unless_passed(run)
}

/// Compiles every kernel for every architecture and builds every plan of attention, and records the sources if there are no
/// complaints.
///
/// # Errors
/// A message when cargo cannot be run, or the record not written.
pub fn run() -> Result<Vec<String>, String> {
    let kernels = gpu_check::kernels()?;
    let plans = gpu_plans::run()?;
    if let (Some([]), Some([])) = (kernels.as_deref(), plans.as_deref()) {
        RECORD.write()?;
    }
    Ok([kernels, plans].into_iter().flatten().flatten().collect())
}
