//! Defaults of other tools, where they differ from those of the shipped recipes.
//!
//! Sources: the arguments of TRL 1.16 and Transformers 5, LLaMA-Factory's and axolotl's schemas, torchtune's and
//! PyTorch's signatures.

use toml_edit::Array;

use super::policy;
use crate::foreign::draft::{Draft, axolotl_steps};
use crate::foreign::kind::Kind;
use crate::foreign::tool::Tool;

/// Fills in the tool's defaults for settings that the file left out.
pub(in crate::foreign) fn fill(draft: &mut Draft) {
    match draft.tool {
        Tool::Trl | Tool::LlamaFactory => {
            draft.rows = draft.rows.or(Some(8));
            let passes = if draft.steps.is_none() { Some(3) } else { None };
            draft.epochs = draft.epochs.or(passes);
            draft.at = "learning_rate".into();
            draft.default("optimizer.lr", rate(draft.tool, draft.kind));
        }
        Tool::Axolotl => {
            let passes = if draft.steps.is_none() { Some(1) } else { None };
            draft.epochs = draft.epochs.or(passes);
            draft.at = "lr_scheduler".into();
            draft.default("schedule.decay", "cosine");
            if draft.warmup_share.is_none() && !draft.has("schedule.warmup_steps") {
                warm_up(draft);
            }
        }
        Tool::Torchtune => {
            let passes = if draft.steps.is_none() { Some(1) } else { None };
            draft.epochs = draft.epochs.or(passes);
            draft.at = "clip_grad_norm".into();
            draft.default("optimizer.clip", "none");
            draft.at = "lr_scheduler".into();
            draft.default("schedule.decay", "constant");
            draft.at = "optimizer.weight_decay".into();
            draft.default("optimizer.weight_decay", 0.01);
        }
    }
    draft.accumulated = draft.accumulated.or(Some(1));
    if draft.adapter.is_some() {
        adapter(draft);
    }
    samples(draft);
    method(draft);
}

/// Sets axolotl's default warm-up: 3 % of the steps, at most 100.
fn warm_up(draft: &mut Draft) {
    draft.at = "warmup_ratio".into();
    match draft.all_steps() {
        Some(steps) => draft.set("schedule.warmup_steps", axolotl_steps(0.03, steps).min(100)),
        None => draft.warmup_share = Some(0.03),
    }
}

/// Returns the default learning rate of a trainer.
fn rate(tool: Tool, kind: Kind) -> f64 {
    match (tool, kind) {
        (Tool::LlamaFactory, _) => 5e-5,
        (_, Kind::Text | Kind::Answers | Kind::Distill) => 2e-5,
        (_, Kind::Reward) => 1e-4,
        (_, Kind::Steps) => 1e-5,
        _ => 1e-6,
    }
}

/// Fills in the tool's adapter defaults.
fn adapter(draft: &mut Draft) {
    match draft.tool {
        Tool::Trl => {
            draft.at = "lora_r".into();
            draft.default("adapter.rank", 16);
            draft.at = "lora_alpha".into();
            draft.default("adapter.alpha", 32.0);
            draft.at = "lora_dropout".into();
            if !draft.dropless {
                draft.default("adapter.dropout", 0.05);
            }
            draft.at = "lora_target_modules".into();
            if draft.targets.is_empty() {
                // PEFT's default for most families.
                draft.default("adapter.targets", Array::from_iter(["q_proj", "v_proj"]));
            }
        }
        Tool::LlamaFactory => {
            draft.at = "lora_rank".into();
            draft.default("adapter.rank", 8);
            draft.at = "lora_alpha".into();
            let alpha = 2.0 * draft.integer("adapter.rank").unwrap_or(8) as f64;
            draft.default("adapter.alpha", alpha);
        }
        Tool::Torchtune => {
            draft.at = "model.lora_rank".into();
            draft.default("adapter.rank", 8);
            draft.at = "model.lora_alpha".into();
            draft.default("adapter.alpha", 16.0);
        }
        Tool::Axolotl => {}
    }
}

/// Sets the length and packing of samples, and the micro-batches.
fn samples(draft: &mut Draft) {
    let (rows, accumulated) = (draft.rows.unwrap_or(1).max(1), draft.accumulated.unwrap_or(1).max(1));
    let tokens = draft.tokens.or(match draft.tool {
        Tool::Trl => Some(1024),
        Tool::LlamaFactory => Some(2048),
        Tool::Axolotl => Some(512),
        Tool::Torchtune => None,
    });
    draft.at.clear();
    if draft.kind.writes() {
        return policy::settle(draft);
    }
    draft.at = "max_length".into();
    if let Some(tokens) = tokens {
        // A sample has both answers of a row.
        let times = if draft.kind.has_pairs() { 2 } else { 1 };
        draft.set("stage.0.seq_tokens", (times * tokens) as i64);
    } else if draft.kind != Kind::Text {
        // torchtune then does not truncate.
        draft.at = "tokenizer.max_seq_len".into();
        draft.default("data.truncation", "error");
        draft.unsaid(
            "tokenizer.max_seq_len",
            "is none, and nothing is cut there: a row longer than stage.0.seq_tokens is refused (data.truncation = \"error\"); give the \
             length of the longest",
        );
    }
    draft.at = "val_set_size".into();
    if draft.kind != Kind::Text && !draft.has("data.held_out_paths") {
        // These tools train on all rows by default and hold none out.
        draft.default("data.held_out_share", 0.0);
    }
    if draft.is_zero("data.held_out_share") {
        draft.set("eval.enabled", false);
    }
    draft.at.clear();
    let packing = match draft.kind {
        Kind::Text => "cut",
        _ if draft.packed && draft.wrapped => "cut",
        // `best_fit` fills a sample with whole rows; `single` gives each row a sample of its own length.
        _ if draft.packed => "best_fit",
        _ => "single",
    };
    draft.set("stage.0.packing", packing);
    if draft.kind == Kind::Kto {
        // In TRL, mismatched answers and the mean of their divergence are per micro-batch.
        draft.set("stage.0.samples_per_micro_batch", rows as i64);
        draft.set("stage.0.micro_batches", accumulated as i64);
        draft.set("objective.mismatched_rows", rows.max(2) as i64);
        draft.set("objective.kl_over", "micro_batch");
    } else {
        draft.set("stage.0.micro_batches", (rows * accumulated) as i64);
    }
}

/// Sets the objective.
fn method(draft: &mut Draft) {
    let trl = matches!(draft.tool, Tool::Trl | Tool::Axolotl);
    match draft.kind {
        Kind::Text => draft.set("data.format", "text"),
        Kind::Cpo => {
            draft.set("objective.method", "cpo");
            draft.default("objective.sft_weight", 1.0);
        }
        Kind::Simpo => {
            draft.default("objective.beta", if draft.tool == Tool::Torchtune { 2.0 } else { 0.1 });
            draft.default("objective.gamma", 0.5);
            if trl {
                draft.at = "cpo_alpha".into();
                draft.default("objective.sft_weight", 1.0);
            }
        }
        Kind::Kto if draft.tool == Tool::Trl => draft.default("data.shuffle", false),
        Kind::Steps => draft.set("objective.loss", "process"),
        Kind::Distill if trl => {
            draft.default("objective.loss", "jsd");
            draft.default("objective.temperature", 0.9);
            draft.set("objective.kd_ratio", 1.0);
        }
        Kind::Grpo if trl => draft.default("rl.importance_sampling_mode", "sequence_mask"),
        Kind::Grpo => {
            // torchtune's loss is a mean over answers.
            draft.set("rl.loss", "grpo");
            draft.set("rl.kl_corrected", false);
        }
        Kind::Ppo if draft.tool == Tool::LlamaFactory => {
            draft.default("rl.temperature", 0.95);
            draft.default("rl.top_p", 0.7);
            draft.default("rl.top_k", 50);
        }
        _ => {}
    }
    draft.at.clear();
}
