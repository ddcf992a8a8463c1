//! A model on disk that is converted: a folder of Hugging Face, or a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::recipe::Layers;
use fathom_curate::store_prefix;
use fathom_model::Source;
use fathom_model::{
    GenerationConfig, HfFolder, Quantization, RoundTo, SafeTensors, Spec, StateProjections, TrainableWeights,
    open_any, open_any_config,
};
use fathom_tensor::DType;
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::recipe::Recipe;
use fathom_train::{Checkpoint, Checkpoints, Stores, needs_corpus, stage};

use crate::error::{Context, Error, Result, refuse};
use crate::events::Events;
use crate::library::resolve;
use crate::models::{model_folder, note_left_out, stored_dtype};
use crate::{exported, job};

/// A model on disk: its weights and their meaning.
pub(super) struct DiskModel {
    pub(crate) spec: Spec,
    /// The files also hold a value head, which only training uses.
    pub(super) values: bool,
    /// Projections of hidden states in the files, which only training uses.
    pub(super) projections: Option<StateProjections>,
    pub(crate) generation: GenerationConfig,
    pub(crate) weights: SafeTensors,
    pub(crate) tokenizer: PathBuf,
    /// Quantization of the weights that a run did not train; they are written dequantized.
    pub(super) quantized: Option<Quantization>,
    /// Model that the run started from.
    pub(crate) base: Option<PathBuf>,
    pub(super) seed: u64,
    /// The run's recipe.
    pub(super) recipe: Option<Recipe>,
    /// Weights that the run trained.
    pub(crate) trained: TrainableWeights,
    /// Format that projections were rounded to, and the folder of the checkpoint with the master weights.
    pub(super) rounded: Option<(RoundTo, PathBuf)>,
}

/// Returns whether a folder is a run trained with rounded projections, whose checkpoint holds more than its model.
pub(super) fn was_rounded(run: &Path) -> Result<bool> {
    let recipe = run.join("recipe.toml");
    if !recipe.is_file() {
        return Ok(false);
    }
    Ok(resolve(Layers::new().file(&recipe))?.value.precision.qat.format().is_some())
}

pub(super) fn hugging_face(folder: &Path, events: &dyn Events) -> Result<DiskModel> {
    exported::verify(folder)?;
    let opened = open_any(folder)?;
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
        recipe: None,
        trained: TrainableWeights::all(),
        rounded: None,
    })
}

/// Opens a run's newest checkpoint, or the checkpoint in `RUN/checkpoints/step-N`. The run's recipe and the stages
/// trained so far define its specification.
pub(super) fn checkpoint(from: &Path, events: &dyn Events) -> Result<DiskModel> {
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
    let rounded = loaded.value.precision.qat.format().map(|how| (how, found.folder().to_path_buf()));
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
        recipe: Some(loaded.value),
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

/// Returns the type of the first tensor whose type kernels support.
pub(super) fn stored_type(weights: &SafeTensors) -> DType {
    if weights.names().first().is_some_and(|name| weights.kind(name).is_some()) {
        return stored_dtype(weights);
    }
    let types = weights.names().into_iter().filter_map(|name| weights.dtype(name));
    types.into_iter().find(|dtype| dtype.is_float()).unwrap_or(DType::F32)
}

/// Returns an exported model's generation settings: those of the recipe's base, or the special tokens of a tokenizer.
pub(crate) fn generation(recipe: &Recipe, tokenizer: &Path) -> Result<GenerationConfig> {
    if let Some(folder) = &recipe.model.from {
        return Ok(open_any_config(&model_folder(folder)?)?.1);
    }
    let tokenizer = Tokenizer::from_dir(tokenizer)?;
    let eos = tokenizer.eos().into_iter().collect();
    Ok(GenerationConfig { bos: tokenizer.bos(), eos, ..GenerationConfig::default() })
}
