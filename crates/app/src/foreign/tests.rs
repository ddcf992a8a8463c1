//! Files as the tools' own examples have them.

use super::*;

fn says(text: &str) -> (Translated, toml_edit::DocumentMut) {
    let translated = translate(text).unwrap();
    let recipe = translated.recipe.parse().unwrap();
    (translated, recipe)
}

fn unsaid(translated: &Translated) -> Vec<&str> {
    translated.unsaid.iter().map(|(key, _)| key.as_str()).collect()
}

#[test]
fn an_axolotl_file_of_qlora() {
    let (translated, recipe) = says(
        "base_model: models/llama
load_in_4bit: true
strict: false
datasets:
  - path: rows.jsonl
    type: chat_template
    field_messages: talk
    message_property_mappings: {role: who, content: what}
val_set_size: 0.05
output_dir: ./outputs/qlora-out
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
sequence_len: 4096
sample_packing: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: paged_adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
weight_decay: 0.0
special_tokens:
  pad_token: <|end_of_text|>
",
    );
    assert_eq!((translated.tool, translated.base), (Tool::Axolotl, "qlora"));
    assert_eq!(unsaid(&translated), ["optimizer"]);
    assert_eq!(recipe["model"]["quantization"].as_str(), Some("nf4"));
    assert_eq!(recipe["model"]["from"].as_str(), Some("models/llama"));
    assert_eq!(recipe["adapter"]["rank"].as_integer(), Some(32));
    assert_eq!(recipe["adapter"]["alpha"].as_float(), Some(16.0));
    assert_eq!(recipe["adapter"]["dropout"].as_float(), Some(0.05));
    assert_eq!(recipe["optimizer"]["lr"].as_float(), Some(2e-4));
    assert_eq!(recipe["stage"][0]["seq_tokens"].as_integer(), Some(4096));
    assert_eq!(recipe["stage"][0]["micro_batches"].as_integer(), Some(8));
    assert_eq!(recipe["stage"][0]["packing"].as_str(), Some("best_fit"));
    assert_eq!(recipe["stage"][0]["epochs"].as_integer(), Some(4));
    assert_eq!(recipe["data"]["columns"]["role"].as_str(), Some("who"));
    assert_eq!(recipe["data"]["paths"][0].as_str(), Some("rows.jsonl"));
}

#[test]
fn a_llama_factory_file_of_dpo() {
    let (translated, recipe) = says(
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
pref_beta: 0.1
pref_loss: sigmoid
dataset: dpo_en_demo
template: llama3
cutoff_len: 2048
output_dir: saves/llama3-8b/lora/dpo
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 5.0e-6
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
",
    );
    assert_eq!((translated.tool, translated.base), (Tool::LlamaFactory, "dpo"));
    assert_eq!(unsaid(&translated), ["dataset", "template", "warmup_ratio"]);
    assert_eq!(recipe["adapter"]["method"].as_str(), Some("lora"));
    assert_eq!(recipe["adapter"]["targets"].as_str(), Some("all-linear"));
    assert_eq!(recipe["objective"]["loss"].as_str(), Some("sigmoid"));
    assert_eq!(recipe["schedule"]["decay"].as_str(), Some("cosine"));
}

#[test]
fn a_torchtune_file_and_one_of_trl() {
    let (translated, recipe) = says(
        "output_dir: /tmp/out
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 8
  lora_alpha: 16
  lora_dropout: 0.0
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: null
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/Meta-Llama
  checkpoint_files: [a, b]
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: False
seed: 3
batch_size: 2
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 3e-4
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 100
epochs: 1
max_steps_per_epoch: 50
enable_activation_checkpointing: False
dtype: bf16
",
    );
    assert_eq!((translated.tool, translated.base), (Tool::Torchtune, "lora"));
    assert_eq!(unsaid(&translated), ["dataset._component_"]);
    let targets: Vec<&str> =
        recipe["adapter"]["targets"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    assert_eq!(targets, ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]);
    assert_eq!(recipe["schedule"]["decay"].as_str(), Some("cosine"));
    assert_eq!(recipe["optimizer"]["clip"].as_str(), Some("none"));
    assert_eq!(recipe["schedule"]["warmup_steps"].as_integer(), Some(100));
    assert_eq!(recipe["stage"][0]["steps"].as_integer(), Some(50));
    assert!(recipe["stage"][0].get("epochs").is_none());
    let (translated, recipe) = says(
        "model_name_or_path: m\nmax_length: 1024\nper_device_train_batch_size: 8\nmax_steps: 200\nwarmup_ratio: 0.05\nuse_peft: false\nmade_up: 3\n",
    );
    assert_eq!((translated.tool, translated.base), (Tool::Trl, "sft"));
    assert_eq!(unsaid(&translated), ["made_up"]);
    assert_eq!(recipe["schedule"]["warmup_steps"].as_integer(), Some(10));
    assert_eq!(recipe["stage"][0]["packing"].as_str(), Some("single"));
}

#[test]
fn what_is_none_of_them_is_refused() {
    for (text, why) in
        [("a: [", "no YAML"), ("- a", "no mapping"), ("x: 1", "has no key by which"), ("", "documents")]
    {
        let error = translate(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

/// A value of a recipe by its path, as TOML has it.
fn at(recipe: &toml_edit::DocumentMut, path: &str) -> String {
    let mut item = recipe.as_item();
    for part in path.split('.') {
        let inner = match part.parse::<usize>() {
            Ok(index) => item.get(index),
            Err(_) => item.get(part),
        };
        item = inner.unwrap_or_else(|| panic!("{path} is not said:\n{recipe}"));
    }
    item.to_string().trim().to_string()
}

/// Files, the recipes they are written over, what these say, and the keys that are named as not said.
fn cases(cases: &[(&str, &str, &[(&str, &str)], &[&str])]) {
    for (text, base, values, left) in cases {
        let (translated, recipe) = says(text);
        assert_eq!(translated.base, *base, "{text}");
        for (path, value) in *values {
            assert_eq!(at(&recipe, path), *value, "{path} of\n{text}");
        }
        assert_eq!(unsaid(&translated), *left, "{text}: {:?}", translated.unsaid);
    }
}

/// The lines of a file in the other order say the same.
#[test]
fn the_order_of_keys_does_not_matter() {
    let files = [
        "model_name_or_path: m\nloss_type: dr_grpo\nbeta: 0.04\nnum_generations: 4\nscale_rewards: false\nmax_steps: 5\n",
        "model_name_or_path: m\nloss_type: kto\nbeta: 0.2\nuse_peft: true\nlora_r: 4\nwarmup_ratio: 0.1\nmax_steps: 100\n",
        "base_model: m\nrl: ipo\nrl_beta: 0.3\nadapter: qlora\nlora_r: 4\nload_in_4bit: true\nlora_target_linear: true\n",
        "model_name_or_path: m\nstage: ppo\nppo_buffer_size: 2\ngradient_accumulation_steps: 4\nper_device_train_batch_size: 2\nmax_steps: 9\n",
    ];
    for file in files {
        let lines: Vec<&str> = file.lines().rev().collect();
        assert_eq!(translate(file).unwrap().recipe, translate(&lines.join("\n")).unwrap().recipe, "{file}");
    }
}

#[test]
fn rewards_of_trl() {
    let start = "model_name_or_path: m\nmax_steps: 7\n";
    let grpo = |rest: &str| format!("{start}{rest}");
    cases(&[
        (
            &grpo(
                "num_generations: 4\nloss_type: dr_grpo\nbeta: 0.04\nscale_rewards: none\nnum_iterations: 2\nepsilon: 0.1\nepsilon_high: 0.3
delta: 2.0\ntemperature: 0.9\ntop_p: 0.95\ntop_k: 40\nmask_truncated_completions: true\nuse_bias_correction_kl: false
max_completion_length: 300\nmax_prompt_length: 200\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 8
steps_per_generation: 16\ntop_entropy_quantile: 0.2\nentropy_coef: 0.01\nuse_vllm: true\nvllm_mode: colocate
vllm_importance_sampling_mode: token_mask\nvllm_importance_sampling_clip_max: 2.0\nreward_funcs: [a.b]\nreward_weights: [1.0]
",
            ),
            "grpo",
            &[
                ("rl.loss", "\"dr_grpo\""),
                ("rl.beta", "0.04"),
                ("rl.advantage", "\"mean\""),
                ("rl.epochs", "2"),
                ("rl.epsilon", "0.1"),
                ("rl.epsilon_high", "0.3"),
                ("rl.delta", "2.0"),
                ("rl.temperature", "0.9"),
                ("rl.top_p", "0.95"),
                ("rl.top_k", "40"),
                ("rl.mask_truncated", "true"),
                ("rl.kl_corrected", "false"),
                ("rl.max_answer_tokens", "300"),
                ("stage.0.seq_tokens", "500"),
                ("rl.answers", "4"),
                ("rl.prompts", "8"),
                ("rl.minibatches", "2"),
                ("stage.0.samples_per_micro_batch", "2"),
                ("stage.0.steps", "7"),
                ("rl.top_entropy_quantile", "0.2"),
                ("rl.entropy_coefficient", "0.01"),
                ("rl.importance_sampling_mode", "\"token_mask\""),
                ("rl.importance_sampling_clip_max", "2.0"),
            ],
            &["reward_funcs", "reward_weights"],
        ),
        // Nothing but a loss: TRL's own values.
        (
            &grpo("loss_type: grpo\nimportance_sampling_level: sequence\n"),
            "grpo",
            &[
                ("rl.loss", "\"gspo\""),
                ("rl.advantage", "\"trl\""),
                ("rl.answers", "8"),
                ("rl.prompts", "1"),
                ("rl.max_answer_tokens", "512"),
                ("rl.importance_sampling_mode", "\"sequence_mask\""),
                ("rl.kl_corrected", "true"),
                ("optimizer.lr", "0.000001"),
            ],
            &[],
        ),
        (
            &grpo("loss_type: sapo\nsapo_temperature_pos: 1.5\nsapo_temperature_neg: 2\nscale_rewards: batch\n"),
            "grpo",
            &[
                ("rl.loss", "\"sapo\""),
                ("rl.sapo_positive", "1.5"),
                ("rl.sapo_negative", "2.0"),
                ("rl.advantage", "\"batch\""),
            ],
            &[],
        ),
        // What there is not, and what a recipe refuses, leaves the rest as it is.
        (
            &grpo("loss_type: vespo\nepsilon: -1\nmulti_objective_aggregation: normalize_then_sum\nmin_p: 0.1\n"),
            "grpo",
            &[("rl.loss", "\"dapo\""), ("rl.advantage", "\"each_then_sum\"")],
            &["min_p", "loss_type", "epsilon"],
        ),
        (
            &grpo("normalize_advantages: true\nnum_generations: 4\nper_device_train_batch_size: 8\n"),
            "rloo",
            &[("rl.loss", "\"rloo\""), ("rl.answers", "4"), ("rl.prompts", "2"), ("rl.beta", "0.05")],
            &["normalize_advantages"],
        ),
        // Passes are not counted in steps; adapters drop nothing while they learn from rewards.
        (
            "model_name_or_path: m\nnum_generations: 8\nuse_peft: true\nlora_target_modules: all-linear\n",
            "grpo",
            &[("adapter.method", "\"lora\""), ("adapter.rank", "16"), ("stage.0.steps", "500")],
            &["num_train_epochs", "lora_dropout"],
        ),
    ]);
}

#[test]
fn preferences_of_trl() {
    let file = |rest: &str| format!("model_name_or_path: m\nper_device_train_batch_size: 4\n{rest}");
    cases(&[
        (
            &file(
                "loss_type: [sigmoid, bco_pair, sft]\nloss_weights: [0.8, 0.2, 1.0]\nmax_length: 512\nprecompute_ref_log_probs: true\n",
            ),
            "dpo",
            &[
                ("objective.loss", "\"auto\""),
                ("objective.losses", "[\"sigmoid\", \"bco_pair\", \"sft\"]"),
                ("objective.loss_weights", "[0.8, 0.2, 1.0]"),
                ("objective.reference", "\"column\""),
                ("stage.0.seq_tokens", "1024"),
                ("stage.0.micro_batches", "4"),
                ("stage.0.epochs", "3"),
            ],
            &[],
        ),
        (
            &file(
                "loss_type: discopop\ndiscopop_tau: 0.1\nf_divergence_type: js_divergence\nld_alpha: 0.5\nuse_weighting: true\nsync_ref_model: true
ref_model_mixup_alpha: 0.7\nref_model_sync_steps: 32\n",
            ),
            "dpo",
            &[
                ("objective.loss", "\"discopop\""),
                ("objective.discopop_tau", "0.1"),
                ("objective.f_divergence", "\"js_divergence\""),
                ("objective.ld_alpha", "0.5"),
                ("objective.use_weighting", "true"),
                ("objective.sync_ref_model", "true"),
                ("objective.ref_model_mixup_alpha", "0.7"),
                ("objective.ref_model_sync_steps", "32"),
            ],
            &[],
        ),
        // A loss without a value that it needs, and one that does not exist.
        (&file("loss_type: exo_pair\n"), "dpo", &[("objective.loss", "\"sigmoid\"")], &["loss_type"]),
        (&file("loss_type: made_up\nbeta: 0.3\n"), "dpo", &[("objective.beta", "0.3")], &["loss_type"]),
        (
            &file("loss_type: kto\nbeta: 0.2\ndesirable_weight: 1.5\ngradient_accumulation_steps: 2\n"),
            "kto",
            &[
                ("objective.method", "\"kto\""),
                ("objective.beta", "0.2"),
                ("objective.desirable_weight", "1.5"),
                ("objective.mismatched_rows", "4"),
                ("objective.kl_over", "\"micro_batch\""),
                ("stage.0.samples_per_micro_batch", "4"),
                ("stage.0.micro_batches", "2"),
                ("data.shuffle", "false"),
            ],
            &[],
        ),
        (
            &file("cpo_alpha: 0.5\nloss_type: hinge\n"),
            "dpo",
            &[("objective.method", "\"cpo\""), ("objective.loss", "\"hinge\""), ("objective.sft_weight", "0.5")],
            &[],
        ),
        (
            &file("loss_type: simpo\nsimpo_gamma: 0.6\ncpo_alpha: 0.0\nalpha: 0.25\n"),
            "simpo",
            &[
                ("objective.beta", "0.1"),
                ("objective.gamma", "0.6"),
                ("objective.alpha", "0.25"),
                ("objective.sft_weight", "0.0"),
            ],
            &[],
        ),
        (
            &file("center_rewards_coefficient: 0.01\n"),
            "reward",
            &[("objective.center_rewards", "0.01"), ("optimizer.lr", "0.0001")],
            &[],
        ),
        (
            &file("teacher_model_name_or_path: t\nlmbda: 0.5\nbeta: 0.25\n"),
            "distill",
            &[
                ("objective.teacher", "\"t\""),
                ("objective.loss", "\"jsd\""),
                ("objective.jsd_beta", "0.25"),
                ("objective.temperature", "0.9"),
                ("objective.kd_ratio", "1.0"),
            ],
            &["lmbda"],
        ),
        (&file("loss_type: dft\n"), "sft", &[("objective.method", "\"dft\"")], &[]),
    ]);
}

#[test]
fn methods_of_axolotl() {
    let file = |rest: &str| format!("base_model: m\nmicro_batch_size: 2\nsequence_len: 1024\n{rest}");
    cases(&[
        (
            &file(
                "rl: gdpo\nmax_steps: 4\ngradient_accumulation_steps: 8\ntrl:\n  beta: 0.001\n  num_generations: 4\n  max_completion_length: 128
  scale_rewards: true\n  top_p: 0.95\n  reward_funcs: [r.f]\n  use_vllm: true\n  vllm_server_port: 8000\n",
            ),
            "grpo",
            &[
                ("rl.advantage", "\"each_then_sum\""),
                ("rl.beta", "0.001"),
                ("rl.answers", "4"),
                ("rl.prompts", "4"),
                ("rl.max_answer_tokens", "128"),
                ("rl.top_p", "0.95"),
                ("stage.0.seq_tokens", "1024"),
                ("schedule.decay", "\"cosine\""),
            ],
            &["trl.reward_funcs"],
        ),
        (
            &file("rl: ipo\nrl_beta: 0.2\ndpo_label_smoothing: 0.1\n"),
            "dpo",
            &[("objective.loss", "\"ipo\""), ("objective.beta", "0.2"), ("stage.0.epochs", "1")],
            &[],
        ),
        (&file("rl: orpo\norpo_alpha: 0.3\n"), "orpo", &[("objective.beta", "0.3")], &[]),
        (&file("rl: simpo\nsimpo_gamma: 0.4\n"), "simpo", &[("objective.sft_weight", "1.0")], &[]),
        (&file("rl: kto\nkto_desirable_weight: 0.2\n"), "kto", &[("objective.desirable_weight", "0.2")], &[]),
        (&file("reward_model: true\n"), "reward", &[("objective.loss", "\"bt\"")], &[]),
        (&file("process_reward_model: true\n"), "reward", &[("objective.loss", "\"process\"")], &[]),
        (&file("rl: ebft\n"), "sft", &[], &["rl"]),
        (
            &file("pretraining_dataset:\n  - path: text.jsonl\n    text_column: body\n"),
            "sft",
            &[
                ("data.format", "\"text\""),
                ("data.text_field", "\"body\""),
                ("data.paths", "[\"text.jsonl\"]"),
                ("stage.0.packing", "\"cut\""),
            ],
            &[],
        ),
        (
            &file("qat:\n  weight_dtype: nvfp4\n  activation_dtype: nvfp4\n  group_size: 16\nunfrozen_parameters: [lm_head]\n"),
            "sft",
            &[("precision.qat", "\"nvfp4\"")],
            &["qat.activation_dtype", "qat.group_size", "unfrozen_parameters"],
        ),
    ]);
}

#[test]
fn methods_of_llama_factory() {
    let file = |rest: &str| format!("model_name_or_path: m\ntemplate: default\n{rest}");
    cases(&[
        (
            &file("stage: pt\nfinetuning_type: full\ndataset: text.jsonl\n"),
            "sft",
            &[("data.format", "\"text\""), ("stage.0.seq_tokens", "2048"), ("optimizer.lr", "0.00005")],
            &[],
        ),
        (
            &file("stage: rm\n"),
            "reward",
            &[("adapter.method", "\"lora\""), ("adapter.rank", "8"), ("adapter.alpha", "16.0")],
            &[],
        ),
        (
            &file("stage: dpo\npref_loss: simpo\nfinetuning_type: full\n"),
            "simpo",
            &[("objective.beta", "0.1"), ("objective.gamma", "0.5")],
            &[],
        ),
        (
            &file("stage: dpo\npref_loss: hinge\npref_ftx: 0.1\nfinetuning_type: full\n"),
            "dpo",
            &[("objective.loss", "\"hinge\""), ("objective.sft_weight", "0.1")],
            &[],
        ),
        (&file("stage: kto\nkto_chosen_weight: 0.7\n"), "kto", &[("objective.desirable_weight", "0.7")], &[]),
        (
            &file("stage: ppo\nreward_model: judge\nmax_new_tokens: 64\nmax_steps: 8\ntop_p: 0.9\n"),
            "ppo",
            &[
                ("rl.loss", "\"ppo\""),
                ("rl.advantage", "\"gae\""),
                ("rl.answers", "1"),
                ("rl.prompts", "8"),
                ("rl.epochs", "4"),
                ("rl.max_answer_tokens", "64"),
                ("rl.top_p", "0.9"),
                ("rl.temperature", "0.95"),
            ],
            &["reward_model"],
        ),
        (&file("stage: sft\nuse_dft_loss: true\n"), "lora", &[("objective.method", "\"dft\"")], &[]),
        (
            "model: m\nmodel_class: llm\npeft_config: {name: lora, r: 4, lora_alpha: 8, target_modules: all}\ntrain_dataset: rows.jsonl
micro_batch_size: 2\ncutoff_len: 512\nlearning_rate: 1.0e-4\nmax_steps: 10\n",
            "lora",
            &[("adapter.rank", "4"), ("adapter.targets", "\"all-linear\""), ("stage.0.seq_tokens", "512")],
            &[],
        ),
    ]);
}

#[test]
fn methods_of_torchtune() {
    let file = |rest: &str| {
        format!("base: /m\ncheckpointer:\n  _component_: a.FullModelHFCheckpointer\n  checkpoint_dir: ${{base}}\nbatch_size: 2\n{rest}")
    };
    cases(&[
        (
            &file("loss:\n  _component_: torchtune.rlhf.loss.DPOLoss\n  beta: 0.05\n  label_smoothing: 0\n"),
            "dpo",
            &[("model.from", "\"/m\""), ("objective.beta", "0.05"), ("optimizer.weight_decay", "0.01")],
            &["base"],
        ),
        (
            &file("loss:\n  _component_: torchtune.dev.grpo.loss.GRPOSimpleLoss\n  kl_coeff: 0.01\n  epsilon: 0.2\ngrpo_samples: 16\nnum_steps: 9\nppo_epochs: 1\n"),
            "grpo",
            &[
                ("rl.loss", "\"grpo\""),
                ("rl.beta", "0.01"),
                ("rl.answers", "16"),
                ("rl.prompts", "2"),
                ("rl.minibatches", "1"),
                ("stage.0.steps", "9"),
            ],
            &["base"],
        ),
        (
            &file("loss:\n  _component_: torchtune.rlhf.loss.PPOLoss\n  value_coeff: 0.2\nppo_batch_size: 1\nnum_steps: 8\nppo_epochs: 3\nkl_coeff: 0.01\nlmbda: 0.9\nmax_generated_tokens: 58\n"),
            "ppo",
            &[
                ("rl.prompts", "2"),
                ("rl.minibatches", "2"),
                ("rl.epochs", "3"),
                ("stage.0.steps", "24"),
                ("rl.value_coefficient", "0.2"),
                ("rl.lambda", "0.9"),
            ],
            &["base"],
        ),
        (
            &file("teacher_checkpointer:\n  checkpoint_dir: /t\nkd_loss:\n  _component_: torchtune.modules.loss.ReverseKLLoss\nkd_ratio: 0.4\n"),
            "distill",
            &[
                ("objective.teacher", "\"/t\""),
                ("objective.loss", "\"bwd_kl\""),
                ("objective.kd_ratio", "0.4"),
            ],
            &["base"],
        ),
        (
            &file("quantizer:\n  _component_: torchtune.training.quantization.Int4WeightOnlyQATQuantizer\ndataset_val: {split: 'train[95%:]'}\n"),
            "sft",
            &[("precision.qat", "\"int4\""), ("data.held_out_share", "0.05"), ("schedule.decay", "\"constant\"")],
            &["base"],
        ),
    ]);
}

/// Python closes brackets at any column.
#[test]
fn brackets_close_where_python_lets_them() {
    let (_, recipe) = says("base_model: m\nlora_r: 4\nadapter: lora\nlora_target_modules: [\n  q_proj, # [\n\n]\nmax_steps: 2\n");
    assert_eq!(at(&recipe, "adapter.targets"), "[\"q_proj\"]");
}
