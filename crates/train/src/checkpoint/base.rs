//! The base model of a checkpoint that has the trained part only: its folder, and the hash of its weights.

use std::path::{Path, PathBuf};

use fathom_model::SafeTensors;
use serde::{Deserialize, Serialize};

use super::files::refuse;
use crate::error::Result;

/// A Hugging Face folder, named and hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Path of the folder when it was hashed.
    pub folder: PathBuf,
    /// XXH3 of the contents of its weight files.
    pub xxh3_128: String,
}

impl Base {
    /// Hashes all weights of a folder.
    ///
    /// # Errors
    /// A folder without weights, or one that cannot be read.
    pub fn of(folder: &Path) -> Result<Base> {
        let hash = fathom_model::open_any(folder)?.source.hash()?;
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
        Ok(Base { folder, xxh3_128: format!("{hash:032x}") })
    }

    /// A base whose hash another rank computes.
    pub fn unhashed(folder: &Path) -> Base {
        Base { folder: folder.to_path_buf(), xxh3_128: String::new() }
    }

    /// Refuses a base other than the checkpoint's.
    pub(super) fn check(&self, given: &Base, checkpoint: &Path) -> Result<()> {
        if self.xxh3_128 == given.xxh3_128 {
            return Ok(());
        }
        let what = format!(
            "holds the trained weights alone, over those of {} with hash {}; {} has the hash {}",
            self.folder.display(),
            self.xxh3_128,
            given.folder.display(),
            given.xxh3_128
        );
        Err(refuse(checkpoint, what))
    }

    /// The weights, after verifying their hash.
    pub(super) fn weights(&self, checkpoint: &Path) -> Result<SafeTensors> {
        self.check(&Base::of(&self.folder)?, checkpoint)?;
        Ok(fathom_model::open_any(&self.folder)?.source)
    }
}
