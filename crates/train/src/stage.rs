//! Settings of the steps of a recipe's stage.

use std::sync::Arc;

use fathom_grad::{AdamWSettings, CpComm, GemmFormat, Moments, OnDisk, Place, Places, Rule};
use fathom_model::{Caps, Linears, MODULES, NarrowLayers, Quantization, RopeScaling};
use fathom_model::{Spec, StageLayers, TrainableWeights, open_config};
use fathom_tensor::mesh::Grid;
use fathom_tensor::spill::{Chaos, Codec};
use fathom_tensor::{BlockFormat, DType, Element, SUM_CHUNK, is_whole_chunks};
use fathom_text::lessons::Truncation;
use fathom_text::loader::{self, Shuffle, Split};
use fathom_text::pack::{self, Boundaries};

use crate::blend::weighted;
use crate::claim::{claim, extends};
use crate::error::{Error, Result};
use crate::minimised::objective;
use crate::objective::{Goal, Noise};
use crate::parallel::stages::Order;
use crate::parallel::{Ranks, Sharding};
use crate::policy::judging;
use crate::recipe::{
    AdapterName, CpCommType, GemmName, Granularity, LengthWeight, LinearsName, Memory, MeshTable, Method,
    MethodName, MomentType, OffloadCodec, OffloadTo, OptimizerKind, Packing, PipelineSchedule, PlaceName,
    PlaceRule, QuantizationName, Recipe, ReferenceName, RopeType, ShardingName, Stage,
};
use crate::reference::Refers;
use crate::rounded::round_to;
use crate::schedule::Schedule;
use crate::several::other_adapters;
use crate::source::Shape;
use crate::step::InStep;

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
            measured: recipe.data.is_lessons() || recipe.rl.is_on(),
        },
        adamw: AdamWSettings { lr: 0.0, ..adamw(recipe) },
    })
}

/// [`in_step`] with the other adapters over the base of the specification before the stage.
///
/// # Errors
/// Those of [`in_step`], and an adapter that does not fit.
pub fn in_step_among(recipe: &Recipe, index: usize, spec: &Spec) -> Result<InStep> {
    let mut how = in_step(recipe, index)?;
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
    let sharding = match table.sharding {
        ShardingName::NoShard => Sharding::NoShard,
        ShardingName::Optim => Sharding::Optim,
        ShardingName::OptimGrads => Sharding::OptimGrads,
        ShardingName::OptimGradsParams => Sharding::OptimGradsParams,
    };
    let cp_comm = match table.cp_comm_type {
        CpCommType::P2p => CpComm::P2p,
        CpCommType::AllGather => CpComm::AllGather,
        CpCommType::A2a => CpComm::A2a,
        CpCommType::A2aP2p => CpComm::A2aP2p { inner: table.cp_inner },
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
    Ok(Ranks { grid, virtual_stages, layout, order, sharding, cp_comm, cp_dynamic, rank: 0 })
}

/// Shape of a stage's micro-batches.
pub(crate) fn shape(recipe: &Recipe, index: usize) -> Shape {
    let (stage, mesh) = (&recipe.stage[index], &recipe.mesh);
    let samples = stage.samples_per_micro_batch.max(1);
    // Ranks that share a micro-batch's tokens, or exchange rows, rely on known lengths.
    let one_length = mesh.tp * mesh.cp * mesh.ep * mesh.etp > 1;
    let (docs, alone) = (stage.max_docs * samples, !one_length && mesh.dp * mesh.pp == 1);
    Shape {
        stage: index,
        samples,
        seq_tokens: stage.seq_tokens,
        docs,
        one_length,
        alone,
        lead: recipe.adapter.leads(),
    }
}

/// Numbers of ranks among which `tokens` tokens can be divided, up to a node or two.
fn divisors(tokens: usize) -> String {
    let fits = (1..=16.min(tokens)).filter(|ranks| tokens.is_multiple_of(*ranks));
    fits.map(|ranks| ranks.to_string()).collect::<Vec<_>>().join(", ")
}

/// Default number of warm-up steps.
const WARMUP_STEPS: u64 = 20;

/// Learning rates of a stage of `steps` steps. A share of them is rounded up, as in Transformers (`get_warmup_steps`).
pub fn schedule(recipe: &Recipe, index: usize, steps: u64) -> Schedule {
    let table = &recipe.schedule;
    let share = table.warmup_share.map(|share| (share * steps as f64).ceil() as u64);
    let of_stage = recipe.stage[index].warmup_steps;
    Schedule {
        decay: table.decay,
        peak: recipe.optimizer.lr * recipe.stage[index].lr_scale,
        final_share: table.final_share,
        warmup_steps: of_stage.or(share).or(table.warmup_steps).unwrap_or(WARMUP_STEPS),
        decay_share: table.decay_share,
        total_steps: steps,
    }
}

/// The specification during a stage, with its rotary settings and the claimed positions ([`crate::claim`]).
///
/// # Errors
/// A scaling that the stage does not describe fully.
pub fn extend(spec: &Spec, stage: &Stage, index: usize) -> Result<Spec> {
    let mut spec = spec.clone();
    let old = spec.max_positions;
    if spec.learned_positions.is_some_and(|rows| rows < stage.seq_tokens) {
        return Err(refuse(
            index,
            "seq_tokens",
            "the model has a learned position table, which cannot be extended",
        ));
    }
    let stretched = stretched(&spec);
    for (rope, _) in spec.ropes.iter_mut().zip(stretched).filter(|(_, stretched)| *stretched) {
        if let Some(theta) = stage.rope_theta {
            rope.theta = theta;
        }
        // A stage after a scaled one scales the model's original length.
        let original = match rope.scaling {
            RopeScaling::Linear { factor } => (old as f64 / factor) as usize,
            _ => rope.scaling.original_positions().unwrap_or(old),
        };
        let factor = stage.rope_factor.unwrap_or(stage.seq_tokens as f64 / original as f64).max(1.0);
        if let Some(scaling) = scaling(stage.rope_type, factor, original, index)? {
            rope.scaling = scaling;
        }
        rope.scaling.name_original(original);
    }
    if extends(stage) || !stage.masked {
        claim(&mut spec, stage.seq_tokens);
    }
    Ok(spec)
}

/// The rotary settings that a stage changes: those of layers with full attention, or the first if all layers have
/// windows. A separate one for layers with windows (Gemma 3, Cohere 2) stays, as distances stay within the window.
fn stretched(spec: &Spec) -> Vec<bool> {
    let sees_all = |table: usize| {
        spec.layers.iter().any(|layer| layer.rope() == Some(table) && layer.window().is_none())
    };
    let some = spec.layers.iter().any(|layer| layer.window().is_none());
    (0..spec.ropes.len()).map(|table| sees_all(table) || (table == 0 && !some)).collect()
}

fn scaling(kind: RopeType, factor: f64, original: usize, index: usize) -> Result<Option<RopeScaling>> {
    let scaling = match kind {
        RopeType::Keep => return Ok(None),
        RopeType::Default => RopeScaling::Default,
        RopeType::Linear => RopeScaling::Linear { factor },
        RopeType::Dynamic => RopeScaling::Dynamic { factor },
        RopeType::Yarn => RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: Some(original),
            beta_fast: None,
            beta_slow: None,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: None,
        },
        RopeType::Llama3 => RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: original,
        },
        RopeType::Longrope => {
            let message = "longrope has searched factors per frequency; start from a model that has them and use rope_type=\"keep\"";
            return Err(refuse(index, "rope_type", message));
        }
    };
    Ok(Some(scaling))
}

/// The loader's settings for a stage, with the documents `held_out` excluded.
pub fn loader_spec(recipe: &Recipe, index: usize, held_out: impl Into<loader::HeldOut>) -> loader::Spec {
    let stage = &recipe.stage[index];
    let packing = match stage.packing {
        Packing::Cut => pack::Packing::Concatenate,
        Packing::BestFit => pack::Packing::BestFit,
        Packing::Single => pack::Packing::Single,
    };
    let whole = recipe.objective.method.judges().then_some(Truncation::Error);
    let kept = whole.unwrap_or(recipe.teaching().truncation);
    loader::Spec {
        packing,
        boundaries: if stage.masked { Boundaries::Masked } else { Boundaries::Unmasked },
        shuffle: if recipe.data.shuffle { Shuffle::Documents } else { Shuffle::None },
        seed: recipe.run.seed.wrapping_add(index as u64),
        split: Split::Train { held_out: held_out.into() },
        min_doc_tokens: stage.min_doc_tokens as u64,
        length_weights: stage.length_weights.iter().map(length_weight).collect(),
        ahead: recipe.data.ahead,
        lead: recipe.adapter.leads() as u32,
        kept: recipe.data.is_lessons().then_some(kept),
        ..loader::Spec::new(stage.seq_tokens as u32)
    }
}

fn length_weight(of: &LengthWeight) -> loader::LengthWeight {
    loader::LengthWeight { min_tokens: of.min_tokens as u64, weight: of.weight }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use fathom_model::{Family, LayerSpec, LlamaSizes};

    fn small() -> Spec {
        Spec::llama(LlamaSizes {
            hidden: 32,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            ffn: 64,
            vocab: 64,
            rope_theta: 1e4,
            max_positions: 256,
            tied: true,
        })
    }

    fn stage(rope_type: RopeType, seq_tokens: usize) -> Stage {
        Stage { seq_tokens, rope_type, ..Stage::default() }
    }

    #[test]
    fn stages_stretch_the_first_length() {
        for kind in [RopeType::Yarn, RopeType::Linear, RopeType::Llama3, RopeType::Dynamic] {
            let once = extend(&small(), &stage(kind, 512), 0).unwrap();
            let twice = extend(&once, &stage(kind, 2048), 1).unwrap();
            let at_once = extend(&small(), &stage(kind, 2048), 0).unwrap();
            assert_eq!(twice, at_once, "{kind:?}");
            assert_eq!(twice.max_positions, if kind == RopeType::Dynamic { 256 } else { 2048 });
        }
    }

    #[test]
    fn documents_are_drawn_by_the_weights_of_their_stage() {
        let length_weights = vec![LengthWeight { min_tokens: 64, weight: 2.5 }];
        let recipe =
            Recipe { stage: vec![Stage { length_weights, ..Stage::default() }], ..Recipe::default() };
        let drawn = loader_spec(&recipe, 0, 0.0).length_weights;
        assert_eq!(drawn, [loader::LengthWeight { min_tokens: 64, weight: 2.5 }]);
    }

    #[test]
    fn dynamic_measures_against_the_first_length() {
        let extended = extend(&small(), &stage(RopeType::Dynamic, 1024), 0).unwrap();
        let kept = extend(&extended, &stage(RopeType::Keep, 1024), 1).unwrap();
        for spec in [extended, kept] {
            // Transformers' base at 1024 tokens: theta (factor s / first - (factor - 1))^(d / (d - 2)), d = 16.
            let base = 1e4 * (4.0f64 * 4.0 - 3.0).powf(16.0 / 14.0);
            let expected = base.powf(-2.0 / 16.0) as f32;
            assert_eq!(spec.ropes[0].frequencies(1024).inv_freq[1], expected);
            // The length with which Transformers compares.
            let config = Family::write(Path::new("config.json"), &spec).unwrap();
            assert_eq!(config["max_position_embeddings"], 256);
        }
    }

    #[test]
    fn rotations_of_windows_alone_are_left() {
        let mut spec = small();
        spec.ropes.push(spec.ropes[0].clone());
        spec.layers[1] = LayerSpec::decoder(Some(64), Some(1));
        let extended = extend(&spec, &stage(RopeType::Yarn, 1024), 0).unwrap();
        assert_eq!(extended.ropes[1].scaling, RopeScaling::Default);
        assert_ne!(extended.ropes[0].scaling, spec.ropes[0].scaling);
        // The same if layers with full attention do not rotate.
        spec.layers[0].set_rope(None);
        let kept = extend(&spec, &stage(RopeType::Yarn, 1024), 0).unwrap();
        assert!(kept.ropes.iter().all(|rope| rope.scaling == RopeScaling::Default));
        spec.layers[0].set_rope(Some(0));
        // If all layers have windows, the first setting is scaled, and a separate one for windows is not.
        spec.layers[0].set_window(Some(64));
        let extended = extend(&spec, &stage(RopeType::Yarn, 1024), 0).unwrap();
        assert_ne!(extended.ropes[0].scaling, spec.ropes[0].scaling);
        assert_eq!(extended.ropes[1].scaling, RopeScaling::Default);
        // Like Gemma 3 with sliding layers only, none of which uses the first setting.
        spec.layers[0].set_rope(Some(1));
        let extended = extend(&spec, &stage(RopeType::Yarn, 1024), 0).unwrap();
        assert_eq!(extended.ropes[1].scaling, RopeScaling::Default);
    }
}
