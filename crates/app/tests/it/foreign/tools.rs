//! Methods of the other tools.

use super::cases;

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
            &file("stage: dpo\npref_loss: hinge\npref_ftx: 0.1\npref_bco_weight: 1.0\nfinetuning_type: full\n"),
            "dpo",
            &[("objective.losses", "[\"hinge\", \"bco_pair\"]"), ("objective.loss_weights", "[0.5, 0.5]"), ("objective.sft_weight", "0.1")],
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
        format!(
            "base: /m\ncheckpointer:\n  _component_: a.FullModelHFCheckpointer\n  checkpoint_dir: ${{base}}\nbatch_size: 2\n{rest}"
        )
    };
    cases(&[
        (
            &file("loss:\n  _component_: torchtune.rlhf.loss.DPOLoss\n  beta: 0.05\n  label_smoothing: 0\n"),
            "dpo",
            &[("model.from", "\"/m\""), ("objective.beta", "0.05"), ("optimizer.weight_decay", "0.01")],
            &["base", "tokenizer.max_seq_len"],
        ),
        (
            &file(
                "loss:\n  _component_: torchtune.dev.grpo.loss.GRPOSimpleLoss\n  kl_coeff: 0.01\n  epsilon: 0.2\ngrpo_samples: 16\nnum_steps: 9\nppo_epochs: 1\n",
            ),
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
            &file(
                "loss:\n  _component_: torchtune.rlhf.loss.PPOLoss\n  value_coeff: 0.2\nppo_batch_size: 1\nnum_steps: 8\nppo_epochs: 3\nkl_coeff: 0.01\nlmbda: 0.9\nmax_generated_tokens: 58\n",
            ),
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
            &file(
                "teacher_checkpointer:\n  checkpoint_dir: /t\nkd_loss:\n  _component_: torchtune.modules.loss.ReverseKLLoss\nkd_ratio: 0.4\n",
            ),
            "distill",
            &[
                ("objective.teacher", "\"/t\""),
                ("objective.loss", "\"bwd_kl\""),
                ("objective.kd_ratio", "0.4"),
            ],
            &["base", "tokenizer.max_seq_len"],
        ),
        (
            &file(
                "quantizer:\n  _component_: torchtune.training.quantization.Int4WeightOnlyQATQuantizer\ndataset_val: {split: 'train[95%:]'}\n",
            ),
            "sft",
            &[
                ("precision.qat", "\"int4\""),
                ("data.held_out_share", "0.05"),
                ("schedule.decay", "\"constant\""),
            ],
            &["base", "tokenizer.max_seq_len"],
        ),
    ]);
}
