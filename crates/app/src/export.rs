//! Streams a model's weights into a Hugging Face folder.

mod options;
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::{gguf, human};

use fathom_model::{
    FolderOptions, GgufType, Model, ModelView, Portion, QuantisedSave, Quantization, RoundTo, SafeTensors,
    SaveOptions, Spec, load_adapted, merge, save_gguf, save_hf, save_hf_quantised, save_hf_rounded,
};

use fathom_tensor::{DType, Device, Meta, Profile};

use fathom_train::Checkpoint;
use fathom_train::recipe::{MachineKind, Precision, QatName};

use crate::error::{Result, caught, refuse};
use crate::events::{Events, Silent};

use crate::machine::Machine;
use crate::models::{model_folder, or_on_the_hub, tokenizer_files_for};
use crate::{adapters, card, encoder_files, exported};
use fathom_model::LoadedModel;
pub use options::{Conversion, ConversionSummary, Format, GgufName, Target};
pub(crate) use source::generation;
use source::{DiskModel, checkpoint, hugging_face, stored_type, was_rounded};

/// Writes the model of a run, a checkpoint or a Hugging Face folder as a Hugging Face folder.
///
/// # Errors
/// No model there; a folder that is not empty; a model that exceeds this machine's memory.
pub fn export(what: &Conversion, events: &dyn Events) -> Result<ConversionSummary> {
    caught(|| {
        let found = match model_folder(&what.from) {
            Ok(_) if what.is_plain() && was_rounded(&what.from)? => checkpoint(&what.from, events)?,
            Ok(folder) => hugging_face(&folder, events)?,
            Err(error) if !what.from.exists() => return Err(error),
            Err(_) => checkpoint(&what.from, events)?,
        };
        convert(what, found)
    })
}

/// [`export`], from a Hugging Face folder only.
///
/// # Errors
/// Those of [`export`].
pub fn import(what: &Conversion, events: &dyn Events) -> Result<ConversionSummary> {
    let from = &what.from;
    if !from.join("config.json").is_file() && !gguf::is_file(from) {
        refuse!("{}: no config.json; a Hugging Face folder is needed{}", from.display(), or_on_the_hub(from));
    }
    caught(|| convert(what, hugging_face(from, events)?))
}

fn convert(what: &Conversion, found: DiskModel) -> Result<ConversionSummary> {
    let mut done = ConversionSummary {
        family: found.spec.family.to_string(),
        weights: 0,
        dtype: stored_type(&found.weights),
        rounded: QatName::None,
        whole_experts: what.quantised.is_some() && found.spec.moe.is_some(),
    };
    if let Some(how) = what.gguf {
        if what.adapter || !what.with.is_empty() || found.spec.adapter.is_some() {
            refuse!(
                "a GGUF file holds a whole model; export the merged model to a folder first, and that to a file"
            );
        }
        return Ok(ConversionSummary { weights: write_gguf(&found, &what.to, how)?, ..done });
    }
    refuse_filled(&what.to)?;
    let merges = !what.with.is_empty() || found.spec.adapter.is_some();
    if what.adapter {
        return write_adapter(what, &found);
    }
    if let Err(why) = found.spec.merges() {
        refuse!("{}: {why}; export the adapter alone with --adapter", what.from.display());
    }
    if merges && what.quantised.is_some() {
        refuse!(
            "merging into few bits would round off most of what was learnt; merge without --quantization, and quantise that folder \
             if you accept the loss"
        );
    }
    done.dtype = what.precision.map(Precision::dtype).unwrap_or(done.dtype);
    let options = SaveOptions { dtype: done.dtype, max_shard_bytes: what.max_shard_bytes };
    if let Some((how, checkpoint)) = found.rounded.as_ref().filter(|_| what.is_plain()) {
        let masters = Checkpoint::open(checkpoint)?.masters()?;
        let weights = write_rounded(&found, &what.to, (*how, masters), options)?;
        return Ok(ConversionSummary { weights, rounded: QatName::of(*how), ..done });
    }
    let weights = match what.quantised {
        Some(how) => write_quantised(&found, &what.to, (how, options))?,
        None => write(found, &what.to, (options, &what.with))?,
    };
    Ok(ConversionSummary { weights, ..done })
}

/// Writes only the adapter of a run.
fn write_adapter(what: &Conversion, found: &DiskModel) -> Result<ConversionSummary> {
    if found.spec.adapter.is_none() {
        refuse!("{}: it was not trained by an adapter", what.from.display());
    }
    let dtype = what.precision.map(Precision::dtype).unwrap_or_else(|| stored_type(&found.weights));
    let device: Device = Machine::of_kind(MachineKind::Cpu, 0, &Silent).cpu()?;
    let LoadedModel { model, params, .. } = adapted(&device, found, dtype)?;
    adapters::write(
        &what.to,
        ModelView { device: &device, model: &model, params: &params },
        (found.base.as_deref(), &found.trained),
    )?;
    let weights = params.num_elements();
    Ok(ConversionSummary {
        family: found.spec.family.to_string(),
        weights,
        dtype,
        rounded: QatName::None,
        whole_experts: false,
    })
}

/// Loads a model as a run trained it, including its adapter.
fn adapted(device: &Device, found: &DiskModel, dtype: DType) -> Result<LoadedModel> {
    let scores = if found.values { 1 } else { found.spec.scores };
    let held = Spec { scores, projections: found.projections, ..found.spec.clone() };
    let (mut model, mut params) = declare(device, &held, dtype, found.quantized.as_ref());
    load_adapted(device, &model, &mut params, &found.weights, found.seed)?;
    model.spec.scores = found.spec.scores;
    model.spec.projections = None;
    Ok(LoadedModel { device: device.clone(), model, params })
}

/// Loads the model of a run's checkpoint onto a device.
///
/// # Errors
/// Files that cannot be read or are of another model.
pub(crate) fn load_checkpoint(device: &Device, folder: &Path, events: &dyn Events) -> Result<LoadedModel> {
    let found = checkpoint(folder, events)?;
    // Half-precision files are widened in memory, since kernels do not support f16.
    let dtype = if stored_type(&found.weights) == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    adapted(device, &found, dtype)
}

/// Writes the model of a run's newest checkpoint to its folder `model`, or the adapter alone to `adapter`. Reads the
/// files into host memory, since no rank need have room for a whole model.
///
/// # Errors
/// No such checkpoint; a model that exceeds this machine's memory.
pub(crate) fn write_model(run: &Path, adapter: &Path, events: &dyn Events) -> Result<()> {
    let found = checkpoint(run, events)?;
    let dtype = stored_type(&found.weights);
    if found.spec.adapter.is_some() {
        let device: Device = Machine::of_kind(MachineKind::Cpu, 0, &Silent).cpu()?;
        let LoadedModel { model, params, .. } = adapted(&device, &found, dtype)?;
        return adapters::write(
            adapter,
            ModelView { device: &device, model: &model, params: &params },
            (found.base.as_deref(), &found.trained),
        );
    }
    let (options, model) = (SaveOptions::new(dtype), run.join("model"));
    exported::forget(&model)?;
    write(found, &model, (options, &[]))?;
    exported::remember(&model)
}

/// Writes a model as a Hugging Face folder; returns its number of weights.
fn write(found: DiskModel, to: &Path, (options, with): (SaveOptions, &[(PathBuf, f32)])) -> Result<u64> {
    let device: Device = Machine::of_kind(MachineKind::Cpu, 0, &Silent).cpu()?;
    // Half-precision files are widened in memory, since kernels do not support f16.
    let merges = found.spec.adapter.is_some() || !with.is_empty();
    let held = if options.dtype == DType::Bf16 && !merges { DType::Bf16 } else { DType::F32 };
    let nowhere = Device::new(Arc::new(Meta::new(device.machine.profile().clone())), u64::MAX);
    let needed = Model::declare(&nowhere, &found.spec, held).1.num_elements() * held.bytes() as u64;
    if needed > device.pool.budget() {
        refuse!(
            "the model's weights are {} and this machine has {} free; `fathom export` writes them where there is more memory",
            human::bytes(needed),
            human::bytes(device.pool.budget())
        );
    }
    let (model, params) = match (with, &found.base) {
        ([], _) => {
            let LoadedModel { model, params, .. } = adapted(&device, &found, held)?;
            merge(&device, &model, params, 1.0)
        }
        (with, Some(base)) if found.spec.adapter.is_none() => {
            adapters::merged(&device, (base, found.spec.clone(), &found.weights), with)?
        }
        _ => refuse!("--with merges adapters into a Hugging Face folder; name the base"),
    };
    let copy = tokenizer_files_for(&found.tokenizer, to)?;
    let folder = FolderOptions { weights: options, generation: &found.generation, copy: &copy };
    save_hf(&device, &model, &params, to, folder)?;
    match (&found.recipe, &found.base) {
        (Some(recipe), _) => encoder_files::write(recipe, &model.spec, to)?,
        (None, Some(base)) if !with.is_empty() => encoder_files::write_as(base, &model.spec, to)?,
        (None, _) => {}
    }
    card::write(to, &model.spec, found.base.as_deref())?;
    Ok(params.num_elements())
}

/// Declares a model with its untrained weights quantized as in the run.
fn declare(
    device: &Device,
    spec: &Spec,
    dtype: DType,
    quantized: Option<&Quantization>,
) -> (Model, fathom_grad::Params) {
    let portion = Portion::of(spec, &device.mesh, 1);
    Model::declare_quantized(device, spec, dtype, None, (portion, quantized))
}

/// Writes a model as a GGUF file; returns its number of weights.
fn write_gguf(found: &DiskModel, to: &Path, how: GgufType) -> Result<u64> {
    if to.exists() {
        refuse!("{} exists; name another file, or remove it", to.display());
    }
    let mut keys = fathom_text::gguf::metadata(&found.tokenizer, found.spec.vocab)?;
    let said = fathom_text::gguf::description(&found.tokenizer)?;
    let is_named = said.iter().any(|(key, _)| key == "general.name");
    if let Some(name) = to.file_stem().and_then(|name| name.to_str()).filter(|_| !is_named) {
        keys.insert(0, ("general.name".into(), gguf::Value::Text(name.into())));
    }
    keys.splice(0..0, said);
    Ok(save_gguf((&found.spec, &found.weights), to, how, keys)?)
}

/// Writes a model as bitsandbytes stores it, tensor by tensor; returns its number of weights.
fn write_quantised(
    found: &DiskModel,
    to: &Path,
    (how, options): (QuantisedSave, SaveOptions),
) -> Result<u64> {
    let device: Device = Machine::of_kind(MachineKind::Cpu, 0, &Silent).cpu()?;
    let copy = tokenizer_files_for(&found.tokenizer, to)?;
    let options = FolderOptions { weights: options, generation: &found.generation, copy: &copy };
    save_hf_quantised(&device, (&found.spec, &found.weights), to, (how, options))?;
    card::write(to, &found.spec, found.base.as_deref())?;
    Ok(elements(&found.spec))
}

/// Writes a model trained with rounded projections in their format, from master weights; returns its number of weights.
fn write_rounded(
    found: &DiskModel,
    to: &Path,
    (how, masters): (RoundTo, SafeTensors),
    options: SaveOptions,
) -> Result<u64> {
    let copy = tokenizer_files_for(&found.tokenizer, to)?;
    let options = FolderOptions { weights: options, generation: &found.generation, copy: &copy };
    save_hf_rounded((&found.spec, [&found.weights, &masters]), to, (how, options))?;
    card::write(to, &found.spec, found.base.as_deref())?;
    Ok(elements(&found.spec))
}

/// Returns a model's number of weights.
fn elements(spec: &Spec) -> u64 {
    let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
    Model::declare(&nowhere, spec, DType::F32).1.num_elements()
}

/// # Errors
/// The folder is not empty; existing files are never overwritten.
fn refuse_filled(folder: &Path) -> Result<()> {
    if folder.is_file() {
        refuse!("{} is a file; name a folder to write", folder.display());
    }
    let filled = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if filled {
        refuse!("{} is not empty; name another folder, or remove it", folder.display());
    }
    Ok(())
}
