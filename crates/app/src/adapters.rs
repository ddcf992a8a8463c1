//! Adapters in folders: written at the end of a run, read with the base that they are of.

use std::path::{Path, PathBuf};

use fathom_grad::Params;
use fathom_model::{Model, SafeTensors, Spec, Trained, load_peft, merge, open_peft, save_peft};
use fathom_tensor::{DType, Device};
use fathom_train::Base;

use crate::error::{Context, Result, refuse};

/// The file that says of which base an adapter is.
const BASE: &str = "base.json";
/// The folder of a run's adapter.
pub(crate) const FOLDER: &str = "adapter";

/// The folder of an adapter: the path itself, or the `adapter` folder of a run.
///
/// # Errors
/// Neither is one.
pub fn adapter_folder(path: &Path) -> Result<PathBuf> {
    let found = [path.to_path_buf(), path.join(FOLDER)]
        .into_iter()
        .find(|at| at.join("adapter_config.json").is_file());
    found.with_context(|| {
        format!(
            "{}: neither an adapter (adapter_config.json) nor a run with an `{FOLDER}` folder",
            path.display()
        )
    })
}

/// Writes a whole model's adapter, in PEFT's layout, with the name and hash of its base.
///
/// # Errors
/// Files that cannot be read or written.
pub(crate) fn write(
    folder: &Path,
    device: &Device,
    (model, params): (&Model, &Params),
    (base, trained): (Option<&Path>, &Trained),
) -> Result<()> {
    let name = base.map(|base| base.display().to_string()).unwrap_or_default();
    save_peft(device, model, params, folder, (&name, trained))?;
    if let Some(base) = base {
        let text = format!("{:#}\n", serde_json::to_value(Base::of(base)?)?);
        let path = folder.join(BASE);
        fathom_base::files::write(&path, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Refuses an adapter that says it is of another base. Those of others say nothing that could be compared.
fn check_base(adapter: &Path, base: &Path) -> Result<()> {
    let path = adapter.join(BASE);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(()) };
    let own: Base =
        serde_json::from_str(&text).with_context(|| format!("{}: not understood", path.display()))?;
    let given = Base::of(base)?;
    if own.xxh3_128 != given.xxh3_128 {
        refuse!(
            "{} is an adapter of {} with hash {}, and {} has the hash {}",
            adapter.display(),
            own.folder.display(),
            own.xxh3_128,
            base.display(),
            given.xxh3_128
        );
    }
    Ok(())
}

/// The folder of an adapter, or of a run's, that does not say it is of another base.
///
/// # Errors
/// There is none; it is of another base.
pub(crate) fn accepted(adapter: &Path, base: &Path) -> Result<PathBuf> {
    let folder = adapter_folder(adapter)?;
    check_base(&folder, base)?;
    Ok(folder)
}

/// A base on a device with the adapter of a folder, or of a run.
///
/// # Errors
/// Files that cannot be read; an adapter of another base.
pub(crate) fn load(
    device: &Device,
    (base, spec, weights): (&Path, Spec, &SafeTensors),
    adapter: &Path,
    dtype: DType,
) -> Result<(Model, Params)> {
    let adapter = accepted(adapter, base)?;
    let (spec, tensors) = open_peft(&adapter, spec)?;
    let (model, mut params) = Model::declare(device, &spec, dtype);
    load_peft(device, &model, &mut params, (weights, &tensors))?;
    Ok((model, params))
}

/// A model without an adapter that computes what one with adapters does, each times its weight.
///
/// # Errors
/// As [`load`]; a weight for something else than low-rank terms.
pub(crate) fn merged(
    device: &Device,
    (base, spec, weights): (&Path, Spec, &SafeTensors),
    adapters: &[(PathBuf, f32)],
) -> Result<(Model, Params)> {
    let mut whole: Option<(Model, Params)> = None;
    for (path, weight) in adapters {
        let folder = accepted(path, base)?;
        let (adapted, tensors) = open_peft(&folder, spec.clone())?;
        if let Err(why) = adapted.merges() {
            refuse!("{}: it cannot be merged: {why}", path.display());
        }
        let adds =
            adapted.adapter.as_ref().is_some_and(|adapter| adapter.adds()) && tensors.is_adapter_alone();
        if (*weight != 1.0 || adapters.len() > 1) && !adds {
            refuse!(
                "{}: only low-rank terms can be added with a weight; this adapter does more",
                path.display()
            );
        }
        let (model, mut params) = Model::declare(device, &adapted, DType::F32);
        load_peft(device, &model, &mut params, (weights, &tensors))?;
        if let Some((_, merged)) = &whole {
            model.take_base(&mut params, merged);
        }
        whole = Some(merge(device, &model, params, *weight));
    }
    whole.context("no adapter to merge")
}
