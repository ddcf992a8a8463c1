//! Keys of other tools that have no effect here, and prefixes of those that cannot be translated; the lists are words
//! separated by spaces.

use serde_json::Value;

/// Keys without effect here: Fathom always does so, or offers no choice where the other tool has one.
const IMPLIED: &[&str] = &[
    // Models and tokenizers come from the folder alone, and no code in it is run.
    "base_model_config model_type tokenizer_type tokenizer_config trust_remote_code use_fast_tokenizer \
     tokenizer._component_ tokenizer.path tokenizer.merges_file tokenizer.prompt_template checkpointer._component_ \
     checkpointer.checkpoint_files checkpointer.model_type checkpointer.recipe_checkpoint is_llama_derived_model \
     is_mistral_derived_model is_qwen_derived_model strict",
    // Attention, losses and kernels have one implementation.
    "flash_attention flash_attn attn_implementation xformers_attention sdp_attention eager_attention s2_attention \
     torch_compile compile use_liger_kernel use_liger_loss enable_liger_kernel plugins liger_rope liger_rms_norm \
     liger_swiglu liger_glu_activation liger_layer_norm liger_fused_linear_cross_entropy unsloth_cross_entropy_loss \
     loss.num_output_chunks tf32 cuda_graphs optimizer.fused lora_mlp_kernel lora_qkv_kernel lora_o_kernel \
     cudnn_deterministic_mode device accelerator_config ddp_timeout ddp_find_unused_parameters \
     gradient_checkpointing_kwargs.use_reentrant clip_grad_norm_foreach optimizer_in_bwd",
    // There is no padding: samples are packed streams.
    "pad_to_sequence_len group_by_length eval_sample_packing pad_to_multiple_of padding_free neat_packing \
     remove_unused_columns dataset.split sample_packing_eff_est",
    // Logs and reports are always written; preprocessed data is kept and verified.
    "logging_steps logging_dir logging_strategy log_every_n_steps log_level log_peak_memory_stats plot_loss \
     overwrite_output_dir overwrite_cache preprocessing_num_workers dataset_prepared_path dataset_num_proc \
     dataset_processes dataloader_num_workers dataloader_pin_memory \
     do_train do_eval save_safetensors save_strategy save_only_model eval_strategy evaluation_strategy \
     include_num_input_tokens_seen local_rank debug include_tokens_per_second run_name \
     profiler._component_ profiler.enabled checkpointer.output_dir per_device_eval_batch_size eval_batch_size \
     bnb_4bit_compute_dtype task_type lora_task_type lora_fan_in_fan_out adapter_init generate_during_eval",
    // Names of other tools' own classes and files.
    "model_class processor_type model_init_kwargs.torch_dtype model_init_kwargs.dtype tokenizer_use_fast tokenizer_legacy \
     tokenizer_use_mistral_common tokenizer.vocab_path tokenizer.merges_path tokenizer.special_tokens_path cls_model_config \
     low_cpu_mem_usage low_cpu_ram device_map torchdistx_path torch_compile_mode torch_compile_backend use_kernels \
     use_v1_kernels experts_implementation use_scattermoe use_sonicmoe moe_grouped_gemm moe_token_dispatcher_type \
     bias_activation_fusion apply_rope_fusion overlap_param_gather overlap_grad_reduce use_distributed_optimizer \
     fused_attn_kernel cut_cross_entropy lora_embedding_kernel llama4_linearized_experts experimental_skip_move_to_device \
     quantize_moe_experts resize_token_embeddings_to_32x custom_sharded_layers use_reentrant_gc dist_config.dcp_path \
     bf16_full_eval downcast_bf16",
    // Samples, tiles and padding.
    "tiled_mlp pad_to_max_length padding_value label_pad_token_id multipack_real_batches \
     sample_packing_seq_len_multiplier sample_packing_group_size sample_packing_bin_size batch_flattening total_num_tokens \
     batching_strategy dataset_kwargs.skip_prepare_dataset skip_prepare_dataset shuffle_merged_datasets \
     disable_dropout bnb_4bit_quant_storage",
    // Logs.
    "logging_first_step log_completions num_completions_to_print log_unique_prompts log_multimodal save_first_step name sample_backend batch_size_val dataset_val._component_ run_val_every_n_steps \
     save_every_n_epochs save_adapter_weights_only use_distributed_state_dict enable_kv_cache eval_packing eval_on_start \
     forward_batch_size init_config.name",
];

/// Prefixes of keys without effect here.
const IMPLIED_UNDER: &[&str] = &["profiler. vllm_ vllm. use_vllm liger_ kernel_config. \
     flash_attn_ flex_attn_ gradient_checkpointing_kwargs. accelerator_config. tokenizer_config. \
     checkpointer.checkpoint_files. tensor_parallel_plan. fsdp_ fsdp. ds_ policy_model. reward_and_value_model. \
     model.vocab_size model.num_ model.embed_dim model.max_seq_len model.attn_dropout model.norm_eps model.intermediate_dim \
     teacher_model. dataloader."];

/// Suffixes of keys without effect here: folders and formats of checkpoints other than the policy's.
const IMPLIED_ENDS: &[&str] = &[
    "checkpointer._component_ checkpointer.checkpoint_files checkpointer.recipe_checkpoint checkpointer.output_dir \
     checkpointer.model_type checkpoint_files.filename_format checkpoint_files.max_filename",
];

/// Keys with the values that have no effect here, and the reason for other values.
const ONLY: &[(&str, &[&str], &str)] = &[
    ("train_on_eos", &["turn"], "the end of each turn that is learned is learned"),
    ("roles_to_train", &["assistant", "gpt", "model"], "the model's own words are learned"),
    ("bias", &["none"], "an adapter leaves biases as they are"),
    ("lora_bias", &["none"], "an adapter leaves biases as they are"),
    ("bnb_4bit_quant_type", &["nf4"], "a base in four bits is NF4 (model.quantization)"),
    (
        "quantization_method",
        &["bnb", "bitsandbytes"],
        "a base is rounded to NF4 or int8 (model.quantization)",
    ),
];

/// Returns the reason why a value of a key in [`ONLY`] cannot be translated, or `Some(None)` for a value without
/// effect; `None` for other keys.
pub(in crate::foreign) fn only(key: &str, value: &Value) -> Option<Option<&'static str>> {
    let (_, values, why) = ONLY.iter().find(|(name, ..)| *name == key)?;
    let given = match value {
        Value::Array(list) => list.clone(),
        value => vec![value.clone()],
    };
    let known =
        |value: &Value| value.as_str().is_some_and(|word| values.contains(&word.to_lowercase().as_str()));
    Some((!given.iter().all(known)).then_some(why))
}

/// Prefixes of keys that cannot be translated, with the reason.
const UNSAID_UNDER: &[(&str, &str)] = &[
    ("dataset_exact_deduplication", "rows are learned as they are; leave copies out of the file"),
    ("special_tokens.pad_token", PADDING),
    ("pad_token", PADDING),
    ("resume_from_checkpoint", RESUME),
    ("auto_resume_from_checkpoints", RESUME),
    ("metric_logger.", LOGS),
    ("wandb_", LOGS),
    ("swanlab_", LOGS),
    ("mlflow_", LOGS),
    ("comet_", LOGS),
    ("trackio_", LOGS),
    ("otel_", LOGS),
    ("use_tensorboard", LOGS),
    ("use_mlflow", LOGS),
    ("use_wandb", LOGS),
    ("use_swanlab", LOGS),
    ("use_comet", LOGS),
    ("use_trackio", LOGS),
    ("use_otel_metrics", LOGS),
    ("log_completions_hub_repo", HUB),
    ("push_to_hub", HUB),
    ("push_dataset_to_hub", HUB),
    ("hub_", HUB),
    ("hf_use_auth_token", HUB),
    ("special_tokens.", TOKENS),
    ("tokens.", TOKENS),
    ("eos_token", TOKENS),
    ("eot_tokens", "an answer ends where the chat template ends a turn"),
    ("dist_config.", "how ranks share the work is mesh.dp, mesh.tp, mesh.cp, mesh.pp and mesh.sharding"),
    ("fsdp_config.fsdp_offload_params", OFFLOAD),
    ("fsdp_config.offload_params", OFFLOAD),
    ("fsdp_cpu_offload", OFFLOAD),
    ("image_", PICTURES),
    ("video_", PICTURES),
    ("freeze_vision_tower", PICTURES),
    ("freeze_multi_modal_projector", PICTURES),
    ("model.image_size", PICTURES),
    ("model.encoder_trainable", PICTURES),
    ("model.fusion_trainable", PICTURES),
    ("tokenizer.image_size", PICTURES),
    ("tokenizer.max_num_tiles", PICTURES),
    ("export_", "a model is written by `fathom export`"),
    ("ebft.", METHOD),
    ("diffusion.", METHOD),
    ("oft_", METHOD),
    ("relora", METHOD),
    ("lisa_", METHOD),
    ("apollo_", OPTIMIZER),
    ("galore_", OPTIMIZER),
    ("badam_", OPTIMIZER),
    ("optim_config.", OPTIMIZER),
    ("use_kt", KTRANSFORMERS),
    ("kt_", KTRANSFORMERS),
    ("orchestration.", WORKERS),
    ("inference.", WORKERS),
    ("postprocessing.", WORKERS),
    ("llmcompressor.", "weights are pruned by `fathom prune`, before a run"),
];
const TOKENS: &str = "special tokens are those of the tokenizer in model.from";
const PADDING: &str =
    "samples are packed, and nothing is padded; the tokenizer in model.from keeps its token";
const RESUME: &str = "the same command on the same run.out goes on from its last checkpoint; those of other tools are not read";
pub(super) const LOGS: &str =
    "curves are in run.out (metrics.jsonl, report.html, TensorBoard's files); no service is sent any";
const HUB: &str = "nothing is uploaded; the run's model folder, or what `fathom export` writes, can be";
const OFFLOAD: &str =
    "weights and optimizer state are offloaded by machine.offload_weights and machine.offload_optimizer";
const PICTURES: &str = "models learn from text alone";
const METHOD: &str = "is of a method that has no equal here";
const OPTIMIZER: &str = "is of an optimizer that has no equal here; AdamW was kept";
const KTRANSFORMERS: &str = "is of KTransformers, which has no equal here";
const WORKERS: &str = "one process writes answers and learns from them (rl.behind = 1 does both at once)";

/// Returns whether a key has no effect here.
pub(in crate::foreign) fn is_implied(key: &str) -> bool {
    let any = |lists: &[&str], is: fn(&str, &str) -> bool| {
        lists.iter().flat_map(|list| list.split_whitespace()).any(|word| is(key, word))
    };
    any(IMPLIED, |key, word| key == word)
        || any(IMPLIED_UNDER, |key, start| key.starts_with(start))
        || any(IMPLIED_ENDS, |key, end| key.ends_with(end))
}

/// Returns the name under which a key without a rule is listed (its table's, if one reason covers all of the table),
/// and the reason why it cannot be translated.
pub(in crate::foreign) fn reason(key: &str) -> (&str, String) {
    match UNSAID_UNDER.iter().find(|(start, _)| key.starts_with(start)) {
        Some((start, why)) if start.ends_with('.') && *start != "special_tokens." => {
            (start.trim_end_matches('.'), why.to_string())
        }
        Some((_, why)) => (key, why.to_string()),
        None => (key, "has no equal here that this command knows".to_string()),
    }
}
