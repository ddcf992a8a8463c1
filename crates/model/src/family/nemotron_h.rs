//! Nemotron-H and Nemotron 3: layers of one sub-layer each: Mamba-2, attention without positions, an MLP of squared
//! ReLUs, or experts of those, which may lie between projections to a narrower width.
//!
//! Steps are at least `time_step_min`, whatever `time_step_limit` says, as in Transformers' class.

use std::sync::Arc;

use fathom_tensor::{NormKind, RouterScores};
use serde_json::{Map, Value, json};

use super::mamba::{LayerKind, MixerKeys};
use super::{common, deepseek, mamba, moe};
use crate::config::{Config, short};
use crate::error::Result;
use crate::made::LlamaSizes;
use crate::mamba2::Mamba2;
use crate::spec::{Biases, Family, LayerSpec, Mlp, Moe, PartKind, Reach, SharedExperts, Spec};
use crate::weight::{Experts, MoeNames, Names, Qkv, Up};

const KEYS: MixerKeys = MixerKeys {
    at: "mixer",
    heads: ("mamba_num_heads", 128),
    head_dim: ("mamba_head_dim", Some(64)),
    state: ("ssm_state_size", 128),
    groups: ("n_groups", 8),
    width: "conv_kernel",
    activation: "mamba_hidden_act",
    expand: "expand",
    chunk: "chunk_size",
    biases: ["use_conv_bias", "use_bias"],
    expands: false,
    eps: "layer_norm_epsilon",
};

/// Key of the least step, and its older name.
const LEAST: &str = "time_step_min";
const LEAST_OLD: &str = "mamba_dt_min";
const PATTERN: &str = "hybrid_override_pattern";
const BLOCKS: &str = "layers_block_type";

/// Keys without influence on a forward pass: initial values, generation, kernels, and layers that predict more tokens.
const UNUSED: [&str; 21] = [
    // The class has a head of its own in any case.
    "tie_word_embeddings",
    "time_step_rank",
    "time_step_max",
    "time_step_floor",
    "mamba_dt_max",
    "mamba_dt_init_floor",
    "mamba_dt_limit",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "num_logits_to_keep",
    "use_mamba_kernels",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "num_nextn_predict_layers",
    "mtp_layers_block_type",
    "mtp_hybrid_override_pattern",
    // Attention does not rotate.
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "sliding_window",
];

pub(super) static FAMILY: Family = Family {
    model_type: "nemotron_h",
    architecture: "NemotronHForCausalLM",
    read: |c, family| {
        let kinds = kinds(c)?;
        let (hidden, eps) = (c.size("hidden_size")?, c.eps(KEYS.eps, 1e-5)?);
        let heads = c.size_or("num_attention_heads", Some(32))?;
        let kv_heads = c.size_or("num_key_value_heads", Some(8))?;
        if !heads.is_multiple_of(kv_heads) {
            let what = format!("is {kv_heads}, which does not divide the {heads} attention heads");
            return Err(c.refuse("num_key_value_heads", what));
        }
        let old: Option<usize> = c.nullable("attention_head_dim", None)?;
        let sizes = LlamaSizes {
            hidden,
            layers: kinds.len(),
            heads,
            kv_heads,
            head_dim: c.size_or("head_dim", Some(old.unwrap_or(128)))?,
            ffn: c.size_or("intermediate_size", Some(21504))?,
            vocab: c.size("vocab_size")?,
            rope_theta: 1e4,
            max_positions: c.size_or("max_position_embeddings", Some(4096))?,
            tied: false,
        };
        c.only("attention_bias", "false")?;
        c.only("mamba_proj_bias", "false")?;
        UNUSED.into_iter().for_each(|key| _ = c.raw(key));
        let least: f64 = c.or(older(c, LEAST_OLD, LEAST), 0.001)?;
        if !(0.0..1e30).contains(&least) {
            return Err(c.refuse(LEAST, format!("is {least}; a step of at least 0 is needed")));
        }
        let limit = [least as f32, f32::INFINITY];
        let mixer = Arc::new(Mamba2 { limit, ..mamba::read(c, &keys(c), hidden, eps)? });
        let layer = |kind: &LayerKind| {
            LayerSpec::new([match kind {
                LayerKind::Mixer => PartKind::Own(mixer.clone()),
                LayerKind::Attention => PartKind::Attention { reach: Reach::Causal, rope: None },
                LayerKind::Mlp | LayerKind::Experts => PartKind::Mlp,
            }])
        };
        let experts = read_experts(c, &kinds)?;
        Ok(Spec {
            family,
            layers: kinds.iter().map(layer).collect(),
            norm: NormKind { eps, round_first: false, ..common::RMS },
            mlp: Mlp { activation: c.activation("mlp_hidden_act", "relu2")?, gated: false },
            bias: Biases { mlp: c.or("mlp_bias", false)?, ..Biases::default() },
            moe: experts.filter(|_| kinds.contains(&LayerKind::Experts)),
            ropes: Vec::new(),
            ..Spec::llama(sizes)
        })
    },
    write,
    names: Names {
        base: "backbone.",
        embed: "embeddings",
        final_norm: "norm_f",
        attn_norm: "norm",
        mlp_norm: "norm",
        qkv: Qkv::Separate(["mixer.q_proj", "mixer.k_proj", "mixer.v_proj"]),
        attn_out: "mixer.o_proj",
        up: Up::One("mixer.up_proj"),
        down: "mixer.down_proj",
        moe: Some(MoeNames {
            router: "mixer.gate",
            choice_bias: "mixer.gate.e_score_correction_bias",
            experts: Experts::Each("mixer.experts", ["", "up_proj", "down_proj"]),
            shared: "mixer.shared_experts",
            latent: ["mixer.fc1_latent_proj", "mixer.fc2_latent_proj"],
            ..MoeNames::QWEN
        }),
        ignored_starts: &["mtp."],
        ..Names::LLAMA
    },
};

/// The older of two names of a key if it is there, which Transformers prefers.
fn older(c: &Config<'_>, old: &'static str, new: &'static str) -> &'static str {
    c.raw(new);
    if c.raw(old).is_some() { old } else { new }
}

/// The mixer's keys, under the names that a configuration has.
fn keys(c: &Config<'_>) -> MixerKeys {
    MixerKeys {
        groups: (older(c, "mamba_n_groups", KEYS.groups.0), KEYS.groups.1),
        width: older(c, "mamba_d_conv", KEYS.width),
        expand: older(c, "mamba_expand", KEYS.expand),
        chunk: older(c, "mamba_chunk_size", KEYS.chunk),
        biases: [older(c, "mamba_conv_bias", KEYS.biases[0]), KEYS.biases[1]],
        ..KEYS
    }
}

/// Kinds of the layers, from a list or a pattern of letters.
fn kinds(c: &Config<'_>) -> Result<Vec<LayerKind>> {
    use LayerKind::{Attention, Experts, Mixer, Mlp};
    let layers: Option<usize> = c.nullable("num_hidden_layers", None)?;
    let letter = |letter: char| match letter {
        'M' => Ok(Mixer),
        '*' => Ok(Attention),
        '-' => Ok(Mlp),
        'E' => Ok(Experts),
        other => Err(c.refuse(PATTERN, format!("holds '{other}'; supported: M (Mamba-2), *, -, E"))),
    };
    let pattern: Option<String> = c.nullable(PATTERN, None)?;
    let pattern: Option<Vec<LayerKind>> =
        pattern.map(|pattern| pattern.chars().map(letter).collect()).transpose()?;
    let known = [Mixer, Attention, Mlp, Experts];
    let [new, other] = [BLOCKS, "layer_types"].map(|key| mamba::read_kinds(c, key, &known));
    let Some(kinds) = new?.or(other?).or(pattern) else {
        return Err(c.refuse(BLOCKS, format!("is missing, as is `{PATTERN}`")));
    };
    match layers {
        _ if kinds.is_empty() || kinds.len() > 4096 => Err(c.refuse(
            c.present(&[BLOCKS, PATTERN]),
            format!("gives {} layers; 1 to 4096 are supported", kinds.len()),
        )),
        Some(layers) if layers != kinds.len() => {
            let what = format!("is {layers}, and {} kinds of layers are given", kinds.len());
            Err(c.refuse("num_hidden_layers", what))
        }
        _ => Ok(kinds),
    }
}

fn read_experts(c: &Config<'_>, kinds: &[LayerKind]) -> Result<Option<Moe>> {
    let sizes = [("n_routed_experts", 8), ("num_experts_per_tok", 2), ("moe_intermediate_size", 7688)];
    let has = kinds.contains(&LayerKind::Experts);
    if !has {
        for key in [
            "n_routed_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "norm_topk_prob",
            "routed_scaling_factor",
            "n_group",
            "topk_group",
            "n_shared_experts",
            "moe_shared_expert_intermediate_size",
            "moe_latent_size",
            "output_router_logits",
            "router_aux_loss_coef",
        ] {
            c.raw(key);
        }
        return Ok(None);
    }
    let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
    c.only("n_shared_experts", "1")?;
    experts.routing.scores = RouterScores::Sigmoid;
    experts.routing.normalise = c.or("norm_topk_prob", true)?;
    experts.routing.scale = c.or("routed_scaling_factor", 1.0)? as f32;
    experts.choice_bias = true;
    deepseek::read_groups(c, &mut experts, [1, 1], 2)?;
    let shared = c.size_or("moe_shared_expert_intermediate_size", Some(7688))?;
    experts.shared = Some(SharedExperts { ffn: shared, gated: false });
    experts.latent = c.nullable("moe_latent_size", None)?;
    if let Some(latent) = experts.latent.filter(|latent| !(2..=1 << 20).contains(latent)) {
        return Err(c.refuse("moe_latent_size", format!("is {latent}; 2 to {} are supported", 1 << 20)));
    }
    let without = |(index, kind): (usize, &LayerKind)| (*kind == LayerKind::Mlp).then_some(index);
    experts.dense_layers = kinds.iter().enumerate().filter_map(without).collect();
    Ok(Some(experts))
}

fn write(s: &Spec, map: &mut Map<String, Value>) {
    let letter = |(index, layer): (usize, &LayerSpec)| match () {
        () if s.experts_of(index).is_some() => 'E',
        () if layer.has_mlp() => '-',
        () if layer.reach().is_some() => '*',
        () => 'M',
    };
    let pattern: String = s.layers.iter().enumerate().map(letter).collect();
    let keys = [
        ("vocab_size", json!(s.vocab)),
        ("hidden_size", json!(s.hidden)),
        ("intermediate_size", json!(s.ffn)),
        ("num_hidden_layers", json!(s.layers.len())),
        (PATTERN, json!(pattern)),
        ("num_attention_heads", json!(s.heads)),
        ("num_key_value_heads", json!(s.kv_heads)),
        ("head_dim", json!(s.head_dim)),
        ("max_position_embeddings", json!(s.max_positions)),
        (KEYS.eps, json!(short(s.norm.eps))),
        ("mlp_hidden_act", json!(common::activation_name(s.mlp.activation))),
        ("mlp_bias", json!(s.bias.mlp)),
        ("tie_word_embeddings", json!(s.tied)),
        (LEAST, json!(mamba::mixer(s).map_or(0.001, |mixer| short(mixer.limit[0])))),
    ];
    map.extend(keys.map(|(key, value)| (key.to_string(), value)));
    mamba::write(s, &KEYS, map);
    let Some(moe) = &s.moe else { return };
    let groups = moe.routing.groups.map_or([1, 1], |groups| [groups.count, groups.top]);
    let keys = [
        ("n_routed_experts", json!(moe.experts)),
        ("num_experts_per_tok", json!(moe.routing.top_k)),
        ("moe_intermediate_size", json!(moe.ffn)),
        ("moe_shared_expert_intermediate_size", json!(moe.shared.map_or(0, |shared| shared.ffn))),
        ("moe_latent_size", json!(moe.latent)),
        ("norm_topk_prob", json!(moe.routing.normalise)),
        ("routed_scaling_factor", json!(short(moe.routing.scale))),
        ("n_group", json!(groups[0])),
        ("topk_group", json!(groups[1])),
    ];
    map.extend(keys.map(|(key, value)| (key.to_string(), value)));
}
