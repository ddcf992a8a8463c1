//! Keys of training on rewards for generated answers.

use serde_json::Value;

use super::{Row, on};
use crate::foreign::draft::Draft;
use crate::foreign::kind::Kind;
use crate::foreign::tool::Tool;
use crate::foreign::values::{flag, float, int, text};

/// Rules for GRPO, RLOO and PPO.
pub(in crate::foreign) const RULES: &[Row] = &[
    // axolotl's GRPO with each reward normalised separately.
    (&["rl"], |draft, v| {
        draft.rollout.each |= text(v)? == "gdpo";
        Ok(())
    }),
    // Two keys together determine the loss ([`settle`]).
    (&["loss_type"], |draft, v| text(v).map(|v| draft.rollout.loss = Some(v.to_string()))),
    (&["importance_sampling_level"], |draft, v| match text(v)? {
        level @ ("token" | "sequence") => {
            draft.rollout.whole = level == "sequence";
            Ok(())
        }
        other => Err(format!("ratios are of tokens or of whole answers, and not of `{other}`")),
    }),
    (&["beta", "rl_beta", "loss.kl_coeff", "kl_coeff", "kl_coef", "init_kl_coef"], |draft, v| {
        float(v).map(|v| draft.set("rl.beta", v))
    }),
    (&["kl_estimator"], |draft, v| match text(v)? {
        kind @ ("k1" | "k3") => {
            draft.set("rl.kl", kind);
            Ok(())
        }
        other => Err(format!("`{other}` is none of k1, k2 and k3 (rl.kl)")),
    }),
    // Two keys together determine the advantages.
    (&["scale_rewards"], |draft, v| {
        draft.rollout.scale = match v {
            Value::Bool(true) => Some("trl"),
            Value::Bool(false) => Some("mean"),
            other => match text(other)? {
                "group" => Some("trl"),
                "batch" => Some("batch"),
                "none" => Some("mean"),
                other => return Err(format!("`{other}` is none of group, batch and none (rl.advantage)")),
            },
        };
        Ok(())
    }),
    (&["multi_objective_aggregation"], |draft, v| match text(v)? {
        "sum_then_normalize" => {
            draft.rollout.each = false;
            Ok(())
        }
        "normalize_then_sum" => {
            draft.rollout.each = true;
            Ok(())
        }
        other => Err(format!("`{other}` is no order of sums and normalisation (rl.advantage)")),
    }),
    (&["normalize_advantages"], |_, _| {
        Err("advantages of the rollout are not normalised after rl.advantage=leave_one_out".into())
    }),
    (&["reward_clip_range"], |_, _| {
        Err("rewards are not clipped; a rule of the file of rewards can (rl.reward)".into())
    }),
    // Rollouts.
    (&["num_generations", "rloo_k", "grpo_samples", "inference.group_size"], |draft, v| {
        int(v).map(|v| draft.rollout.answers = Some(v))
    }),
    (&["generation_batch_size"], |draft, v| int(v).map(|v| draft.rollout.batch = Some(v))),
    (&["steps_per_generation"], |draft, v| int(v).map(|v| draft.rollout.steps = Some(v))),
    (&["inference.batch_size"], |draft, v| int(v).map(|v| draft.rollout.prompts = Some(v))),
    // torchtune's PPO counts answers per rollout and per step.
    (&["ppo_batch_size"], |draft, v| {
        draft.rollout.batch = draft.rows;
        int(v).map(|v| draft.rows = Some(v))
    }),
    (&["ppo_buffer_size"], |draft, v| {
        let rollouts = int(v)?;
        draft.rollout.steps = Some(rollouts * draft.accumulated.unwrap_or(1));
        Ok(())
    }),
    (&["num_iterations", "ppo_epochs", "num_ppo_epochs"], |draft, v| {
        int(v).map(|v| draft.rollout.epochs = Some(v))
    }),
    (&["num_steps", "orchestration.num_steps"], |draft, v| int(v).map(|v| draft.rollout.count = Some(v))),
    (
        &[
            "max_completion_length",
            "max_new_tokens",
            "max_generated_tokens",
            "response_length",
            "inference.max_generated_tokens",
        ],
        |draft, v| int(v).map(|v| draft.rollout.answer_tokens = Some(v)),
    ),
    (&["max_prompt_length", "max_prompt_len"], |draft, v| {
        int(v).map(|v| draft.rollout.prompt_tokens = Some(v))
    }),
    (&["temperature", "inference.temperature"], |draft, v| float(v).map(|v| draft.set("rl.temperature", v))),
    (&["top_p"], |draft, v| float(v).map(|v| draft.set("rl.top_p", v))),
    (&["top_k", "inference.top_k"], |draft, v| {
        match v.as_i64() {
            // All tokens, as in vLLM.
            Some(-1) => {}
            _ => draft.set("rl.top_k", int(v)? as i64),
        }
        Ok(())
    }),
    (&["min_p"], |draft, v| float(v).map(|v| draft.set("rl.min_p", v))),
    (&["repetition_penalty"], |_, v| {
        match float(v)? {
        1.0 => Ok(()),
        _ => Err("answers are drawn by rl.temperature, rl.top_k, rl.top_p and rl.min_p alone, which the loss follows"
            .into()),
    }
    }),
    (&["async_prefetch"], |draft, v| on(v, || draft.set("rl.behind", 1))),
    // Ratios.
    (&["epsilon", "cliprange", "loss.epsilon"], |draft, v| float(v).map(|v| draft.set("rl.epsilon", v))),
    (&["epsilon_high"], |draft, v| float(v).map(|v| draft.set("rl.epsilon_high", v))),
    (&["delta"], |draft, v| float(v).map(|v| draft.set("rl.delta", v))),
    (&["sapo_temperature_pos"], |draft, v| float(v).map(|v| draft.set("rl.sapo_positive", v))),
    (&["sapo_temperature_neg"], |draft, v| float(v).map(|v| draft.set("rl.sapo_negative", v))),
    (&["mask_truncated_completions"], |draft, v| on(v, || draft.set("rl.mask_truncated", true))),
    (&["use_bias_correction_kl"], |draft, v| flag(v).map(|on| draft.set("rl.kl_corrected", on))),
    (&["vllm_importance_sampling_mode"], |draft, v| {
        text(v).map(|v| draft.set("rl.importance_sampling_mode", v))
    }),
    (&["vllm_importance_sampling_correction"], |draft, v| {
        flag(v).map(|on| {
            if !on {
                draft.set("rl.importance_sampling_mode", "none")
            }
        })
    }),
    (&["vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"], |draft, v| {
        match v {
            Value::Null => draft.set("rl.importance_sampling_clip_max", "none"),
            most => draft.set("rl.importance_sampling_clip_max", float(most)?),
        }
        Ok(())
    }),
    (&["vllm_importance_sampling_clip_min"], |draft, v| {
        float(v).map(|v| draft.set("rl.importance_sampling_clip_min", v))
    }),
    (&["off_policy_mask_threshold"], |_, _| {
        Err("answers are weighed by rl.importance_sampling_mode, and none is masked by its divergence".into())
    }),
    (&["top_entropy_quantile"], |draft, v| float(v).map(|v| draft.set("rl.top_entropy_quantile", v))),
    (&["entropy_coef"], |draft, v| float(v).map(|v| draft.set("rl.entropy_coefficient", v))),
    (&["use_adaptive_entropy", "entropy_target"], |_, _| {
        Err("rl.entropy_coefficient stays what it is".into())
    }),
    (&["sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"], |_, _| {
        Err("the reference of rl.beta does not move (rl.reference)".into())
    }),
    // PPO.
    (&["gamma"], |draft, v| float(v).map(|v| draft.set("rl.gamma", v))),
    (&["lmbda", "lam"], |draft, v| float(v).map(|v| draft.set("rl.lambda", v))),
    (&["loss.value_coeff", "vf_coef"], |draft, v| float(v).map(|v| draft.set("rl.value_coefficient", v))),
    (&["loss.value_clip_range", "cliprange_value"], |draft, v| {
        float(v).map(|v| draft.set("rl.value_clip", v))
    }),
    (
        &["ref_policy_checkpointer.checkpoint_dir", "ref_checkpointer.checkpoint_dir", "ref_model"],
        |draft, v| text(v).map(|v| draft.set("rl.reference", v)),
    ),
    (&["ppo_target", "ppo_score_norm", "whiten_rewards", "ppo_whiten_rewards"], |_, _| {
        Err("rl.beta stays what it is, and rewards are what they are (rl.whiten is of advantages)".into())
    }),
    (&["value_checkpointer.checkpoint_dir"], |_, _| Err("the value head starts on the policy itself".into())),
    (&["min_response_length", "penalise_no_eos", "reward_penalty", "missing_eos_penalty"], |_, _| {
        Err("rules of the file of rewards are for lengths and ends (rl.reward: `length`, `ended`)".into())
    }),
    (&["stop_token_ids"], |_, _| Err("an answer ends at the model's own end of a turn".into())),
    // Rewards.
    (&["reward_funcs", "reward_functions"], |_, _| {
        Err("a file of rewards names them, by rule or by a process (rl.reward, [[reward]] with rule = \"process\")".into())
    }),
    (&["reward_weights"], |_, v| {
        Err(format!("each [[reward]] of the file of rewards has its weight (rl.reward); here {v}"))
    }),
    (&["reward_model_path", "reward_checkpointer.checkpoint_dir"], |_, v| {
        Err(format!(
            "a file of rewards names a model that judges ([[reward]] with rule = \"model\", model = {v}; rl.reward)"
        ))
    }),
    (&["rollout_func", "environment_factory", "max_tool_calling_iterations"], |_, _| {
        Err("a process replies to answers (environment.command, rl.turns)".into())
    }),
    (&["num_generations_eval", "sample_packing", "packing", "remove_unused_columns"], |_, _| Ok(())),
    (&["ds3_gather_for_generation", "cast_lm_head_to_fp32", "cache_implementation"], |_, _| Ok(())),
    (&["policy_model._component_", "reward_and_value_model._component_"], |_, _| Ok(())),
];

/// Settles what several keys determine together, and fills in the other tool's defaults.
pub(in crate::foreign) fn settle(draft: &mut Draft) {
    loss(draft);
    if draft.kind == Kind::Grpo {
        let scale = draft.rollout.scale.unwrap_or("trl");
        let advantage = if draft.rollout.each { "each_then_sum" } else { scale };
        draft.default("rl.advantage", advantage);
    }
    let tokens = draft.rollout.answer_tokens.unwrap_or(512);
    draft.default("rl.max_answer_tokens", tokens as i64);
    // Prompts are not truncated; those that do not fit are refused when they are read.
    let prompt = draft.rollout.prompt_tokens.unwrap_or(512);
    let whole = draft.tokens.filter(|whole| *whole > tokens).unwrap_or(prompt + tokens);
    draft.set("stage.0.seq_tokens", whole as i64);
    rollouts(draft);
}

fn loss(draft: &mut Draft) {
    if draft.kind != Kind::Grpo {
        return;
    }
    let whole = draft.rollout.whole;
    let name = draft.rollout.loss.take();
    let known = ["grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo"];
    match (name.as_deref().unwrap_or("dapo"), whole) {
        ("grpo", true) => draft.set("rl.loss", "gspo"),
        (other, true) => {
            draft.set("rl.loss", "gspo");
            let why = format!(
                "with ratios of whole answers `{other}` weighs an answer by its length; rl.loss = \"gspo\", which was taken, weighs all alike"
            );
            draft.unsaid("importance_sampling_level", &why);
        }
        (loss, false) if known.contains(&loss) => draft.set("rl.loss", loss.to_string()),
        (other, false) => {
            let why = format!("`{other}` is none of {} (rl.loss); dapo was kept", known.join(", "));
            draft.unsaid("loss_type", &why);
        }
    }
}

/// Sets the prompts and answers of a rollout, and the steps made from it. The other tools count rows per process; here
/// there is one process.
fn rollouts(draft: &mut Draft) {
    let own = match draft.kind {
        Kind::Grpo => 8,
        Kind::Rloo => 2,
        _ => 1,
    };
    let answers = draft.rollout.answers.unwrap_or(own).max(1);
    draft.set("rl.answers", answers as i64);
    if (draft.tool, draft.kind, draft.rollout.prompts) == (Tool::Torchtune, Kind::Grpo, None) {
        // Its batches count prompts, and each rollout is one step.
        draft.rollout.prompts = draft.rows;
        draft.rows = draft.rows.map(|prompts| prompts * answers);
    }
    let (rows, accumulated) = (draft.rows.unwrap_or(1), draft.accumulated.unwrap_or(1));
    let step = (rows * accumulated).max(1);
    let batch = match (draft.rollout.batch, draft.rollout.prompts) {
        (Some(batch), _) => batch,
        (None, Some(prompts)) => prompts * answers,
        (None, None) => rows * draft.rollout.steps.unwrap_or(accumulated),
    };
    // Rollouts smaller than a step would all use the same weights, so one as large as the step replaces them.
    let batch = batch.max(step);
    let mut prompts = batch / answers;
    if batch % answers != 0 {
        prompts = batch.div_ceil(answers);
        let why = format!(
            "a rollout of {batch} answers on one process is no number of groups of {answers}; rl.prompts is {prompts} (times the processes that \
             shared the work)"
        );
        draft.unsaid("num_generations", &why);
    }
    let minibatches = (batch / step).clamp(1, prompts.max(1));
    draft.set("rl.prompts", prompts as i64);
    draft.set("rl.minibatches", minibatches as i64);
    let epochs = draft.rollout.epochs.unwrap_or(if draft.kind == Kind::Ppo { 4 } else { 1 });
    draft.set("rl.epochs", epochs as i64);
    draft.set("stage.0.samples_per_micro_batch", rows.max(1) as i64);
    if let Some(count) = draft.rollout.count {
        // torchtune's PPO counts answers; its GRPO counts rollouts.
        let rollouts = if draft.kind == Kind::Ppo { count / batch } else { count };
        draft.steps = Some((rollouts * minibatches * epochs).max(1));
    }
}
