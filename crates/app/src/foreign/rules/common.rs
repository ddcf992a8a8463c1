//! Keys common to all kinds of training.

use serde_json::Value;
use toml_edit::Array;

use super::implied::LOGS;
use super::{Row, RuleResult, on};
use crate::foreign::draft::Draft;
use crate::foreign::kind::Kind;
use crate::foreign::values::{flag, float, int, names, text};

/// Keys for training on answers and texts.
pub(in crate::foreign) const OF_ANSWERS: &[Row] = &[
    (&["loss_type"], |draft, v| match text(v)? {
        "nll" | "chunked_nll" => Ok(()),
        "dft" => {
            draft.set("objective.method", "dft");
            Ok(())
        }
        other => Err(format!("`{other}` is no loss of answers here; objective.method = \"dft\" is one")),
    }),
    (&["use_dft_loss"], |draft, v| on(v, || draft.set("objective.method", "dft"))),
    (&["train_on_inputs", "train_on_prompt", "dataset.train_on_input"], |draft, v| {
        on(v, || draft.set("data.supervise", "all"))
    }),
    (&["mask_history"], |draft, v| on(v, || draft.set("data.supervise", "last_turn"))),
    (&["completion_only_loss"], |draft, v| {
        flag(v).map(|on| {
            if !on {
                draft.set("data.supervise", "all")
            }
        })
    }),
    (&["assistant_only_loss"], |_, v| flag(v).map(drop)),
    (&["sample_packing", "packing", "dataset.packed"], |draft, v| flag(v).map(|on| draft.packed = on)),
    (&["packing_strategy"], |draft, v| text(v).map(|how| draft.wrapped = how == "wrapped")),
    (&["dataset_text_field"], |draft, v| {
        let field = text(v)?;
        if draft.kind == Kind::Text {
            draft.set("data.text_field", field);
            return Ok(());
        }
        Err(format!(
            "rows of texts alone are learned with data.format=text data.text_field={field}; this is of answers"
        ))
    }),
    (&["num_labels"], |_, _| {
        Err("classes of a text are no objective here; a reward model has a head of scores".into())
    }),
];

/// Groups of keys with the same meaning, and the rules that read them.
pub(in crate::foreign) const RULES: &[Row] = &[
    (&["base_model_path", "model"], |draft, v| text(v).map(|v| draft.set("model.from", v))),
    (&["base_model", "model_name_or_path", "checkpointer.checkpoint_dir"], |draft, v| {
        text(v).map(|v| draft.set("model.from", v))
    }),
    (&["output_dir"], |draft, v| text(v).map(|v| draft.set("run.out", v))),
    (&["seed"], |draft, v| int(v).map(|v| draft.set("run.seed", v as i64))),
    (&["rl", "stage"], |_, v| match text(v)? {
        "pt" | "sft" | "rm" | "dpo" | "ipo" | "kto" | "orpo" | "simpo" | "grpo" | "gdpo" | "ppo" => Ok(()),
        other => Err(format!(
            "`{other}` is no method that has a recipe; `fathom recipes ls` lists them, and this one learns answers"
        )),
    }),
    (&["reward_model", "process_reward_model"], |draft, v| match draft.kind {
        Kind::Reward | Kind::Steps => Ok(()),
        _ => Err(format!(
            "a file of rewards names a model that judges ([[reward]] with model = {v}; rl.reward)"
        )),
    }),
    (&["model._component_"], |draft, v| {
        if text(v)?.contains(".qlora_") {
            draft.bits = Some(4);
        }
        Ok(())
    }),
    (&["loss._component_"], |draft, v| match (draft.kind, text(v)?.rsplit('.').next().unwrap_or_default()) {
        (Kind::Dpo, "RSOLoss") => {
            draft.set("objective.loss", "hinge");
            Ok(())
        }
        (Kind::Answers | Kind::Text, loss) if !(loss.contains("CrossEntropy") || loss.contains("CEWith")) => {
            Err(format!("`{loss}` is no loss of answers here; the cross-entropy is"))
        }
        _ => Ok(()),
    }),
    // Data.
    (&["datasets", "pretraining_dataset"], datasets),
    (
        &[
            "dataset",
            "dataset_name",
            "dataset.source",
            "dataset.data_files",
            "data_files",
            "dataset_path",
            "train_dataset",
        ],
        |draft, v| paths(draft, names(v)?),
    ),
    (&["eval_dataset", "test_datasets"], |draft, v| {
        let sets = match v {
            Value::Array(sets) => {
                sets.iter().filter_map(|set| Some(set["path"].as_str()?.to_string())).collect()
            }
            other => names(other)?,
        };
        match sets.iter().find(|set| !is_file(set)) {
            Some(set) => Err(format!("`{set}` is no file; data.held_out_paths names files")),
            None => {
                draft.set("data.held_out_paths", sets.into_iter().collect::<Array>());
                Ok(())
            }
        }
    }),
    (&["dataset._component_"], |_, v| match text(v)?.rsplit('.').next().unwrap_or_default() {
        "chat_dataset" | "instruct_dataset" | "text_completion_dataset" | "preference_dataset" => Ok(()),
        other => {
            Err(format!("`{other}` is a data set of torchtune; fetch it, and name its files (data.paths)"))
        }
    }),
    (&["dataset_mixture.datasets"], |draft, v| {
        let Value::Array(sets) = v else { return Err("is no list".into()) };
        paths(draft, sets.iter().filter_map(|set| Some(set["id"].as_str()?.to_string())).collect())
    }),
    (&["dataset_mixture.test_split_size"], |draft, v| match float(v)? {
        share if share < 1.0 => {
            draft.set("data.held_out_share", share);
            Ok(())
        }
        _ => Err("is a number of rows; data.held_out_share is a fraction of them".into()),
    }),
    (&["dataset_mixture.seed"], |_, _| Ok(())),
    (&["dataset_prompt_column"], |draft, v| text(v).map(|v| draft.set("data.columns.prompt", v))),
    (&["system_prompt"], |_, _| Err("what the system says is in the rows (data.columns.system)".into())),
    (&["model_revision"], |_, v| match text(v)? {
        "main" => Ok(()),
        _ => Err("a model is a folder (model.from)".into()),
    }),
    (&["dataset.column_map.input"], |draft, v| text(v).map(|v| draft.set("data.columns.prompt", v))),
    (&["dataset.column_map.output"], |draft, v| text(v).map(|v| draft.set("data.columns.completion", v))),
    (&["dataset.column_map.chosen"], |draft, v| text(v).map(|v| draft.set("data.columns.chosen", v))),
    (&["dataset.column_map.rejected"], |draft, v| text(v).map(|v| draft.set("data.columns.rejected", v))),
    (&["dataset.conversation_column"], |draft, v| text(v).map(|v| draft.set("data.columns.messages", v))),
    (&["chat_template", "template"], |_, v| match text(v)? {
        "tokenizer_default" | "default" => Ok(()),
        inline if inline.contains("{%") => {
            Err("is a template itself; write it to a file, and name that (data.chat_template=FILE)".into())
        }
        other => Err(format!(
            "`{other}` is a template of that tool; the model's own is used (data.chat_template=FILE for another)"
        )),
    }),
    (&["chat_template_path"], |draft, v| text(v).map(|v| draft.set("data.chat_template", v))),
    (&["val_set_size", "val_size"], |draft, v| match float(v)? {
        share if share < 1.0 => {
            draft.set("data.held_out_share", share);
            Ok(())
        }
        _ => Err("is a number of rows; data.held_out_share is a fraction of them".into()),
    }),
    (&["dataset_val.split"], |draft, v| {
        // A split like train[95%:].
        let from =
            text(v)?.split_once('[').and_then(|(_, range)| range.strip_suffix("%:]")?.parse::<f64>().ok());
        let Some(from) = from else { return Err("data.held_out_share is a fraction of the rows".into()) };
        draft.set("data.held_out_share", (100.0 - from) / 100.0);
        Ok(())
    }),
    (&["shuffle", "dataset.shuffle"], |draft, v| flag(v).map(|on| draft.set("data.shuffle", on))),
    (&["disable_shuffling"], |draft, v| on(v, || draft.set("data.shuffle", false))),
    (&["train_sampling_strategy"], |draft, v| {
        match text(v)? {
            "sequential" => draft.set("data.shuffle", false),
            "random" => draft.set("data.shuffle", true),
            other => return Err(format!("`{other}` is no order of rows here (data.shuffle)")),
        }
        Ok(())
    }),
    // Transformers draws rows in random order, whether or not they were shuffled before.
    (&["shuffle_dataset"], |_, v| flag(v).map(drop)),
    (&["truncation_mode"], |draft, v| match text(v)? {
        mode @ ("keep_start" | "keep_end") => {
            draft.set("data.truncation", mode);
            Ok(())
        }
        other => Err(format!("`{other}` is none of keep_start, keep_end and error (data.truncation)")),
    }),
    (&["max_samples"], |_, v| Err(format!("all rows of a file are read; give one of {v} rows"))),
    (
        &[
            "sequence_len",
            "cutoff_len",
            "max_length",
            "max_seq_length",
            "model_max_length",
            "tokenizer.max_seq_len",
            "dataset.max_seq_len",
        ],
        |draft, v| int(v).map(|v| draft.tokens = Some(v)),
    ),
    (&["report_to"], |_, v| {
        let names = names(v)?;
        let is_written = |name: &String| matches!(name.as_str(), "none" | "tensorboard");
        if names.iter().all(is_written) { Ok(()) } else { Err(LOGS.into()) }
    }),
    // Steps.
    (&["micro_batch_size", "per_device_train_batch_size", "batch_size"], |draft, v| {
        int(v).map(|v| draft.rows = Some(v))
    }),
    (&["gradient_accumulation_steps"], |draft, v| int(v).map(|v| draft.accumulated = Some(v))),
    (&["num_epochs", "num_train_epochs", "epochs"], |draft, v| match float(v)? {
        whole if whole >= 1.0 && whole.fract() == 0.0 => {
            draft.epochs = Some(whole as u64);
            Ok(())
        }
        part => Err(format!("{part} is no whole number of passes; give stage.0.steps")),
    }),
    (&["max_steps"], |draft, v| {
        draft.steps = v.as_i64().and_then(|steps| u64::try_from(steps).ok()).filter(|steps| *steps > 0);
        Ok(())
    }),
    (&["max_steps_per_epoch"], |draft, v| int(v).map(|v| draft.steps_of_epoch = Some(v))),
    // The optimizer.
    (&["learning_rate", "optimizer.lr"], |draft, v| float(v).map(|v| draft.set("optimizer.lr", v))),
    (&["weight_decay", "optimizer.weight_decay"], |draft, v| {
        float(v).map(|v| draft.set("optimizer.weight_decay", v))
    }),
    (&["adam_beta1"], |draft, v| float(v).map(|v| draft.set("optimizer.beta1", v))),
    (&["adam_beta2"], |draft, v| float(v).map(|v| draft.set("optimizer.beta2", v))),
    (&["optimizer.betas"], |draft, v| {
        let Value::Array(betas) = v else { return Err("is no list".into()) };
        for (beta, path) in betas.iter().zip(["optimizer.beta1", "optimizer.beta2"]) {
            draft.set(path, float(beta)?);
        }
        Ok(())
    }),
    (&["adam_epsilon", "adam_eps", "optimizer.eps"], |draft, v| {
        float(v).map(|v| draft.set("optimizer.eps", v))
    }),
    (&["max_grad_norm", "clip_grad_norm"], |draft, v| {
        match float(v)? {
            0.0 => draft.set("optimizer.clip", "none"),
            norm => draft.set("optimizer.clip", norm),
        }
        Ok(())
    }),
    (&["optimizer", "optim", "optimizer._component_"], |draft, v| {
        let name = text(v)?.rsplit('.').next().unwrap_or_default().to_lowercase();
        match name.as_str() {
            "adamw" | "adam" | "adamw_hf" | "pagedadamw" | "paged_adamw" | "paged_adamw_32bit" => Ok(()),
            torch if torch.starts_with("adamw_") && !torch.ends_with("bit") => Ok(()),
            "sgd" => {
                draft.set("optimizer.kind", "sgd");
                Ok(())
            }
            eight if eight.contains("adam") && eight.contains('8') => {
                draft.set("optimizer.moments", "fp8");
                Err(format!(
                    "`{eight}` is near optimizer.moments = \"fp8\", which was taken: one scale for 128 moments"
                ))
            }
            other => Err(format!("`{other}` is no optimizer here; AdamW was kept")),
        }
    }),
    (&["use_muon", "use_galore", "use_apollo", "use_badam", "use_adam_mini"], |_, _| {
        Err("is no optimizer here; AdamW was kept".into())
    }),
    (&["lr_scheduler", "lr_scheduler_type"], |draft, v| decays(draft, text(v)?)),
    (&["lr_scheduler._component_"], |draft, v| {
        let name = text(v)?.rsplit('.').next().unwrap_or_default();
        decays(draft, if name.contains("cosine") { "cosine" } else { name })
    }),
    (&["warmup_steps", "lr_scheduler.num_warmup_steps"], |draft, v| match float(v)? {
        share if share > 0.0 && share < 1.0 => {
            draft.warmup_share = Some(share);
            Ok(())
        }
        steps => {
            draft.set("schedule.warmup_steps", steps as i64);
            Ok(())
        }
    }),
    (&["warmup_ratio"], |draft, v| float(v).map(|v| draft.warmup_share = Some(v))),
    (&["cosine_min_lr_ratio", "min_lr_rate", "lr_scheduler_kwargs.min_lr_rate"], |draft, v| {
        float(v).map(|v| draft.set("schedule.final_share", v))
    }),
    (&["neftune_noise_alpha"], |draft, v| float(v).map(|v| draft.set("objective.neftune_alpha", v))),
    (&["router_aux_loss_coef", "moe_aux_loss_coef", "moe_aux_loss_coeff"], |draft, v| {
        float(v).map(|v| draft.set("moe.aux_loss", v))
    }),
];

fn decays(draft: &mut Draft, name: &str) -> RuleResult {
    let decay = match name {
        "cosine" | "cosine_with_min_lr" => "cosine",
        "linear" => "linear",
        "constant" | "constant_with_warmup" => "constant",
        "warmup_stable_decay" => "wsd",
        other => {
            return Err(format!("`{other}` is none of cosine, linear, wsd and constant (schedule.decay)"));
        }
    };
    draft.set("schedule.decay", decay);
    Ok(())
}

/// Reads axolotl's list of data sets.
fn datasets(draft: &mut Draft, value: &Value) -> RuleResult {
    let one = std::slice::from_ref(value);
    let sets = match value {
        Value::Array(sets) => sets.as_slice(),
        _ => one,
    };
    let mut files = Vec::new();
    for (at, set) in sets.iter().enumerate() {
        unsaid_of(draft, at, set);
        match (set["data_files"].as_array(), set.as_str().or(set["path"].as_str()).or(set["source"].as_str()))
        {
            (Some(list), _) => files.extend(list.iter().filter_map(Value::as_str).map(str::to_string)),
            (None, Some(path)) => files.push(path.to_string()),
            (None, None) => return Err("has an entry without a path".into()),
        }
        let columns = [
            ("field_messages", "messages"),
            ("field_instruction", "prompt"),
            ("field_output", "completion"),
            ("field_system", "system"),
            ("field_chosen", "chosen"),
            ("field_rejected", "rejected"),
        ];
        for (key, column) in columns {
            if let Some(name) = set[key].as_str() {
                draft.set(&format!("data.columns.{column}"), name);
            }
        }
        for key in ["role", "content"] {
            let old = format!("message_field_{key}");
            if let Some(name) = set["message_property_mappings"][key].as_str().or_else(|| set[&old].as_str())
            {
                draft.set(&format!("data.columns.{key}"), name);
            }
        }
        if let (Kind::Text, Some(field)) = (draft.kind, set["field"].as_str().or(set["text_column"].as_str()))
        {
            draft.set("data.text_field", field);
        }
    }
    paths(draft, files)
}

/// Records the settings of an entry in axolotl's list that cannot be translated.
fn unsaid_of(draft: &mut Draft, at: usize, set: &Value) {
    let kind = set["type"].as_str().unwrap_or_default();
    let roles = set["roles_to_train"].as_array();
    let model = |role: &Value| matches!(role.as_str(), Some("assistant" | "gpt" | "model"));
    let whole = "rows say it of each message (`weight`)";
    let unsaid = [
        (
            "roles_to_train",
            roles.is_some_and(|roles| !roles.iter().all(model)),
            "the model's messages are learned (data.supervise = \"all\" learns everything)",
        ),
        (
            "train_on_eos",
            set["train_on_eos"].as_str().is_some_and(|how| how != "turn"),
            "the end of each learned turn is learned",
        ),
        ("message_field_training", !set["message_field_training"].is_null(), whole),
        ("message_field_training_detail", !set["message_field_training_detail"].is_null(), whole),
        (
            "type",
            kind == "input_output",
            "parts of a row that say themselves what is learned are not read; rows of messages with weights are",
        ),
        (
            "type",
            kind == "completion" && draft.kind != Kind::Text,
            "text is learned by a run of its own (fathom train continue)",
        ),
    ];
    for (key, _, why) in unsaid.into_iter().filter(|(_, found, _)| *found) {
        draft.unsaid(&format!("datasets.{at}.{key}"), why);
    }
}

/// Adds the files of rows; names of data sets on a hub are refused.
fn paths(draft: &mut Draft, names: Vec<String>) -> RuleResult {
    let (files, others): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| is_file(name));
    draft.paths.extend(files);
    let others: Vec<String> = others
        .iter()
        .enumerate()
        .filter(|(at, name)| !others[..*at].contains(name))
        .map(|(_, name)| name.clone())
        .collect();
    match others.as_slice() {
        [] => Ok(()),
        [one] => Err(format!(
            "`{one}` is the name of a data set and no file; fetch it, and name its files (data.paths)"
        )),
        many => Err(format!(
            "`{}` are names of data sets and no files; fetch them, and name their files (data.paths)",
            many.join("`, `")
        )),
    }
}

fn is_file(name: &str) -> bool {
    [".jsonl", ".json", ".parquet", ".gz", ".zst"].iter().any(|end| name.ends_with(end))
        || std::path::Path::new(name).exists()
}
