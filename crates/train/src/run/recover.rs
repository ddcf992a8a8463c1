//! Recovery from a rank's failure: healthy ranks keep their state, the failed one is rebuilt, and all return to the
//! last step that every one of them has.

use std::any::Any;
use std::time::Instant;

use fathom_tensor::mesh::LinkError;
use fathom_tensor::{Device, OutOfMemory};

use super::watcher::PendingRecovery;
use super::{Hooks, Progress, Run};
use crate::agree::gather;
use crate::error::{Error, Result};
use crate::step::Trainer;

pub(super) struct RankFailure {
    pub error: Error,
    /// This rank itself failed: none of its data may be used.
    pub lost: bool,
    /// This rank panicked, so its values may be incomplete.
    pub panicked: bool,
}

impl RankFailure {
    /// From a panic during a step: this rank's failure, unless others had failed before.
    pub fn panic(device: &Device, panic: &(dyn Any + Send)) -> RankFailure {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.or_else(|| panic.downcast_ref::<OutOfMemory>().map(ToString::to_string));
        let reason = format!("it panicked: {}", text.unwrap_or_else(|| "without a word".into()));
        let rank = device.mesh.rank();
        let first = device.mesh.check();
        if let Some(link) = device.mesh.link() {
            link.abort(&reason);
        }
        let error = first.clone().err().unwrap_or(LinkError::Aborted { rank, reason });
        RankFailure { error: Error::Link(error), lost: first.is_ok(), panicked: true }
    }

    /// From an error, if a run can continue after it: a missing rank, one rank's weights that differ from the others',
    /// or a gradient that is not finite.
    ///
    /// # Errors
    /// Any other.
    pub fn of(device: &Device, error: Error) -> Result<RankFailure> {
        let rank = device.mesh.rank();
        let lost = match &error {
            Error::Link(LinkError::Missing { missing, .. }) => {
                missing.iter().any(|absent| absent.rank == rank)
            }
            Error::Link(LinkError::Aborted { .. } | LinkError::TimedOut { .. }) | Error::NotFinite { .. } => {
                false
            }
            Error::Corrupt { ranks, known: true, .. } => ranks.contains(&rank),
            _ => return Err(error),
        };
        Ok(RankFailure { error, lost, panicked: false })
    }
}

/// Returns all ranks to the last common step, in each run that takes turns on them. All ranks call this together.
///
/// # Errors
/// The failure itself, if there is no common state or a rank does not come.
pub(super) fn recover(runs: &mut [Run<'_>], failed: RankFailure, hooks: &mut [&mut dyn Hooks]) -> Result<()> {
    let RankFailure { error, lost, panicked } = failed;
    let (started, why) = (Instant::now(), error.to_string());
    for Run { keeper, watcher, stepper, .. } in runs.iter_mut() {
        keeper.give_up_save();
        watcher.forget_step();
        stepper.abandon(&error);
        if lost {
            keeper.lose();
        }
    }
    if lost || panicked {
        rebuild(runs)?;
    }
    let Some(device) = runs.first().map(|run| run.stepper.device().clone()) else { return Err(error) };
    if let Some(link) = device.mesh.link() {
        link.rejoin()?;
    }
    let lost = gather(&device, [i32::from(lost)])?;
    let lost: Vec<usize> = (0..lost.len()).filter(|rank| lost[*rank] == [1]).collect();
    for (run, hooks) in runs.iter_mut().zip(hooks) {
        let Some(progress) = run.keeper.go_back(run.stepper.trainer_mut())? else { return Err(error) };
        run.go_on_from(progress)?;
        // A rebuilt rank has no copies of its partner's yet.
        run.keeper.trade(&device)?;
        hooks.warn(&format!("went back to step {}: {why}", run.progress.step));
        run.watcher.recovering(PendingRecovery { started, why: why.clone(), lost: lost.clone() });
    }
    Ok(())
}

/// Recreates this rank's models in the memory freed by the old ones: the first with the base, the others over it.
fn rebuild(runs: &mut [Run<'_>]) -> Result<()> {
    let devices: Vec<Device> = runs.iter_mut().map(|run| run.stepper.vacate()).collect();
    let mut first: Option<&Trainer> = None;
    for (run, device) in runs.iter_mut().zip(&devices) {
        run.stepper.rebuild(device, first)?;
        first = first.or(Some(run.stepper.trainer()));
    }
    Ok(())
}

impl Run<'_> {
    fn go_on_from(&mut self, progress: Progress) -> Result<()> {
        self.watcher.go_back(progress.step)?;
        self.progress = progress;
        self.keeper.go_on();
        self.reopen()
    }
}
