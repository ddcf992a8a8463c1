//! Settings of the steps of a recipe's stage.

mod ranks;
mod rope;
mod sampling;

use std::sync::Arc;

use fathom_grad::{AdamWSettings, GemmFormat, Moments, OnDisk, Place, Places, Rule};
use fathom_model::{Caps, Linears, MODULES, NarrowLayers, Quantization, Spec, TrainableWeights, open_config};

use fathom_tensor::spill::{Chaos, Codec};
use fathom_tensor::{BlockFormat, DType, Element, SUM_CHUNK, is_whole_chunks};

use crate::blend::weighted;

use crate::error::{Error, Result};
use crate::minimised::objective;
use crate::objective::{Goal, Noise};

use crate::parallel::Ranks;
use crate::policy::judging;
use crate::recipe::{
    AdapterName, GemmName, Granularity, LinearsName, Memory, Method, MethodName, MomentType, OffloadCodec,
    OffloadTo, OptimizerKind, PlaceName, PlaceRule, Precision, QuantizationName, Recipe, ReferenceName,
};
use crate::reference::Refers;
use crate::retrieval::Retro;
use crate::rounded::round_to;
use crate::schedule::RateSchedule;
use crate::several::other_adapters;

use crate::in_step::InStep;
pub use ranks::ranks;
pub use rope::extend;
pub use sampling::loader_spec;
pub(crate) use sampling::shape;

fn refuse(index: usize, key: &str, message: impl Into<String>) -> Error {
    Error::Recipe { key: format!("stage.{index}.{key}"), message: message.into() }
}

/// The places of a stage's activations.
///
/// # Errors
/// Unknown modules, tiles that are not whole chunks.
pub fn places(recipe: &Recipe, index: usize) -> Result<Places> {
    let stage = &recipe.stage[index];
    let granularity = stage.recompute_granularity.unwrap_or(recipe.activations.recompute_granularity);
    let tile_rows = stage.tile_rows.or(recipe.activations.tile_rows);
    if !tile_rows.is_none_or(is_whole_chunks) {
        return Err(refuse(
            index,
            "tile_rows",
            format!("must be a multiple of {SUM_CHUNK}: sums over tokens run in chunks of {SUM_CHUNK}"),
        ));
    }
    let table = &recipe.activations;
    let say = |key: &str| {
        let key = format!("activations.{key}");
        move |message: String| Error::Recipe { key: key.clone(), message }
    };
    let mut places = match (granularity, table.recompute_method) {
        (Granularity::None, _) => Places::none(),
        (Granularity::Linear, _) => Places::linear(),
        (Granularity::Full, Method::Block) => Places::full_block(table.recompute_num_layers),
        (Granularity::Full, Method::Uniform) => {
            Places::full().with_segment_layers(table.recompute_num_layers)
        }
        (Granularity::Selective, _) => {
            Places::selective(&table.recompute_modules, MODULES).map_err(say("recompute_modules"))?
        }
    };
    places = places.with_rules(rules(&table.places).map_err(say("places"))?);
    let offloaded = place(table.offload_place);
    if !offloaded.is_offloaded() {
        return Err(say("offload_place")("must be disk or host".into()));
    }
    places = places.offload(&table.offload_modules, MODULES, offloaded).map_err(say("offload_modules"))?;
    places.offload_fraction = table.offload_fraction;
    places.codec = match table.offload_codec {
        OffloadCodec::AsIs => Codec::AsIs,
        OffloadCodec::Fp8 => Codec::Fp8Block,
    };
    Ok(places.with_tiles(tile_rows).with_head_groups(table.head_groups))
}

/// The recipe's injected disk disorder.
pub(crate) fn chaos(recipe: &Recipe) -> Option<Chaos> {
    let fault_one_in = recipe.machine.chaos_faults;
    recipe.machine.chaos.map(|seed| Chaos { seed, fault_one_in })
}

fn place(name: PlaceName) -> Place {
    match name {
        PlaceName::Keep => Place::Keep,
        PlaceName::Recompute => Place::Recompute,
        PlaceName::Host => Place::Host,
        PlaceName::Disk => Place::Disk,
    }
}

fn rules(table: &[PlaceRule]) -> std::result::Result<Vec<Rule>, String> {
    let rule = |rule: &PlaceRule| {
        let layers = match rule.layers[..] {
            [] => 0..usize::MAX,
            [from, to] if from < to => from..to,
            _ => return Err(format!("layers {:?}: give the first, and the one after the last", rule.layers)),
        };
        Ok(Rule { layers, name: rule.name.clone(), place: place(rule.place) })
    };
    table.iter().map(rule).collect()
}

/// The parts of weights and optimizer state that are on disk.
pub fn on_disk(recipe: &Recipe) -> OnDisk {
    let machine = &recipe.machine;
    OnDisk {
        weights: machine.offload_weights,
        optimizer: machine.offload_optimizer,
        in_host: machine.offload_to == OffloadTo::Host,
        stays_percent: machine.optimizer_stays_percent.min(100),
    }
}

/// Types of the optimizer's moments and masters.
pub fn moments(recipe: &Recipe) -> Moments {
    let dtype = match recipe.optimizer.moments {
        MomentType::Bf16 => DType::Bf16,
        MomentType::F32 => DType::F32,
        MomentType::Fp8 => DType::F8E4M3,
    };
    let second = recipe.optimizer.kind == OptimizerKind::Adamw;
    Moments { dtype, second, masters: recipe.optimizer.master_weights }
}

/// Settings of the update, at the peak learning rate.
pub fn adamw(recipe: &Recipe) -> AdamWSettings {
    let optimizer = &recipe.optimizer;
    AdamWSettings {
        lr: optimizer.lr as f32,
        beta1: optimizer.beta1 as f32,
        beta2: optimizer.beta2 as f32,
        eps: optimizer.eps as f32,
        weight_decay: optimizer.weight_decay as f32,
        max_norm: optimizer.clip.unwrap_or(0.0) as f32,
        moments: moments(recipe),
    }
}

/// Settings of a stage's steps; the learning rate is set for each step.
///
/// # Errors
/// Those of [`places`].
pub fn in_step(recipe: &Recipe, index: usize) -> Result<InStep> {
    let refused = |(key, message): (&str, String)| Error::Recipe { key: format!("objective.{key}"), message };
    let caps = Caps { docs: shape(recipe, index).docs, seq_tokens: recipe.stage[index].seq_tokens };
    Ok(InStep {
        places: places(recipe, index)?,
        on_disk: on_disk(recipe),
        caps,
        ranks: ranks(recipe, index)?,
        narrow: narrow(recipe, index)?,
        round_to: round_to(recipe),
        z_loss: recipe.optimizer.z_loss as f32,
        goal: Goal {
            objective: objective(recipe).map_err(refused)?,
            // The teacher's term is weighted separately from that of the labels.
            weighted: weighted(recipe, index) || recipe.objective.method == MethodName::Distill,
            trained: trained(recipe)?,
            quantized: quantized(recipe)?,
            teacher: teacher(recipe)?,
            noise: noise(recipe),
            drops: recipe.adapter.dropout.map(|_| recipe.run.seed.wrapping_add(index as u64)),
            refers: refers(recipe),
            before: Vec::new(),
            after: Vec::new(),
            judges: judging(recipe),
            measured: recipe.data.is_lessons()
                || recipe.rl.is_on()
                || recipe.objective.method == MethodName::Mlm
                || recipe.objective.seq2seq().is_some(),
        },
        adamw: AdamWSettings { lr: 0.0, ..adamw(recipe) },
    })
}

/// A stage as a recipe resolves it.
#[derive(Clone, Debug)]
pub struct StagePlan {
    /// The specification before the stage.
    pub spec: Spec,
    /// Settings of its steps: ranks, formats, objective, moments.
    pub how: InStep,
    /// Type of the weights.
    pub dtype: DType,
}

impl StagePlan {
    /// Resolves a stage that begins with a specification.
    ///
    /// # Errors
    /// Those of [`in_step_among`].
    pub fn new(recipe: &Recipe, index: usize, spec: Spec) -> Result<StagePlan> {
        let how = in_step_among(recipe, index, &spec)?;
        Ok(StagePlan { spec, how, dtype: recipe.model.precision.dtype() })
    }

    /// The ranks of the stage.
    pub fn ranks(&self) -> &Ranks {
        &self.how.ranks
    }
}

impl Precision {
    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            Precision::Bf16 => DType::Bf16,
            Precision::F32 => DType::F32,
        }
    }
}

/// [`in_step`] with the other adapters over the base of the specification before the stage.
///
/// # Errors
/// Those of [`in_step`], and an adapter that does not fit.
pub fn in_step_among(recipe: &Recipe, index: usize, spec: &Spec) -> Result<InStep> {
    let mut how = in_step(recipe, index)?;
    if let (MethodName::Retro, Some(sizes)) = (recipe.objective.method, spec.retrieval) {
        how.goal.objective = Arc::new(Retro { sizes });
    }
    [how.goal.before, how.goal.after] = other_adapters(recipe, spec)?;
    Ok(how)
}

/// Noise on embeddings; size 0 means none.
fn noise(recipe: &Recipe) -> Option<Noise> {
    let (alpha, seed) = (recipe.objective.neftune_alpha, recipe.run.seed);
    (alpha > 0.0).then_some(Noise { alpha, seed })
}

/// Architecture of a teacher that runs in every step.
///
/// # Errors
/// A folder without a model.
pub fn teacher(recipe: &Recipe) -> Result<Option<Arc<Spec>>> {
    let Some(folder) = recipe.objective.runs_teacher() else { return Ok(None) };
    let refuse = |message: String| Error::Recipe { key: "objective.teacher".into(), message };
    if folder.as_os_str().is_empty() {
        return Err(refuse("is empty; give the folder of the model that the student learns from".into()));
    }
    // A run's folder has its model in a sub-folder.
    let within = folder.join("model");
    let folder = if folder.join("config.json").is_file() { folder } else { &within };
    let (spec, _) = open_config(folder).map_err(|error| refuse(error.to_string()))?;
    Ok(Some(Arc::new(spec)))
}

/// The reference model that steps run.
pub fn refers(recipe: &Recipe) -> Refers {
    if recipe.rl.has_reference() {
        let is_base = recipe.rl.reference.is_none() && recipe.no_adapter_off().is_none();
        return if is_base { Refers::AdapterOff } else { Refers::Copy };
    }
    match recipe.reference() {
        ReferenceName::Copy => Refers::Copy,
        ReferenceName::AdapterOff => Refers::AdapterOff,
        ReferenceName::Auto | ReferenceName::Column | ReferenceName::None => Refers::Not,
    }
}

/// The weights that receive gradients; a value head's, and with an adapter a reward model's head, always do.
///
/// # Errors
/// An invalid regular expression.
pub fn trained(recipe: &Recipe) -> Result<TrainableWeights> {
    let adapts = recipe.adapter.method != AdapterName::None;
    let choose = if adapts { TrainableWeights::adapter } else { TrainableWeights::matching };
    let refuse = |message| Error::Recipe { key: "model.trained".into(), message };
    let chosen = choose(&recipe.model.trained).map_err(refuse)?;
    let scores = recipe.rl.has_values() || (adapts && recipe.objective.scores() > 0);
    Ok(if scores { chosen.with_scores() } else { chosen })
}

/// Format of weights that are not trained, if they are quantized.
///
/// # Errors
/// Those of [`trained`].
pub fn quantized(recipe: &Recipe) -> Result<Option<Quantization>> {
    let Some(format) = format(recipe.model.quantization) else { return Ok(None) };
    Ok(Some(Quantization { format, double: recipe.model.double_quant, trained: trained(recipe)? }))
}

/// The format of a name; `None` for none.
pub fn format(name: QuantizationName) -> Option<BlockFormat> {
    match name {
        QuantizationName::None => None,
        QuantizationName::Nf4 => Some(BlockFormat::Nf4),
        QuantizationName::Int8 => Some(BlockFormat::Int8),
    }
}

/// Low-precision GEMMs of the recipe, if it has any.
///
/// # Errors
/// Scales per tensor where tokens are cut into tiles, or a history without a step.
pub fn narrow(recipe: &Recipe, index: usize) -> Result<Option<NarrowLayers>> {
    let table = &recipe.precision;
    let format = match table.gemm {
        GemmName::Bf16 => return Ok(None),
        GemmName::Fp8Delayed => GemmFormat::Fp8Delayed,
        GemmName::Fp8Current => GemmFormat::Fp8Current,
        GemmName::Fp8Block => GemmFormat::Fp8Block,
        GemmName::Mxfp8 => GemmFormat::Micro(Element::E4M3),
        GemmName::Mxfp8E5m2 => GemmFormat::Micro(Element::E5M2),
        GemmName::Mxfp6E2m3 => GemmFormat::Micro(Element::E2M3),
        GemmName::Mxfp6E3m2 => GemmFormat::Micro(Element::E3M2),
        GemmName::Mxfp4 => GemmFormat::Micro(Element::E2M1),
    };
    let say = |key: &str, message: &str| {
        Err(Error::Recipe { key: format!("precision.{key}"), message: message.to_string() })
    };
    let tiles = recipe.stage[index].tile_rows.or(recipe.activations.tile_rows).is_some();
    if format.depends_on_tiles() && (tiles || recipe.activations.memory == Memory::Auto) {
        let message = "fp8_current scales a tensor by its own largest element, which a tile of its tokens does not know: take \
                       fp8_delayed or a format with blocks, or no tiles (neither tile_rows nor activations.memory = \"auto\")";
        return say("gemm", message);
    }
    if table.amax_history == 0 {
        return say("amax_history", "must be at least 1");
    }
    if format == GemmFormat::Fp8Delayed && recipe.mesh.pp > 1 {
        return say(
            "gemm",
            "fp8_delayed keeps its history with whole models: take fp8_current or a format with blocks, or mesh.pp=1",
        );
    }
    let linears = match table.linears {
        LinearsName::All => Linears::All,
        LinearsName::Attention => Linears::Attention,
        LinearsName::Mlp => Linears::Mlp,
    };
    let (at_start, at_end) = (table.num_layers_at_start_in_bf16, table.num_layers_at_end_in_bf16);
    Ok(Some(NarrowLayers { format, linears, at_start, at_end, history: table.amax_history }))
}

/// Default number of warm-up steps.
const WARMUP_STEPS: u64 = 20;

/// Learning rates of a stage of `steps` steps. A share of them is rounded up, as in Transformers (`get_warmup_steps`).
pub fn schedule(recipe: &Recipe, index: usize, steps: u64) -> RateSchedule {
    let table = &recipe.schedule;
    let share = table.warmup_share.map(|share| (share * steps as f64).ceil() as u64);
    let of_stage = recipe.stage[index].warmup_steps;
    RateSchedule {
        decay: table.decay,
        peak: recipe.optimizer.lr * recipe.stage[index].lr_scale,
        final_share: table.final_share,
        warmup_steps: of_stage.or(share).or(table.warmup_steps).unwrap_or(WARMUP_STEPS),
        decay_share: table.decay_share,
        total_steps: steps,
    }
}
