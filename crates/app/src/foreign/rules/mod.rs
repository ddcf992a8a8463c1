//! What the keys of other tools say here.
//!
//! Names that two tools share mean the same in both. Sources: axolotl's configuration reference, LLaMA-Factory's arguments, torchtune's
//! shipped recipes, and the arguments of Transformers' and TRL's trainers and of PEFT's `LoraConfig`.

pub(super) mod adapters;
pub(super) mod common;
pub(super) mod defaults;
pub(super) mod distill;
pub(super) mod implied;
pub(super) mod machine;
pub(super) mod policy;
pub(super) mod preferences;
pub(super) mod tables;

use serde_json::Value;

use super::draft::Draft;
use super::values::flag;

/// Whether a value could be said; the reason if not.
pub(super) type Said = Result<(), String>;
/// What a value of a key says.
pub(super) type Rule = fn(&mut Draft, &Value) -> Said;
/// Keys of the same meaning, and what their values say.
pub(super) type Row = (&'static [&'static str], Rule);

/// Keys whose `false` or `null` says something.
pub(super) const MEANS_OFF: &[&str] = &[
    "bf16",
    "completion_only_loss",
    "bnb_4bit_use_double_quant",
    "double_quantization",
    "shuffle",
    "dataset.shuffle",
    "shuffle_dataset",
    "scale_rewards",
    "use_bias_correction_kl",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_clip_max",
];

/// Names of tables that other tools put a key into which means the same outside.
const TABLES: &[&str] = &["trl.", "training.", "peft_config.", "quant_config."];

/// A key without its table.
pub(super) fn bare(key: &str) -> &str {
    TABLES.iter().find_map(|table| key.strip_prefix(table)).unwrap_or(key)
}

/// Does something where a value is true.
fn on(value: &Value, then: impl FnOnce()) -> Said {
    flag(value).map(|on| {
        if on {
            then()
        }
    })
}
