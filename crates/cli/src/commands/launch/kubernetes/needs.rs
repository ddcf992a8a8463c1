//! Memory of a pod from the job's plan.

use fathom_app::plan::plan;
use fathom_app::{Job, Silent};
use fathom_tensor::Hardware;
use fathom_train::distinct;
use fathom_train::stage::StagePlan;

use crate::commands::launch::work::Work;
use crate::console;

/// The program itself, its text and its input files.
const PROGRAM_BYTES: u64 = 2 << 30;

/// Bytes that a pod of `per_node` ranks needs; none, with a note, if the job cannot be planned here.
pub fn of_pod(work: &Work<'_>, per_node: usize) -> Option<u64> {
    match of_rank(work) {
        Ok(bytes) => Some(PROGRAM_BYTES + per_node as u64 * bytes),
        Err(error) => {
            let why = format!("{error:#}").lines().next().unwrap_or_default().to_string();
            console::note(&format!(
                "the pods ask for no memory, as the job cannot be planned here ({why}); give --memory"
            ));
            None
        }
    }
}

/// Most host memory that a rank needs in any stage.
fn of_rank(work: &Work<'_>) -> anyhow::Result<u64> {
    let job = Job::new(work.loaded.clone(), &Silent)?;
    let plans = plan(&job, None)?;
    let mut most = 0;
    for (index, StagePlan { spec, how, .. }) in job.stages.iter().enumerate() {
        for (rank, _) in distinct(&how.ranks, spec) {
            let mut draft = plans.draft(index);
            draft.rank = rank;
            let plan = draft.plan()?;
            // A GPU's own memory does not count.
            let pool = match draft.profile.hardware {
                Hardware::Processor => plan.usage.peak_reserved,
                Hardware::Graphics => 0,
            };
            most = most.max(pool + plan.host_peak_bytes);
        }
    }
    Ok(most)
}
