//! Keys that files have whatever they train.

use serde_json::Value;
use toml_edit::Array;

use super::{Row, Said, on};
use crate::foreign::Tool;
use crate::foreign::draft::Draft;
use crate::foreign::kind::Kind;
use crate::foreign::values::{flag, float, int, names, text};

/// Of learning answers and texts.
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

/// Keys of the same meaning, and what their values say.
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
    (&["chat_template", "template"], |_, v| match text(v)? {
        "tokenizer_default" | "default" => Ok(()),
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
        // train[95%:]
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
    // Transformers draws rows in random order whether they were shuffled before that or not.
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
    // Adapters.
    (&["adapter", "finetuning_type"], |draft, v| match text(v)? {
        "full" | "lora" | "dora" | "rslora" => Ok(()),
        "qlora" => {
            draft.bits = Some(4);
            Ok(())
        }
        other => Err(format!(
            "`{other}` is no method that has a recipe; adapter.method and model.trained say which weights are trained"
        )),
    }),
    (&["use_peft", "use_lora"], |_, v| flag(v).map(drop)),
    (&["lora_r", "lora_rank", "model.lora_rank", "r"], |draft, v| adapts(draft, "rank", int(v)? as i64)),
    (&["lora_alpha", "model.lora_alpha"], |draft, v| adapts(draft, "alpha", float(v)?)),
    (&["lora_dropout", "model.lora_dropout"], |draft, v| match float(v)? {
        0.0 => {
            draft.dropless = true;
            Ok(())
        }
        rate => adapts(draft, "dropout", rate),
    }),
    (
        &[
            "lora_target_modules",
            "lora_target",
            "model.lora_attn_modules",
            "target_modules",
            "lora_target_parameters",
        ],
        |draft, v| targets(draft, v),
    ),
    (&["lora_target_linear"], |draft, v| {
        if flag(v)? {
            adapts(draft, "targets", "all-linear")?;
        }
        Ok(())
    }),
    (&["model.apply_lora_to_mlp"], |draft, v| {
        on(v, || draft.targets.extend(["gate_proj", "up_proj", "down_proj"].map(String::from)))
    }),
    (&["model.apply_lora_to_output"], |draft, v| on(v, || draft.targets.push("lm_head".into()))),
    (
        &[
            "use_dora",
            "lora_use_dora",
            "peft_use_dora",
            "model.use_dora",
            "use_rslora",
            "lora_use_rslora",
            "peft_use_rslora",
            "pissa_init",
        ],
        |draft, v| {
            flag(v)?;
            match draft.adapter {
                Some("lora") => Err("is of another adapter than the one that the file asks for".into()),
                _ => Ok(()),
            }
        },
    ),
    (&["pissa_iter"], |_, _| Err("the singular parts are found exactly".into())),
    (&["pissa_convert"], |_, _| Err("an adapter of pissa is written as what it changed of the base".into())),
    (&["init_lora_weights", "peft_init_lora_weights"], |draft, v| match v.as_str() {
        Some(how) if how.starts_with("pissa") && draft.adapter == Some("pissa") => Ok(()),
        _ if *v == Value::Bool(true) => Ok(()),
        _ => Err("adapters begin as LoRA's do, or as PiSSA's".into()),
    }),
    (&["loraplus_lr_ratio"], |draft, v| adapts(draft, "lr_ratio", float(v)?)),
    (&["lora_modules_to_save", "additional_target", "unfrozen_parameters"], |draft, v| {
        let list = names(v)?;
        draft.set("model.trained", list.into_iter().collect::<Array>());
        Ok(())
    }),
    (&["freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"], |_, _| {
        Err("which weights are trained is said by their names (model.trained = [\"layers\\\\.3[01]\\\\.\"])"
            .into())
    }),
    (&["lora_model_dir", "adapter_name_or_path"], |_, _| {
        Err("a run starts with a new adapter; `fathom export --with DIR=1` adds an earlier one to its model first".into())
    }),
    (&["load_in_4bit", "model.quantize_base"], |draft, v| on(v, || draft.bits = Some(4))),
    (&["load_in_8bit"], |draft, v| on(v, || draft.bits = Some(8))),
    (&["quantization_bit"], |draft, v| int(v).map(|v| draft.bits = Some(v))),
    (&["double_quantization", "bnb_4bit_use_double_quant", "use_bnb_nested_quant"], |draft, v| {
        flag(v).map(|on| draft.set("model.double_quant", on))
    }),
    (&["qat.weight_dtype"], |draft, v| match text(v)? {
        _ if draft.adapter.is_some() => Err(ROUNDED_ADAPTER.into()),
        format @ ("int4" | "nvfp4" | "mxfp4") => {
            draft.set("precision.qat", format);
            Ok(())
        }
        other => Err(format!("`{other}` is none of int4, nvfp4 and mxfp4 (precision.qat)")),
    }),
    (&["qat.activation_dtype"], |_, _| Err("weights are rounded, and activations stay as they are".into())),
    (&["qat.group_size", "quantizer.groupsize"], |_, _| {
        Err("groups are of 16 (nvfp4), 32 (mxfp4) and 128 columns or fewer (int4)".into())
    }),
    (&["qat.fake_quant_after_n_steps", "fake_quant_after_n_steps"], |_, _| {
        Err("weights are rounded from the first step on".into())
    }),
    (&["quantizer._component_"], |draft, v| match text(v)? {
        _ if draft.adapter.is_some() => Err(ROUNDED_ADAPTER.into()),
        name if name.contains("Int4Weight") && name.contains("QAT") => {
            draft.set("precision.qat", "int4");
            match name.contains("Int8DynAct") {
                true => {
                    Err("weights are rounded to int4 (precision.qat); activations stay as they are".into())
                }
                false => Ok(()),
            }
        }
        other => Err(format!("`{other}` is no format of precision.qat")),
    }),
    (&["fp8"], |draft, v| on(v, || draft.set("precision.gemm", "fp8_current"))),
    (&["fp8_backend", "fp8_enable_fsdp_float8_all_gather"], |_, _| Ok(())),
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
    // Types, memory and ranks.
    (&["bf16", "pure_bf16", "bfloat16"], |draft, v| {
        draft.set("model.precision", if *v == Value::Bool(false) { "f32" } else { "bf16" });
        Ok(())
    }),
    (&["fp16", "float16"], |_, _| Err("weights are bf16 or f32 (model.precision)".into())),
    (&["dtype", "torch_dtype", "mixed_precision"], |draft, v| match text(v)? {
        "bf16" | "bfloat16" | "bf16_mixed" => {
            draft.set("model.precision", "bf16");
            Ok(())
        }
        // TRL loads in this type and computes in bf16.
        "fp32" | "float32" if draft.tool == Tool::Trl => Ok(()),
        "fp32" | "float32" => {
            draft.set("model.precision", "f32");
            Ok(())
        }
        "auto" => Ok(()),
        other => Err(format!("weights are bf16 or f32 (model.precision), not {other}")),
    }),
    (&["gradient_checkpointing", "enable_activation_checkpointing"], |draft, v| {
        if *v != Value::Bool(false) {
            draft.set("activations.recompute_granularity", "full");
        }
        if *v == "offload" {
            draft.set("activations.offload_modules", Array::from_iter(["block"]));
        }
        Ok(())
    }),
    (&["disable_gradient_checkpointing"], |draft, v| {
        on(v, || draft.set("activations.recompute_granularity", "none"))
    }),
    (&["recompute_granularity"], |draft, v| match text(v)? {
        kind @ ("full" | "selective") => {
            draft.set("activations.recompute_granularity", kind);
            Ok(())
        }
        other => Err(format!("`{other}` is no granularity here")),
    }),
    (&["enable_activation_offloading", "activation_offloading"], |draft, v| {
        if *v != Value::Bool(false) {
            draft.set("activations.offload_modules", Array::from_iter(["block"]))
        }
        Ok(())
    }),
    (&["tensor_parallel_size", "tensor_parallel_dim", "tensor_model_parallel_size"], |draft, v| {
        ranks(draft, "mesh.tp", v)
    }),
    (&["pipeline_model_parallel_size"], |draft, v| ranks(draft, "mesh.pp", v)),
    (&["expert_model_parallel_size", "expert_parallel_size", "dist_config.ep_size"], |draft, v| {
        ranks(draft, "mesh.ep", v)
    }),
    (&["sequence_parallel"], |draft, v| flag(v).map(|on| draft.set("mesh.sequence_parallel", on))),
    (&["dp_shard_size", "data_parallel_shard_dim"], |draft, v| match v.as_i64() {
        Some(ranks) if ranks > 1 => {
            draft.set("mesh.dp", ranks);
            draft.set("mesh.sharding", "optim_grads_params");
            Ok(())
        }
        _ => Ok(()),
    }),
    (&["dp_replicate_size", "data_parallel_replicate_dim"], |_, v| match int(v)? {
        1 => Ok(()),
        copies => Err(format!("mesh.dp counts all ranks with the same weights; times {copies} here")),
    }),
    (
        &[
            "context_parallel_size",
            "context_parallel_degree",
            "context_parallel_dim",
            "sequence_parallel_degree",
            "cp_size",
        ],
        |draft, v| ranks(draft, "mesh.cp", v),
    ),
    (&["save_steps"], |draft, v| match float(v)? {
        part if part < 1.0 => Err("is a share of the steps; checkpoint.every_steps counts them".into()),
        steps => {
            draft.set("checkpoint.every_steps", steps as i64);
            Ok(())
        }
    }),
    (&["save_total_limit", "checkpointer.keep_last_n_checkpoints"], |draft, v| {
        int(v).map(|v| draft.set("checkpoint.keep", v as i64))
    }),
    (&["saves_per_epoch", "evals_per_epoch", "eval_steps"], |_, _| {
        Err("checkpoints are every checkpoint.every_s seconds or every_steps steps".into())
    }),
];

const ROUNDED_ADAPTER: &str =
    "an adapter leaves the model's weights as they are and is not rounded (precision.qat)";

fn decays(draft: &mut Draft, name: &str) -> Said {
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

fn ranks(draft: &mut Draft, path: &str, value: &Value) -> Said {
    match int(value)? {
        1 => {}
        ranks => draft.set(path, ranks as i64),
    }
    Ok(())
}

/// A key of the adapter; says nothing where none is trained, as in the other tools.
fn adapts(draft: &mut Draft, key: &str, to: impl Into<toml_edit::Value>) -> Said {
    if draft.adapter.is_some() {
        draft.set(&format!("adapter.{key}"), to);
    }
    Ok(())
}

fn targets(draft: &mut Draft, value: &Value) -> Said {
    match value {
        Value::String(text) if text == "all" || text == "all-linear" => {
            adapts(draft, "targets", "all-linear")
        }
        // A regular expression.
        Value::String(text) if text.contains(|char| "\\*+?()[]|^$".contains(char)) => {
            adapts(draft, "targets", text.as_str())
        }
        other => {
            let list = names(other)?;
            if list == ["all"] || list == ["all-linear"] {
                return adapts(draft, "targets", "all-linear");
            }
            // torchtune's name for it.
            let name = |name: &String| match name.starts_with("experts.") {
                true => format!("mlp.{name}"),
                false => name.replace("output_proj", "o_proj"),
            };
            draft.targets.extend(list.iter().map(name));
            Ok(())
        }
    }
}

/// axolotl's list of data sets.
fn datasets(draft: &mut Draft, value: &Value) -> Said {
    let one = std::slice::from_ref(value);
    let sets = match value {
        Value::Array(sets) => sets.as_slice(),
        _ => one,
    };
    let mut files = Vec::new();
    for set in sets {
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

/// Files of rows, or the names of data sets, which are none.
fn paths(draft: &mut Draft, names: Vec<String>) -> Said {
    let (files, others): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| is_file(name));
    draft.paths.extend(files);
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
