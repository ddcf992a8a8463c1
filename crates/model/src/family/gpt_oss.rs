//! gpt-oss: experts with biases and a clamped gate, attention sinks, every second layer slides. Reads weights in f32,
//! bf16 or f16, or the published MXFP4 blocks, which become bf16; writes bf16 or f32.

use serde_json::{Value, json};

use super::common::{Dialect, HeadDim, KvHeads};
use super::{common, moe};
use crate::config::Config;
use crate::config_rope::RopeKeys;
use crate::error::Result;
use crate::rope::RopeScaling;
use crate::spec::{Family, Mlp, Spec};
use crate::weight::{Experts, MoeNames, Names};
use fathom_tensor::{Activation, NormKind};

const DIALECT: Dialect = Dialect {
    eps: ("rms_norm_eps", 1e-5),
    kv_heads: KvHeads::Fixed(8),
    head_dim: HeadDim::Fixed(64),
    rope: RopeKeys { theta: ("rope_theta", 150_000.0), partial: None, nested: None },
    norm: NormKind { round_first: false, ..common::RMS },
    ..common::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_oss",
    architecture: "GptOssForCausalLM",
    read: |c, family| {
        let keys = ["rope_scaling", "rope_parameters"].map(|key| c.raw(key));
        if keys.iter().all(|value| value.is_none_or(Value::is_null)) {
            let what = "is missing: Transformers 5 then takes YaRN, and 4 no scaling where it says null; write {\"rope_type\": \
                        \"default\"} for none";
            return Err(c.refuse("rope_scaling", what));
        }
        let mut spec = common::read(c, family, &DIALECT)?;
        c.silu("hidden_act")?;
        c.only("swiglu_limit", "7.0")?;
        c.only("swiglu_alpha", "1.702")?;
        // Duplicates of other keys in the published files.
        let _: Option<usize> = c.nullable("experts_per_token", None)?;
        let _: Option<usize> = c.nullable("initial_context_length", None)?;
        read_quantization(c)?;
        common::read_layer_types(c, &mut spec, Some(128), |layer| layer % 2 == 0)?;
        let with_biases: bool = c.or("attention_bias", true)?;
        (spec.bias.qkv, spec.bias.attn_out) = (with_biases, with_biases);
        let sizes = [("num_local_experts", 128), ("num_experts_per_tok", 4), ("intermediate_size", 2880)];
        let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
        // The softmax of the chosen logits equals that of all, renormalised over the chosen.
        experts.routing.normalise = true;
        (experts.router_bias, experts.expert_bias, experts.transposed) = (true, true, true);
        let mlp = Mlp { activation: Activation::ClampedSwiglu, gated: true };
        Ok(Spec { mlp, sinks: true, moe: Some(experts), ..spec })
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        if s.ropes.first().is_some_and(|rope| rope.scaling == RopeScaling::Default) {
            map.insert("rope_scaling".into(), json!({ "rope_type": "default" }));
        }
        common::write_layer_types(s, map);
        map.insert("attention_bias".into(), json!(s.bias.qkv));
        map.insert("swiglu_limit".into(), json!(7.0));
        if let Some(moe) = &s.moe {
            map.insert("num_local_experts".into(), json!(moe.experts));
            map.insert("num_experts_per_tok".into(), json!(moe.routing.top_k));
        }
    },
    names: Names {
        moe: Some(MoeNames {
            router: "mlp.router",
            experts: Experts::Stacked(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
            ..MoeNames::QWEN
        }),
        ..Names::LLAMA
    },
};

/// Checks the method. Tensors in MXFP4 are recognised by name, others by type.
fn read_quantization(c: &Config<'_>) -> Result<()> {
    const KEY: &str = "quantization_config";
    let Some(config) = c.raw(KEY).filter(|value| !value.is_null()) else { return Ok(()) };
    match config.get("quant_method").and_then(Value::as_str) {
        Some("mxfp4") => Ok(()),
        _ => Err(c.refuse(KEY, format!("is {config}; only quant_method mxfp4 is supported"))),
    }
}
