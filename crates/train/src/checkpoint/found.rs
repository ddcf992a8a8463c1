//! An opened checkpoint: the single way in which `train`, `export` and measurements read one.

use std::path::{Path, PathBuf};

use fathom_model::SafeTensors;

use super::files::{STATE, check_listed, io, refuse, step_of, verify};
use super::parts::{MASTER, PARTS};
use super::state::{State, read_state};
use crate::error::Result;
use crate::run::Progress;

/// A checkpoint whose `state.json` is sound.
pub struct Checkpoint {
    pub(super) folder: PathBuf,
    pub(super) state: State,
}

impl Checkpoint {
    /// Reads a checkpoint's `state.json`. A step in the folder's name must agree with it.
    ///
    /// # Errors
    /// A file that cannot be read, was altered, or has values that no run writes.
    pub fn open(folder: &Path) -> Result<Checkpoint> {
        let state = read_state(folder)?;
        let named = folder.file_name().and_then(|name| step_of(name.to_str()?));
        let step = state.progress.step;
        if let Some(named) = named.filter(|named| *named != step) {
            let what = format!("is of step {step}, in the folder of step {named}");
            return Err(refuse(&folder.join(STATE), what));
        }
        Ok(Checkpoint { folder: folder.to_path_buf(), state })
    }

    /// Path of its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Progress of the run at the checkpoint.
    pub fn progress(&self) -> &Progress {
        &self.state.progress
    }

    /// A remark about the checkpoint: older layouts have no hash of `state.json`.
    pub fn note(&self) -> Option<String> {
        let unsealed = !self.state.is_sealed();
        unsealed.then(|| {
            format!(
                "{}: written by an earlier version, which kept no hash of this file: the step, the data's position and the \
                 list of files are taken as they are",
                self.folder.join(STATE).display()
            )
        })
    }

    /// The weights, after verifying the hashes of their files; the untrained ones come from the base if the checkpoint
    /// has only the trained part.
    ///
    /// # Errors
    /// A file that is missing, truncated, altered, or not listed by the checkpoint, by name.
    pub fn weights(&self) -> Result<SafeTensors> {
        let weights = self.part(PARTS[0].0)?;
        match &self.state.base {
            Some(base) => Ok(weights.over(base.weights(&self.folder)?)),
            None => Ok(weights),
        }
    }

    /// The f32 masters of narrower weights, verified like [`Checkpoint::weights`].
    ///
    /// # Errors
    /// Those of [`Checkpoint::weights`]; a checkpoint of a run without masters.
    pub fn masters(&self) -> Result<SafeTensors> {
        self.part(MASTER)
    }

    fn part(&self, part: &str) -> Result<SafeTensors> {
        check_listed(&self.folder, &self.state.files, part)?;
        let of_part = |name: &str| name.split('/').next() == Some(part);
        verify(&self.folder, self.state.files.iter().filter(|(name, _)| of_part(name)), 0, 1)?;
        Ok(SafeTensors::open_folder(&self.folder.join(part))?)
    }

    /// Verifies a rank's share of all files, and that the folders of the `parts` to be read hold no others.
    pub(super) fn verify(&self, parts: &[&str], [rank, ranks]: [usize; 2]) -> Result<()> {
        parts.iter().try_for_each(|part| check_listed(&self.folder, &self.state.files, part))?;
        verify(&self.folder, self.state.files.iter(), rank, ranks)
    }
}

/// Names of the published checkpoints in a folder, oldest first.
pub(super) fn published(folder: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        // Without such a folder nothing was saved; if the path is a file, saves will report that.
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        entries => entries.map_err(io("list", folder))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(io("list", folder))?.file_name().to_string_lossy().into_owned();
        // A checkpoint put aside while another of its step took its place counts too.
        let name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".old")).unwrap_or(&name);
        if step_of(name).is_some() {
            names.push(name.to_string());
        }
    }
    names.sort_by_key(|name| step_of(name));
    names.dedup();
    Ok(names)
}
