//! Keys of training on answers that are compared or judged.

use serde_json::Value;
use toml_edit::Array;

use super::{Row, RuleResult, on};
use crate::foreign::draft::Draft;
use crate::foreign::kind::Kind;
use crate::foreign::values::{flag, float, int, names, text};

/// Rules for pairs, and for desirable and undesirable answers.
pub(in crate::foreign) const RULES: &[Row] = &[
    (&["loss_type", "pref_loss", "dpo_loss_type"], |draft, v| losses(draft, names(v)?)),
    // axolotl calls this loss a method.
    (&["rl"], |draft, v| match text(v)? {
        "ipo" => losses(draft, vec!["ipo".into()]),
        _ => Ok(()),
    }),
    (&["loss_weights", "dpo_loss_weights"], |draft, v| {
        let Value::Array(list) = v else { return Err("is no list".into()) };
        let weights = list.iter().map(float).collect::<Result<Vec<f64>, String>>()?;
        match weights.as_slice() {
            [_] => Err("is of one loss, whose weight is 1".into()),
            _ => {
                draft.set("objective.loss_weights", weights.into_iter().collect::<Array>());
                Ok(())
            }
        }
    }),
    (&["beta", "rl_beta", "dpo_beta", "pref_beta", "kto_beta", "orpo_alpha", "loss.beta"], |draft, v| {
        float(v).map(|v| draft.set("objective.beta", v))
    }),
    // `gamma` is the temperature of torchtune's hinge loss, and the margin of its SimPO.
    (&["loss.gamma"], |draft, v| {
        let path = if draft.kind == Kind::Simpo { "objective.gamma" } else { "objective.beta" };
        float(v).map(|v| draft.set(path, v))
    }),
    (&["label_smoothing", "dpo_label_smoothing", "loss.label_smoothing"], |draft, v| match float(v)? {
        0.0 => Ok(()),
        share => {
            draft.set("objective.label_smoothing", share);
            Ok(())
        }
    }),
    (&["f_divergence_type"], |draft, v| {
        let name = text(v)?.rsplit('.').next().unwrap_or_default().to_lowercase();
        draft.set("objective.f_divergence", name);
        Ok(())
    }),
    (&["f_alpha_divergence_coef"], |draft, v| float(v).map(|v| draft.set("objective.f_alpha", v))),
    (&["ld_alpha"], |draft, v| float(v).map(|v| draft.set("objective.ld_alpha", v))),
    (&["discopop_tau"], |draft, v| float(v).map(|v| draft.set("objective.discopop_tau", v))),
    (&["use_weighting", "dpo_use_weighting"], |draft, v| {
        flag(v).map(|on| draft.set("objective.use_weighting", on))
    }),
    (&["sync_ref_model"], |draft, v| flag(v).map(|on| draft.set("objective.sync_ref_model", on))),
    (&["ref_model_mixup_alpha"], |draft, v| {
        float(v).map(|v| draft.set("objective.ref_model_mixup_alpha", v))
    }),
    (&["ref_model_sync_steps"], |draft, v| {
        int(v).map(|v| draft.set("objective.ref_model_sync_steps", v as i64))
    }),
    (&["precompute_ref_log_probs"], |draft, v| on(v, || draft.set("objective.reference", "column"))),
    (&["precompute_ref_batch_size"], |_, _| Ok(())),
    (&["reference_free"], |draft, v| on(v, || draft.set("objective.reference", "none"))),
    (&["ref_model", "ref_model_adapters", "ref_checkpointer.checkpoint_dir"], |_, _| {
        Err("the reference is the model that the run starts from".into())
    }),
    (&["rpo_alpha", "pref_ftx", "cpo_alpha"], |draft, v| {
        float(v).map(|v| draft.set("objective.sft_weight", v))
    }),
    // The weighted mean of the two losses.
    (&["pref_bco_weight"], |draft, v| {
        let weight = float(v)?;
        if weight > 0.0 {
            let first = draft.text("objective.loss").unwrap_or("sigmoid").to_string();
            draft.set("objective.loss", "auto");
            draft.set("objective.losses", Array::from_iter([first.as_str(), "bco_pair"]));
            let whole = 1.0 + weight;
            draft.set("objective.loss_weights", Array::from_iter([1.0 / whole, weight / whole]));
        }
        Ok(())
    }),
    (&["reward_model_path", "judge", "missing_eos_penalty", "max_new_tokens"], |_, _| {
        Err("pairs are those of the rows; those that the model writes are learned in rounds (rounds.write) or from rewards".into())
    }),
    (&["simpo_gamma"], |draft, v| float(v).map(|v| draft.set("objective.gamma", v))),
    (&["alpha"], |draft, v| float(v).map(|v| draft.set("objective.alpha", v))),
    (&["desirable_weight", "kto_desirable_weight", "kto_chosen_weight"], |draft, v| {
        float(v).map(|v| draft.set("objective.desirable_weight", v))
    }),
    (&["undesirable_weight", "kto_undesirable_weight", "kto_rejected_weight"], |draft, v| {
        float(v).map(|v| draft.set("objective.undesirable_weight", v))
    }),
    (&["max_prompt_length", "max_prompt_len", "max_completion_length", "max_target_length"], |_, _| {
        Err("prompt and answer together have half of stage.0.seq_tokens".into())
    }),
    (&["sample_packing", "packing", "dataset.packed"], |draft, v| flag(v).map(|on| draft.packed = on)),
    (&["generate_during_eval", "is_encoder_decoder"], |_, _| Ok(())),
];

/// Rules for reward models.
pub(in crate::foreign) const OF_SCORES: &[Row] = &[
    (&["center_rewards_coefficient"], |draft, v| float(v).map(|v| draft.set("objective.center_rewards", v))),
    (&["loss_type"], |_, v| Err(format!("{v} is no loss of reward models; objective.loss names those"))),
    (&["num_labels"], |_, v| match int(v)? {
        1 => Ok(()),
        // Right and wrong; here a step has a single score.
        2 => Ok(()),
        many => Err(format!("a reward model of {many} numbers learns ratings (objective.loss=regression)")),
    }),
    (&["sample_packing", "packing"], |draft, v| flag(v).map(|on| draft.packed = on)),
    (&["step_separator"], |_, _| Err("steps are messages of a row, and not cut from a text".into())),
    (&["train_on_last_step_only"], |_, _| Err("every step that has a label is learned".into())),
];

/// Sets the losses by TRL's names, which Fathom shares.
fn losses(draft: &mut Draft, names: Vec<String>) -> RuleResult {
    // Drops methods that other tools list as losses.
    let own = |name: &String| match draft.kind {
        Kind::Kto => name != "kto",
        Kind::Orpo => name != "orpo",
        Kind::Simpo => name != "simpo",
        _ => true,
    };
    let mut names: Vec<String> = names.into_iter().filter(own).collect();
    if draft.kind == Kind::Dpo && names.iter().any(|name| name == "kto_pair") {
        return Err(
            "`kto_pair` is no loss of pairs here; `fathom train kto` learns from single answers".into()
        );
    }
    match names.len() {
        0 => {}
        1 => draft.set("objective.loss", names.remove(0)),
        many => {
            draft.set("objective.loss", "auto");
            draft.set("objective.losses", names.into_iter().collect::<Array>());
            draft.default("objective.loss_weights", vec![1.0; many].into_iter().collect::<Array>());
        }
    }
    Ok(())
}
