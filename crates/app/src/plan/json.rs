//! Plans as JSON.

use fathom_tensor::Category;
use fathom_tensor::mesh::Axis;
use fathom_train::{MeshPlan, OfRank};
use serde_json::{Map, Value, json};

use super::stages::PlannedStage;
use crate::stored::Footprint;

/// Number of buffers that an explanation of the peak names.
pub const LARGEST: usize = 4;

/// FLOPs as JSON: an integer if it fits 64 bits.
pub fn flops(count: u128) -> Value {
    u64::try_from(count).map_or_else(|_| Value::from(count as f64), Value::from)
}

impl PlannedStage<'_> {
    /// The plan as one JSON object, as `fathom plan --json` prints it; `stored` is the space of the run on disk.
    pub fn to_json(&self, stored: &Footprint) -> Value {
        let PlannedStage { draft, figures } = self;
        let plan = &figures.settled.plan;
        let by_category: serde_json::Map<String, Value> = plan
            .usage
            .peak_by_category
            .iter()
            .map(|(category, bytes)| (category.name().to_string(), bytes.into()))
            .collect();
        let table = &draft.recipe.stage[draft.index];
        let mut row = json!({
            "stage": table.name,
            "seq_tokens": table.seq_tokens,
            "profile": draft.profile.name,
            "peak_bytes": plan.usage.peak_live,
            "peak_reserved_bytes": plan.usage.peak_reserved,
            "by_category": by_category,
            "peak_op": plan.usage.peak_op,
            "model_flops": flops(plan.model_flops),
            "hardware_flops": flops(plan.hardware_flops),
            "host_bytes": plan.host_bytes,
            "host_peak_bytes": plan.host_peak_bytes,
            "disk_bytes": plan.disk_bytes,
            "disk_peak_bytes": plan.disk_peak_bytes,
            "checkpoint_bytes": stored.checkpoint_bytes,
            "stored_bytes": stored.bytes(),
            "step_s": plan.step_s(),
            "times": plan.times,
            "tokens_per_s": plan.tokens_per_s(),
            "memory_bytes": draft.budgets.memory,
            "fits": draft.budgets.hold(plan),
            "max_tokens": figures.longest,
        });
        if let Some(growth) = &figures.growth {
            let by_name = growth.by_name.iter().map(|(name, bytes)| (name.clone(), json!(bytes + 0.0)));
            // Adding 0 avoids -0.
            row["bytes_per_token"] = json!(growth.bytes + 0.0);
            row["bytes_per_token_by_name"] = by_name.collect::<serde_json::Map<_, _>>().into();
        }
        if let Some(rollout) = &figures.rollout {
            row["rollout"] = json!({
                "peak_bytes": rollout.peak_live,
                "peak_reserved_bytes": rollout.peak_reserved,
                "kv_bytes": rollout.peak_by_category[Category::Kv],
                "peak_op": rollout.peak_op,
                "held_bytes": draft.recipe.rl.held_bytes(draft.recipe.stage[draft.index].seq_tokens, draft.spec.vocab),
            });
        }
        if let Some(mesh) = &figures.mesh {
            row["mesh"] = mesh_json(mesh);
        }
        if let Some(of_all) = &figures.of_all {
            row["max_tokens_auto"] = json!(of_all.as_ref().map(|(tokens, _)| tokens));
            let offloaded = figures.offloaded.iter();
            let with =
                |(settings, tokens): &(String, usize)| json!({ "settings": settings, "max_tokens": tokens });
            row["max_tokens_offloaded"] = offloaded.map(with).collect();
        }
        if let Some(why) = &figures.why {
            row["why"] = json!({
                "largest": why.largest.iter().take(LARGEST).map(|(label, bytes)| json!({
                    "name": label.name,
                    "layer": label.layer,
                    "gradient": label.gradient,
                    "category": label.category.name(),
                    "bytes": bytes,
                })).collect::<Vec<_>>(),
                "edit": why.best.as_ref().map(|change| change.settings.join(" ")),
                "edit_peak_bytes": why.best.as_ref().map(|change| change.plan.usage.peak_live),
                "edit_step_s": why.best.as_ref().and_then(|change| change.plan.step_s()),
                "fastest_edit": why.fastest.as_ref().map(|change| change.settings.join(" ")),
                "fastest_edit_peak_bytes": why.fastest.as_ref().map(|change| change.plan.usage.peak_live),
                "fastest_edit_step_s": why.fastest.as_ref().and_then(|change| change.plan.step_s()),
            });
        }
        row
    }
}

/// Returns the coordinates of a rank along the axes with more than one rank.
pub fn rank_place(mesh: &MeshPlan, rank: usize) -> String {
    let grid = mesh.ranks.grid;
    let at = |axis: Axis| format!("{} {}", axis.name(), grid.index(rank, axis));
    let axes = [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Tp].into_iter().filter(|axis| grid.size(*axis) > 1);
    axes.map(at).collect::<Vec<_>>().join(", ")
}

/// Peak, traffic per step and waiting time of every kind of rank; the step of all.
fn mesh_json(mesh: &MeshPlan) -> Value {
    let row = |kind: &OfRank| {
        let waits = &kind.plan.waits;
        let wires: Map<String, Value> = kind
            .plan
            .wires
            .iter()
            .map(|(key, wire)| {
                let wait_s = waits.get(key).copied().unwrap_or_default();
                let row = json!({ "calls": wire.calls, "bytes": wire.bytes, "wait_s": wait_s });
                (format!("{} {}", key.0, key.1), row)
            })
            .collect();
        json!({
            "rank": kind.rank,
            "stands_for": kind.stands_for,
            "place": rank_place(mesh, kind.rank),
            "peak_bytes": kind.plan.usage.peak_live,
            "peak_reserved_bytes": kind.plan.usage.peak_reserved,
            "times": kind.plan.times,
            "wires": wires,
        })
    };
    json!({
        "ranks": mesh.ranks.grid.ranks(),
        "kinds": mesh.kinds.iter().map(row).collect::<Vec<_>>(),
        "step_s": mesh.step_s(),
        "bubble_share": mesh.gantt.as_ref().map(fathom_train::Gantt::bubble),
        "tokens_per_s": mesh.tokens_per_s(),
        "flops_per_s_per_rank": mesh.flops_per_s(),
        "has_fabric": mesh.has_fabric,
    })
}
