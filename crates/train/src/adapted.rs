//! From `[adapter]` to the adapter of a model.

use std::collections::{BTreeMap, BTreeSet};

use fathom_base::recipe::Loaded;
use fathom_model::{Adapter, AdapterMethod, PromptEncoder, Size, Spec, Targets};
use toml::Value;

use crate::error::{Error, Result};
use crate::recipe::{AdapterName, EncoderName, MethodName, Recipe};

/// Adds the recipe's adapter, if any, to a model.
///
/// # Errors
/// Targets that the model does not have; a rank larger than a projection.
pub fn adapted(recipe: &Recipe, spec: Spec) -> Result<Spec> {
    let table = &recipe.adapter;
    let refuse = |key: &str| {
        let key = format!("adapter.{key}");
        move |message: String| Error::Recipe { key, message }
    };
    let lora =
        |rank_stabilised, lengths, singular| AdapterMethod::Lora { rank_stabilised, lengths, singular };
    let method = match table.method {
        AdapterName::None => return Ok(spec),
        AdapterName::Lora => lora(false, false, false),
        AdapterName::Rslora => lora(true, false, false),
        AdapterName::Dora => lora(false, true, false),
        AdapterName::Pissa => lora(false, false, true),
        AdapterName::Ia3 => AdapterMethod::Factors,
        AdapterName::Houlsby => {
            let method = AdapterMethod::Networks(table.rank.unwrap_or(2 * RANK));
            let networks = Adapter::of(method, BTreeMap::new(), BTreeSet::new());
            return spec.with_adapter(networks).map_err(refuse("rank"));
        }
        AdapterName::Prompt | AdapterName::PTuning | AdapterName::Prefix => {
            let tokens = table.leads();
            let encoder = (table.method == AdapterName::PTuning).then_some(PromptEncoder {
                hidden: table.encoder_hidden_size.unwrap_or(spec.hidden),
                lstm: table.encoder_reparameterization_type == EncoderName::Lstm,
            });
            let method = match table.method {
                AdapterName::Prefix => {
                    let hidden = table.encoder_hidden_size.unwrap_or(spec.kv_cols());
                    AdapterMethod::Prefix { tokens, encoder: table.prefix_projection.then_some(hidden) }
                }
                _ => AdapterMethod::Prompt { tokens, encoder },
            };
            return spec.with_adapter(Adapter::leading(method)).map_err(refuse("method"));
        }
    };
    let mut names = if table.method == AdapterName::Ia3 && table.targets.is_none() {
        spec.factored()
    } else {
        let targets = targets(recipe).map_err(refuse("targets"))?;
        spec.targeted(&targets).map_err(refuse("targets"))?
    };
    // A head of labels is trained as a whole.
    let labels = spec.encoder.as_ref().is_some_and(|parts| parts.head.labels() > 0);
    if labels || !matches!(table.method, AdapterName::Lora | AdapterName::Rslora) {
        // These methods apply to projections of blocks only.
        names = spec.of_blocks(&names);
        if names.is_empty() {
            let message =
                format!("means no projection of a block, which adapter.method=\"{}\" is of", table.method);
            return Err(refuse("targets")(message));
        }
    }
    let rank = if table.method.is_low_rank() { table.rank.unwrap_or(RANK) } else { 1 };
    let times = if table.method == AdapterName::Pissa { 1.0 } else { 2.0 };
    let size = Size { rank, alpha: table.alpha.unwrap_or(times * rank as f64) };
    let inputs = if table.method == AdapterName::Ia3 { spec.ways_out(&names) } else { BTreeSet::new() };
    let modules = names.into_iter().map(|name| (name, size)).collect();
    let adapter = Adapter {
        tokens: table.token_rows.iter().map(|token| *token as u32).collect(),
        dropout: table.dropout.unwrap_or_default(),
        ..Adapter::of(method, modules, inputs)
    };
    let key = if table.token_rows.is_empty() { "rank" } else { "token_rows" };
    spec.check_ranks(&adapter).map_err(refuse(key))?;
    let spec = spec.with_adapter(adapter).map_err(refuse(key))?;
    if recipe.mesh.sequence_parallel && recipe.mesh.tp > 1 && spec.adapts_embedding() {
        let message = "cuts the rows that an adapter of the embedding makes; set it to false".into();
        return Err(Error::Recipe { key: "mesh.sequence_parallel".into(), message });
    }
    Ok(spec)
}

/// Default rank: columns between A and B.
const RANK: usize = 16;

/// The projections named by the recipe.
fn targets(recipe: &Recipe) -> std::result::Result<Targets, String> {
    let texts = |list: &[Value]| -> Option<Vec<String>> {
        list.iter().map(|value| value.as_str().map(str::to_string)).collect()
    };
    let ends = |list: &[&str]| Targets::Ends(list.iter().map(|end| end.to_string()).collect());
    match &recipe.adapter.targets {
        None => Ok(Targets::AllLinear),
        Some(Value::String(text)) if text == "all-linear" => Ok(Targets::AllLinear),
        Some(Value::String(text)) if text.contains(|char| "\\*+?()[]|^$".contains(char)) => {
            Ok(Targets::Matching(text.clone()))
        }
        // The form that the command line gives.
        Some(Value::String(text)) => Ok(ends(&text.split(',').map(str::trim).collect::<Vec<&str>>())),
        Some(Value::Array(list)) if !list.is_empty() => {
            texts(list).map(Targets::Ends).ok_or_else(|| "is a list of something else than texts".into())
        }
        Some(_) => Err("is neither a list of ends of names, nor a regular expression, nor all-linear".into()),
    }
}

/// Refuses keys without effect on the adapter's method.
pub(crate) fn check_adapter(loaded: &Loaded<Recipe>) -> Result<()> {
    let adapter = &loaded.value.adapter;
    let (method, low_rank) = (adapter.method, adapter.method.is_low_rank());
    let set = [
        ("rank", adapter.rank.is_some() && !low_rank && method != AdapterName::Houlsby),
        ("alpha", adapter.alpha.is_some() && !low_rank),
        ("lr_ratio", adapter.lr_ratio.is_some() && !low_rank),
        ("embedding_lr_ratio", adapter.embedding_lr_ratio.is_some() && !low_rank),
        ("token_rows", !adapter.token_rows.is_empty() && !low_rank),
        ("dropout", adapter.dropout.is_some() && (!low_rank || method == AdapterName::Dora)),
        (
            "targets",
            adapter.targets.is_some()
                && (method.leads() || matches!(method, AdapterName::None | AdapterName::Houlsby)),
        ),
        ("virtual_tokens", adapter.virtual_tokens.is_some() && !method.leads()),
        ("prompt_text", adapter.prompt_text.is_some() && method != AdapterName::Prompt),
        (
            "encoder_reparameterization_type",
            adapter.encoder_reparameterization_type != EncoderName::Mlp && method != AdapterName::PTuning,
        ),
        ("prefix_projection", adapter.prefix_projection && method != AdapterName::Prefix),
        (
            "encoder_hidden_size",
            adapter.encoder_hidden_size.is_some()
                && method != AdapterName::PTuning
                && !adapter.prefix_projection,
        ),
    ];
    if let Some((key, _)) = set.iter().find(|(_, set)| *set) {
        let message = format!("has no effect with adapter.method=\"{method}\"; leave it out");
        return Err(loaded.refuse_with(&format!("adapter.{key}"), "adapter.method", message).into());
    }
    let recipe = &loaded.value;
    let drops = adapter.dropout.is_some_and(|rate| rate > 0.0);
    if drops && recipe.mesh.sequence_parallel && recipe.mesh.tp > 1 {
        let message = "cuts the rows of which adapter.dropout drops some; set it to false".to_string();
        return Err(loaded.refuse("mesh.sequence_parallel", message).into());
    }
    if drops && recipe.rl.is_on() {
        let message = "makes answers another probability than they were drawn with; leave it out of reinforcement learning";
        return Err(loaded.refuse("adapter.dropout", message.to_string()).into());
    }
    if method.leads() { check_leading(loaded) } else { Ok(()) }
}

/// Refuses settings that do not work with virtual tokens.
fn check_leading(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let Recipe { adapter, objective, mesh, model, .. } = recipe;
    let (method, tokens) = (adapter.method, adapter.leads());
    let refuse = |key: &str, message: String| Err(loaded.refuse(key, message).into());
    if objective.method != MethodName::CrossEntropy || recipe.rl.is_on() {
        let message =
            format!("learns from documents, and adapter.method=\"{method}\" from the next token alone");
        return refuse("objective.method", message);
    }
    if !model.trained.is_empty() {
        let message =
            format!("trains more than the virtual tokens of adapter.method=\"{method}\"; leave it out");
        return refuse("model.trained", message);
    }
    if mesh.tp > 1 && method == AdapterName::Prefix {
        return refuse(
            "mesh.tp",
            "cuts the heads of which a prefix has keys and values; use mesh.tp=1".into(),
        );
    }
    if adapter.prefix_projection {
        // Every layer reads these weights, which lie before the first layer; no other trained weight is like that.
        let ranks = [("cp", mesh.cp), ("dp", mesh.dp), ("pp", mesh.pp), ("ep", mesh.ep)];
        if let Some((axis, _)) = ranks.iter().find(|(_, ranks)| *ranks > 1) {
            let message = "has several ranks, between which what all layers of adapter.prefix_projection share is not summed; give 1";
            return refuse(&format!("mesh.{axis}"), message.into());
        }
        if recipe.machine.offload_weights || recipe.machine.offload_optimizer {
            let key = if recipe.machine.offload_weights { "offload_weights" } else { "offload_optimizer" };
            let message = "fetches weights layer by layer, and those of adapter.prefix_projection are of all layers; set it to false";
            return refuse(&format!("machine.{key}"), message.into());
        }
    }
    if mesh.sequence_parallel && mesh.tp > 1 {
        let message =
            format!("cuts the rows where adapter.method=\"{method}\" has virtual tokens; set it to false");
        return refuse("mesh.sequence_parallel", message);
    }
    for (index, stage) in recipe.stage.iter().enumerate() {
        if !stage.masked {
            let message =
                format!("joins documents, and adapter.method=\"{method}\" has virtual tokens before each");
            return refuse(&format!("stage.{index}.masked"), message);
        }
        if stage.seq_tokens < tokens + 2 {
            let message = format!("leaves no text behind {tokens} virtual tokens (adapter.virtual_tokens)");
            return refuse(&format!("stage.{index}.seq_tokens"), message);
        }
    }
    Ok(())
}
