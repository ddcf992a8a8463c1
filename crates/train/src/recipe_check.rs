//! What the numbers of a recipe may be: a range for each key, and the few relations between keys. Checked in one place, before
//! anything is planned or run. Knows no model's files and no text; of a model that is read from a folder the sizes are not the
//! recipe's.

mod addresses;
mod rows;

use std::fmt;

use fathom_base::human;
use fathom_base::recipe::Recipe as Loaded;

use crate::adapted::{RANGES as OF_ADAPTERS, check_adapter};
use crate::error::Result;
use crate::needs_corpus;
use crate::policy::check::{RANGES as OF_POLICY, check as of_policy};
use crate::recipe::{AdapterName, FamilyName, MethodName, QuantizationName, Recipe, RopeType, Stage};
use crate::rounded;
use crate::several::check_several;

/// What a number may be.
#[derive(Clone, Copy)]
pub(crate) enum Allowed {
    /// Anything that its type holds.
    Any,
    /// From the first to the second, whole.
    Whole(u64, u64),
    /// From the first to the second.
    Real(f64, f64),
    /// Above 0, up to this.
    Above0(f64),
    /// 0 or more, below 1.
    Below1,
}

/// Without an upper end but that of the type that kernels compute with.
pub(crate) const NO_END: f64 = f32::MAX as f64;
/// Tokens of a micro batch: FLOPs of one operation are counted in 64 bits.
pub(crate) const MOST_TOKENS: u64 = 1 << 24;
/// Documents of a micro batch, which have a slot each whether they come or not.
const MOST_DOCS: u64 = 1 << 22;
/// Draws of a document in an epoch, whose list of them is in memory.
const MOST_DRAWS: f64 = 1024.0;
/// Ranks of a mesh.
const MOST_RANKS: u64 = 1 << 24;
/// Ranks of an axis, and what a rank has of something.
pub(crate) const MANY: u64 = 1 << 16;
/// Columns of a matrix.
pub(crate) const COLUMNS: u64 = 1 << 20;
/// Bytes: an exbibyte.
const BYTES: u64 = 1 << 60;
/// Seconds: thirty years.
const SECONDS: f64 = 1e9;

use Allowed::{Above0, Any, Below1, Real, Whole};

/// Every key that holds numbers, lists included; `*` stands for an index.
const RANGES: &[(&str, Allowed)] = &[
    ("run.seed", Any),
    ("run.minutes", Above0(SECONDS / 60.0)),
    ("machine.threads", Whole(0, 4096)),
    ("machine.chaos", Any),
    ("machine.chaos_faults", Any),
    ("machine.memory_bytes", Whole(1, BYTES)),
    ("machine.host_bytes", Whole(0, BYTES)),
    ("machine.disk_bytes", Whole(0, BYTES)),
    ("machine.optimizer_stays_percent", Real(0.0, 100.0)),
    ("precision.num_layers_at_start_in_bf16", Whole(0, 4096)),
    ("precision.num_layers_at_end_in_bf16", Whole(0, 4096)),
    ("precision.amax_history", Whole(1, 1 << 20)),
    ("mesh.tp", Whole(1, MANY)),
    ("mesh.cp", Whole(1, MANY)),
    ("mesh.cp_inner", Whole(1, MANY)),
    ("mesh.dp", Whole(1, MANY)),
    ("mesh.pp", Whole(1, MANY)),
    ("mesh.ep", Whole(1, MANY)),
    ("mesh.etp", Whole(1, MANY)),
    ("mesh.virtual_stages", Whole(1, 4096)),
    ("mesh.layout", Whole(0, 4096)),
    ("mesh.timeout_s", Above0(SECONDS)),
    ("mesh.step_timeout_s", Above0(SECONDS)),
    ("mesh.restarts", Any),
    ("mesh.check_every_steps", Any),
    ("model.no_rope_layer_interval", Whole(1, MANY)),
    ("model.hidden", Whole(1, COLUMNS)),
    ("model.layers", Whole(1, 4096)),
    ("model.heads", Whole(1, MANY)),
    ("model.kv_heads", Whole(1, MANY)),
    ("model.head_dim", Whole(8, 512)),
    ("model.ffn", Whole(1, COLUMNS)),
    ("model.vocab", Whole(2, 1 << 24)),
    ("model.rope_theta", Above0(NO_END)),
    ("model.rope_dim", Whole(2, MANY)),
    ("model.kv_latent", Whole(1, COLUMNS)),
    ("model.init_std", Above0(NO_END)),
    ("model.embedding_multiplier", Above0(NO_END)),
    ("moe.experts", Whole(1, MANY)),
    ("moe.top_k", Whole(1, MANY)),
    ("moe.ffn", Whole(1, COLUMNS)),
    ("moe.shared", Whole(0, 4096)),
    ("moe.dense_layers", Whole(0, 4096)),
    ("moe.aux_loss", Real(0.0, NO_END)),
    ("moe.z_loss", Real(0.0, NO_END)),
    ("moe.bias_update_rate", Real(0.0, NO_END)),
    ("moe.capacity_factor", Above0(NO_END)),
    ("data.max_rows_dropped", Any),
    ("data.max_bytes", Whole(1, BYTES)),
    ("data.recall_share", Below1),
    ("data.held_out_share", Below1),
    ("data.document_bytes", Whole(1024, BYTES)),
    ("data.tokenizer_bytes", Whole(1, BYTES)),
    ("data.blend.*.weight", Above0(NO_END)),
    ("data.ahead", Whole(0, MANY)),
    ("objective.beta", Above0(NO_END)),
    ("objective.ref_model_mixup_alpha", Above0(1.0)),
    ("objective.ref_model_sync_steps", Whole(1, u64::MAX)),
    ("objective.label_smoothing", Real(0.0, 0.499)),
    ("objective.f_alpha", Any),
    ("objective.ld_alpha", Real(0.0, 1.0)),
    ("objective.sft_weight", Real(0.0, NO_END)),
    ("objective.loss_weights", Real(0.0, NO_END)),
    ("objective.gamma", Real(0.0, NO_END)),
    ("objective.alpha", Any),
    ("objective.discopop_tau", Above0(NO_END)),
    ("objective.desirable_weight", Real(0.0, NO_END)),
    ("objective.undesirable_weight", Real(0.0, NO_END)),
    ("objective.mismatched_rows", Whole(2, COLUMNS)),
    ("objective.responses", Whole(2, 4096)),
    ("objective.reward_scale", Above0(NO_END)),
    ("objective.neftune_alpha", Real(0.0, NO_END)),
    ("objective.temperature", Real(0.01, 1000.0)),
    ("objective.kd_ratio", Real(0.0, 1.0)),
    ("objective.hidden_weight", Real(0.0, NO_END)),
    ("objective.jsd_beta", Real(0.001, 0.999)),
    ("rounds.count", Whole(1, MANY)),
    ("rounds.earlier", Whole(0, MANY)),
    ("rounds.max_answer_tokens", Whole(1, MOST_TOKENS)),
    ("rounds.temperature", Real(0.0, NO_END)),
    ("objective.top_k", Whole(0, 1 << 14)),
    ("objective.center_rewards", Real(0.0, NO_END)),
    ("optimizer.lr", Real(0.0, NO_END)),
    ("optimizer.beta1", Below1),
    ("optimizer.beta2", Below1),
    ("optimizer.eps", Real(0.0, NO_END)),
    ("optimizer.weight_decay", Real(0.0, NO_END)),
    ("optimizer.clip", Above0(NO_END)),
    ("optimizer.z_loss", Real(0.0, NO_END)),
    ("schedule.warmup_steps", Any),
    ("schedule.final_share", Real(0.0, 1.0)),
    ("schedule.decay_share", Real(0.0, 1.0)),
    ("activations.recompute_num_layers", Whole(1, MANY)),
    ("activations.places.*.layers", Any),
    ("activations.offload_fraction", Above0(1.0)),
    ("activations.head_groups", Whole(1, MANY)),
    // Multiples of 128, which a stage's places tell.
    ("activations.tile_rows", Any),
    ("stage.*.seq_tokens", Whole(2, MOST_TOKENS)),
    ("stage.*.samples_per_micro_batch", Whole(1, MANY)),
    ("stage.*.micro_batches", Whole(1, COLUMNS)),
    ("stage.*.steps", Whole(1, u64::MAX)),
    ("stage.*.epochs", Whole(1, COLUMNS)),
    ("stage.*.minutes_share", Real(0.0, NO_END)),
    ("stage.*.lr_scale", Real(0.0, NO_END)),
    ("stage.*.warmup_steps", Any),
    ("stage.*.blend.*.weight", Above0(NO_END)),
    ("stage.*.min_doc_tokens", Any),
    ("stage.*.length_weights.*.min_tokens", Any),
    ("stage.*.length_weights.*.weight", Real(0.0, MOST_DRAWS)),
    ("stage.*.max_docs", Whole(1, MOST_DOCS)),
    ("stage.*.rope_theta", Above0(NO_END)),
    ("stage.*.rope_factor", Real(1.0, NO_END)),
    ("stage.*.tile_rows", Any),
    ("stages", Whole(2, MOST_TOKENS)),
    ("checkpoint.every_s", Real(0.0, SECONDS)),
    ("checkpoint.every_steps", Whole(1, u64::MAX)),
    ("checkpoint.memory_every_steps", Whole(1, u64::MAX)),
    ("checkpoint.keep", Any),
    ("eval.tokens", Whole(0, BYTES)),
    ("eval.needle_trials", Whole(0, MANY)),
    ("eval.needle_depths", Whole(1, MANY)),
];

impl Allowed {
    fn holds(self, number: f64) -> bool {
        match self {
            Any => true,
            Whole(from, to) => (from as f64..=to as f64).contains(&number),
            Real(from, to) => (from..=to).contains(&number),
            Above0(to) => number > 0.0 && number <= to,
            Below1 => (0.0..1.0).contains(&number),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up_to = |end: f64| if end < NO_END { format!(" and at most {end}") } else { String::new() };
        match *self {
            Any => f.write_str("a number"),
            Whole(from, u64::MAX) => write!(f, "{from} or more"),
            Whole(from, to) => write!(f, "from {} to {}", human::grouped(from), human::grouped(to)),
            Real(from, to) => write!(f, "{from} or more{}", up_to(to)),
            Above0(to) => write!(f, "above 0{}", up_to(to)),
            Below1 => f.write_str("0 or more and below 1"),
        }
    }
}

/// Refuses numbers that a run cannot be made with. The recipe's stages are expanded.
///
/// # Errors
/// The first such key, with its place, its value and what it may be.
pub fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    for row in loaded.rows() {
        for (text, number) in numbers(&row.value) {
            let allowed = allowed(&row.path);
            if !allowed.holds(number) {
                return refuse(loaded, &row.path, format!("is {text}; it must be {allowed}"));
            }
        }
    }
    addresses::check(loaded)?;
    match &loaded.value.model.from {
        Some(folder) if folder.as_os_str().is_empty() => {
            let message =
                "is empty; this recipe goes on from a model: give its Hugging Face folder, model.from=DIR";
            return refuse(loaded, "model.from", message);
        }
        Some(_) => {}
        None if loaded.value.checkpoint.trained_only => {
            let message = "leaves out what is frozen, and there is no model that has it; give model.from";
            return refuse(loaded, "checkpoint.trained_only", message);
        }
        None => sizes(loaded)?,
    }
    let model = &loaded.value.model;
    let several = !loaded.value.adapters.is_empty();
    if several {
        // Each is checked in a recipe of its own.
        check_several(loaded)?;
    } else {
        check_adapter(loaded)?;
    }
    rounded::check(loaded)?;
    let adapted = several || loaded.value.adapter.method != AdapterName::None;
    if model.quantization != QuantizationName::None && model.trained.is_empty() && !adapted {
        let message =
            "freezes the projections, and nothing says what is trained; give model.trained, as [\"norm\"]";
        return refuse(loaded, "model.quantization", message);
    }
    batches(loaded)?;
    let saves = &loaded.value.checkpoint;
    if saves.local.is_some() && saves.memory_every_steps.is_none() {
        let message = "is where copies go, and none are made: give checkpoint.memory_every_steps as well";
        return refuse(loaded, "checkpoint.local", message);
    }
    ranks(loaded)
}

/// Refuses what can be planned and not trained: text that nothing names, stages of which nothing says how long they are trained, and a first one that
/// extends a model where there is none yet.
///
/// # Errors
/// The first such stage.
pub fn check_training(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let reads = needs_corpus(recipe) || recipe.rl.is_on();
    if let Some(message) = recipe.data.without_text().filter(|_| reads) {
        return refuse(loaded, "data.paths", message);
    }
    if recipe.model.quantization != QuantizationName::None && recipe.model.from.is_none() {
        let message =
            "packs weights of a model that is there already, and checkpoints leave them out; give model.from";
        return refuse(loaded, "model.quantization", message);
    }
    if recipe.adapter.method != AdapterName::None && recipe.model.from.is_none() {
        let message =
            "adapts a model that is there already, and the run leaves an adapter alone; give model.from";
        return refuse(loaded, "adapter.method", message);
    }
    for (index, stage) in recipe.stage.iter().enumerate() {
        let refuse = |key: &str, message: &str| refuse(loaded, &format!("stage.{index}.{key}"), message);
        match (stage.steps, stage.epochs, recipe.run.minutes) {
            (None, None, None) => {
                let message = "is none, and so are epochs and run.minutes: nothing says how long the stage is trained; give one of them";
                return refuse("steps", message);
            }
            (Some(_), Some(_), _) => {
                return refuse(
                    "epochs",
                    "says how long the stage is trained, and so does steps; give one, the other as none",
                );
            }
            (None, Some(_), Some(_)) => {
                return refuse(
                    "epochs",
                    "says how long the stage is trained, and so does run.minutes; give one of the two",
                );
            }
            _ => {}
        }
        if let (Some(_), Some(rules)) = (stage.epochs, (stage.blend(recipe).len() > 1).then_some("blend")) {
            let message = "mixes sources, which end at different steps: a pass is of one source; give steps in place of epochs";
            return refuse(rules, message);
        }
    }
    rows::check(loaded)?;
    of_policy(loaded)?;
    if recipe.objective.method != MethodName::CrossEntropy && recipe.optimizer.z_loss != 0.0 {
        let message = "is of the head that makes its gradients at once, which objectives other than cross_entropy do not use; give 0";
        return refuse(loaded, "optimizer.z_loss", message);
    }
    let extending = |stage: &Stage| match stage.rope_type {
        RopeType::Keep | RopeType::Default => stage.rope_theta.map(|_| "rope_theta"),
        _ => Some("rope_type"),
    };
    // Of several alike, as the short form `stages` makes them, the first trains the model that the others extend.
    let alike =
        |[one, other]: [&Stage; 2]| (one.rope_type, one.rope_theta) == (other.rope_type, other.rope_theta);
    if recipe.model.from.is_some() || recipe.stage.get(1).is_some_and(|next| alike([&recipe.stage[0], next]))
    {
        return Ok(());
    }
    match recipe.stage.first().and_then(extending) {
        Some(key) => {
            let message =
                "the first stage extends a model, and there is none; give model.from, the folder of one";
            refuse(loaded, &format!("stage.0.{key}"), message)
        }
        None => Ok(()),
    }
}

/// The numbers of a row's value, as text and as such: of a list, each.
fn numbers(value: &str) -> impl Iterator<Item = (&str, f64)> {
    let parts = value.trim_matches(['[', ']']).split(',').map(str::trim);
    parts.filter_map(|text| Some((text, text.replace('_', "").parse().ok()?)))
}

fn ranges() -> impl Iterator<Item = &'static (&'static str, Allowed)> {
    RANGES.iter().chain(OF_ADAPTERS).chain(OF_POLICY)
}

fn allowed(path: &str) -> Allowed {
    let star = |part: &str| {
        if part.bytes().all(|byte| byte.is_ascii_digit()) { "*".into() } else { part.to_string() }
    };
    let path = path.split('.').map(star).collect::<Vec<_>>().join(".");
    ranges().find(|(key, _)| *key == path).map_or(Any, |(_, allowed)| *allowed)
}

pub(crate) fn refuse(loaded: &Loaded<Recipe>, key: &str, message: impl Into<String>) -> Result<()> {
    Err(loaded.refuse(key, message).into())
}

/// Sizes of a model from nothing that fit each other.
fn sizes(loaded: &Loaded<Recipe>) -> Result<()> {
    let Recipe { model, moe, activations, data, .. } = &loaded.value;
    let latent = model.family == FamilyName::DeepseekV3;
    let kv_heads = if latent { model.heads } else { model.kv_heads };
    let refuse = |key: &str, message: String| refuse(loaded, key, message);
    if !model.heads.is_multiple_of(kv_heads) {
        let message = format!("is {kv_heads}; it must divide the {} heads of model.heads", model.heads);
        return refuse("model.kv_heads", message);
    }
    if !model.head_dim.is_multiple_of(8) {
        let message =
            format!("is {}; it must be a multiple of 8, as attention's kernels take them", model.head_dim);
        return refuse("model.head_dim", message);
    }
    if !kv_heads.is_multiple_of(activations.head_groups) {
        let message =
            format!("is {}; it must divide the {kv_heads} heads of keys and values", activations.head_groups);
        return refuse("activations.head_groups", message);
    }
    if moe.dense_layers > model.layers {
        let message = format!("is {}; the model has model.layers={}", moe.dense_layers, model.layers);
        return refuse("moe.dense_layers", message);
    }
    let trained = data.tokenizer.is_none() && needs_corpus(&loaded.value);
    if trained && model.vocab < 257 {
        let message =
            format!("is {}; a tokenizer of 256 bytes and one special token needs 257 or more", model.vocab);
        return refuse("model.vocab", message);
    }
    for (index, stage) in loaded.value.stage.iter().enumerate() {
        // Four products over all pairs of tokens, of two FLOPs a column and pair, half of them masked.
        let tokens = (stage.seq_tokens * stage.samples_per_micro_batch) as f64;
        let columns = (model.heads * model.head_dim) as f64;
        let most = (u64::MAX as f64 / (4.0 * columns)).sqrt();
        if tokens > most {
            let message = format!(
                "makes micro batches of {tokens} tokens; with heads of {columns} columns together they may have {}",
                most as u64
            );
            return refuse(&format!("stage.{index}.seq_tokens"), message);
        }
    }
    Ok(())
}

/// Micro batches that can be counted.
fn batches(loaded: &Loaded<Recipe>) -> Result<()> {
    let stages = &loaded.value.stage;
    for (index, stage) in stages.iter().enumerate() {
        let samples = stage.samples_per_micro_batch;
        for (what, each, most) in
            [("tokens", stage.seq_tokens, MOST_TOKENS), ("documents", stage.max_docs, MOST_DOCS)]
        {
            if (samples * each) as u64 > most {
                let message = format!(
                    "is {samples}; with {each} {what} a sample a micro batch may have up to {}",
                    (most / each as u64).max(1)
                );
                return refuse(loaded, &format!("stage.{index}.samples_per_micro_batch"), message);
            }
        }
    }
    let shares = |stage: &Stage| stage.minutes_share;
    if loaded.value.run.minutes.is_some() && stages.iter().map(shares).sum::<f64>() <= 0.0 {
        let message = "is 0, as it is for every stage: one of them has to have a share of run.minutes";
        return refuse(loaded, "stage.0.minutes_share", message);
    }
    Ok(())
}

fn ranks(loaded: &Loaded<Recipe>) -> Result<()> {
    let mesh = &loaded.value.mesh;
    let all = [mesh.pp, mesh.dp, mesh.cp, mesh.tp].into_iter().map(|axis| axis as u128).product::<u128>();
    if all > u128::from(MOST_RANKS) {
        let message = format!(
            "is {}; pp x dp x cp x tp are {all} ranks, of {} at most",
            mesh.dp,
            human::grouped(MOST_RANKS)
        );
        return refuse(loaded, "mesh.dp", message);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fathom_base::recipe::{Layers, keys};

    use super::*;

    fn load(settings: &str) -> Loaded<Recipe> {
        let layers = Layers::new().text(
            "small",
            "data.paths = [\"text\"]\n[[stage]]\nsteps = 1\nblend = [{ source = \"text\" }]\nlength_weights = [{ min_tokens = 8 }]\n",
        );
        let settings: Vec<&str> = settings.split_whitespace().collect();
        let mut loaded: Loaded<Recipe> = Loaded::load(layers.sets(&settings)).unwrap();
        loaded.value.expand_stages().unwrap();
        loaded
    }

    #[test]
    fn every_number_has_a_range() {
        let numeric = keys::<Recipe>().into_iter().filter(|key| key.expected.contains("number"));
        let numeric: Vec<String> = numeric.map(|key| key.path).collect();
        let missing: Vec<_> = numeric.iter().filter(|path| !ranges().any(|(key, _)| key == path)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let unknown: Vec<_> =
            ranges().filter(|(key, _)| !numeric.iter().any(|path| path == key)).map(|(key, _)| key).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        let cases = "optimizer.lr=-1 optimizer.lr=nan optimizer.lr=inf optimizer.clip=-1 optimizer.clip=0 optimizer.beta2=1 \
            stage.0.micro_batches=0 stage.0.steps=0 stage.0.rope_factor=0 stage.0.rope_factor=-1 stage.0.rope_theta=0 \
            stage.0.samples_per_micro_batch=0 stage.0.max_docs=0 stage.0.max_docs=1000000000 stage.0.seq_tokens=1 \
            stage.0.seq_tokens=1000000000 stage.0.blend.0.weight=0 stage.0.length_weights.0.weight=-1 stages=0 stages=100000000000000 stages=1k,0 \
            activations.head_groups=0 activations.head_groups=7 activations.offload_fraction=0 \
            run.minutes=0 run.minutes=-1 run.minutes=nan checkpoint.every_steps=0 checkpoint.every_s=-1 \
            model.init_std=nan model.rope_theta=0 model.rope_theta=-1 model.layers=0 model.layers=1000000000 \
            model.kv_heads=3 model.kv_heads=0 model.head_dim=0 model.head_dim=7 model.hidden=0 model.kv_latent=0 \
            model.heads=0 model.vocab=0 model.vocab=1 model.vocab=256 model.from= moe.ffn=0 moe.dense_layers=9 \
            moe.capacity_factor=0 mesh.virtual_stages=0 mesh.cp=0 mesh.dp=0 mesh.pp=0 mesh.ep=0 mesh.etp=0 mesh.tp=0 \
            mesh.timeout_s=0 data.held_out_share=1 data.recall_share=-1 data.max_bytes=0 data.tokenizer_bytes=0";
        for case in cases.split_whitespace() {
            let (key, _) = case.split_once('=').unwrap();
            let error = check(&load(case)).expect_err(case).to_string();
            assert!(error.contains(&format!("`{key}`")) && error.contains("command line"), "{case}: {error}");
        }
    }

    #[test]
    fn stages_of_one_name_are_numbered() {
        let names = |settings: &str| {
            let stages = load(settings).value.stage;
            stages.into_iter().map(|stage| stage.name).collect::<Vec<_>>()
        };
        assert_eq!(names(""), ["pretrain"]);
        assert_eq!(names("stages=1k,2k,1k,1k"), ["1k", "2k", "1k-2", "1k-3"]);
        let mut loaded = load("");
        loaded.value.stage =
            ["a", "a-2", "a"].map(|name| Stage { name: name.into(), ..Stage::default() }).to_vec();
        loaded.value.expand_stages().unwrap();
        assert_eq!(loaded.value.stage[2].name, "a-3");
    }

    #[test]
    fn relations_name_the_key_that_does_not_fit() {
        for (settings, key) in [
            ("model.heads=3", "model.kv_heads"),
            ("model.head_dim=12", "model.head_dim"),
            ("stage.0.seq_tokens=1m stage.0.samples_per_micro_batch=64", "stage.0.samples_per_micro_batch"),
            ("stage.0.seq_tokens=16m model.heads=512", "stage.0.seq_tokens"),
            ("mesh.pp=65536 mesh.tp=65536", "mesh.dp"),
            ("run.minutes=1 stage.0.minutes_share=0", "stage.0.minutes_share"),
            ("checkpoint.local=/tmp", "checkpoint.local"),
            ("adapter.method=prompt adapter.rank=4", "adapter.rank"),
            ("adapter.method=prompt adapter.targets=all-linear", "adapter.targets"),
            ("adapter.method=prefix adapter.encoder_hidden_size=8", "adapter.encoder_hidden_size"),
            ("adapter.method=lora adapter.virtual_tokens=8", "adapter.virtual_tokens"),
            ("adapter.method=dora adapter.dropout=0.1", "adapter.dropout"),
            ("adapter.method=lora adapter.dropout=1", "adapter.dropout"),
            ("adapter.method=lora adapter.dropout=0.1 mesh.tp=2", "mesh.sequence_parallel"),
            ("adapter.method=ia3 adapter.token_rows=[3]", "adapter.token_rows"),
            ("adapter.method=prefix mesh.tp=2", "mesh.tp"),
            ("adapter.method=prompt mesh.tp=2", "mesh.sequence_parallel"),
            ("adapter.method=p_tuning objective.method=dft", "objective.method"),
            ("adapter.method=prompt model.trained=[\"norm\"]", "model.trained"),
            ("precision.qat=mxfp4 model.precision=f32", "model.precision"),
            ("precision.qat=int4 optimizer.master_weights=false", "optimizer.master_weights"),
            ("precision.qat=nvfp4 adapter.method=lora", "adapter.method"),
            ("precision.qat=mxfp4 model.trained=[\"norm\"]", "model.trained"),
            ("adapter.method=prompt stage.0.masked=false", "stage.0.masked"),
            ("adapter.method=prompt stage.0.masked=true stage.0.seq_tokens=21", "stage.0.seq_tokens"),
        ] {
            let error = check(&load(settings)).expect_err(settings).to_string();
            assert!(error.contains(&format!("`{key}`")), "{settings}: {error}");
        }
    }

    #[test]
    fn what_can_be_is_not_refused() {
        for settings in [
            "",
            "optimizer.lr=1e30 optimizer.clip=none checkpoint.every_s=none stages=16k,1m",
            "model.family=deepseek_v3 model.heads=3 moe.dense_layers=6",
            "model.from=out model.heads=3 activations.head_groups=3",
        ] {
            check(&load(settings)).unwrap();
        }
    }

    #[test]
    fn something_names_the_text() {
        let good = [
            "",
            "data.paths=cargo:",
            "data.paths=[] data.curate=books",
            "data.paths=[] stage.0.blend.0.source=store/train",
        ];
        good.into_iter().for_each(|settings| check_training(&load(settings)).unwrap());
        for bad in ["data.paths=[]", "data.paths=[] data.curate=none", "data.paths=cargo:,text"] {
            check(&load(bad)).unwrap();
            let error = check_training(&load(bad)).unwrap_err().to_string();
            assert!(error.contains("`data.paths`") && error.contains("cargo:"), "{error}");
        }
    }

    #[test]
    fn a_stage_has_an_end() {
        check_training(&load("")).unwrap();
        check_training(&load("stage.0.steps=none run.minutes=1")).unwrap();
        let error = check_training(&load("stage.0.steps=none")).unwrap_err().to_string();
        assert!(error.contains("stage.0.steps") && error.contains("run.minutes"), "{error}");
    }

    #[test]
    fn a_model_from_nothing_is_not_extended_at_once() {
        for set in ["rope_type=yarn", "rope_theta=40000"] {
            let error = check_training(&load(&format!("stage.0.{set}"))).unwrap_err().to_string();
            let key = set.split('=').next().unwrap();
            assert!(error.contains(&format!("`stage.0.{key}`")) && error.contains("model.from"), "{error}");
            check_training(&load(&format!("stage.0.{set} model.from=out"))).unwrap();
        }
        check_training(&load("stage.0.rope_type=default")).unwrap();
        check_training(&load("stage.0.rope_type=yarn stages=16k,64k")).unwrap();
        assert!(check_training(&load("stage.0.rope_type=yarn stages=64k")).is_err());
    }
}
