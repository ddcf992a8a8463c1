//! Kind of training of another tool's file. It is determined first, over all keys, so that their order does not matter.

use serde_json::Value;

use super::tool::Tool;
use super::values::names;
use super::yaml;

/// Kind of training: its objective and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Plain text.
    Text,
    /// Answers to prompts.
    Answers,
    /// Pairs, against a reference model.
    Dpo,
    /// Desirable and undesirable answers.
    Kto,
    /// Pairs, by odds ratio.
    Orpo,
    /// Pairs, plus the cross-entropy of chosen answers.
    Cpo,
    /// Pairs, by mean log-probabilities with a margin.
    Simpo,
    /// Reward model from pairs.
    Reward,
    /// Reward model from steps.
    Steps,
    /// Distribution of a teacher.
    Distill,
    /// Rewards relative to a group of answers.
    Grpo,
    /// Rewards minus the mean of the other answers.
    Rloo,
    /// Rewards, with a value head.
    Ppo,
}

use Kind::{Answers, Cpo, Distill, Dpo, Grpo, Kto, Orpo, Ppo, Reward, Rloo, Simpo, Steps, Text};

/// Kinds by name, as recipes name them; `text` is plain text, and `prm` a reward model of steps, as in TRL.
const NAMED: [(&str, Kind); 13] = [
    ("text", Text),
    ("sft", Answers),
    ("dpo", Dpo),
    ("kto", Kto),
    ("orpo", Orpo),
    ("cpo", Cpo),
    ("simpo", Simpo),
    ("reward", Reward),
    ("prm", Steps),
    ("distill", Distill),
    ("grpo", Grpo),
    ("rloo", Rloo),
    ("ppo", Ppo),
];

/// Names of all methods.
pub const METHODS: [&str; NAMED.len()] = {
    let (mut names, mut at) = ([""; NAMED.len()], 0);
    while at < NAMED.len() {
        names[at] = NAMED[at].0;
        at += 1;
    }
    names
};

impl Kind {
    /// Returns the kind of a name.
    pub fn named(name: &str) -> Option<Kind> {
        NAMED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// Returns whether training generates answers.
    pub fn writes(self) -> bool {
        matches!(self, Grpo | Rloo | Ppo)
    }

    /// Returns whether a row has two answers, which share a sample.
    pub fn has_pairs(self) -> bool {
        matches!(self, Dpo | Kto | Orpo | Cpo | Simpo | Reward)
    }

    /// Returns a description of the training data.
    pub fn name(self) -> &'static str {
        match self {
            Text => "plain text",
            Answers => "answers",
            Dpo | Orpo | Cpo | Simpo => "pairs of answers",
            Kto => "answers that are wanted or not",
            Reward | Steps => "answers that are judged",
            Distill => "a teacher",
            Grpo | Rloo | Ppo => "rewards",
        }
    }
}

/// Entries of a file.
#[derive(Clone, Copy)]
pub(super) struct Entries<'a>(pub &'a [(String, Value)]);

impl<'a> Entries<'a> {
    /// Returns a value that is neither empty nor off.
    pub fn get(self, key: &str) -> Option<&'a Value> {
        self.0.iter().find(|(name, value)| name == key && !yaml::is_nothing(value)).map(|(_, value)| value)
    }

    pub fn text(self, key: &str) -> Option<&'a str> {
        self.get(key)?.as_str()
    }

    fn any(self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.get(key).is_some())
    }

    /// Returns whether a key with this ending has a value.
    fn ends(self, with: &str) -> bool {
        self.0.iter().any(|(name, value)| name.ends_with(with) && !yaml::is_nothing(value))
    }
}

/// Returns the kind of training of a file.
pub(super) fn of(tool: Tool, entries: Entries<'_>) -> Kind {
    match tool {
        Tool::Axolotl => axolotl(entries),
        Tool::LlamaFactory => match (entries.text("stage"), entries.text("pref_loss")) {
            (Some("pt"), _) => Text,
            (Some("rm"), _) => Reward,
            (Some("kto"), _) => Kto,
            (Some("ppo"), _) => Ppo,
            (Some("dpo"), Some("orpo")) => Orpo,
            (Some("dpo"), Some("simpo")) => Simpo,
            (Some("dpo"), _) => Dpo,
            _ => Answers,
        },
        Tool::Torchtune => torchtune(entries),
        Tool::Trl => trl(entries),
    }
}

fn axolotl(entries: Entries<'_>) -> Kind {
    let completion = |set: &Value| set["type"] == "completion";
    match entries.text("rl") {
        Some("dpo" | "ipo") => Dpo,
        Some("kto") => Kto,
        Some("orpo") => Orpo,
        Some("simpo") => Simpo,
        Some("grpo" | "gdpo") => Grpo,
        _ if entries.get("process_reward_model").is_some() => Steps,
        _ if entries.get("reward_model").is_some() => Reward,
        _ if entries.get("pretraining_dataset").is_some() => Text,
        _ => match entries.get("datasets") {
            Some(Value::Array(sets)) if sets.iter().all(completion) => Text,
            _ => Answers,
        },
    }
}

fn torchtune(entries: Entries<'_>) -> Kind {
    let loss =
        entries.text("loss._component_").or(entries.text("training.loss._component_")).unwrap_or_default();
    match loss.rsplit('.').next().unwrap_or_default() {
        "SimPOLoss" => Simpo,
        "DPOLoss" | "RSOLoss" => Dpo,
        "PPOLoss" => Ppo,
        grpo if grpo.contains("GRPO") => Grpo,
        _ if entries.get("grpo_samples").is_some() => Grpo,
        _ if entries.get("teacher_checkpointer.checkpoint_dir").is_some() => Distill,
        _ => match entries.text("dataset._component_") {
            Some(set) if set.ends_with("text_completion_dataset") => Text,
            _ => Answers,
        },
    }
}

/// Determines the kind of a TRL file from its keys, since it does not name its trainer.
fn trl(entries: Entries<'_>) -> Kind {
    let losses = entries.get("loss_type").and_then(|loss| names(loss).ok()).unwrap_or_default();
    let is = |those: &[&str]| losses.iter().any(|loss| those.contains(&loss.as_str()));
    let policy = ["grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"];
    let rollouts = [
        "num_generations",
        "steps_per_generation",
        "generation_batch_size",
        "num_iterations",
        "scale_rewards",
        "epsilon",
        "epsilon_high",
        "importance_sampling_level",
        "multi_objective_aggregation",
        "mask_truncated_completions",
        "top_entropy_quantile",
        "reward_funcs",
        "reward_weights",
    ];
    if is(&policy) {
        Grpo
    } else if entries.any(&["normalize_advantages", "reward_clip_range", "rloo_k"]) {
        Rloo
    } else if entries.any(&["cliprange_value", "vf_coef", "num_ppo_epochs"]) {
        Ppo
    } else if entries.any(&rollouts) {
        Grpo
    } else if is(&["kto", "apo_zero_unpaired"]) || entries.any(&["desirable_weight", "undesirable_weight"]) {
        Kto
    } else if is(&["simpo"]) || (losses.is_empty() && entries.any(&["simpo_gamma"])) {
        Simpo
    } else if entries.any(&["cpo_alpha"]) {
        Cpo
    } else if is(&["orpo"]) {
        Orpo
    } else if entries.any(&["center_rewards_coefficient"]) {
        Reward
    } else if entries.any(&["step_separator", "train_on_last_step_only"]) {
        Steps
    } else if entries.any(&["teacher_model_name_or_path", "lmbda", "seq_kd"]) {
        Distill
    } else if is(&["nll", "chunked_nll", "dft"]) {
        Answers
    } else if !losses.is_empty() || entries.any(OF_DPO) {
        Dpo
    } else {
        Answers
    }
}

/// Keys that imply a comparison of pairs.
const OF_DPO: &[&str] = &[
    "beta",
    "f_divergence_type",
    "ld_alpha",
    "discopop_tau",
    "use_weighting",
    "loss_weights",
    "precompute_ref_log_probs",
    "sync_ref_model",
    "rpo_alpha",
    "reference_free",
    "label_smoothing",
];

/// Returns the method of the adapter that a file trains.
pub(super) fn adapter(tool: Tool, entries: Entries<'_>) -> Option<&'static str> {
    let trains = match tool {
        Tool::Axolotl => matches!(entries.text("adapter"), Some("lora" | "qlora" | "dora" | "rslora")),
        Tool::LlamaFactory if entries.get("model").is_some() => {
            entries.text("peft_config.name") == Some("lora")
        }
        Tool::LlamaFactory => entries.text("finetuning_type").unwrap_or("lora") == "lora",
        Tool::Torchtune => {
            entries.ends("model.lora_rank")
                || entries.ends("model.lora_attn_modules")
                || ["lora_", "dora_"].iter().any(|name| {
                    entries.text("model._component_").is_some_and(|model| model.contains(&format!(".{name}")))
                })
        }
        Tool::Trl => entries.get("use_peft").or(entries.get("use_lora")).is_some(),
    };
    let ends = |name: &str| entries.ends(name);
    trains.then(|| match () {
        () if ends("use_dora") || entries.text("adapter") == Some("dora") => "dora",
        () if ends("pissa_init")
            || entries.text("init_lora_weights").is_some_and(|how| how.starts_with("pissa")) =>
        {
            "pissa"
        }
        () if ends("use_rslora") => "rslora",
        () => "lora",
    })
}
