//! Settings of the steps of a recipe's stage.

mod rope;

use std::sync::Arc;

use fathom_grad::{AdamWSettings, CpComm, GemmFormat, Moments, OnDisk, Places, Rule};
use fathom_model::{
    Caps, MODULES, NarrowLayers, Quantization, Spec, StageLayers, TrainableWeights, open_config,
};
use fathom_tensor::mesh::Grid;
use fathom_tensor::spill::Chaos;
use fathom_tensor::{DType, SUM_CHUNK, is_whole_chunks};

use crate::blend::weighted;
use crate::error::{Error, Result};
use crate::in_step::InStep;
use crate::minimised::objective;
use crate::objective::{Goal, Noise};
use crate::parallel::stages::Order;
use crate::parallel::{CpScan, Ranks};
use crate::policy::judging;
use crate::recipe::{
    AdapterName, CpCommType, CpScanCommType, Granularity, Memory, MeshTable, Method, MethodName, OffloadTo,
    OptimizerKind, PipelineSchedule, PlaceRule, Recipe, ReferenceName,
};
use crate::reference::Refers;
use crate::retrieval::Retro;
use crate::several::other_adapters;
pub use rope::extend;
use rope::refuse;

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
    let offloaded = table.offload_place.place();
    if !offloaded.is_offloaded() {
        return Err(say("offload_place")("must be disk or host".into()));
    }
    places = places.offload(&table.offload_modules, MODULES, offloaded).map_err(say("offload_modules"))?;
    places.offload_fraction = table.offload_fraction;
    places.codec = table.offload_codec.codec();
    Ok(places.with_tiles(tile_rows).with_head_groups(table.head_groups))
}

/// The recipe's injected disk disorder.
pub(crate) fn chaos(recipe: &Recipe) -> Option<Chaos> {
    let fault_one_in = recipe.machine.chaos_faults;
    recipe.machine.chaos.map(|seed| Chaos { seed, fault_one_in })
}

fn rules(table: &[PlaceRule]) -> std::result::Result<Vec<Rule>, String> {
    let rule = |rule: &PlaceRule| {
        let layers = match rule.layers[..] {
            [] => 0..usize::MAX,
            [from, to] if from < to => from..to,
            _ => return Err(format!("layers {:?}: give the first, and the one after the last", rule.layers)),
        };
        Ok(Rule { layers, name: rule.name.clone(), place: rule.place.place() })
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
    let optimizer = &recipe.optimizer;
    let second = optimizer.kind == OptimizerKind::Adamw;
    Moments { dtype: optimizer.moments.dtype(), second, masters: optimizer.master_weights }
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
    let caps = Caps { docs: recipe.docs(index), seq_tokens: recipe.stage[index].seq_tokens };
    Ok(InStep {
        places: places(recipe, index)?,
        on_disk: on_disk(recipe),
        caps,
        ranks: ranks(recipe, index)?,
        narrow: narrow(recipe, index)?,
        round_to: recipe.precision.qat.format(),
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
            judges: if recipe.rl.is_on() { judging(recipe) } else { Vec::new() },
            measured: recipe.data.is_lessons()
                || recipe.rl.is_on()
                || recipe.objective.method == MethodName::Mlm
                || recipe.objective.seq2seq().is_some(),
        },
        adamw: AdamWSettings { lr: 0.0, ..adamw(recipe) },
    })
}

/// The mesh of a stage's steps; the planned rank is the first.
///
/// # Errors
/// Sizes that do not divide, and ones that would.
pub fn ranks(recipe: &Recipe, index: usize) -> Result<Ranks> {
    let table = &recipe.mesh;
    let say = |key: &str, message: String| Error::Recipe { key: format!("mesh.{key}"), message };
    let MeshTable { tp, cp, dp, pp, ep, etp, sequence_parallel, .. } = *table;
    let grid = Grid { tp, cp, dp, pp, ep, etp, sequence_parallel };
    grid.check().map_err(|message| say(if ep * etp > 1 { "ep" } else { "tp" }, message))?;
    let stage = &recipe.stage[index];
    let micro_batches = stage.micro_batches.max(1);
    if !micro_batches.is_multiple_of(dp) {
        let key = format!("stage.{index}.micro_batches");
        let message = format!(
            "{micro_batches} micro batches cannot be dealt to mesh.dp={dp} ranks; take a multiple of {dp}"
        );
        return Err(Error::Recipe { key, message });
    }
    let virtual_stages = table.virtual_stages.max(1);
    if virtual_stages > 1 && pp == 1 {
        let message = format!("is {virtual_stages}: stages of a pipeline, which mesh.pp=1 does not make");
        return Err(say("virtual_stages", message));
    }
    let order = match table.schedule {
        PipelineSchedule::OneByOne => Order::OneByOne,
        PipelineSchedule::ZeroBubble => Order::ZeroBubble,
    };
    let acts = order.acts(0, pp, virtual_stages, micro_batches / dp);
    acts.map_err(|message| say("virtual_stages", message))?;
    let tokens = stage.seq_tokens * stage.samples_per_micro_batch.max(1);
    if !tokens.is_multiple_of(cp) {
        let sizes = divisors(tokens);
        let message =
            format!("{tokens} tokens of a micro batch cannot be dealt to cp={cp} ranks; cp may be {sizes}");
        return Err(say("cp", message));
    }
    if sequence_parallel && !tokens.is_multiple_of(cp * tp) {
        let sizes = divisors(tokens / cp);
        let message = format!("{} tokens cannot be shared by tp={tp} ranks; tp may be {sizes}", tokens / cp);
        return Err(say("tp", message));
    }
    let cp_comm = match table.cp_comm_type {
        CpCommType::P2p => CpComm::P2p,
        CpCommType::AllGather => CpComm::AllGather,
        CpCommType::A2a => CpComm::A2a,
        CpCommType::A2aP2p => CpComm::A2aP2p { inner: table.cp_inner },
    };
    let cp_scan = match table.cp_scan_comm_type {
        // A sampler has all rows in order, as scans by heads do.
        CpScanCommType::Auto if recipe.rl.is_on() => CpScan::A2a,
        CpScanCommType::Auto => CpScan::Auto,
        CpScanCommType::A2a => CpScan::A2a,
        CpScanCommType::States => CpScan::States,
    };
    let cp_dynamic = table.cp_dynamic;
    if cp_dynamic && cp_comm != CpComm::P2p {
        let message = format!(
            "documents stay on few ranks where mesh.cp_comm_type is \"p2p\", not \"{}\"",
            table.cp_comm_type
        );
        return Err(say("cp_dynamic", message));
    }
    let layout = StageLayers::new(&table.layout).map_err(|message| say("layout", message))?;
    Ok(Ranks {
        grid,
        virtual_stages,
        layout,
        order,
        sharding: table.sharding.sharding(),
        cp_comm,
        cp_scan,
        cp_dynamic,
        rank: 0,
    })
}

/// Numbers of ranks among which `tokens` tokens can be divided, up to a node or two.
fn divisors(tokens: usize) -> String {
    let fits = (1..=16.min(tokens)).filter(|ranks| tokens.is_multiple_of(*ranks));
    fits.map(|ranks| ranks.to_string()).collect::<Vec<_>>().join(", ")
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
    /// Resolves the stages of a recipe that begins with a specification; returns them with the specification after the
    /// last.
    ///
    /// # Errors
    /// Those of [`in_step_among`] and [`extend`].
    pub fn all(recipe: &Recipe, mut spec: Spec) -> Result<(Vec<StagePlan>, Spec)> {
        let mut stages = Vec::new();
        for (index, table) in recipe.stage.iter().enumerate() {
            let (how, after) = (in_step_among(recipe, index, &spec)?, extend(&spec, table, index)?);
            stages.push(StagePlan { spec, how, dtype: recipe.model.precision.dtype() });
            spec = after;
        }
        Ok((stages, spec))
    }

    /// The ranks of the stage.
    pub fn ranks(&self) -> &Ranks {
        &self.how.ranks
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
    if !recipe.adapters.is_empty() {
        [how.goal.before, how.goal.after] = other_adapters(recipe, spec)?;
    }
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
    let Some(format) = recipe.model.quantization.format() else { return Ok(None) };
    Ok(Some(Quantization { format, double: recipe.model.double_quant, trained: trained(recipe)? }))
}

/// Low-precision GEMMs of the recipe, if it has any.
///
/// # Errors
/// Scales per tensor where tokens are cut into tiles, or a history without a step.
pub fn narrow(recipe: &Recipe, index: usize) -> Result<Option<NarrowLayers>> {
    let table = &recipe.precision;
    let Some(format) = table.gemm.format() else { return Ok(None) };
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
    let (at_start, at_end) = (table.num_layers_at_start_in_bf16, table.num_layers_at_end_in_bf16);
    let (linears, history) = (table.linears.linears(), table.amax_history);
    Ok(Some(NarrowLayers { format, linears, at_start, at_end, history }))
}
