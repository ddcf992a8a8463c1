//! Keys of number types, memory, ranks and checkpoints.

use serde_json::Value;
use toml_edit::Array;

use super::{Row, RuleResult, on};
use crate::foreign::draft::Draft;
use crate::foreign::tool::Tool;
use crate::foreign::values::{flag, float, int, names, text};

/// Rules for all files.
pub(in crate::foreign) const RULES: &[Row] = &[
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
        // TRL loads weights in this type and computes in bf16.
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
    (&["fsdp"], |draft, v| {
        let list = names(v)?;
        let of = |name: &str| list.iter().any(|word| word.split_whitespace().any(|word| word == name));
        shards(draft, if of("shard_grad_op") { "SHARD_GRAD_OP" } else { "FULL_SHARD" })?;
        Err(RANKS.into())
    }),
    (&["fsdp_config.sharding_strategy", "fsdp_config.fsdp_sharding_strategy"], |draft, v| {
        shards(draft, text(v)?)
    }),
    (&["fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward"], |draft, v| {
        shards(draft, if flag(v)? { "FULL_SHARD" } else { "SHARD_GRAD_OP" })
    }),
    (&["fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"], |draft, v| {
        on(v, || draft.set("activations.recompute_granularity", "full"))
    }),
    (&["fsdp_config.offload_params", "fsdp_config.fsdp_offload_params", "fsdp_cpu_offload"], |_, _| {
        Err("weights and optimizer state are offloaded by machine.offload_weights and machine.offload_optimizer".into())
    }),
    (&["deepspeed"], |draft, v| {
        let file = text(v)?;
        let zero = |stage: char| ["zero", "z"].iter().any(|name| file.contains(&format!("{name}{stage}")));
        for (stage, sharding) in [('1', "optim"), ('2', "optim_grads"), ('3', "optim_grads_params")] {
            if zero(stage) {
                draft.set("mesh.sharding", sharding);
            }
        }
        Err(RANKS.into())
    }),
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

const RANKS: &str = "what ranks share is mesh.sharding, which was said where the file does; how many they are is mesh.dp, mesh.tp, mesh.cp and mesh.pp";

fn shards(draft: &mut Draft, strategy: &str) -> RuleResult {
    let sharding = match strategy {
        "FULL_SHARD" | "HYBRID_SHARD" => "optim_grads_params",
        "SHARD_GRAD_OP" => "optim_grads",
        "NO_SHARD" => "no_shard",
        other => return Err(format!("`{other}` is no sharding here (mesh.sharding)")),
    };
    draft.set("mesh.sharding", sharding);
    Ok(())
}

fn ranks(draft: &mut Draft, path: &str, value: &Value) -> RuleResult {
    match int(value)? {
        1 => {}
        ranks => draft.set(path, ranks as i64),
    }
    Ok(())
}
