//! DeepSeek-V3 and R1: latent attention; sigmoid routing with a bias for the choice only, groups scored by their best
//! two. Layers for multi-token prediction are not read.

use fathom_tensor::RouterScores;
use serde_json::json;

use super::common::{Dialect, HeadDim};
use super::deepseek::{NAMES, Version};
use super::{common, deepseek};
use crate::spec::Family;
use crate::weight::Names;

const VERSION: Version = Version {
    dialect: Dialect { head_dim: HeadDim::NoKey, ..common::LLAMA },
    attention: [128, 64, 128, 1536, 512],
    experts: [256, 8, 2048, 1, 3],
    judges: 2,
    scale: 2.5,
};

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v3",
    architecture: "DeepseekV3ForCausalLM",
    read: |c, family| {
        let mut spec = deepseek::read(c, family, &VERSION)?;
        c.only("scoring_func", "\"sigmoid\"")?;
        c.only("topk_method", "\"noaux_tc\"")?;
        let _: Option<usize> = c.nullable("num_nextn_predict_layers", None)?;
        let normalise: bool = c.or("norm_topk_prob", true)?;
        if let Some(moe) = &mut spec.moe {
            moe.routing.scores = RouterScores::Sigmoid;
            moe.routing.normalise = normalise;
            moe.choice_bias = true;
            deepseek::read_groups(c, moe, [8, 4], VERSION.judges)?;
        }
        Ok(spec)
    },
    write: |s, map| {
        deepseek::write(s, &VERSION, map);
        let normalise = s.moe.as_ref().is_none_or(|moe| moe.routing.normalise);
        map.insert("norm_topk_prob".into(), json!(normalise));
        map.insert("scoring_func".into(), json!("sigmoid"));
        map.insert("topk_method".into(), json!("noaux_tc"));
        let interleaved = s.ropes.first().is_none_or(|rope| rope.interleaved);
        map.insert("rope_interleave".into(), json!(interleaved));
        map.insert("num_nextn_predict_layers".into(), json!(0));
    },
    names: Names { further: Some("eh_proj.weight"), ..NAMES },
};
