//! `fathom export` and `fathom import`: a model's weights, streamed, into a Hugging Face folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use fathom_base::human;
use fathom_base::recipe::Layers;
use fathom_model::{
    FolderOptions, GenerationConfig, HfFolder, Model, SafeTensors, SaveOptions, Source, Spec, load, open,
    save_hf,
};
use fathom_tensor::{DType, Device, Meta};
use fathom_train::recipe::{Machine, Recipe};
use fathom_train::{Checkpoint, Checkpoints, stage};

use crate::args::Convert;
use crate::device::Loaded;
use crate::library::resolve;
use crate::{console, device, exported, pipeline};

/// A model on disk: where its weights are, and what they mean.
struct Found {
    spec: Spec,
    generation: GenerationConfig,
    weights: SafeTensors,
    tokenizer: PathBuf,
}

/// Runs `fathom export`.
pub fn export(args: &Convert) -> Result<()> {
    let found = match device::model_folder(&args.from) {
        Ok(folder) => hugging_face(&folder)?,
        Err(error) if !args.from.exists() => return Err(error),
        Err(_) => checkpoint(&args.from)?,
    };
    convert(args, found)
}

/// Runs `fathom import`.
pub fn import(args: &Convert) -> Result<()> {
    if !args.from.join("config.json").is_file() {
        bail!(
            "{}: no config.json; a Hugging Face folder is needed{}",
            args.from.display(),
            device::or_on_the_hub(&args.from)
        );
    }
    convert(args, hugging_face(&args.from)?)
}

fn hugging_face(folder: &Path) -> Result<Found> {
    exported::verify(folder)?;
    let opened = open(folder)?;
    device::say_left_out(folder, &opened);
    let HfFolder { spec, generation, source: weights, .. } = opened;
    Ok(Found { spec, generation, weights, tokenizer: folder.to_path_buf() })
}

/// A run's newest checkpoint, or a checkpoint's folder `RUN/checkpoints/step-N`. What its weights mean is told by the
/// run's recipe and the stages that they were trained in.
fn checkpoint(from: &Path) -> Result<Found> {
    let (run, found) = if from.join("state.json").is_file() {
        let absolute = fs::canonicalize(from).with_context(|| format!("cannot read {}", from.display()))?;
        let run = absolute.ancestors().nth(2).map(Path::to_path_buf);
        let run = run.with_context(|| format!("{}: not inside a run's folder", from.display()))?;
        (run, Checkpoint::open(&absolute)?)
    } else {
        (from.to_path_buf(), newest(from)?)
    };
    if let Some(note) = found.note() {
        console::warn(&note);
    }
    let path = run.join("recipe.toml");
    if !path.is_file() {
        bail!("{}: missing; a checkpoint is exported from inside its run's folder", path.display());
    }
    let loaded = resolve(Layers::new().file(&path))?;
    let progress = found.progress();
    let stages = progress.check_stage(loaded.value.stage.len());
    stages.map_err(|why| {
        anyhow!("{}: {why} ({})", found.folder().join("state.json").display(), path.display())
    })?;
    let weights = found.weights()?;
    let spec = spec_of(&loaded.value, progress.stage + usize::from(progress.stage_step > 0), &weights)?;
    let tokenizer = run.join("data/tokenizer");
    let generation = pipeline::generation(&loaded.value, &tokenizer)?;
    Ok(Found { spec, generation, weights, tokenizer })
}

fn newest(run: &Path) -> Result<Checkpoint> {
    let folder = run.join("checkpoints");
    let found = Checkpoints::new(&folder, 1).found()?;
    found.with_context(|| {
        format!(
            "{}: no Hugging Face folder, no run and no checkpoint (no {})",
            run.display(),
            folder.join("LATEST").display()
        )
    })
}

/// The architecture after the first `stages` stages.
fn spec_of(recipe: &Recipe, stages: usize, weights: &SafeTensors) -> Result<Spec> {
    let mut spec = pipeline::spec(recipe)?;
    for (index, table) in recipe.stage.iter().enumerate().take(stages) {
        spec = stage::extend(&spec, table, index)?;
    }
    // A tokenizer that was trained decides the vocabulary, so the embedding tells it and not the recipe.
    let embedding = fathom_model::Family::of(&spec).names;
    let name = format!("{}{}.weight", embedding.base, embedding.embed);
    if let Some(rows) = weights.shape(&name).and_then(|shape| shape.first().copied()) {
        spec.vocab = rows;
    }
    Ok(spec)
}

fn convert(args: &Convert, found: Found) -> Result<()> {
    refuse_filled(&args.to)?;
    let dtype = args.precision.map(device::precision);
    let dtype = dtype.unwrap_or_else(|| stored_type(&found.weights));
    let family = found.spec.family;
    let options = SaveOptions { dtype, max_shard_bytes: args.max_shard_bytes };
    let count = write(found, &args.to, options)?;
    println!(
        "{}: {family} with {} weights as {}",
        args.to.display(),
        human::count(count),
        dtype.safetensors_name().to_lowercase()
    );
    Ok(())
}

/// The model of a checkpoint of a run, on a device.
///
/// # Errors
/// Files that cannot be read or are of another model.
pub fn load_checkpoint(device: &Device, folder: &Path) -> Result<Loaded> {
    let Found { spec, weights, .. } = checkpoint(folder)?;
    // Half-precision files are widened in memory, since kernels have no such type.
    let dtype = if stored_type(&weights) == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    let (model, mut params) = Model::declare(device, &spec, dtype);
    load(device, &model, &mut params, &weights)?;
    Ok(Loaded { model, params })
}

/// Writes the model of a run's newest checkpoint to its folder `model`: from the files, through the memory of the host, for no
/// rank of the run need have room for a whole model.
///
/// # Errors
/// No such checkpoint; a model that this machine has no memory for.
pub fn write_model(run: &Path) -> Result<()> {
    let found = checkpoint(run)?;
    let (options, model) = (SaveOptions::new(stored_type(&found.weights)), run.join("model"));
    exported::forget(&model)?;
    write(found, &model, options)?;
    exported::remember(&model)
}

/// Writes a model as a Hugging Face folder; how many weights it has.
fn write(found: Found, to: &Path, options: SaveOptions) -> Result<u64> {
    let Found { spec, generation, weights, tokenizer } = found;
    let device: Device = device::cpu(&Machine::default())?;
    // Half-precision files are widened in memory, since kernels have no such type.
    let held = if options.dtype == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    let nowhere = Device::new(Arc::new(Meta::new(device.machine.profile().clone())), u64::MAX);
    let needed = Model::declare(&nowhere, &spec, held).1.num_elements() * held.bytes() as u64;
    if needed > device.pool.budget() {
        bail!(
            "the model's weights are {} and this machine has {} free; `fathom export` writes them where there is more memory",
            human::bytes(needed),
            human::bytes(device.pool.budget())
        );
    }
    let (model, mut params) = Model::declare(&device, &spec, held);
    load(&device, &model, &mut params, &weights)?;
    let copy = device::tokenizer_files(&tokenizer);
    save_hf(
        &device,
        &model,
        &params,
        to,
        FolderOptions { weights: options, generation: &generation, copy: &copy },
    )?;
    Ok(params.num_elements())
}

/// # Errors
/// The folder holds something: nothing of somebody's is overwritten.
fn refuse_filled(folder: &Path) -> Result<()> {
    if folder.is_file() {
        bail!("{} is a file; name a folder to write", folder.display());
    }
    let filled = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if filled {
        bail!("{} is not empty; name another folder, or remove it", folder.display());
    }
    Ok(())
}

/// The type of the first tensor that kernels and files share.
fn stored_type(weights: &SafeTensors) -> DType {
    let types = weights.names().into_iter().filter_map(|name| weights.dtype(name));
    types.into_iter().find(|dtype| dtype.is_float()).unwrap_or(DType::F32)
}
