//! `fathom doctor --dist`: this process's rank, from every launcher's variables.

use anyhow::{Result, bail};
use fathom_app::{Machine, Silent, crew};
use fathom_base::ranks::{Claim, Resolution, Role, Setting, Source, Verdict};
use fathom_train::recipe::MachineKind;
use serde_json::json;

use crate::args::Doctor;

/// Links built into this binary; NCCL is detected at run time.
const LINKS: &[&str] = if cfg!(feature = "mpi") { &["threads", "mpi"] } else { &["threads"] };

/// Prints every source, and the one that decides.
pub fn run(args: &Doctor) -> Result<()> {
    let found = crew::resolution(&args.rank.claim());
    let machine = Machine::of_kind(MachineKind::Auto, 0, &Silent);
    let nccl = machine.nccl()?.is_some();
    let links: Vec<&str> = LINKS.iter().copied().chain(nccl.then_some("nccl")).collect();
    let local = found.claim.local_rank.as_ref().map(|setting| setting.value);
    let device = local.and_then(|local| machine.device_of(local));
    if args.json {
        let mut object = serde_json::to_value(&found)?;
        object["links"] = json!(links);
        object["device"] = json!(device.map(|(device, _)| device));
        outln!("{object}");
    } else {
        print(&found);
        if let Some((device, devices)) = device {
            outln!("its device: {device} of {devices}");
        }
        outln!("links here: {}", links.join(", "));
        if let Some(line) = advice(&found, nccl) {
            outln!("{line}");
        }
    }
    match &found.refused {
        None => Ok(()),
        Some(_) if args.json => bail!("launchers contradict each other"),
        Some(message) => bail!("{message}"),
    }
}

fn print(found: &Resolution) {
    outln!("{:<18} {:<44} verdict", "source", "says");
    for Source { name, claim, verdict } in &found.sources {
        let said = match claim.to_string() {
            text if text.is_empty() => "-".to_string(),
            text => text,
        };
        outln!("{name:<18} {said:<44} {}", word(verdict));
        if *verdict == Verdict::Won {
            outln!("{:<18} by {}", "", variables(claim));
        }
    }
    outln!();
    if found.refused.is_none() {
        outln!("this process: {found}");
    }
}

/// Tells how a process among several connects, or what is missing.
fn advice(found: &Resolution, nccl: bool) -> Option<String> {
    match found.role() {
        Ok(Role::Node { nodes, .. }) if nodes > 1 => Some(
            "one process a machine: ranks over several machines want one process each, by mpirun or srun".into(),
        ),
        Ok(Role::Rank { ranks, .. }) if ranks > 1 => Some(match (nccl, &found.claim.rendezvous) {
            (true, Some(at)) => {
                format!("ranks with a GPU each are connected by NCCL and meet at {}", at.value)
            }
            (true, None) => "NCCL wants a place to meet: set MASTER_ADDR to the first rank's machine for all ranks (mpirun -x MASTER_ADDR=HOST)".into(),
            (false, _) if cfg!(feature = "mpi") => return None,
            (false, _) => "processes need the link `mpi`: cargo build --release --features mpi, with Open MPI installed; or a GPU each and NCCL".into(),
        }),
        _ => None,
    }
}

fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Absent => "not there".into(),
        Verdict::Won => "won".into(),
        Verdict::Agrees => "fits, and does not decide".into(),
        Verdict::PassedOver(why) => format!("passed over: {why}"),
    }
}

/// The names of a claim's sources.
fn variables(claim: &Claim) -> String {
    let numbers = [
        &claim.rank,
        &claim.world_size,
        &claim.local_rank,
        &claim.local_world_size,
        &claim.node,
        &claim.nodes,
    ];
    let by = numbers.into_iter().flatten().map(|setting| setting.by.as_str());
    let mut names: Vec<&str> =
        by.chain(claim.rendezvous.iter().map(|Setting { by, .. }| by.as_str())).collect();
    names.dedup();
    names.join(", ")
}
