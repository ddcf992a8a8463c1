//! Qwen 3 with experts: q and k are normalised per head; some layers may be dense.

use serde_json::json;

use super::common::{Dialect, KvHeads};
use super::{common, moe};
use crate::spec::{Family, QkNorm, Spec};
use crate::weight::{MoeNames, Names};

const DIALECT: Dialect = Dialect { kv_heads: KvHeads::Fixed(4), ..common::LLAMA };

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, false)?;
        let mut spec = Spec { bias, qk_norm: QkNorm::PerHead, ..common::read(c, family, &DIALECT)? };
        // Files may have these sizes without using them.
        let _: Option<usize> = c.nullable("max_window_layers", None)?;
        let _: Option<usize> = c.nullable("sliding_window", None)?;
        if c.or("use_sliding_window", false)? {
            common::read_window(c, &mut spec, Some(4096))?;
        }
        // Transformers 5 writes other families' key.
        let number = if c.raw("num_local_experts").is_some() { "num_local_experts" } else { "num_experts" };
        let sizes = [(number, 128), ("num_experts_per_tok", 8), ("moe_intermediate_size", 768)];
        let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
        experts.routing.normalise = c.or("norm_topk_prob", false)?;
        experts.dense_layers = moe::read_dense_layers(c, spec.layers.len())?;
        spec.moe = Some(experts);
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, false, map);
        moe::write_qwen(s, map);
        common::write_window(s, map);
        let slides = s.layers.iter().any(|layer| layer.window().is_some());
        map.insert("use_sliding_window".into(), json!(slides));
    },
    names: Names { moe: Some(MoeNames::QWEN), ..Names::LLAMA },
};
