//! Adapters in folders: written at the end of a run, read together with their base.

use std::path::{Path, PathBuf};

use fathom_grad::Params;
use fathom_model::{
    Family, Model, ModelView, Portion, Quantization, RopeSpec, SafeTensors, Source, Spec, TrainableWeights,
    changes_base, fix_lengths, keep_packed, load_peft, merge, open_any_config, open_peft, save_peft, unpack,
};
use fathom_tensor::{DType, Device};
use fathom_train::recipe::QuantizationName;
use fathom_train::{Base, quantizes};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Context, Error, Result, refuse};

/// Name of the file that identifies an adapter's base.
const BASE: &str = "base.json";
/// The folder of a run's adapter.
pub(crate) const FOLDER: &str = "adapter";

/// Contents of [`BASE`].
#[derive(Deserialize, Serialize)]
struct Of {
    /// Path of the base's folder.
    folder: PathBuf,
    /// Hash of the base, as in [`Base`].
    xxh3_128: String,
    /// Quantization of the base in the run, unless it was kept as in its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held: Option<BaseQuantization>,
    /// Keys of the base's configuration that the run changed: rotary positions stretched by its stages.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    config: Map<String, Value>,
}

impl Of {
    /// Returns the base's specification as the run had it.
    fn extend(&self, base: Spec) -> Result<Spec> {
        if self.config.is_empty() {
            return Ok(base);
        }
        let file = Path::new(BASE);
        let mut config = Family::write(file, &base.without_adapter())?;
        config.extend(self.config.clone());
        let Spec { ropes, max_positions, .. } = Family::read(file, &config)?;
        Ok(Spec { ropes, max_positions, ..base })
    }
}

/// Returns the keys of a base's configuration that the run changed to stretch rotary positions; empty if it changed
/// none.
fn stretched(base: &Spec, own: &Spec) -> Result<Map<String, Value>> {
    let longer = |(own, base): (&RopeSpec, &RopeSpec)| {
        RopeSpec { max_positions: base.max_positions, ..own.clone() } == *base
    };
    if own.ropes.iter().zip(&base.ropes).all(longer) {
        return Ok(Map::new());
    }
    let own = Spec { ropes: own.ropes.clone(), max_positions: own.max_positions, ..base.clone() };
    let [before, after] = [base, &own].map(|spec| Family::write(Path::new(BASE), spec));
    let before = before?;
    Ok(after?.into_iter().filter(|(key, value)| before.get(key) != Some(value)).collect())
}

/// Quantization of the weights that a run did not train.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct BaseQuantization {
    quantization: QuantizationName,
    double_quant: bool,
    /// Name patterns of weights that were trained in full and therefore not quantized.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trained: Vec<String>,
}

impl BaseQuantization {
    /// Returns the quantization of a declared model; `None` if it cannot be recorded in an adapter's folder.
    fn of(model: &Model) -> Option<BaseQuantization> {
        let Quantization { format, double, trained } = model.quantized.as_ref()?;
        let quantization = format.name().parse().ok()?;
        Some(BaseQuantization { quantization, double_quant: *double, trained: trained.patterns().to_vec() })
    }

    /// Returns the quantization that all of these adapters (folders or runs) share, or `None` if they differ. Adapters
    /// written by other programs are ignored; unreadable ones are refused later, when they are loaded.
    pub(crate) fn of_all<'a>(adapters: impl IntoIterator<Item = &'a PathBuf>) -> Option<BaseQuantization> {
        let said = |adapter: &PathBuf| Some(read(&adapter_folder(adapter).ok()?).ok()??.held);
        let all: Vec<Option<BaseQuantization>> = adapters.into_iter().filter_map(said).collect();
        let same = all.iter().all(|held| Some(held) == all.first());
        all.into_iter().next().flatten().filter(|_| same)
    }

    /// Returns the format's name in recipes.
    pub(crate) fn name(&self) -> &'static str {
        self.quantization.name()
    }

    /// Converts to the form in which a model is declared.
    pub(crate) fn quantized(&self) -> Result<Option<Quantization>> {
        let Some(format) = self.quantization.format() else { return Ok(None) };
        let trained = TrainableWeights::adapter(&self.trained);
        let trained = trained.map_err(|why| Error::Refused(format!("{BASE}: {why}")))?;
        Ok(Some(Quantization { format, double: self.double_quant, trained }))
    }
}

/// Returns an adapter's folder: the path itself, or the `adapter` folder of a run.
///
/// # Errors
/// Neither is an adapter.
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

/// Writes a whole model's adapter in PEFT's layout, with the path, hash and quantization of its base.
///
/// # Errors
/// Files that cannot be read or written.
pub(crate) fn write(
    folder: &Path,
    ModelView { device, model, params }: ModelView<'_>,
    (base, trained): (Option<&Path>, &TrainableWeights),
) -> Result<()> {
    let name = base.map(|base| base.display().to_string()).unwrap_or_default();
    save_peft(device, model, params, folder, (&name, trained))?;
    if let Some(base) = base {
        let Base { folder: of, xxh3_128 } = Base::of(base)?;
        let config = stretched(&open_any_config(base)?.0, &model.spec)?;
        let of = Of { folder: of, xxh3_128, held: BaseQuantization::of(model), config };
        let text = format!("{:#}\n", serde_json::to_value(of)?);
        let path = folder.join(BASE);
        fathom_base::files::write(&path, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Reads the base file of an adapter's folder; `None` if another program wrote the adapter.
fn read(adapter: &Path) -> Result<Option<Of>> {
    let path = adapter.join(BASE);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    serde_json::from_str(&text).map(Some).with_context(|| format!("{}: not understood", path.display()))
}

/// Returns a warning if an adapter's run quantized its base in another way than it is served; `None` if they agree or
/// the adapter does not record it.
pub(crate) fn held_otherwise(adapter: &Path, served: Option<&BaseQuantization>) -> Option<String> {
    let own = read(&adapter_folder(adapter).ok()?).ok()??.held;
    if own.as_ref() == served {
        return None;
    }
    let same = if own.as_ref().map(BaseQuantization::name) == served.map(BaseQuantization::name) {
        ", rounded otherwise"
    } else {
        ""
    };
    Some(format!(
        "{}: it was trained over {}, and the base is served as {}{same}, so answers differ a little from the run's; serve it without \
         adapters of other runs, or the merged model (fathom export), where that matters",
        adapter.display(),
        named(Some(&own)),
        named(Some(&served.cloned()))
    ))
}

/// Returns the end of a message about a path that is an adapter and not a model; `None` if it is no adapter.
pub(crate) fn advice(path: &Path) -> Option<String> {
    let folder = adapter_folder(path).ok()?;
    let base = read(&folder).ok().flatten().map(|of| of.folder.display().to_string());
    Some(format!(
        "; it is an adapter: name its base{} and the adapter besides (--adapter {}), or merge them (fathom export)",
        base.map(|base| format!(", {base},")).unwrap_or_default(),
        path.display()
    ))
}

/// Refuses an adapter that records another base. Adapters of other programs record no base and pass.
fn check_base(adapter: &Path, base: &Path) -> Result<()> {
    let Some(own) = read(adapter)? else { return Ok(()) };
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

/// Returns the folder of an adapter, or of a run's adapter, after checking that it does not record another base.
///
/// # Errors
/// No adapter there, or it records another base.
pub(crate) fn accepted(adapter: &Path, base: &Path) -> Result<PathBuf> {
    let folder = adapter_folder(adapter)?;
    check_base(&folder, base)?;
    Ok(folder)
}

/// [`accepted`], for an adapter that is served next to others over one base.
pub(crate) fn served(adapter: &Path, base: &Path) -> Result<PathBuf> {
    let folder = accepted(adapter, base)?;
    if read(&folder)?.is_some_and(|of| !of.config.is_empty()) {
        refuse!(
            "{} was trained with longer rotary positions than those of its base, which others share; merge it (fathom export) and serve that \
             model",
            adapter.display()
        );
    }
    Ok(folder)
}

/// Form in which weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Unpacked elements.
    Plain,
    /// For inference: weights that the machine can multiply in packed form stay packed.
    Asked,
}

/// Loads a base with an adapter (its folder, or its run's) onto a device. If the run quantized the base, its weights
/// are rounded in the same way. They are unpacked under [`Use::Plain`], and under an adapter that changes its base.
///
/// # Errors
/// Files that cannot be read; an adapter of another base.
pub(crate) fn load(
    device: &Device,
    (base, spec, weights): (&Path, Spec, &SafeTensors),
    adapter: &Path,
    (dtype, how): (DType, Use),
) -> Result<(Model, Params)> {
    let adapter = accepted(adapter, base)?;
    let of = read(&adapter)?;
    let spec = match &of {
        Some(of) => of.extend(spec)?,
        None => spec,
    };
    let (spec, tensors) = open_peft(&adapter, spec)?;
    let held = of.and_then(|of| of.held);
    let how = if changes_base(&spec, &tensors) { Use::Plain } else { how };
    let spec = if how == Use::Asked { spec.fixing_lengths() } else { spec };
    let (model, mut params) = declare(device, (&spec, weights), (dtype, how), held.as_ref())?;
    load_peft(device, &model, &mut params, (weights, &tensors))?;
    let (model, params) = match (held, how) {
        (None, _) => (model, params),
        (Some(_), Use::Plain) => unpack(device, &model, &params),
        (Some(_), Use::Asked) => keep_packed(device, &model, &params),
    };
    let params = fix_lengths(device, &model, params);
    Ok((model, params))
}

/// Declares a model, or a rank's part of one, for inference; quantized as the run did or as in its files, and filled by
/// `fill`.
///
/// # Errors
/// A model that cannot be quantized so; the errors of `fill`.
pub(crate) fn held_model(
    device: &Device,
    model: (&Spec, &dyn Source, DType),
    held: Option<&BaseQuantization>,
    fill: impl FnOnce(&Model, &mut Params) -> Result<()>,
) -> Result<(Model, Params)> {
    let (spec, source, dtype) = model;
    let (model, mut params) = declare(device, (spec, source), (dtype, Use::Asked), held)?;
    fill(&model, &mut params)?;
    Ok(if held.is_some() { keep_packed(device, &model, &params) } else { (model, params) })
}

/// Declares a model whose base is quantized as an adapter's folder records.
fn declare(
    device: &Device,
    (spec, source): (&Spec, &dyn Source),
    (dtype, how): (DType, Use),
    held: Option<&BaseQuantization>,
) -> Result<(Model, Params)> {
    let portion = Portion::of(spec, &device.mesh, 1);
    let quantized = held.map(BaseQuantization::quantized).transpose()?.flatten();
    quantizes(quantized.as_ref(), spec, &portion)?;
    Ok(match how {
        Use::Plain => Model::declare_quantized(device, spec, dtype, None, (portion, quantized.as_ref())),
        Use::Asked => Model::declare_stored_as(device, spec, dtype, source, quantized.as_ref()),
    })
}

/// Returns a model without an adapter, equal to the base plus each adapter times its weight.
pub(crate) fn merged(
    device: &Device,
    (base, spec, weights): (&Path, Spec, &SafeTensors),
    adapters: &[(PathBuf, f32)],
) -> Result<(Model, Params)> {
    let mut whole: Option<(Model, Params)> = None;
    let mut bases = Vec::new();
    // Subtracting an adapter leaves a model that is not its base, nor that of an adapter added in its place.
    let takes_out = adapters.iter().any(|(_, weight)| *weight < 0.0);
    for (path, weight) in adapters {
        let folder = if takes_out { adapter_folder(path)? } else { accepted(path, base)? };
        let of = read(&folder)?;
        let own = match &of {
            Some(of) => of.extend(spec.clone())?,
            None => spec.clone(),
        };
        if whole.as_ref().is_some_and(|(model, _)| model.spec.ropes != own.ropes) {
            refuse!(
                "{}: it has other rotary positions than the one before it; merge them apart",
                path.display()
            );
        }
        let (adapted, tensors) = open_peft(&folder, own)?;
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
        bases.push(of.and_then(|of| of.held));
        let held = bases.first().cloned().flatten();
        if bases.last() != bases.first() {
            refuse!(
                "{}: it was trained over {}, and the one before it over {}; they are of different bases, so merge them apart",
                path.display(),
                named(bases.last()),
                named(bases.first())
            );
        }
        // The base of the second adapter is the first one's base with the first adapter merged.
        let held = held.filter(|_| whole.is_none());
        let how = (DType::F32, Use::Plain);
        let (model, mut params) = declare(device, (&adapted, weights), how, held.as_ref())?;
        load_peft(device, &model, &mut params, (weights, &tensors))?;
        if let Some((_, merged)) = &whole {
            model.take_base(&mut params, merged);
        }
        whole = Some(merge(device, &model, params, *weight));
    }
    whole.context("no adapter to merge")
}

/// Returns the name of a base's quantization.
fn named(held: Option<&Option<BaseQuantization>>) -> &'static str {
    held.and_then(Option::as_ref).map_or("the weights of its files", BaseQuantization::name)
}
