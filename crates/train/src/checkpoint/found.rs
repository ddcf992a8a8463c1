//! A checkpoint as it is found in a folder: the one way in which `train`, `export` and measurements read any.

use std::path::{Path, PathBuf};

use fathom_model::SafeTensors;

use super::files::{STATE, check_listed, io, read_state, refuse, verify};
use super::state::State;
use super::{MASTER, PARTS, step_of};
use crate::error::Result;
use crate::run::Progress;

/// A checkpoint whose `state.json` is sound.
pub struct Checkpoint {
    pub(super) folder: PathBuf,
    pub(super) state: State,
}

impl Checkpoint {
    /// Reads what a checkpoint's `state.json` says. The folder's name says the step, where it says any.
    ///
    /// # Errors
    /// A file that cannot be read, was altered, or says what no run has.
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

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How far the run was.
    pub fn progress(&self) -> &Progress {
        &self.state.progress
    }

    /// What is to be known of it besides its contents: that an older layout has no hash of `state.json`.
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

    /// The weights, after comparing their files with the hashes of when they were written; those of the base where the checkpoint has
    /// the trained part alone.
    ///
    /// # Errors
    /// A file that is missing, truncated, altered, or none of the checkpoint's, by name.
    pub fn weights(&self) -> Result<SafeTensors> {
        let weights = self.part(PARTS[0].0)?;
        match &self.state.base {
            Some(base) => Ok(weights.over(base.weights(&self.folder)?)),
            None => Ok(weights),
        }
    }

    /// The f32 masters of weights that are narrower, compared as [`Checkpoint::weights`] are.
    ///
    /// # Errors
    /// As there; a checkpoint of a run without masters.
    pub fn masters(&self) -> Result<SafeTensors> {
        self.part(MASTER)
    }

    fn part(&self, part: &str) -> Result<SafeTensors> {
        check_listed(&self.folder, &self.state.files, part)?;
        let of_part = |name: &str| name.split('/').next() == Some(part);
        verify(&self.folder, self.state.files.iter().filter(|(name, _)| of_part(name)), 0, 1)?;
        Ok(SafeTensors::open_folder(&self.folder.join(part))?)
    }

    /// Compares a rank's share of all files with what was written, and that these are all files of the `parts` that are read.
    ///
    /// # Errors
    /// As [`Checkpoint::weights`].
    pub(super) fn verify(&self, parts: &[&str], [rank, ranks]: [usize; 2]) -> Result<()> {
        parts.iter().try_for_each(|part| check_listed(&self.folder, &self.state.files, part))?;
        verify(&self.folder, self.state.files.iter(), rank, ranks)
    }
}

/// Names of published checkpoints in a folder, the oldest first.
pub(super) fn published(folder: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        // Where there is no such folder, or a file, nothing was saved; saves will say what is in their way.
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
        // One that was put aside while another of its step took its place is there too.
        let name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".old")).unwrap_or(&name);
        if step_of(name).is_some() {
            names.push(name.to_string());
        }
    }
    names.sort_by_key(|name| step_of(name));
    names.dedup();
    Ok(names)
}
