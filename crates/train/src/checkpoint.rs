//! Checkpoints: the model as Hugging Face tensors, the optimizer's state under the same names, and where the run was.
//!
//! A checkpoint is a folder `step-NNNNNNNN` that appears whole or not at all: written under another name, synced,
//! renamed. `state.json` lists every file with its size and hash; a file that differs is refused by name. Tensors are
//! stored whole under their global names, so a checkpoint does not know how it was made.
//!
//! Weights and state on disk are read from there and written there chunk by chunk.
//!
//! A save takes hold of the tensors as they are and a thread of its own writes them. Steps go on meanwhile; only the next
//! update has to wait until all of them are read ([`Saving::release`]), and nobody waits for the disk before the next save.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use fathom_grad::{Param, ParamId, Params, Value};
use fathom_model::{Export, SafeTensors, SaveOptions, load};
use fathom_tensor::{Category, DType, Share};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::error::{Error, Result};
use crate::parallel::collect::{collect, whole_model};
use crate::run::Progress;
use crate::step::Trainer;

mod compare;
mod saving;

pub use compare::compare_checkpoints;
use saving::Job;
pub use saving::Saving;

/// What a save wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Saved {
    /// Bytes on disk.
    pub bytes: u64,
    /// Seconds from the request to the publication.
    pub seconds: f64,
}

/// The checkpoints of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
}

/// `state.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Of this layout.
    version: u32,
    progress: Progress,
    optimizer_step: u64,
    files: BTreeMap<String, FileState>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileState {
    bytes: u64,
    xxh3_128: String,
}

const VERSION: u32 = 1;
const STATE: &str = "state.json";
/// Names the newest checkpoint.
const LATEST: &str = "LATEST";

/// The parts of a checkpoint: sub-folder, and which value of a weight it holds.
type Part = (&'static str, fn(&Trainer, ParamId) -> Value);

/// Weights without state of their own stand in for it, so that every part has every tensor.
const PARTS: [Part; 4] = [
    ("model", |trainer, id| trainer.params.get(id).value.clone()),
    ("moment1", |trainer, id| state_or_weight(trainer, id, |state| Some(&state.m))),
    ("moment2", |trainer, id| state_or_weight(trainer, id, |state| state.v.as_ref())),
    ("master", |trainer, id| state_or_weight(trainer, id, |state| state.master.as_ref())),
];

fn state_or_weight(trainer: &Trainer, id: ParamId, pick: fn(&fathom_grad::State) -> Option<&Value>) -> Value {
    trainer.optimizer().state(id).and_then(pick).unwrap_or(&trainer.params.get(id).value).clone()
}

/// The parts that a trainer of this type needs: without narrow weights there are no masters, without squares no second moments.
fn parts(trainer: &Trainer) -> impl Iterator<Item = Part> {
    let narrow = trainer.model.dtype(&trainer.params) != DType::F32;
    let second = trainer.optimizer().moments().second;
    let wanted = move |name: &str| match name {
        "master" => narrow,
        "moment2" => second,
        _ => true,
    };
    PARTS.into_iter().filter(move |(name, _)| wanted(name))
}

impl Checkpoints {
    /// The checkpoints in a folder; all but the newest `keep` are removed after a save (at least one stays).
    pub fn new(folder: &Path, keep: usize) -> Checkpoints {
        Checkpoints { folder: folder.to_path_buf(), keep: keep.max(1) }
    }

    /// Begins to save the trainer's state; until [`Saving::release`] its weights and optimizer may not be updated.
    ///
    /// # Errors
    /// If the system refuses a thread. What the file system refuses is told when the saving ends; earlier checkpoints stay.
    ///
    /// Of several ranks all begin together and the first one saves: `None` on the others.
    pub fn begin(&self, trainer: &Trainer, progress: &Progress) -> Result<Option<Saving>> {
        trainer.params.settle(&trainer.device);
        if trainer.device.mesh.grid().ranks() > 1 {
            return self.begin_collected(trainer, progress);
        }
        // Shares wait for the readers in the exports: declared first, dropped last.
        let mut shares = Vec::new();
        let mut exports = Vec::new();
        for (part, value) in parts(trainer) {
            let dtype = value(trainer, fathom_grad::ParamId(0)).dtype();
            let options = SaveOptions::new(dtype);
            let (more, export) =
                Export::begin(&trainer.device, &trainer.model, |id| Some(value(trainer, id)), options);
            shares.extend(more);
            exports.push((part, export));
        }
        Ok(Some(self.start(trainer, progress, exports, shares)?))
    }

    fn start(
        &self,
        trainer: &Trainer,
        progress: &Progress,
        exports: Vec<(&'static str, Export)>,
        shares: Vec<Share>,
    ) -> Result<Saving> {
        let optimizer_step = trainer.optimizer().updates(&trainer.device);
        let job = Job { checkpoints: self.clone(), progress: progress.clone(), optimizer_step, exports };
        Saving::start(job, shares)
    }

    /// Every part whole on the first rank, and saved from there.
    fn begin_collected(&self, trainer: &Trainer, progress: &Progress) -> Result<Option<Saving>> {
        let model = whole_model(trainer);
        let (mut shares, mut exports) = (Vec::new(), Vec::new());
        for (part, value) in parts(trainer) {
            let dtype = match part {
                "model" => trainer.model.dtype(&trainer.params),
                "master" => DType::F32,
                _ => trainer.optimizer().moments().dtype,
            };
            let pick = |trainer: &Trainer, id: ParamId| {
                let value = value(trainer, id);
                let state = trainer.optimizer().state(id).filter(|_| part != "model");
                let range = state.map_or(value.own(), |state| state.range.clone());
                (value, range)
            };
            let whole = collect(trainer, dtype, part != "model", &pick);
            trainer.device.mesh.check()?;
            if let Some(whole) = whole {
                let pick = |id: ParamId| whole.get(id.index()).cloned();
                let options = SaveOptions::new(dtype);
                let (more, export) = Export::begin(&trainer.device, &model, pick, options);
                shares.extend(more);
                exports.push((part, export));
            }
        }
        match exports.is_empty() {
            true => Ok(None),
            false => Ok(Some(self.start(trainer, progress, exports, shares)?)),
        }
    }

    /// Moves the newest checkpoint on to `progress` if it is of the same step and so has the same tensors; says whether
    /// it was.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn advance(&self, progress: &Progress) -> Result<bool> {
        let name = step_name(progress.step);
        let newest = fs::read_to_string(self.folder.join(LATEST)).unwrap_or_default();
        if newest.trim() != name {
            return Ok(false);
        }
        let folder = self.folder.join(name);
        let state = State { progress: progress.clone(), ..read_state(&folder)? };
        write_state(&folder, &state)?;
        Ok(true)
    }

    /// Loads the newest checkpoint into a trainer; `None` if there is none.
    ///
    /// # Errors
    /// A file that is missing, truncated, altered, or of another model, by name.
    pub fn load_latest(&self, trainer: &mut Trainer) -> Result<Option<Progress>> {
        let pointer = self.folder.join(LATEST);
        let Ok(name) = fs::read_to_string(&pointer) else { return Ok(None) };
        let folder = self.folder.join(name.trim());
        let state = read_state(&folder)?;
        verify(&folder, &state.files)?;
        for (part, value) in parts(trainer) {
            let source = SafeTensors::open_folder(&folder.join(part))?;
            if part != "model" && !trainer.optimizer().shares().whole {
                load_shared(trainer, value, &source)?;
                continue;
            }
            let mut views = views(trainer, value);
            load(&trainer.device, &trainer.model, &mut views, &source)?;
        }
        trainer.params.disk().map_or(Ok(()), |disk| disk.check())?;
        let device = trainer.device.clone();
        trainer.optimizer_mut().set_updates(&device, state.optimizer_step);
        Ok(Some(state.progress))
    }

    /// Removes what is older than the newest `keep`, and leftovers of saves that did not end.
    fn retire(&self, newest: &str) -> Result<()> {
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(io("list", &self.folder))? {
            let name = entry.map_err(io("list", &self.folder))?.file_name().to_string_lossy().into_owned();
            if name.starts_with(".step-") {
                remove(&self.folder.join(&name))?;
            } else if name.starts_with("step-") && name != newest {
                names.push(name);
            }
        }
        names.sort();
        names.reverse();
        names.iter().skip(self.keep - 1).try_for_each(|name| remove(&self.folder.join(name)))
    }
}

fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

fn read_state(folder: &Path) -> Result<State> {
    let path = folder.join(STATE);
    let text = fs::read_to_string(&path).map_err(io("read", &path))?;
    let state: State = serde_json::from_str(&text).map_err(|error| refuse(&path, error.to_string()))?;
    match state.version {
        VERSION => Ok(state),
        other => Err(refuse(&path, format!("layout version {other}; this binary reads {VERSION}"))),
    }
}

fn write_state(folder: &Path, state: &State) -> Result<()> {
    let text = serde_json::to_string_pretty(state).map_err(|error| refuse(folder, error.to_string()))?;
    publish(&folder.join(STATE), text.as_bytes())
}

/// The values of one part, shaped like the weights.
fn views(trainer: &Trainer, value: fn(&Trainer, ParamId) -> Value) -> Params {
    let mut views = Params::default();
    for (id, param) in trainer.params.iter() {
        let (name, decays, trainable) = (param.name.clone(), param.decays, param.trainable);
        views.push(Param { name, value: value(trainer, id), decays, trainable });
    }
    views
}

/// Loads a part of the optimizer's state of which this rank keeps some elements: whole first, then its own.
fn load_shared(trainer: &Trainer, value: fn(&Trainer, ParamId) -> Value, source: &SafeTensors) -> Result<()> {
    let device = &trainer.device;
    device.pool.enter("load", -1);
    let mut whole = Params::default();
    for (_, param) in trainer.params.iter() {
        let [rows, cols] = param.value.shape();
        let room = device.empty(rows, cols, DType::F32, Category::Snapshot);
        let (name, decays, trainable) = (param.name.clone(), param.decays, param.trainable);
        whole.push(Param { name, value: room.into(), decays, trainable });
    }
    load(device, &trainer.model, &mut whole, source)?;
    for (id, param) in whole.iter() {
        let Some(state) = trainer.optimizer().state(id).filter(|state| !state.range.is_empty()) else {
            continue;
        };
        let from = param.value.tensor();
        let flat = from.reshape(1, from.len()).view_cols(state.range.clone());
        value(trainer, id).fill(|range, to| device.machine.copy(&flat.view_cols(range), to));
    }
    Ok(())
}

fn verify(folder: &Path, files: &BTreeMap<String, FileState>) -> Result<()> {
    for (name, expected) in files {
        let path = folder.join(name);
        let found = hash_file(&path)?;
        if found.bytes != expected.bytes {
            return Err(refuse(
                &path,
                format!(
                    "has {} bytes, the checkpoint wrote {}: truncated or replaced",
                    found.bytes, expected.bytes
                ),
            ));
        }
        if found != *expected {
            return Err(refuse(&path, "was altered since the checkpoint wrote it (its hash differs)"));
        }
    }
    Ok(())
}

fn hash_files(folder: &Path) -> Result<BTreeMap<String, FileState>> {
    let mut files = BTreeMap::new();
    for (part, _) in PARTS {
        let Ok(entries) = fs::read_dir(folder.join(part)) else { continue };
        for entry in entries {
            let path = entry.map_err(io("list", folder))?.path();
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            files.insert(format!("{part}/{file}"), hash_file(&path)?);
        }
    }
    Ok(files)
}

fn hash_file(path: &Path) -> Result<FileState> {
    let mut file = File::open(path).map_err(io("read", path))?;
    let mut hasher = XxHash3_128::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer).map_err(io("read", path))?;
        if read == 0 {
            return Ok(FileState { bytes, xxh3_128: format!("{:032x}", hasher.finish_128()) });
        }
        hasher.write(&buffer[..read]);
        bytes += read as u64;
    }
}

/// Writes a small file whole or not at all.
pub(crate) fn publish(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(fathom_model::write_file(path, bytes)?)
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(io("sync", folder))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn refuse(path: &Path, message: impl Into<String>) -> Error {
    Error::Checkpoint { path: path.to_path_buf(), message: message.into() }
}

fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: path.to_path_buf(), source }
}
