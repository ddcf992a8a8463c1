//! The model that a run has exported: the hashes of its weights, next to its folder, so that a bit that flips there is seen by
//! whatever reads the run. They are not in the folder itself, which is Hugging Face's.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use fathom_model::write_file;
use twox_hash::XxHash3_128;

use crate::error::{Context, Result, refuse};

/// In the run's folder.
const HASHES: &str = "model.json";
/// Bytes read at once.
const PIECE_BYTES: usize = 1 << 20;

/// The file of hashes of a model's folder.
fn hashes_of(model: &Path) -> Option<PathBuf> {
    (model.file_name()? == "model").then(|| model.with_file_name(HASHES))
}

/// Before a model is exported: what is known of an older one is void.
pub fn forget(model: &Path) -> Result<()> {
    match hashes_of(model).map(|path| (fs::remove_file(&path), path)) {
        Some((Err(error), path)) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Writes down the hashes of a model that was exported.
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

/// Compares a model's weights with what its run wrote down, if it is a run's.
///
/// # Errors
/// A file that differs or is missing, by name.
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
