//! LFM2 with experts: as LFM2, with a SwiGLU in the first layers and experts in the rest, routed by sigmoids, with a bias
//! for the choice only.

use fathom_tensor::RouterScores;
use serde_json::json;

use super::{common, lfm2, moe};
use crate::spec::{Family, QkNorm, Spec};
use crate::weight::{Experts, MoeNames, Names};

const DENSE: &str = "num_dense_layers";
const BIAS: &str = "use_expert_bias";
const NORMALISE: &str = "norm_topk_prob";
const SCALE: &str = "routed_scaling_factor";

pub(super) static FAMILY: Family = Family {
    model_type: "lfm2_moe",
    architecture: "Lfm2MoeForCausalLM",
    read: |c, family| {
        let mut spec = Spec { qk_norm: QkNorm::PerHead, ..common::read(c, family, &lfm2::DIALECT)? };
        c.silu("hidden_act")?;
        lfm2::read_layers(c, &mut spec)?;
        let sizes = [("num_experts", 32), ("num_experts_per_tok", 4), ("moe_intermediate_size", 1792)];
        let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
        experts.routing.scores = RouterScores::Sigmoid;
        experts.routing.normalise = c.or(NORMALISE, true)?;
        experts.routing.scale = c.or(SCALE, 1.0)?;
        experts.choice_bias = c.or(BIAS, true)?;
        let dense: usize = c.or(DENSE, 2)?;
        experts.dense_layers = (0..dense.min(spec.layers.len())).collect();
        spec.moe = Some(experts);
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &lfm2::DIALECT, map);
        lfm2::write_layers(s, map);
        let Some(moe) = &s.moe else { return };
        let keys = [
            ("num_experts", json!(moe.experts)),
            ("num_experts_per_tok", json!(moe.routing.top_k)),
            ("moe_intermediate_size", json!(moe.ffn)),
            (NORMALISE, json!(moe.routing.normalise)),
            (SCALE, json!(crate::config::short(moe.routing.scale))),
            (BIAS, json!(moe.choice_bias)),
            (DENSE, json!(moe.dense_layers.len())),
        ];
        map.extend(keys.map(|(key, value)| (key.to_string(), value)));
    },
    names: Names {
        moe: Some(MoeNames {
            router: "feed_forward.gate",
            choice_bias: "feed_forward.expert_bias",
            experts: Experts::Each("feed_forward.experts", ["w1", "w3", "w2"]),
            ..MoeNames::QWEN
        }),
        ..lfm2::NAMES
    },
};
