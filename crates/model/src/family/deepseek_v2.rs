//! DeepSeek-V2: latent attention; softmax over the experts of the best groups, not normalised.

use serde_json::json;

use super::common::{Dialect, HeadDim};
use super::deepseek::{NAMES, Version};
use super::{common, deepseek};
use crate::spec::Family;

const VERSION: Version = Version {
    dialect: Dialect { head_dim: HeadDim::NoKey, ..common::LLAMA },
    attention: [128, 64, 128, 1536, 512],
    experts: [64, 6, 1407, 2, 0],
    judges: 1,
    scale: 1.0,
};

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v2",
    architecture: "DeepseekV2ForCausalLM",
    read: |c, family| {
        let mut spec = deepseek::read(c, family, &VERSION)?;
        c.only("mlp_bias", "false")?;
        c.only("rope_interleave", "true")?;
        c.only("norm_topk_prob", "false")?;
        c.only("scoring_func", "\"softmax\"")?;
        let method: String = c.or("topk_method", "greedy".into())?;
        let Some(moe) = &mut spec.moe else { return Ok(spec) };
        deepseek::read_groups(c, moe, [1, 1], VERSION.judges)?;
        match method.as_str() {
            "greedy" => moe.routing.groups = None,
            "group_limited_greedy" => {}
            other => {
                let what = format!("is \"{other}\"; supported: greedy, group_limited_greedy");
                return Err(c.refuse("topk_method", what));
            }
        }
        Ok(spec)
    },
    write: |s, map| {
        deepseek::write(s, &VERSION, map);
        let groups = s.moe.as_ref().and_then(|moe| moe.routing.groups);
        let method = if groups.is_some() { "group_limited_greedy" } else { "greedy" };
        map.insert("topk_method".into(), json!(method));
        map.insert("norm_topk_prob".into(), json!(false));
    },
    names: NAMES,
};
