//! Parts common to DeepSeek-V2 and V3: latent attention, leading dense layers, shared experts, groups of experts.

use fathom_tensor::Groups;
use serde_json::{Map, Value, json};

use super::common::Dialect;
use super::{common, moe};
use crate::config::Config;
use crate::config_rope::{RopeSizes, read_rope};
use crate::error::Result;
use crate::rope::RopeScaling;
use crate::spec::{Biases, Family, Latent, Moe, SharedExperts, Spec};
use crate::weight::{LatentNames, MoeNames, Names, Qkv};

pub(super) const NAMES: Names = Names {
    qkv: Qkv::Latent(LatentNames {
        q: "self_attn.q_proj",
        q_latent: ["self_attn.q_a_proj", "self_attn.q_a_layernorm", "self_attn.q_b_proj"],
        kv_latent: ["self_attn.kv_a_proj_with_mqa", "self_attn.kv_a_layernorm", "self_attn.kv_b_proj"],
    }),
    moe: Some(MoeNames { shared: "mlp.shared_experts", ..MoeNames::QWEN }),
    ..Names::LLAMA
};

/// Differences between versions.
pub(super) struct Version {
    pub dialect: Dialect,
    /// Defaults: non-rotary key columns per head, rotary ones, value columns, query latent, key/value latent.
    pub attention: [usize; 5],
    /// Defaults: experts, experts per token, columns of each, shared experts, leading dense layers.
    pub experts: [usize; 5],
    /// Number of best experts that score a group.
    pub judges: usize,
    /// Default factor of the routing weights.
    pub scale: f64,
}

/// Reads everything but the routing.
pub(super) fn read(c: &Config<'_>, family: &'static Family, version: &Version) -> Result<Spec> {
    let [own, rotated, value, query, key_value] = version.attention;
    let mut spec = common::read(c, family, &version.dialect)?;
    let own = c.size_or("qk_nope_head_dim", Some(own))?;
    let rotated = c.size_or("qk_rope_head_dim", Some(rotated))?;
    let value = c.size_or("v_head_dim", Some(value))?;
    if value > own + rotated {
        let what = format!("is {value}, more than the {own} + {rotated} columns of a key");
        return Err(c.refuse("v_head_dim", what));
    }
    // Written by Transformers, but redundant.
    let _: Option<usize> = c.nullable("head_dim", None)?;
    let _: Option<usize> = c.nullable("qk_head_dim", None)?;
    if spec.kv_heads != spec.heads {
        return Err(c.refuse("num_key_value_heads", "differs from the heads; with latents all are alike"));
    }
    let sizes = RopeSizes { head_dim: rotated, max_positions: spec.max_positions, original: None };
    let mut rope = read_rope(c, &version.dialect.rope, sizes)?;
    rope.interleaved = c.or("rope_interleave", true)?;
    spec.head_dim = own + rotated;
    spec.attention_scale = (scale(&rope.scaling) * (spec.head_dim as f64).powf(-0.5)) as f32;
    spec.ropes = vec![rope];
    let bias: bool = c.or("attention_bias", false)?;
    spec.bias = Biases { qkv: bias, attn_out: bias, mlp: false };
    spec.latent = Some(Latent {
        query: c.nullable("q_lora_rank", Some(query))?,
        key_value: c.size_or("kv_lora_rank", Some(key_value))?,
        value,
    });
    let experts = read_experts(c, version, spec.layers.len())?;
    Ok(Spec { moe: Some(experts), ..spec })
}

/// Square of YaRN's temperature, from `mscale_all_dim`.
fn scale(scaling: &RopeScaling) -> f64 {
    match scaling {
        RopeScaling::Yarn { factor, mscale_all_dim: Some(all), .. } if *factor > 1.0 && *all != 0.0 => {
            (0.1 * all * factor.ln() + 1.0).powi(2)
        }
        _ => 1.0,
    }
}

fn read_experts(c: &Config<'_>, version: &Version, num_layers: usize) -> Result<Moe> {
    let [number, chosen, ffn, shared, dense] = version.experts;
    let sizes =
        [("n_routed_experts", number), ("num_experts_per_tok", chosen), ("moe_intermediate_size", ffn)];
    let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
    let dense: usize = c.or("first_k_dense_replace", dense)?;
    experts.dense_layers = (0..dense.min(num_layers)).collect();
    let shared: usize = c.or("n_shared_experts", shared)?;
    experts.shared =
        (shared > 0).then_some(SharedExperts { ffn: shared.saturating_mul(experts.ffn), gated: false });
    experts.routing.scale = c.or("routed_scaling_factor", version.scale)? as f32;
    c.only("moe_layer_freq", "1")?;
    // Keys for training, and for how the files were made.
    let _: f64 = c.or("aux_loss_alpha", 0.0)?;
    let _: bool = c.or("seq_aux", false)?;
    let _: usize = c.or("ep_size", 1)?;
    Ok(experts)
}

/// Reads `n_group` and `topk_group`; with at most one group, all experts are candidates.
pub(super) fn read_groups(c: &Config<'_>, moe: &mut Moe, defaults: [usize; 2], judges: usize) -> Result<()> {
    let count: usize = c.or("n_group", defaults[0])?;
    let top: usize = c.or("topk_group", defaults[1])?;
    if count <= 1 {
        return Ok(());
    }
    let divides = moe.experts.is_multiple_of(count) && (1..=count).contains(&top);
    if !divides || top * (moe.experts / count) < moe.routing.top_k {
        let what = format!("is {count}, of which {top} serve {} of {}", moe.routing.top_k, moe.experts);
        return Err(c.refuse("n_group", what));
    }
    moe.routing.groups = Some(Groups { count, top, by: judges });
    Ok(())
}

/// Writes the keys that [`read`] and [`read_groups`] read.
pub(super) fn write(s: &Spec, version: &Version, map: &mut Map<String, Value>) {
    let (Some(latent), Some(moe), Some(rope)) = (&s.latent, &s.moe, s.ropes.first()) else { return };
    let shape = Spec { head_dim: rope.rot_dim, ..s.clone() };
    common::write(&shape, &version.dialect, map);
    let shared = moe.shared.map_or(0, |shared| shared.ffn / moe.ffn);
    let groups = moe.routing.groups.unwrap_or(Groups { count: 1, top: 1, by: version.judges });
    let keys = [
        ("qk_nope_head_dim", json!(s.head_dim - rope.rot_dim)),
        ("qk_rope_head_dim", json!(rope.rot_dim)),
        ("v_head_dim", json!(latent.value)),
        ("q_lora_rank", json!(latent.query)),
        ("kv_lora_rank", json!(latent.key_value)),
        ("attention_bias", json!(s.bias.qkv)),
        ("n_routed_experts", json!(moe.experts)),
        ("num_experts_per_tok", json!(moe.routing.top_k)),
        ("moe_intermediate_size", json!(moe.ffn)),
        ("n_shared_experts", json!(shared)),
        ("first_k_dense_replace", json!(moe.dense_layers.len())),
        ("routed_scaling_factor", json!(crate::config::short(moe.routing.scale))),
        ("n_group", json!(groups.count)),
        ("topk_group", json!(groups.top)),
    ];
    map.extend(keys.into_iter().map(|(key, value)| (key.to_string(), value)));
}
