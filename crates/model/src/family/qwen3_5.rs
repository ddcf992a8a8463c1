//! Qwen3.5's text models, dense and with experts: as Qwen3-Next, with the parts of DeltaNet's projection apart; and the
//! models that see pictures around them.

use super::common::{Dialect, KvHeads};
use super::delta;
use super::wrapper::Wrapper;
use crate::config::Config;
use crate::error::Result;
use crate::gated_delta::DeltaNames;
use crate::spec::{Family, Spec};
use crate::weight::Names;

const DENSE_DIALECT: Dialect = Dialect { kv_heads: KvHeads::Fixed(4), ..delta::DIALECT };
/// Every layer has experts, and files no size of another MLP.
const EXPERTS_DIALECT: Dialect = Dialect { ffn: Some(512), ..delta::DIALECT };

pub(super) static DENSE: Family = Family {
    model_type: "qwen3_5_text",
    architecture: "Qwen3_5ForCausalLM",
    read: |c, family| read(c, family, &DENSE_DIALECT),
    write: |s, map| delta::write(s, &DENSE_DIALECT, map),
    names: Names { moe: None, ..delta::NAMES },
};

pub(super) static EXPERTS: Family = Family {
    model_type: "qwen3_5_moe_text",
    architecture: "Qwen3_5MoeForCausalLM",
    read: |c, family| {
        let mut spec = read(c, family, &EXPERTS_DIALECT)?;
        for (key, value) in
            [("norm_topk_prob", "true"), ("mlp_only_layers", "[]"), ("decoder_sparse_step", "1")]
        {
            c.only(key, value)?;
        }
        delta::read_experts(c, &mut spec, [256, 8])?;
        Ok(spec)
    },
    write: |s, map| {
        delta::write(s, &EXPERTS_DIALECT, map);
        delta::write_experts(s, map);
    },
    names: delta::NAMES,
};

fn read(c: &Config<'_>, family: &'static Family, dialect: &Dialect) -> Result<Spec> {
    c.only("attn_output_gate", "true")?;
    // States are f32 here, and layers that predict further tokens are not read.
    for key in ["mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"] {
        c.raw(key);
    }
    delta::read(c, family, dialect, DeltaNames::Apart)
}

pub(super) const DENSE_WRAPPER: Wrapper = Wrapper {
    model_type: "qwen3_5",
    architecture: "Qwen3_5ForConditionalGeneration",
    text: "qwen3_5_text",
    defaults: &[],
    tied: false,
    outer_keys: &[
        "vision_config",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    ],
    prefixes: &[("model.language_model.", "model.")],
    others: &["model.visual.", "mtp."],
};

pub(super) const EXPERTS_WRAPPER: Wrapper = Wrapper {
    model_type: "qwen3_5_moe",
    architecture: "Qwen3_5MoeForConditionalGeneration",
    text: "qwen3_5_moe_text",
    ..DENSE_WRAPPER
};
