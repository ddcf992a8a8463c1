//! Disk space of a run: checkpoints, and the final model or adapter.

use std::path::Path;
use std::sync::Arc;

use fathom_base::human;
use fathom_model::Model;
use fathom_tensor::spill::free_bytes;
use fathom_tensor::{DType, Device, Meta, Profile};
use fathom_train::frozen;
use fathom_train::recipe::{AdapterName, QuantizationName};

use crate::error::{Result, refuse};
use crate::job::Job;

/// Disk space of a run, without headers and small files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Maximum number of checkpoints at once: those that are kept, the last of each stage, and the one being written.
    pub checkpoints: u64,
    /// Bytes of the exported model, or of the adapter alone.
    pub model_bytes: u64,
}

impl Footprint {
    /// Computes the disk space of a run.
    ///
    /// # Errors
    /// Weights selected for training that the model does not have.
    pub fn of(job: &Job) -> Result<Footprint> {
        let recipe = job.recipe();
        let dtype = recipe.model.precision.dtype();
        let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
        let (mut model, mut params) = Model::declare(&nowhere, &job.trained, dtype);
        frozen(&mut model, &mut params, &job.stages[0].how.goal.trained)?;
        let adapts = recipe.adapter.method != AdapterName::None;
        let packs = recipe.model.quantization != QuantizationName::None;
        let without_base = adapts || packs || recipe.checkpoint.trained_only;
        let [mut all, mut trained] = [0; 2];
        for (_, param) in params.iter() {
            all += param.value.len() as u64;
            trained += if param.trainable { param.value.len() as u64 } else { 0 };
        }
        let (moments, weight) = (job.stages[0].how.adamw.moments, dtype.bytes() as u64);
        let moment = (1 + u64::from(moments.second)) * moments.dtype.bytes() as u64;
        let master = if moments.masters && dtype != DType::F32 { 4 } else { 0 };
        let saved = if without_base && recipe.model.from.is_some() { trained } else { all };
        Ok(Footprint {
            checkpoint_bytes: weight * saved + (moment + master) * trained,
            checkpoints: (recipe.checkpoint.keep.max(1) + recipe.stage.len()) as u64,
            model_bytes: weight * if adapts { trained } else { all },
        })
    }

    /// Returns the maximum number of bytes in total.
    pub fn bytes(&self) -> u64 {
        self.checkpoints.saturating_mul(self.checkpoint_bytes).saturating_add(self.model_bytes)
    }

    /// Returns the bytes that a run needs at least: the last checkpoint of each stage and the model. A continued run
    /// has some of the checkpoints already.
    fn least_bytes(&self, stages: u64, goes_on: bool) -> u64 {
        let checkpoints = if goes_on { 1 } else { stages };
        checkpoints.saturating_mul(self.checkpoint_bytes).saturating_add(self.model_bytes)
    }
}

/// Refuses a run whose checkpoints and model do not fit on its disk.
///
/// # Errors
/// The space that is needed and that is free; weights selected for training that the model does not have.
pub(crate) fn check(job: &Job) -> Result<()> {
    let stored = Footprint::of(job)?;
    let goes_on = job.checkpoints().join("LATEST").exists();
    let needed = stored.least_bytes(job.recipe().stage.len() as u64, goes_on);
    refuse_full(&job.folder, (needed, free_bytes(&job.folder)), &stored)
}

fn refuse_full(folder: &Path, (needed, free): (u64, Option<u64>), stored: &Footprint) -> Result<()> {
    if let Some(free) = free.filter(|free| *free < needed) {
        refuse!(
            "{}: the run writes at least {} there (a checkpoint {}, the model {}), and {} are free; free some, or name a folder on \
             another disk (run.out)",
            folder.display(),
            human::bytes(needed),
            human::bytes(stored.checkpoint_bytes),
            human::bytes(stored.model_bytes),
            human::bytes(free)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_for_what_is_certain_is_refused() {
        let stored = Footprint { checkpoint_bytes: 14 << 30, checkpoints: 4, model_bytes: 2 << 30 };
        assert_eq!(stored.bytes(), 58 << 30);
        let needed = [(2, false), (2, true)].map(|(stages, goes_on)| stored.least_bytes(stages, goes_on));
        assert_eq!(needed, [30 << 30, 16 << 30]);
        let found = |free| refuse_full(Path::new("out/run"), (needed[0], free), &stored);
        assert!(found(Some(30 << 30)).is_ok() && found(None).is_ok());
        let refused = found(Some(1 << 30)).unwrap_err().to_string();
        for words in [
            "out/run: the run writes at least 30.0 GiB",
            "14.0 GiB",
            "2.00 GiB",
            "1.00 GiB are free",
            "run.out",
        ] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
    }
}
