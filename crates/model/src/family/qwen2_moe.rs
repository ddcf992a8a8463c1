//! Qwen 1.5 and 2 with experts: a gated expert is shared by all tokens; some layers may be dense.

use serde_json::json;

use super::common::{Dialect, KvHeads};
use super::{common, moe};
use crate::config::Config;
use crate::error::Result;
use crate::spec::{Biases, Family, SharedExperts, Spec};
use crate::weight::{MoeNames, Names};

const DIALECT: Dialect = Dialect { kv_heads: KvHeads::Fixed(16), ..common::LLAMA };

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2_moe",
    architecture: "Qwen2MoeForCausalLM",
    read: |c, family| {
        let bias = Biases { qkv: c.or("qkv_bias", true)?, attn_out: false, mlp: false };
        let mut spec = Spec { bias, ..common::read(c, family, &DIALECT)? };
        read_windows(c, &mut spec)?;
        let sizes = [("num_experts", 60), ("num_experts_per_tok", 4), ("moe_intermediate_size", 1408)];
        let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
        experts.routing.normalise = c.or("norm_topk_prob", false)?;
        experts.dense_layers = moe::read_dense_layers(c, spec.layers.len())?;
        let ffn = c.size_or("shared_expert_intermediate_size", Some(5632))?;
        experts.shared = Some(SharedExperts { ffn, gated: true });
        spec.moe = Some(experts);
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        moe::write_qwen(s, map);
        let shared = s.moe.as_ref().and_then(|moe| moe.shared).map_or(0, |shared| shared.ffn);
        map.insert("shared_expert_intermediate_size".into(), json!(shared));
        map.insert("qkv_bias".into(), json!(s.bias.qkv));
        let slides = s.layers.iter().any(|layer| layer.window().is_some());
        map.insert("use_sliding_window".into(), json!(slides));
        common::write_layer_types(s, map);
    },
    names: Names { moe: Some(MoeNames::QWEN), ..Names::LLAMA },
};

/// Reads the windows: with `use_sliding_window`, every second of the first `max_window_layers` layers slides, unless
/// `layer_types` is given.
fn read_windows(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    let slides: bool = c.or("use_sliding_window", false)?;
    let until: usize = c.or("max_window_layers", 28)?;
    if slides {
        common::read_layer_types(c, spec, Some(4096), |layer| layer < until && layer % 2 == 0)?;
        return Ok(());
    }
    let _: Option<usize> = c.nullable("sliding_window", None)?;
    if common::sliding_layers(c, spec.layers.len())?.is_some_and(|sliding| sliding.contains(&true)) {
        return Err(c.refuse("layer_types", "has sliding layers, but use_sliding_window is false"));
    }
    Ok(())
}
