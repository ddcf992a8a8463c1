//! Training on rewards.

use super::cases;

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
        // With only a loss given, TRL's defaults apply.
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
    ]);
}

#[test]
fn what_rewards_cannot_say_leaves_the_rest() {
    let start = "model_name_or_path: m\nmax_steps: 7\n";
    let grpo = |rest: &str| format!("{start}{rest}");
    cases(&[
        // An unsupported or refused value leaves the other settings intact.
        (
            &grpo(
                "loss_type: vespo\nepsilon: -1\nmulti_objective_aggregation: normalize_then_sum\nmin_p: 0.1\nrepetition_penalty: 1.1\n",
            ),
            "grpo",
            &[("rl.loss", "\"dapo\""), ("rl.advantage", "\"each_then_sum\""), ("rl.min_p", "0.1")],
            &["repetition_penalty", "loss_type", "epsilon"],
        ),
        (
            &grpo("normalize_advantages: true\nnum_generations: 4\nper_device_train_batch_size: 8\n"),
            "rloo",
            &[("rl.loss", "\"rloo\""), ("rl.answers", "4"), ("rl.prompts", "2"), ("rl.beta", "0.05")],
            &["normalize_advantages"],
        ),
        // Adapters have no dropout in training on rewards.
        (
            "model_name_or_path: m\nnum_generations: 8\nuse_peft: true\nlora_target_modules: all-linear\n",
            "grpo",
            &[("adapter.method", "\"lora\""), ("adapter.rank", "16"), ("stage.0.epochs", "3")],
            &["lora_dropout"],
        ),
    ]);
}
