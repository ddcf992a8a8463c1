//! The specification of a new model from a recipe, and the training settings of experts.

use fathom_grad::RouterCosts;
use fathom_model::{
    Drops, ExpertCapacity, LlamaSizes, Moe, SharedExperts, Spec, StateSizes, lacks_for_induction,
};

use crate::error::{Error, Result};
use crate::recipe::{DropPolicy, FamilyName, InitName, ModelTable, MoeTable, Recipe};

fn refuse(key: &str, message: impl Into<String>) -> Error {
    Error::Recipe { key: key.into(), message: message.into() }
}

/// The specification described by `[model]` and `[moe]`.
///
/// # Errors
/// Sizes that are not compatible, by key.
pub fn new_model(recipe: &Recipe) -> Result<Spec> {
    let table = &recipe.model;
    let llama = Spec::llama(LlamaSizes {
        hidden: table.hidden,
        layers: table.layers,
        heads: table.heads,
        kv_heads: table.kv_heads,
        head_dim: table.head_dim,
        ffn: table.ffn,
        vocab: table.vocab,
        rope_theta: table.rope_theta,
        max_positions: recipe.stage.first().map_or(2048, |stage| stage.seq_tokens),
        tied: table.tied,
    });
    if table.mup_width.is_some() && table.tied {
        let message = "needs a head whose learning rate is not the embedding's; give model.tied=false";
        return Err(refuse("model.mup_width", message));
    }
    let moe = || experts(&recipe.moe, table.family, &llama);
    let spec = match table.family {
        FamilyName::Llama => llama,
        FamilyName::Granite => llama.into_granite(table.embedding_multiplier as f32),
        FamilyName::Qwen2 => llama.into_qwen2(),
        FamilyName::Qwen3 => llama.into_qwen3(),
        FamilyName::Smollm3 => llama.into_smollm3(table.no_rope_layer_interval),
        FamilyName::Nemotron => llama.into_nemotron(),
        FamilyName::T5 => llama.into_t5(),
        FamilyName::Retro => {
            llama.into_retro(&table.retro_layers).map_err(|message| refuse("model.retro_layers", message))?
        }
        FamilyName::Mamba2 => llama.into_mamba2(sizes(table)?),
        FamilyName::GraniteHybrid => {
            let (induction, every) = (table.init == InitName::Induction, table.attention_interval);
            let attends = |layer| if induction { layer < 2 } else { layer % every == every / 2 };
            let scale = table.embedding_multiplier as f32;
            llama.into_granite_hybrid(sizes(table)?, attends, (scale, induction))
        }
        FamilyName::Mixtral => {
            let moe = moe()?;
            llama.into_mixtral(moe)
        }
        FamilyName::Qwen3Moe => {
            let moe = moe()?;
            llama.into_qwen3_moe(moe)
        }
        FamilyName::DeepseekV3 => {
            let (moe, rotated) = (moe()?, table.rope_dim);
            if rotated == 0 || !rotated.is_multiple_of(2) || rotated * 2 > table.head_dim {
                let message =
                    format!("is {rotated}: an even number up to half of model.head_dim={}", table.head_dim);
                return Err(refuse("model.rope_dim", message));
            }
            llama.into_deepseek_v3(moe, rotated, table.kv_latent)
        }
    };
    match lacks_for_induction(&spec) {
        Some(needed) if table.init == InitName::Induction => {
            Err(refuse("model.init", format!("is induction, which needs {needed}; take normal for others")))
        }
        _ => Ok(spec),
    }
}

/// Sizes of the state-space layers.
fn sizes(table: &ModelTable) -> Result<StateSizes> {
    let (inner, head_dim, groups) = (2 * table.hidden, table.ssm_head_dim, table.ssm_groups);
    if !inner.is_multiple_of(head_dim) {
        let message =
            format!("is {head_dim}; it must divide the {inner} columns of the heads (twice model.hidden)");
        return Err(refuse("model.ssm_head_dim", message));
    }
    let heads = inner / head_dim;
    if !heads.is_multiple_of(groups) {
        return Err(refuse("model.ssm_groups", format!("is {groups}; it must divide the {heads} heads")));
    }
    Ok(StateSizes { heads, head_dim, state: table.ssm_state, groups })
}

fn experts(table: &MoeTable, family: FamilyName, llama: &Spec) -> Result<Moe> {
    if !(1..=table.experts).contains(&table.top_k) {
        return Err(refuse("moe.top_k", format!("is {} of moe.experts={}", table.top_k, table.experts)));
    }
    let mut moe = Moe::new(table.experts, table.top_k, table.ffn.unwrap_or(llama.ffn));
    if table.shared > 0 && family != FamilyName::DeepseekV3 {
        return Err(refuse(
            "moe.shared",
            "only family deepseek_v3 has experts that every token goes through",
        ));
    }
    if table.dense_layers > 0 && family == FamilyName::Mixtral {
        return Err(refuse("moe.dense_layers", "family mixtral has experts in every layer"));
    }
    moe.shared = (table.shared > 0).then_some(SharedExperts { ffn: table.shared * moe.ffn, gated: false });
    moe.dense_layers = (0..table.dense_layers.min(llama.layers.len())).collect();
    Ok(moe)
}

/// Sets the training settings of a model's experts: costs, capacity and the rule for the router's biases.
///
/// # Errors
/// Keys of `[moe]` that do not apply to the model.
pub fn train_experts(recipe: &Recipe, spec: &mut Spec) -> Result<()> {
    let table = &recipe.moe;
    let capacity = table.capacity_factor.map(|factor| ExpertCapacity {
        factor: factor as f32,
        drops: match table.drop_policy {
            DropPolicy::Probs => Drops::Lightest,
            DropPolicy::Position => Drops::Last,
        },
    });
    if let Some(ExpertCapacity { factor, .. }) = capacity
        && !(factor.is_finite() && factor > 0.0)
    {
        return Err(refuse("moe.capacity_factor", format!("is {factor}; it must be above 0")));
    }
    let Some(moe) = &mut spec.moe else {
        let plain = MoeTable::default();
        let set = [
            ("moe.experts", table.experts != plain.experts),
            ("moe.top_k", table.top_k != plain.top_k),
            ("moe.ffn", table.ffn != plain.ffn),
            ("moe.shared", table.shared != plain.shared),
            ("moe.dense_layers", table.dense_layers != plain.dense_layers),
            ("moe.aux_loss", table.aux_loss != 0.0),
            ("moe.z_loss", table.z_loss != 0.0),
            ("moe.bias_update_rate", table.bias_update_rate != 0.0),
            ("moe.capacity_factor", capacity.is_some()),
        ];
        return match set.iter().find(|(_, set)| *set) {
            Some((key, _)) => Err(refuse(
                key,
                format!(
                    "a {} model has no experts; families with experts are mixtral, qwen3_moe, deepseek_v3",
                    spec.family
                ),
            )),
            None => Ok(()),
        };
    };
    if table.bias_update_rate != 0.0 && !moe.choice_bias {
        let message =
            format!("routers of family {} have no biases of the choice; take moe.aux_loss", spec.family);
        return Err(refuse("moe.bias_update_rate", message));
    }
    moe.costs = RouterCosts { aux: table.aux_loss as f32, z: table.z_loss as f32 };
    moe.capacity = capacity;
    moe.bias_rate = table.bias_update_rate as f32;
    Ok(())
}
