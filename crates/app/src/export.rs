//! Streams a model's weights into a Hugging Face folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::recipe::Layers;
use fathom_base::{gguf, human};
use fathom_curate::store_prefix;
use fathom_model::{
    FolderOptions, GenerationConfig, GgufType, HfFolder, Model, ModelView, Portion, QuantisedSave,
    Quantization, RoundTo, SafeTensors, SaveOptions, Source, Spec, StateProjections, TrainableWeights,
    load_adapted, merge, open, open_config, save_gguf, save_hf, save_hf_quantised, save_hf_rounded,
};
use fathom_tensor::ggml::Kind;
use fathom_tensor::{DType, Device, Meta, Profile};
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::recipe::{MachineKind, Precision, QatName, QuantizationName, Recipe};
use fathom_train::{Checkpoint, Checkpoints, Stores, needs_corpus, round_to, stage};

use crate::error::{Context, Error, Result, caught, refuse};
use crate::events::{Events, Silent};
use crate::library::resolve;
use crate::machine::Machine;
use crate::models::{model_folder, note_left_out, or_on_the_hub, stored_dtype, tokenizer_files_for};
use crate::{adapters, card, exported, job};
use fathom_model::LoadedModel;

/// Source, destination and format of a conversion.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// Folder of a run, a checkpoint or a Hugging Face model.
    pub from: PathBuf,
    /// Hugging Face folder or GGUF file to write.
    pub to: PathBuf,
    /// Type of the GGUF file to write; `None` for a folder.
    pub gguf: Option<GgufType>,
    /// Type of the weights; `None` keeps the stored one.
    pub precision: Option<Precision>,
    /// Quantization of projections as bitsandbytes stores them; `None` for none.
    pub quantised: Option<QuantisedSave>,
    /// Maximum size of one file, in bytes.
    pub max_shard_bytes: u64,
    /// Writes only the adapter of a run.
    pub adapter: bool,
    /// Adapters to merge into a Hugging Face model, with their weights.
    pub with: Vec<(PathBuf, f32)>,
}

fathom_base::choice! {
    /// What a model is written as.
    pub enum Format {
        /// A Hugging Face folder.
        Huggingface = "huggingface",
        /// A file for llama.cpp.
        Gguf = "gguf",
    }
}

fathom_base::choice! {
    /// How the matrices of a GGUF file are stored.
    pub enum GgufName {
        /// bf16.
        Bf16 = "bf16",
        /// f16.
        F16 = "f16",
        /// f32.
        F32 = "f32",
        /// 8 bits, blocks of 32.
        Q8_0 = "q8_0",
        /// 4 bits, blocks of 32.
        Q4_0 = "q4_0",
        /// 4 bits, blocks of 32 with an offset.
        Q4_1 = "q4_1",
        /// 5 bits, blocks of 32.
        Q5_0 = "q5_0",
        /// 5 bits, blocks of 32 with an offset.
        Q5_1 = "q5_1",
        /// llama.cpp's mixture of 4 and 6 bits.
        Q4KM = "q4_k_m",
        /// llama.cpp's mixture of 5 and 6 bits.
        Q5KM = "q5_k_m",
        /// 6 bits.
        Q6K = "q6_k",
    }
}

fathom_base::choice! {
    /// Formats of few bits.
    pub enum Target {
        /// A .gguf file: 8 bits, blocks of 32.
        Q8_0 = "q8_0",
        /// A .gguf file: 4 bits, blocks of 32.
        Q4_0 = "q4_0",
        /// A .gguf file: 4 bits, blocks of 32 with an offset.
        Q4_1 = "q4_1",
        /// A .gguf file: 5 bits, blocks of 32.
        Q5_0 = "q5_0",
        /// A .gguf file: 5 bits, blocks of 32 with an offset.
        Q5_1 = "q5_1",
        /// A .gguf file: llama.cpp's mixture of 4 and 6 bits.
        Q4KM = "q4_k_m",
        /// A .gguf file: llama.cpp's mixture of 5 and 6 bits.
        Q5KM = "q5_k_m",
        /// A .gguf file: 6 bits.
        Q6K = "q6_k",
        /// A folder as bitsandbytes has it: 8 bits, a scale a row.
        Int8 = "int8",
        /// A folder as bitsandbytes has it: 4 bits, blocks of 64.
        Nf4 = "nf4",
        /// A folder as compressed-tensors has it: 4 bits, groups of 128, to nearest.
        Int4 = "int4",
        /// A folder as compressed-tensors has it: 4 bits (e2m1), blocks of 32 under a power of two, to nearest.
        Mxfp4 = "mxfp4",
        /// A folder as compressed-tensors has it: 4 bits (e2m1), blocks of 16 under a number of e4m3, to nearest.
        Nvfp4 = "nvfp4",
        /// A folder as compressed-tensors has it: FP8 (e4m3), a scale a row.
        Fp8 = "fp8",
        /// A folder as GPTQ leaves it: 4 bits by groups, judged by --data.
        Gptq = "gptq",
        /// A folder as AWQ leaves it: 4 bits by groups, judged by --data.
        Awq = "awq",
    }
}

impl Target {
    /// Returns whether [`crate::quantize`] makes this format; the others are converted tensor by tensor.
    pub fn is_coded(self) -> bool {
        use Target::{Awq, Fp8, Gptq, Int4, Mxfp4, Nvfp4};
        matches!(self, Int4 | Mxfp4 | Nvfp4 | Fp8 | Gptq | Awq)
    }

    /// Returns the conversion to a format that is not [`Target::is_coded`].
    pub fn conversion(self, from: PathBuf, to: PathBuf) -> Conversion {
        let gguf = match self {
            Target::Q8_0 => Some(GgufName::Q8_0),
            Target::Q4_0 => Some(GgufName::Q4_0),
            Target::Q4_1 => Some(GgufName::Q4_1),
            Target::Q5_0 => Some(GgufName::Q5_0),
            Target::Q5_1 => Some(GgufName::Q5_1),
            Target::Q4KM => Some(GgufName::Q4KM),
            Target::Q5KM => Some(GgufName::Q5KM),
            Target::Q6K => Some(GgufName::Q6K),
            _ => None,
        };
        let quantised = match self {
            Target::Int8 => Conversion::quantised(QuantizationName::Int8, false),
            Target::Nf4 => Conversion::quantised(QuantizationName::Nf4, true),
            _ => None,
        };
        let gguf = gguf.map(GgufName::kind);
        Conversion {
            from,
            to,
            gguf,
            precision: None,
            quantised,
            max_shard_bytes: 5_000_000_000,
            adapter: false,
            with: Vec::new(),
        }
    }
}

impl GgufName {
    /// Returns the type of this name.
    pub fn kind(self) -> GgufType {
        let found = GgufType::ALL.iter().find(|(name, _)| self.to_string() == *name);
        found.map_or(GgufType::Plain(Kind::Bf16), |(_, kind)| *kind)
    }
}

impl Conversion {
    /// Returns the format of projections; `double` stores NF4's scales in eight bits.
    pub fn quantised(name: QuantizationName, double: bool) -> Option<QuantisedSave> {
        stage::format(name).map(|format| QuantisedSave { format, double })
    }

    /// Returns whether this writes a Hugging Face folder with the weights as stored.
    fn is_plain(&self) -> bool {
        let as_they_are = self.precision.is_none() && self.quantised.is_none();
        as_they_are && self.gguf.is_none() && !self.adapter && self.with.is_empty()
    }
}

/// Summary of a conversion.
#[derive(Clone, Debug)]
pub struct ConversionSummary {
    /// Family of the model.
    pub family: String,
    /// Number of weights.
    pub weights: u64,
    /// Type of the weights.
    pub dtype: DType,
    /// Format that projections were rounded to, which is the one that the exported run was trained with.
    pub rounded: QatName,
    /// Projections are quantized, and the model's experts are not.
    pub whole_experts: bool,
}

/// A model on disk: its weights and their meaning.
struct DiskModel {
    spec: Spec,
    /// The files also hold a value head, which only training uses.
    values: bool,
    /// Projections of hidden states in the files, which only training uses.
    projections: Option<StateProjections>,
    generation: GenerationConfig,
    weights: SafeTensors,
    tokenizer: PathBuf,
    /// Quantization of the weights that a run did not train; they are written dequantized.
    quantized: Option<Quantization>,
    /// Model that the run started from.
    base: Option<PathBuf>,
    seed: u64,
    /// Weights that the run trained.
    trained: TrainableWeights,
    /// Format that projections were rounded to, and the folder of the checkpoint with the master weights.
    rounded: Option<(RoundTo, PathBuf)>,
}

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

/// Returns whether a folder is a run trained with rounded projections, whose checkpoint holds more than its model.
fn was_rounded(run: &Path) -> Result<bool> {
    let recipe = run.join("recipe.toml");
    if !recipe.is_file() {
        return Ok(false);
    }
    Ok(round_to(&resolve(Layers::new().file(&recipe))?.value).is_some())
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

/// Returns an exported model's generation settings: those of the recipe's base, or the special tokens of a tokenizer.
///
/// # Errors
/// Files that cannot be read.
pub(crate) fn generation(recipe: &Recipe, tokenizer: &Path) -> Result<GenerationConfig> {
    if let Some(folder) = &recipe.model.from {
        return Ok(open_config(&model_folder(folder)?)?.1);
    }
    let tokenizer = Tokenizer::from_dir(tokenizer)?;
    let eos = tokenizer.eos().into_iter().collect();
    Ok(GenerationConfig { bos: tokenizer.bos(), eos, ..GenerationConfig::default() })
}

fn hugging_face(folder: &Path, events: &dyn Events) -> Result<DiskModel> {
    exported::verify(folder)?;
    let opened = open(folder)?;
    note_left_out(folder, &opened, events);
    let HfFolder { spec, generation, source: weights, .. } = opened;
    Ok(DiskModel {
        spec,
        values: false,
        projections: None,
        generation,
        weights,
        tokenizer: folder.to_path_buf(),
        quantized: None,
        base: Some(folder.to_path_buf()),
        seed: 0,
        trained: TrainableWeights::all(),
        rounded: None,
    })
}

/// Opens a run's newest checkpoint, or the checkpoint in `RUN/checkpoints/step-N`. The run's recipe and the stages
/// trained so far define its specification.
fn checkpoint(from: &Path, events: &dyn Events) -> Result<DiskModel> {
    let (run, found) = if from.join("state.json").is_file() {
        let absolute = fs::canonicalize(from).with_context(|| format!("cannot read {}", from.display()))?;
        let run = absolute.ancestors().nth(2).map(Path::to_path_buf);
        let run = run.with_context(|| format!("{}: not inside a run's folder", from.display()))?;
        (run, Checkpoint::open(&absolute)?)
    } else {
        (from.to_path_buf(), newest(from)?)
    };
    if let Some(note) = found.note() {
        events.warn(&note);
    }
    let path = run.join("recipe.toml");
    if !path.is_file() {
        refuse!("{}: missing; a checkpoint is exported from inside its run's folder", path.display());
    }
    let loaded = resolve(Layers::new().file(&path))?;
    let progress = found.progress();
    let stages = progress.check_stage(loaded.value.stage.len());
    stages.map_err(|why| {
        Error::Refused(format!("{}: {why} ({})", found.folder().join("state.json").display(), path.display()))
    })?;
    let weights = found.weights()?;
    let mut spec = spec_of(&loaded.value, progress.stage + usize::from(progress.stage_step > 0), &weights)?;
    if let Ok(stores) = stores_of(&loaded.value, &run, spec.vocab) {
        stores.claim(&loaded.value, &mut spec)?;
    }
    let values = loaded.value.rl.has_values();
    if values {
        spec.scores = 0;
    }
    let projections = spec.projections.take();
    let tokenizer = run.join("data/tokenizer");
    let generation = generation(&loaded.value, &tokenizer)?;
    let quantized = stage::quantized(&loaded.value)?;
    let base = loaded.value.model.from.as_deref().map(model_folder).transpose()?;
    let (seed, trained) = (loaded.value.run.seed, stage::trained(&loaded.value)?);
    let rounded = round_to(&loaded.value).map(|how| (how, found.folder().to_path_buf()));
    Ok(DiskModel {
        spec,
        values,
        projections,
        generation,
        weights,
        tokenizer,
        quantized,
        base,
        seed,
        trained,
        rounded,
    })
}

/// Opens the data of a run; fails for a copy of its checkpoint alone.
fn stores_of(recipe: &Recipe, run: &Path, vocab: usize) -> Result<Stores> {
    let own = needs_corpus(recipe).then(|| Store::open(store_prefix(&run.join("data")))).transpose()?;
    Ok(Stores::open(recipe, own.map(Arc::new), vocab)?)
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

/// Returns the architecture after the first `stages` stages.
fn spec_of(recipe: &Recipe, stages: usize, weights: &SafeTensors) -> Result<Spec> {
    let mut spec = job::after(recipe, stages)?;
    // A trained tokenizer sets the vocabulary's size, so the size comes from the embedding and not from the recipe.
    let embedding = spec.family.names;
    let name = format!("{}{}.weight", embedding.base, embedding.embed);
    if let Some(rows) = weights.shape(&name).and_then(|shape| shape.first().copied()) {
        spec.vocab = rows;
    }
    Ok(spec)
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

/// Returns the type of the first tensor whose type kernels support.
fn stored_type(weights: &SafeTensors) -> DType {
    if weights.names().first().is_some_and(|name| weights.kind(name).is_some()) {
        return stored_dtype(weights);
    }
    let types = weights.names().into_iter().filter_map(|name| weights.dtype(name));
    types.into_iter().find(|dtype| dtype.is_float()).unwrap_or(DType::F32)
}
