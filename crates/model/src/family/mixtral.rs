//! Mixtral: Mistral with experts in every layer and normalised routing weights.

use serde_json::json;

use super::common::{Dialect, KvHeads};
use super::{common, moe};
use crate::config_rope::RopeKeys;
use crate::spec::Family;
use crate::weight::{Experts, MoeNames, Names};

const DIALECT: Dialect = Dialect {
    eps: ("rms_norm_eps", 1e-5),
    kv_heads: KvHeads::Fixed(8),
    rope: RopeKeys { theta: ("rope_theta", 1_000_000.0), partial: None, nested: None },
    ..common::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "mixtral",
    architecture: "MixtralForCausalLM",
    read: |c, family| {
        let mut spec = common::read(c, family, &DIALECT)?;
        common::read_window(c, &mut spec, None)?;
        c.only("router_jitter_noise", "0.0")?;
        let sizes = [("num_local_experts", 8), ("num_experts_per_tok", 2), ("intermediate_size", 14336)];
        let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
        experts.routing.normalise = true;
        spec.moe = Some(experts);
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_window(s, map);
        if let Some(moe) = &s.moe {
            map.insert("num_local_experts".into(), json!(moe.experts));
            map.insert("num_experts_per_tok".into(), json!(moe.routing.top_k));
        }
    },
    names: Names {
        moe: Some(MoeNames {
            router: "block_sparse_moe.gate",
            experts: Experts::Each("block_sparse_moe.experts", ["w1", "w3", "w2"]),
            ..MoeNames::QWEN
        }),
        ..Names::LLAMA
    },
};
