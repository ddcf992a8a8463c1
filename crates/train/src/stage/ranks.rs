//! The mesh of a stage's steps.

use fathom_grad::CpComm;
use fathom_model::StageLayers;
use fathom_tensor::mesh::Grid;

use crate::error::{Error, Result};
use crate::parallel::stages::Order;
use crate::parallel::{CpScan, Ranks, Sharding};
use crate::recipe::{CpCommType, CpScanCommType, MeshTable, PipelineSchedule, Recipe, ShardingName};

/// The mesh of a stage's steps; the planned rank is the first.
///
/// # Errors
/// Sizes that do not divide, and ones that would.
pub fn ranks(recipe: &Recipe, index: usize) -> Result<Ranks> {
    let table = &recipe.mesh;
    let say = |key: &str, message: String| Error::Recipe { key: format!("mesh.{key}"), message };
    let MeshTable { tp, cp, dp, pp, ep, etp, sequence_parallel, .. } = *table;
    let grid = Grid { tp, cp, dp, pp, ep, etp, sequence_parallel };
    grid.check().map_err(|message| say(if ep * etp > 1 { "ep" } else { "tp" }, message))?;
    let stage = &recipe.stage[index];
    let micro_batches = stage.micro_batches.max(1);
    if !micro_batches.is_multiple_of(dp) {
        let key = format!("stage.{index}.micro_batches");
        let message = format!(
            "{micro_batches} micro batches cannot be dealt to mesh.dp={dp} ranks; take a multiple of {dp}"
        );
        return Err(Error::Recipe { key, message });
    }
    let virtual_stages = table.virtual_stages.max(1);
    if virtual_stages > 1 && pp == 1 {
        let message = format!("is {virtual_stages}: stages of a pipeline, which mesh.pp=1 does not make");
        return Err(say("virtual_stages", message));
    }
    let order = match table.schedule {
        PipelineSchedule::OneByOne => Order::OneByOne,
        PipelineSchedule::ZeroBubble => Order::ZeroBubble,
    };
    let acts = order.acts(0, pp, virtual_stages, micro_batches / dp);
    acts.map_err(|message| say("virtual_stages", message))?;
    let tokens = stage.seq_tokens * stage.samples_per_micro_batch.max(1);
    if !tokens.is_multiple_of(cp) {
        let sizes = divisors(tokens);
        let message =
            format!("{tokens} tokens of a micro batch cannot be dealt to cp={cp} ranks; cp may be {sizes}");
        return Err(say("cp", message));
    }
    if sequence_parallel && !tokens.is_multiple_of(cp * tp) {
        let sizes = divisors(tokens / cp);
        let message = format!("{} tokens cannot be shared by tp={tp} ranks; tp may be {sizes}", tokens / cp);
        return Err(say("tp", message));
    }
    let sharding = match table.sharding {
        ShardingName::NoShard => Sharding::NoShard,
        ShardingName::Optim => Sharding::Optim,
        ShardingName::OptimGrads => Sharding::OptimGrads,
        ShardingName::OptimGradsParams => Sharding::OptimGradsParams,
    };
    let cp_comm = match table.cp_comm_type {
        CpCommType::P2p => CpComm::P2p,
        CpCommType::AllGather => CpComm::AllGather,
        CpCommType::A2a => CpComm::A2a,
        CpCommType::A2aP2p => CpComm::A2aP2p { inner: table.cp_inner },
    };
    let cp_scan = match table.cp_scan_comm_type {
        // A sampler has all rows in order, as scans by heads do.
        CpScanCommType::Auto if recipe.rl.is_on() => CpScan::A2a,
        CpScanCommType::Auto => CpScan::Auto,
        CpScanCommType::A2a => CpScan::A2a,
        CpScanCommType::States => CpScan::States,
    };
    let cp_dynamic = table.cp_dynamic;
    if cp_dynamic && cp_comm != CpComm::P2p {
        let message = format!(
            "documents stay on few ranks where mesh.cp_comm_type is \"p2p\", not \"{}\"",
            table.cp_comm_type
        );
        return Err(say("cp_dynamic", message));
    }
    let layout = StageLayers::new(&table.layout).map_err(|message| say("layout", message))?;
    Ok(Ranks { grid, virtual_stages, layout, order, sharding, cp_comm, cp_scan, cp_dynamic, rank: 0 })
}

/// Numbers of ranks among which `tokens` tokens can be divided, up to a node or two.
fn divisors(tokens: usize) -> String {
    let fits = (1..=16.min(tokens)).filter(|ranks| tokens.is_multiple_of(*ranks));
    fits.map(|ranks| ranks.to_string()).collect::<Vec<_>>().join(", ")
}
