//! Preferences, reward models and distillation.

use super::cases;

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
        // A loss that lacks a required value, and an unknown loss.
        (&file("loss_type: exo_pair\n"), "dpo", &[("objective.loss", "\"sigmoid\"")], &["loss_type"]),
        (&file("loss_type: made_up\nbeta: 0.3\n"), "dpo", &[("objective.beta", "0.3")], &["loss_type"]),
    ]);
}

#[test]
fn other_trainers_of_trl() {
    let file = |rest: &str| format!("model_name_or_path: m\nper_device_train_batch_size: 4\n{rest}");
    cases(&[
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
            &[
                ("objective.method", "\"cpo\""),
                ("objective.loss", "\"hinge\""),
                ("objective.sft_weight", "0.5"),
            ],
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
