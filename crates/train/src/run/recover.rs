//! What a run does when a rank fails: the ranks that are well keep their state, the failed one is begun anew, and all go back to
//! the last step that every one of them has.

use std::any::Any;
use std::time::Instant;

use fathom_base::metrics::{Event, events};
use fathom_model::{LlamaSizes, Model, Spec};
use fathom_tensor::mesh::LinkError;
use fathom_tensor::{DType, Device, Meta, OutOfMemory};

use super::memory::common;
use super::{Hooks, Progress, Run};
use crate::agree::gather;
use crate::error::{Error, Result};
use crate::step::Trainer;

/// A recovery that has not made a step yet.
pub(super) struct Recovering {
    begun: Instant,
    why: String,
    lost: Vec<usize>,
}

/// What happened to this rank.
pub(super) struct Failed {
    pub error: Error,
    /// It is this rank that failed: nothing that it has may be used.
    pub lost: bool,
    /// It panicked, so what it holds may be half made.
    pub panicked: bool,
}

impl Failed {
    /// From a panic in the midst of a step: this rank's fault, unless the others had failed before.
    pub fn panic(device: &Device, panic: &(dyn Any + Send)) -> Failed {
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
        Failed { error: Error::Link(error), lost: first.is_ok(), panicked: true }
    }

    /// From an error, if it is one that a run can go on after: a rank that is gone, weights of one rank that are not those of
    /// the others, a gradient that is not a number.
    ///
    /// # Errors
    /// Any other.
    pub fn of(device: &Device, error: Error) -> Result<Failed> {
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
        Ok(Failed { error, lost, panicked: false })
    }
}

impl Run<'_> {
    /// Brings all ranks back to the last common step. All ranks call this together.
    ///
    /// # Errors
    /// The failure itself, if there is nothing to go back to or a rank does not come.
    pub(super) fn recover(&mut self, failed: Failed, hooks: &mut dyn Hooks) -> Result<()> {
        let begun = Instant::now();
        let why = failed.error.to_string();
        // Given up; its readers are gone after this.
        self.saving = None;
        if let Error::NotFinite { .. } = failed.error {
            // Nobody is gone, so what is under way comes; a link between processes cannot forget it.
            self.trainer.params.settle(&self.trainer.device);
        }
        self.trainer.abandon();
        self.trainer.offload = None;
        self.trainer.poisoned = false;
        let device = self.trainer.device.clone();
        if failed.lost {
            self.memory.lose();
        }
        if failed.lost || failed.panicked {
            self.begin_anew(&device)?;
        }
        if let Some(link) = device.mesh.link() {
            link.rejoin()?;
        }
        let lost = gather(&device, [i32::from(failed.lost)])?;
        let lost: Vec<usize> = (0..lost.len()).filter(|rank| lost[*rank] == [1]).collect();
        let steps = gather(&device, self.memory.steps())?;
        let on_disk = gather(&device, [self.checkpoints.latest().map_or(-1, |step| step as i32)])?[0][0];
        let progress = match common(&steps) {
            Some((step, have)) if step as i64 >= i64::from(on_disk) => {
                self.memory.give_back(&device, step, &have)?;
                self.memory.keep_up_to(step);
                match self.memory.own(step) {
                    Some(copy) => copy.restore(&mut self.trainer)?,
                    None => return Err(failed.error),
                }
            }
            _ => {
                self.memory.lose();
                match self.checkpoints.load_latest(&mut self.trainer)? {
                    Some(progress) => progress,
                    None => return Err(failed.error),
                }
            }
        };
        self.go_on_from(progress)?;
        // Whoever was begun anew has no copies of its partner's yet.
        self.memory.trade(&device)?;
        hooks.warn(&format!("went back to step {}: {why}", self.progress.step));
        self.recovering = Some(Recovering { begun, why, lost });
        Ok(())
    }

    fn go_on_from(&mut self, progress: Progress) -> Result<()> {
        self.metrics.truncate_after_step(progress.step)?;
        self.progress = progress;
        self.unsaved = None;
        self.last_save = Instant::now();
        self.reopen()
    }

    /// A trainer as after the start of the run, in the memory that the old one gives up.
    fn begin_anew(&mut self, device: &Device) -> Result<()> {
        let Some(anew) = self.anew else {
            return Err(Error::Save("this run cannot begin a rank anew".into()));
        };
        self.trainer = nobody(device);
        self.trainer = anew(device)?;
        Ok(())
    }

    /// Says how long it took, once the first step begins.
    pub(super) fn recovered(&mut self) -> Result<()> {
        let Some(Recovering { begun, why, lost }) = self.recovering.take() else { return Ok(()) };
        let event = events::Recovery {
            step: self.progress.step,
            seconds: begun.elapsed().as_secs_f64(),
            lost: lost.into_iter().map(|rank| rank as u64).collect(),
            why,
        };
        Ok(self.metrics.write(&Event::Recovery(event))?)
    }
}

/// A trainer of next to nothing on a machine without data, which keeps the place while a rank is begun anew.
fn nobody(device: &Device) -> Trainer {
    let meta = Device::new(std::sync::Arc::new(Meta::new(device.machine.profile().clone())), u64::MAX);
    let sizes = LlamaSizes {
        hidden: 2,
        layers: 1,
        heads: 1,
        kv_heads: 1,
        head_dim: 2,
        ffn: 2,
        vocab: 2,
        rope_theta: 1e4,
        max_positions: 2,
        tied: true,
    };
    let (model, params) = Model::declare(&meta, &Spec::llama(sizes), DType::F32);
    Trainer::new(&meta, model, params)
}
