//! What the keys of other tools say here.
//!
//! Names that two tools share mean the same in both. Sources: axolotl's configuration reference, LLaMA-Factory's arguments, torchtune's
//! shipped recipes, and the arguments of Transformers' and TRL's trainers and of PEFT's `LoraConfig`.

use serde_json::Value;
use toml_edit::Array;

use super::draft::Draft;

type Said = Result<(), String>;
/// What a value of a key says.
type Rule = fn(&mut Draft, &Value) -> Said;

/// Keys whose `false` or `null` says something.
pub(super) const MEANS_OFF: &[&str] =
    &["bf16", "completion_only_loss", "bnb_4bit_use_double_quant", "double_quantization"];

/// Keys that change nothing here: Fathom does so by itself, or has no choice where the other tool has one.
const IMPLIED: &[&str] = &[
    // Models and tokenizers come from the folder alone, and no code from it is run.
    "base_model_config",
    "model_type",
    "tokenizer_type",
    "tokenizer_config",
    "trust_remote_code",
    "use_fast_tokenizer",
    "tokenizer._component_",
    "tokenizer.path",
    "tokenizer.merges_file",
    "tokenizer.prompt_template",
    "model._component_",
    "checkpointer._component_",
    "checkpointer.checkpoint_files",
    "checkpointer.model_type",
    "checkpointer.recipe_checkpoint",
    "is_llama_derived_model",
    "is_mistral_derived_model",
    "is_qwen_derived_model",
    "strict",
    // Attention, losses and kernels have one form.
    "flash_attention",
    "flash_attn",
    "attn_implementation",
    "xformers_attention",
    "sdp_attention",
    "eager_attention",
    "s2_attention",
    "torch_compile",
    "compile",
    "use_liger_kernel",
    "use_liger_loss",
    "enable_liger_kernel",
    "plugins",
    "liger_rope",
    "liger_rms_norm",
    "liger_swiglu",
    "liger_glu_activation",
    "liger_layer_norm",
    "liger_fused_linear_cross_entropy",
    "unsloth_cross_entropy_loss",
    "loss._component_",
    "loss.num_output_chunks",
    "tf32",
    "cuda_graphs",
    "optimizer.fused",
    "lora_mlp_kernel",
    "lora_qkv_kernel",
    "lora_o_kernel",
    "cudnn_deterministic_mode",
    "device",
    "accelerator_config",
    "ddp_timeout",
    "ddp_find_unused_parameters",
    "gradient_checkpointing_kwargs.use_reentrant",
    "clip_grad_norm_foreach",
    "optimizer_in_bwd",
    // Padding does not exist: samples are packed streams.
    "pad_to_sequence_len",
    "group_by_length",
    "eval_sample_packing",
    "pad_to_multiple_of",
    "padding_free",
    "neat_packing",
    "remove_unused_columns",
    "dataset.split",
    "packing_strategy",
    "sample_packing_eff_est",
    // Logs and reports are always written, preprocessing is kept and verified.
    "logging_steps",
    "logging_dir",
    "logging_strategy",
    "log_every_n_steps",
    "log_level",
    "log_peak_memory_stats",
    "plot_loss",
    "report_to",
    "overwrite_output_dir",
    "overwrite_cache",
    "preprocessing_num_workers",
    "dataset_prepared_path",
    "dataset_num_proc",
    "dataset_processes",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "resume_from_checkpoint",
    "auto_resume_from_checkpoints",
    "do_train",
    "do_eval",
    "save_safetensors",
    "save_strategy",
    "save_only_model",
    "eval_strategy",
    "evaluation_strategy",
    "include_num_input_tokens_seen",
    "local_rank",
    "debug",
    "include_tokens_per_second",
    "wandb_project",
    "wandb_entity",
    "wandb_watch",
    "wandb_name",
    "wandb_run_id",
    "wandb_log_model",
    "run_name",
    "metric_logger._component_",
    "metric_logger.log_dir",
    "metric_logger.project",
    "profiler._component_",
    "profiler.enabled",
    "checkpointer.output_dir",
    "push_to_hub",
    "per_device_eval_batch_size",
    "eval_batch_size",
    "bnb_4bit_quant_type",
    "bnb_4bit_compute_dtype",
    "quantization_method",
    "task_type",
    "lora_task_type",
    "lora_bias",
    "lora_fan_in_fan_out",
    "adapter_init",
    "lr_scheduler._component_",
    "optimizer_args",
    "train_on_eos",
    "roles_to_train",
    "generate_during_eval",
];

/// A key that changes nothing here.
pub(super) fn is_implied(key: &str) -> bool {
    IMPLIED.contains(&key)
}

/// Keys of the same meaning, and what their values say.
pub(super) const RULES: &[(&[&str], Rule)] = &[
    (&["base_model", "model_name_or_path", "checkpointer.checkpoint_dir"], |draft, v| {
        text(v).map(|v| draft.set("model.from", v))
    }),
    (&["output_dir"], |draft, v| text(v).map(|v| draft.set("run.out", v))),
    (&["seed"], |draft, v| int(v).map(|v| draft.set("run.seed", v as i64))),
    // Data.
    (&["datasets"], |draft, v| datasets(draft, v)),
    (
        &["dataset", "dataset_name", "dataset.source", "dataset.data_files", "data_files", "dataset_path"],
        |draft, v| {
            let names = text(v)?;
            names.split(',').try_for_each(|name| path(draft, name.trim()))
        },
    ),
    (&["train_on_inputs", "train_on_prompt", "dataset.train_on_input"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.set("data.supervise", "all")
            }
        })
    }),
    (&["mask_history"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.set("data.supervise", "last_turn")
            }
        })
    }),
    (&["completion_only_loss"], |draft, v| {
        flag(v).map(|on| {
            if !on {
                draft.set("data.supervise", "all")
            }
        })
    }),
    (&["assistant_only_loss"], |_, v| flag(v).map(drop)),
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
    (&["shuffle", "dataset.shuffle"], |draft, v| flag(v).map(|on| draft.set("data.shuffle", on))),
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
        |draft, v| int(v).map(|v| draft.set("stage.0.seq_tokens", v as i64)),
    ),
    (&["sample_packing", "packing", "dataset.packed"], |draft, v| flag(v).map(|on| draft.packed = on)),
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
    (&["max_steps", "max_steps_per_epoch"], |draft, v| match v.as_i64() {
        Some(steps) if steps > 0 => {
            draft.steps = Some(steps as u64);
            Ok(())
        }
        _ => Ok(()),
    }),
    // Adapters.
    (&["adapter", "finetuning_type"], |draft, v| match text(v)? {
        "full" => Ok(()),
        "lora" => {
            draft.adapter.get_or_insert("lora");
            Ok(())
        }
        "qlora" => {
            draft.adapter.get_or_insert("lora");
            draft.bits = Some(4);
            Ok(())
        }
        other => Err(format!(
            "`{other}` is no method that has a recipe; adapter.method and model.trained say which weights are trained"
        )),
    }),
    (&["use_peft", "use_lora"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.adapter.get_or_insert("lora");
            }
        })
    }),
    (&["lora_r", "lora_rank", "model.lora_rank"], |draft, v| {
        draft.adapter.get_or_insert("lora");
        int(v).map(|v| draft.set("adapter.rank", v as i64))
    }),
    (&["lora_alpha", "model.lora_alpha"], |draft, v| {
        draft.adapter.get_or_insert("lora");
        float(v).map(|v| draft.set("adapter.alpha", v))
    }),
    (&["lora_dropout", "model.lora_dropout"], |draft, v| match float(v)? {
        0.0 => Ok(()),
        rate => {
            draft.set("adapter.dropout", rate);
            Ok(())
        }
    }),
    (&["lora_target_modules", "lora_target", "model.lora_attn_modules"], |draft, v| {
        let names: Vec<String> = match v {
            Value::Array(list) => list.iter().filter_map(|name| name.as_str().map(str::to_string)).collect(),
            other => text(other)?.split(',').map(|name| name.trim().to_string()).collect(),
        };
        match names.as_slice() {
            [one] if one == "all" || one == "all-linear" => draft.set("adapter.targets", "all-linear"),
            // torchtune's name for it.
            many => draft.set(
                "adapter.targets",
                many.iter().map(|name| name.replace("output_proj", "o_proj")).collect::<Array>(),
            ),
        }
        Ok(())
    }),
    (&["lora_target_linear"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.set("adapter.targets", "all-linear")
            }
        })
    }),
    (&["model.apply_lora_to_mlp"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.set("adapter.targets", "all-linear")
            }
        })
    }),
    (&["use_dora", "lora_use_dora", "peft_use_dora", "model.use_dora"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.adapter = Some("dora")
            }
        })
    }),
    (&["use_rslora", "lora_use_rslora", "peft_use_rslora"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.adapter = Some("rslora")
            }
        })
    }),
    (&["pissa_init"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.adapter = Some("pissa")
            }
        })
    }),
    (&["loraplus_lr_ratio"], |draft, v| float(v).map(|v| draft.set("adapter.lr_ratio", v))),
    (&["load_in_4bit", "model.quantize_base"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.bits = Some(4)
            }
        })
    }),
    (&["load_in_8bit"], |draft, v| {
        flag(v).map(|on| {
            if on {
                draft.bits = Some(8)
            }
        })
    }),
    (&["quantization_bit"], |draft, v| int(v).map(|v| draft.bits = Some(v))),
    (&["double_quantization", "bnb_4bit_use_double_quant"], |draft, v| {
        flag(v).map(|on| draft.set("model.double_quant", on))
    }),
    // The optimizer.
    (&["learning_rate", "optimizer.lr"], |draft, v| float(v).map(|v| draft.set("optimizer.lr", v))),
    (&["weight_decay", "optimizer.weight_decay"], |draft, v| {
        float(v).map(|v| draft.set("optimizer.weight_decay", v))
    }),
    (&["adam_beta1"], |draft, v| float(v).map(|v| draft.set("optimizer.beta1", v))),
    (&["adam_beta2"], |draft, v| float(v).map(|v| draft.set("optimizer.beta2", v))),
    (&["adam_epsilon", "optimizer.eps"], |draft, v| float(v).map(|v| draft.set("optimizer.eps", v))),
    (&["max_grad_norm", "clip_grad_norm"], |draft, v| float(v).map(|v| draft.set("optimizer.clip", v))),
    (&["optimizer", "optim", "optimizer._component_"], |draft, v| {
        let name = text(v)?.rsplit('.').next().unwrap_or_default().to_lowercase();
        match name.as_str() {
            "adamw" | "adam" | "adamw_torch" | "adamw_torch_fused" | "adamw_hf" => Ok(()),
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
    (&["lr_scheduler", "lr_scheduler_type"], |draft, v| match text(v)? {
        "cosine" | "cosine_with_min_lr" => {
            draft.set("schedule.decay", "cosine");
            Ok(())
        }
        "linear" => {
            draft.set("schedule.decay", "linear");
            Ok(())
        }
        "constant" | "constant_with_warmup" => {
            draft.set("schedule.decay", "constant");
            Ok(())
        }
        "warmup_stable_decay" => {
            draft.set("schedule.decay", "wsd");
            Ok(())
        }
        other => Err(format!("`{other}` is none of cosine, linear, wsd and constant (schedule.decay)")),
    }),
    (&["warmup_steps", "lr_scheduler.num_warmup_steps"], |draft, v| match float(v)? {
        share if share < 1.0 => {
            draft.warmup_share = Some(share);
            Ok(())
        }
        steps => {
            draft.set("schedule.warmup_steps", steps as i64);
            Ok(())
        }
    }),
    (&["warmup_ratio"], |draft, v| float(v).map(|v| draft.warmup_share = Some(v))),
    (&["cosine_min_lr_ratio", "min_lr_rate"], |draft, v| {
        float(v).map(|v| draft.set("schedule.final_share", v))
    }),
    // Types, memory and ranks.
    (&["bf16", "pure_bf16", "bfloat16"], |draft, v| {
        if *v == Value::Bool(false) {
            draft.set("model.precision", "f32")
        } else {
            draft.set("model.precision", "bf16")
        }
        Ok(())
    }),
    (&["fp16", "float16"], |_, _| Err("weights are bf16 or f32 (model.precision)".into())),
    (&["dtype", "torch_dtype"], |draft, v| match text(v)? {
        "bf16" | "bfloat16" => {
            draft.set("model.precision", "bf16");
            Ok(())
        }
        "fp32" | "float32" => {
            draft.set("model.precision", "f32");
            Ok(())
        }
        "auto" => Ok(()),
        other => Err(format!("weights are bf16 or f32 (model.precision), not {other}")),
    }),
    (&["gradient_checkpointing", "enable_activation_checkpointing"], |draft, v| {
        if *v != Value::Bool(false) {
            draft.set("activations.recompute_granularity", "full")
        }
        Ok(())
    }),
    (&["enable_activation_offloading", "activation_offloading"], |draft, v| {
        if *v != Value::Bool(false) {
            draft.set("activations.offload_modules", Array::from_iter(["block"]))
        }
        Ok(())
    }),
    (&["tensor_parallel_size", "tensor_parallel_dim"], |draft, v| {
        int(v).map(|v| draft.set("mesh.tp", v as i64))
    }),
    (
        &[
            "context_parallel_size",
            "context_parallel_degree",
            "context_parallel_dim",
            "sequence_parallel_degree",
        ],
        |draft, v| int(v).map(|v| draft.set("mesh.cp", v as i64)),
    ),
    (&["deepspeed", "fsdp", "fsdp_config", "fsdp_version"], |_, _| {
        Err("how ranks share the work is mesh.dp, mesh.tp, mesh.cp, mesh.pp and mesh.sharding".into())
    }),
    (&["save_steps"], |draft, v| int(v).map(|v| draft.set("checkpoint.every_steps", v as i64))),
    (&["save_total_limit"], |draft, v| int(v).map(|v| draft.set("checkpoint.keep", v as i64))),
    (&["saves_per_epoch", "evals_per_epoch", "eval_steps"], |_, _| {
        Err("checkpoints are every checkpoint.every_s seconds or every_steps steps".into())
    }),
    // Preferences and rewards.
    (&["rl", "stage"], |draft, v| method(draft, text(v)?)),
    (&["beta", "rl_beta", "dpo_beta", "pref_beta", "kto_beta", "orpo_alpha", "cpo_alpha"], |draft, v| {
        float(v).map(|v| draft.set("objective.beta", v))
    }),
    (&["loss_type", "pref_loss"], |draft, v| {
        match text(v)? {
            other @ ("orpo" | "simpo" | "kto_pair") => return method(draft, other),
            loss => {
                draft.method.get_or_insert("dpo");
                draft.loss = Some(loss.to_string())
            }
        }
        Ok(())
    }),
    (&["label_smoothing", "dpo_label_smoothing"], |draft, v| {
        float(v).map(|v| draft.set("objective.label_smoothing", v))
    }),
    (&["simpo_gamma"], |draft, v| float(v).map(|v| draft.set("objective.gamma", v))),
    (&["desirable_weight", "kto_desirable_weight", "kto_chosen_weight"], |draft, v| {
        float(v).map(|v| draft.set("objective.desirable_weight", v))
    }),
    (&["undesirable_weight", "kto_undesirable_weight", "kto_rejected_weight"], |draft, v| {
        float(v).map(|v| draft.set("objective.undesirable_weight", v))
    }),
    (&["num_generations", "trl.num_generations"], |draft, v| {
        draft.method = Some("grpo");
        int(v).map(|v| draft.set("rl.answers", v as i64))
    }),
    (&["max_completion_length", "trl.max_completion_length"], |draft, v| {
        int(v).map(|v| draft.set("rl.max_answer_tokens", v as i64))
    }),
    (&["epsilon"], |draft, v| float(v).map(|v| draft.set("rl.epsilon", v))),
    (&["epsilon_high"], |draft, v| float(v).map(|v| draft.set("rl.epsilon_high", v))),
    (&["top_entropy_quantile"], |draft, v| float(v).map(|v| draft.set("rl.top_entropy_quantile", v))),
    (&["entropy_coef"], |draft, v| float(v).map(|v| draft.set("rl.entropy_coefficient", v))),
    (&["reward_funcs", "trl.reward_funcs"], |_, _| {
        Err("rewards are named in a file of their own (rl.reward), by rule or by a process".into())
    }),
];

fn method(draft: &mut Draft, name: &str) -> Said {
    draft.method = match name {
        "sft" | "pt" => None,
        "dpo" | "kto" | "orpo" | "simpo" | "grpo" => {
            ["dpo", "kto", "orpo", "simpo", "grpo"].into_iter().find(|own| *own == name)
        }
        "ipo" => {
            draft.loss = Some("ipo".into());
            Some("dpo")
        }
        "rm" | "reward_model" => Some("reward"),
        "ppo" => Some("ppo"),
        other => {
            return Err(format!("`{other}` is no method that has a recipe; `fathom recipes ls` lists them"));
        }
    };
    if name == "pt" {
        return Err(
            "plain text is learned by the recipes `continue` and those of pretraining; this is `sft`".into(),
        );
    }
    Ok(())
}

/// axolotl's list of data sets.
fn datasets(draft: &mut Draft, value: &Value) -> Said {
    let Value::Array(sets) = value else { return Err("is no list".into()) };
    for set in sets {
        let Some(name) = set["path"].as_str() else { return Err("has an entry without a path".into()) };
        if let Some(files) = set["data_files"].as_array() {
            files.iter().filter_map(Value::as_str).try_for_each(|file| path(draft, file))?;
        } else {
            path(draft, name)?;
        }
        let columns = [
            ("field_messages", "messages"),
            ("field_instruction", "prompt"),
            ("field_output", "completion"),
            ("field_system", "system"),
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
    }
    Ok(())
}

/// A file of rows, or the name of a data set, which is not one.
fn path(draft: &mut Draft, name: &str) -> Said {
    let known = [".jsonl", ".json", ".parquet", ".gz", ".zst"].iter().any(|end| name.ends_with(end));
    if !known && !std::path::Path::new(name).exists() {
        return Err(format!(
            "`{name}` is the name of a data set and no file; fetch it, and name its files (data.paths)"
        ));
    }
    draft.paths.push(name.to_string());
    Ok(())
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is no text"))
}

fn int(value: &Value) -> Result<u64, String> {
    value
        .as_u64()
        .or_else(|| value.as_str()?.parse().ok())
        .ok_or_else(|| format!("{value} is no whole number"))
}

/// Python reads `2e-5` as text, and its users know.
fn float(value: &Value) -> Result<f64, String> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).ok_or_else(|| format!("{value} is no number"))
}

fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("{value} is neither true nor false"))
}
