//! Rules that translate other tools' keys.
//!
//! A name that two tools share means the same in both. Sources: axolotl's configuration reference, LLaMA-Factory's
//! arguments, torchtune's shipped recipes, and the arguments of Transformers' and TRL's trainers and of PEFT's
//! `LoraConfig`.

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

/// Success, or the reason why a value cannot be translated.
pub(super) type RuleResult = Result<(), String>;
/// Applies a value of a key to the draft.
pub(super) type Rule = fn(&mut Draft, &Value) -> RuleResult;
/// Keys with the same meaning, and the rule that reads their values.
pub(super) type Row = (&'static [&'static str], Rule);

/// Keys for which `false` or `null` has a meaning.
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

/// Tables of other tools whose keys mean the same outside the table.
const TABLES: &[&str] = &["trl.", "training.", "peft_config.", "quant_config."];

/// Returns a key without its table.
pub(super) fn bare(key: &str) -> &str {
    TABLES.iter().find_map(|table| key.strip_prefix(table)).unwrap_or(key)
}

/// Calls `then` if a value is true.
fn on(value: &Value, then: impl FnOnce()) -> RuleResult {
    flag(value).map(|on| {
        if on {
            then()
        }
    })
}
