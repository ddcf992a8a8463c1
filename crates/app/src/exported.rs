//! Hashes of the model that a run exported, written next to its folder, so that readers of the run detect flipped bits.
//! They are not inside the folder, whose layout is Hugging Face's.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use fathom_model::write_file;
use twox_hash::XxHash3_128;

use crate::error::{Context, Result, refuse};

/// File of hashes in the run's folder.
const HASHES: &str = "model.json";
/// Bytes per read.
const PIECE_BYTES: usize = 1 << 20;

/// Returns the path of the hash file for a model's folder; `None` if it is not a run's `model`.
fn hashes_of(model: &Path) -> Option<PathBuf> {
    (model.file_name()? == "model").then(|| model.with_file_name(HASHES))
}

/// Removes the hashes of an older model, before a new one is exported.
pub fn forget(model: &Path) -> Result<()> {
    match hashes_of(model).map(|path| (fs::remove_file(&path), path)) {
        Some((Err(error), path)) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Records the hashes of an exported model.
pub fn remember(model: &Path) -> Result<()> {
    let Some(path) = hashes_of(model) else { return Ok(()) };
    let mut hashes = BTreeMap::new();
    for entry in fs::read_dir(model).with_context(|| format!("cannot list {}", model.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.contains(".safetensors") {
            let hash = hash(&model.join(&name))?;
            hashes.insert(name, hash);
        }
    }
    Ok(write_file(&path, format!("{:#}\n", serde_json::to_value(hashes)?).as_bytes())?)
}

/// Compares a model's weights with the hashes that its run recorded, if it is a run's.
///
/// # Errors
/// A file that differs or is missing, which is named.
pub fn verify(model: &Path) -> Result<()> {
    let model = fs::canonicalize(model).with_context(|| format!("cannot read {}", model.display()))?;
    let Some(path) = hashes_of(&model).filter(|path| path.is_file()) else { return Ok(()) };
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let hashes: BTreeMap<String, String> = serde_json::from_str(&text)
        .with_context(|| format!("{}: should hold the hashes of the model next to it", path.display()))?;
    for (name, expected) in hashes {
        let file = model.join(&name);
        if hash(&file)? != expected {
            refuse!(
                "{}: was altered since the run exported it (its hash differs). Export it again from a checkpoint (fathom export \
                 {}/checkpoints/step-NNNNNNNN TO), or remove {} to use it as it is",
                file.display(),
                path.parent().unwrap_or(&path).display(),
                path.display()
            );
        }
    }
    Ok(())
}

fn hash(path: &Path) -> Result<String> {
    let read = || -> std::io::Result<u128> {
        let (mut file, mut hasher) = (File::open(path)?, XxHash3_128::new());
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hasher.finish_128()),
                read => hasher.write(&piece[..read]),
            }
        }
    };
    Ok(format!("{:032x}", read().with_context(|| format!("cannot read {}", path.display()))?))
}
