//! Checkpoints: the model as Hugging Face tensors, the optimizer's state under the same names, and the run's progress.
//!
//! A checkpoint is a folder `step-NNNNNNNN` that appears whole or not at all: it is written under another name, synced
//! and renamed. `state.json` lists every file with its size and hash, and ends with its own hash; a file that differs
//! is refused by name. Checkpoints are private to their user: folders have mode 0700 and files 0600. Every rank writes
//! the tensor parts that it holds under their global names ([`deal`]) and reads the parts that it needs, so a
//! checkpoint written by one mesh loads under any other.
//!
//! Weights and state on disk are read and written chunk by chunk.
//!
//! A save shares the tensors as they are, and a thread on each rank writes them while steps continue. Only the next
//! update waits until all of them are read ([`PendingSave::release`]); no step waits for the disk before the next save. When
//! all ranks have written, they agree on the outcome, and the first rank publishes.

use std::fs;
use std::path::{Path, PathBuf};

use fathom_model::{Export, Patch, patches};
use fathom_tensor::{DType, Device, Share};

use crate::agree::{gather, outcome};
use crate::error::{Error, Result};
use crate::run::Progress;
use crate::step::Trainer;

mod base;
mod compare;
mod deal;
mod files;
mod folder;
mod found;
mod parts;
mod saving;
mod state;

pub use base::Base;
pub use compare::compare_checkpoints;
use deal::Deal;
use files::{STATE, aside_name, io, make_private, refuse, remove, step_name, step_of, temporary_name};
pub(crate) use files::{publish, read_if_there};
pub use folder::Checkpoints;
use folder::{LATEST, NEXT};
pub use found::Checkpoint;
use found::published;
use parts::{MASTER, REFERENCE, load_parts, parts, slots};
use saving::{Job, Place};
pub use saving::{PendingSave, SaveStats};
pub(crate) use state::fuzz;
use state::{State, VERSION, read_state, write_state};

impl Checkpoints {
    /// The checkpoints in a folder. After a save, all but the newest `keep` (at least one) and the last of each stage
    /// are removed.
    pub fn new(folder: &Path, keep: usize) -> Checkpoints {
        Checkpoints { folder: folder.to_path_buf(), keep: keep.max(1), base: None }
    }

    /// Stores the trained part only: the other weights are those of `base`.
    pub fn over(self, base: Option<Base>) -> Checkpoints {
        Checkpoints { base, ..self }
    }

    /// Starts to save the trainer's state; until [`PendingSave::release`] its weights and optimizer must not be updated. All
    /// ranks call this together.
    ///
    /// # Errors
    /// If the system refuses a folder or a thread. Later failures of the file system are reported when the saving ends;
    /// earlier checkpoints stay.
    pub fn begin(&self, trainer: &Trainer, progress: &Progress) -> Result<PendingSave> {
        trainer.params.settle(&trainer.device);
        let mesh = &trainer.device.mesh;
        let temporary = self.folder.join(temporary_name(progress.step));
        // No rank may write before the first one has removed the leftovers of an earlier save.
        let prepared = match mesh.rank() {
            0 => make_private(&temporary),
            _ => Ok(()),
        };
        outcome(&trainer.device, prepared)?;
        let deal = Deal::new(trainer);
        // Shares wait for the readers in the exports, so they are declared first and dropped last.
        let mut shares: Vec<Share> = Vec::new();
        let mut exports = Vec::new();
        let (pieces, shapes) = (trainer.model.pieces(), trainer.model.shapes());
        let owns = [false, true].map(|state| deal.own(state));
        for part in parts(trainer) {
            let (name, state) = (part.0, part.1.is_some());
            let dtype = match name {
                "model" | REFERENCE => trainer.model.dtype(&trainer.params),
                MASTER => DType::F32,
                _ => trainer.optimizer().moments().stored(),
            };
            let own = &owns[usize::from(state)];
            let given = slots(trainer, part, self.base.as_ref()).into_iter().map(|slot| {
                let index = slot.id.index();
                let patches: Vec<Patch> = match own {
                    Some(own) => own[index].clone(),
                    None => patches(&pieces[index], shapes[index], slot.range.clone()),
                };
                (slot, patches)
            });
            let (more, export) = Export::of(&trainer.device, &trainer.model, given.collect(), dtype);
            shares.extend(more);
            exports.push((name, export));
        }
        let place = Place { temporary, rank: mesh.rank(), ranks: mesh.grid().ranks() };
        let optimizer_step = trainer.optimizer().updates(&trainer.device);
        let checkpoints = self.clone();
        let progress = Progress { amax: trainer.amax(), ..progress.clone() };
        let job = Job { checkpoints, place, progress, optimizer_step, exports };
        // A rank without a thread would leave the others waiting for its files.
        outcome(&trainer.device, PendingSave::start(job, shares))
    }

    /// Advances the newest checkpoint to `progress` if it is of the same step and so has the same tensors; returns
    /// whether it was.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn advance(&self, progress: &Progress) -> Result<bool> {
        let Some(name) = self.newest()?.filter(|name| *name == step_name(progress.step)) else {
            return Ok(false);
        };
        let folder = self.place(&name);
        let state = read_state(&folder)?;
        let progress = Progress { amax: state.progress.amax.clone(), ..progress.clone() };
        let state = State { version: VERSION, progress, ..state };
        write_state(&folder, &state)?;
        Ok(true)
    }

    /// Name of the newest checkpoint; `None` if there never was one.
    ///
    /// # Errors
    /// `LATEST` that cannot be read, names no checkpoint, or is missing although checkpoints exist.
    fn newest(&self) -> Result<Option<String>> {
        let path = self.folder.join(LATEST);
        let Some(text) = read_if_there(&path)? else { return self.first() };
        match step_of(text.trim()) {
            Some(_) => Ok(Some(text.trim().into())),
            None => Err(refuse(&path, format!("should name a checkpoint and has {text:?}"))),
        }
    }

    /// The newest checkpoint in the absence of `LATEST`: the first one, if the run was killed after publishing it and
    /// before writing `LATEST`.
    fn first(&self) -> Result<Option<String>> {
        let names = published(&self.folder)?;
        let next = read_if_there(&self.folder.join(NEXT))?.filter(|next| names.contains(next));
        let (Some(last), None) = (names.last(), &next) else { return Ok(next) };
        let path = self.folder.join(LATEST);
        let what = format!(
            "is missing next to {}. Write the name of the one to go on from into it (echo {last} > {}), or remove {} to begin at \
             step 0",
            names.join(", "),
            path.display(),
            self.folder.display()
        );
        Err(refuse(&path, what))
    }

    /// The newest checkpoint; `None` if there never was one.
    ///
    /// # Errors
    /// `LATEST` or `state.json` that is missing next to others, cannot be read, or is not sound; the message names the
    /// checkpoints to continue from.
    pub fn found(&self) -> Result<Option<Checkpoint>> {
        let found =
            self.newest().and_then(|name| name.map(|name| Checkpoint::open(&self.place(&name))).transpose());
        found.map_err(|error| self.with_way_out(error))
    }

    /// Folder of a published checkpoint; the one that was put aside, if the run was killed while another took its
    /// place.
    fn place(&self, name: &str) -> PathBuf {
        let [place, aside] = [name, &aside_name(name)].map(|name| self.folder.join(name));
        if !place.exists() && aside.exists() { aside } else { place }
    }

    /// The step of the newest checkpoint; `None` if there is none, or none that can be found.
    pub fn latest(&self) -> Option<u64> {
        step_of(&self.newest().ok()??)
    }

    /// Names and states of all published checkpoints whose state can be read.
    fn readable(&self) -> impl Iterator<Item = (String, State)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten();
        entries.filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok().filter(|name| step_of(name).is_some())?;
            let Checkpoint { state, .. } = Checkpoint::open(&self.folder.join(&name)).ok()?;
            Some((name, state))
        })
    }

    /// Step and folder of the checkpoint that ended the first `stages` stages of a run.
    pub fn after(&self, stages: usize) -> Option<(u64, PathBuf)> {
        let is_it = |progress: &Progress| progress.stage == stages && progress.stage_step == 0;
        let (name, state) = self.readable().find(|(_, state)| is_it(&state.progress))?;
        Some((state.progress.step, self.folder.join(name)))
    }

    /// A remark about the newest checkpoint, if it can be read and there is one.
    pub fn note(&self) -> Option<String> {
        self.found().ok().flatten()?.note()
    }

    /// Loads the newest checkpoint into a trainer; `None` if there is none. All ranks call this together; each reads
    /// its part, and the verification of files is divided among them.
    ///
    /// # Errors
    /// A file that cannot be read or is missing, truncated, altered, or of another model, by name; ranks that do not
    /// find the same checkpoint; a missing `LATEST` next to checkpoints.
    pub fn load_latest(&self, trainer: &mut Trainer) -> Result<Option<Progress>> {
        let device = trainer.device.clone();
        let (rank, ranks) = (device.mesh.rank(), device.mesh.grid().ranks());
        let found = outcome(&device, self.found())?;
        self.same_everywhere(&device, found.as_ref().map(Checkpoint::progress))?;
        let Some(found) = found else { return Ok(None) };
        let needed: Vec<&str> = parts(trainer).map(|(name, _)| name).collect();
        let verified = found.verify(&needed, [rank, ranks]);
        outcome(&device, verified.map_err(|error| self.with_way_out(error)))?;
        let Checkpoint { folder, state } = found;
        let based = match (&state.base, &self.base) {
            // The first rank has the hash.
            (Some(_), Some(_)) if rank > 0 => Ok(()),
            (Some(base), Some(given)) => base.check(given, &folder),
            (Some(base), None) => Err(refuse(
                &folder,
                format!(
                    "holds the trained weights alone; go on with checkpoint.trained_only and model.from={}",
                    base.folder.display()
                ),
            )),
            // Whole checkpoints contain untrained weights too.
            (None, _) => Ok(()),
        };
        outcome(&device, based)?;
        outcome(&device, load_parts(trainer, &folder, state.base.as_ref()))?;
        trainer.optimizer_mut().set_updates(&device, state.optimizer_step);
        trainer.set_amax(state.progress.amax.as_ref());
        // The saving run may have rounded to another format, or not at all.
        trainer.round();
        Ok(Some(Progress { amax: None, ..state.progress }))
    }

    /// Adds to an error about the newest checkpoint the one that the run could continue from instead.
    fn with_way_out(&self, error: Error) -> Error {
        // This error lists the choices already.
        if matches!(&error, Error::Checkpoint { path, .. } if *path == self.folder.join(LATEST) && !path.exists())
        {
            return error;
        }
        let newest = self.newest().ok().flatten();
        match self.readable().map(|(name, _)| name).filter(|name| newest.as_ref() != Some(name)).max() {
            Some(other) => refuse(
                &self.folder.join(LATEST),
                format!("{error}; to go on from {other} instead, write that name into this file"),
            ),
            None => error,
        }
    }

    /// Refuses ranks that did not find the same checkpoint as the first rank. All ranks call this together.
    fn same_everywhere(&self, device: &Device, found: Option<&Progress>) -> Result<()> {
        let number = |number: Option<u64>| number.and_then(|number| i32::try_from(number).ok()).unwrap_or(-1);
        let mine = found.map(|progress| [progress.step, progress.stage as u64, progress.stage_step]);
        let all = gather(device, [0, 1, 2].map(|at| number(mine.map(|mine| mine[at]))))?;
        let Some(rank) = all.iter().position(|found| *found != all[0]) else { return Ok(()) };
        let words = |[step, stage, _]: [i32; 3]| match step {
            -1 => "no checkpoint".to_string(),
            _ => format!("that of step {step} in stage {stage}"),
        };
        let (first, other) = (words(all[0]), words(all[rank]));
        let message = format!(
            "rank 0 finds {first} here and rank {rank} {other}; every machine has to see the run's one folder"
        );
        Err(refuse(&self.folder, message))
    }

    /// Removes all but the newest `keep` and the last of each stage, and leftovers of unfinished saves.
    fn retire(&self, newest: &str) -> Result<()> {
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(io("list", &self.folder))? {
            let name = entry.map_err(io("list", &self.folder))?.file_name().to_string_lossy().into_owned();
            let path = self.folder.join(&name);
            if is_left_over(&name) {
                remove(&path)?;
            } else if name != newest && step_of(&name).is_some() && path.join(STATE).is_file() {
                names.push(name);
            }
        }
        names.sort();
        names.reverse();
        let old = names.iter().skip(self.keep - 1).map(|name| self.folder.join(name));
        old.filter(|folder| !ends_a_stage(folder)).try_for_each(|folder| remove(&folder))
    }
}

/// True if a name is that of an unfinished checkpoint, or of one put aside. Other names, such as those of copies, are
/// never written by a run.
fn is_left_over(name: &str) -> bool {
    let step = |end| name.strip_prefix('.')?.strip_suffix(end).and_then(step_of);
    [".tmp", ".old"].into_iter().any(|end| step(end).is_some())
}

/// True if a stage ended with this checkpoint, so that the run continues with the next stage.
fn ends_a_stage(folder: &Path) -> bool {
    read_state(folder).is_ok_and(|State { progress, .. }| progress.stage > 0 && progress.stage_step == 0)
}
