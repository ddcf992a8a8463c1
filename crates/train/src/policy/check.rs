//! Checks of the relations between keys of `[rl]`.

use fathom_base::recipe::Loaded;

use super::AdvantageName;
use crate::error::{Result, refuse as refuse_key};
use crate::recipe::{ImportanceName, PolicyName, QuantizationName, Recipe};

/// Refuses settings that do not work with learning from rewards.
pub(crate) fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    let Recipe { rl, environment, model, optimizer, machine, .. } = &loaded.value;
    if environment.is_on() && !rl.is_on() {
        let message = "replies to answers of runs that learn from rewards, and rl.loss is none; begin from a recipe like grpo";
        return refuse_key(loaded, "environment.command", message);
    }
    if !rl.is_on() {
        return Ok(());
    }
    let learned = rl.loss != PolicyName::Rejection;
    let gae = rl.advantage == AdvantageName::Gae;
    let aside = machine.offload_weights || model.quantization != QuantizationName::None;
    for (is, key, message) in [
        (
            rl.has_values() && aside,
            "loss",
            "has a value head, which goes with weights in memory as they are; leave out machine.offload_weights and model.quantization",
        ),
        (model.from.is_none(), "loss", "is for a model that writes already; give its folder, model.from=DIR"),
        (
            rl.reward.is_none() && !environment.is_on(),
            "reward",
            "is none: nothing says what an answer is worth; give a file (rl.reward=FILE.toml)",
        ),
        (
            rl.turns > 1 && !environment.is_on(),
            "turns",
            "is more than 1, and nothing replies to answers; name a program (environment.command), or give 1",
        ),
        (
            rl.turns > 1 && rl.overlong_tokens > 0,
            "overlong_tokens",
            "is a penalty of single answers; give 0, or rl.turns=1",
        ),
        (learned && optimizer.z_loss != 0.0, "loss", "has no z-loss; give optimizer.z_loss=0"),
        (
            gae != rl.has_values(),
            "advantage",
            "gae goes with rl.loss=ppo, which has the value head that it asks, and no other with it",
        ),
        (
            !learned && rl.top_entropy_quantile < 1.0,
            "top_entropy_quantile",
            "goes with losses of policies, and rl.loss=rejection learns the best answers whole; give 1",
        ),
        (
            !learned && rl.entropy_coefficient != 0.0,
            "entropy_coefficient",
            "goes with losses of policies, and rl.loss=rejection has no term of the entropy; give 0",
        ),
        (rl.keep > rl.answers, "keep", "is more than the answers of a group (rl.answers)"),
        (
            rl.overlong_tokens > rl.max_answer_tokens,
            "overlong_tokens",
            "is more than an answer may have (rl.max_answer_tokens)",
        ),
        (
            rl.advantage == AdvantageName::LeaveOneOut && rl.answers < 2,
            "answers",
            "is 1, and rl.advantage=leave_one_out subtracts the mean of the others",
        ),
    ] {
        if is {
            let by = match key {
                "loss" | "reward" => key,
                "turns" => "environment.command",
                "keep" => "answers",
                "overlong_tokens" if rl.turns > 1 => "turns",
                "overlong_tokens" => "max_answer_tokens",
                "answers" => "advantage",
                _ => "loss",
            };
            let by = if by.contains('.') { by.to_string() } else { format!("rl.{by}") };
            return Err(loaded.refuse_with(&format!("rl.{key}"), &by, message).into());
        }
    }
    behind(loaded)?;
    ranks(loaded)
}

/// Refuses stages that no answer fits into, in plans too.
pub(crate) fn stages(loaded: &Loaded<Recipe>) -> Result<()> {
    let rl = &loaded.value.rl;
    if !rl.is_on() {
        return Ok(());
    }
    for (index, stage) in loaded.value.stage.iter().enumerate() {
        if stage.seq_tokens <= rl.max_answer_tokens {
            let message = format!(
                "is {}; a prompt and its answer of rl.max_answer_tokens={} have to fit into it",
                stage.seq_tokens, rl.max_answer_tokens
            );
            return refuse_key(loaded, &format!("stage.{index}.seq_tokens"), message);
        }
    }
    Ok(())
}

/// Refuses importance weights, for answers written by earlier weights, that are invalid, or that are missing though
/// required.
fn behind(loaded: &Loaded<Recipe>) -> Result<()> {
    let rl = &loaded.value.rl;
    let mode = rl.importance_sampling_mode;
    let [least, most] = [rl.importance_sampling_clip_min, rl.importance_sampling_clip_max];
    for (is, key, message) in [
        (
            rl.behind > 0 && rl.loss == PolicyName::Reinforce && mode == ImportanceName::None,
            "importance_sampling_mode",
            "is none, and rl.loss=reinforce has no ratio, so that nothing makes up for answers of earlier weights; give token_truncate",
        ),
        (
            mode.truncates() && least.is_none() && most.is_none(),
            "importance_sampling_clip_max",
            "and rl.importance_sampling_clip_min are none, and the mode truncates; give one of them",
        ),
        (
            least.zip(most).is_some_and(|(least, most)| least >= most),
            "importance_sampling_clip_min",
            "is not below rl.importance_sampling_clip_max",
        ),
    ] {
        if is {
            let path = format!("rl.{key}");
            return Err(loaded.refuse_with(&path, "rl.importance_sampling_mode", message).into());
        }
    }
    Ok(())
}

/// Refuses ranks that cannot generate together.
fn ranks(loaded: &Loaded<Recipe>) -> Result<()> {
    let mesh = &loaded.value.mesh;
    if mesh.tp.is_multiple_of((mesh.ep * mesh.etp).max(1)) {
        return Ok(());
    }
    let message = "has experts on ranks that write other answers, each at its own pace; let mesh.ep * mesh.etp divide mesh.tp, whose ranks \
                   write the same ones";
    refuse_key(loaded, "mesh.ep", message)
}
