//! `fathom doctor --dist`: who this process is among others, by every launcher's variables.

use anyhow::{Result, bail};
use fathom_base::ranks::{Claim, Resolution, Role, Said, Source, Verdict};
use serde_json::json;

use crate::args::Doctor;
use crate::crew;

/// Links that this binary has.
const LINKS: &[&str] = if cfg!(feature = "mpi") { &["threads", "mpi"] } else { &["threads"] };

/// Prints every source and what won.
pub fn run(args: &Doctor) -> Result<()> {
    let found = crew::resolution(&args.rank.claim());
    if args.json {
        let mut object = serde_json::to_value(&found)?;
        object["links"] = json!(LINKS);
        println!("{object}");
    } else {
        print(&found);
    }
    match &found.refused {
        None => Ok(()),
        Some(_) if args.json => bail!("launchers contradict each other"),
        Some(message) => bail!("{message}"),
    }
}

fn print(found: &Resolution) {
    println!("{:<18} {:<44} verdict", "source", "says");
    for Source { name, claim, verdict } in &found.sources {
        let said = match claim.to_string() {
            text if text.is_empty() => "-".to_string(),
            text => text,
        };
        println!("{name:<18} {said:<44} {}", word(verdict));
        if *verdict == Verdict::Won {
            println!("{:<18} by {}", "", variables(claim));
        }
    }
    println!();
    if found.refused.is_none() {
        println!("this process: {found}");
    }
    println!("links of this binary: {}", LINKS.join(", "));
    match found.role() {
        Ok(Role::Rank { ranks, .. }) if ranks > 1 && !cfg!(feature = "mpi") => {
            println!(
                "processes need the link `mpi`: cargo build --release --features mpi, with Open MPI installed"
            );
        }
        Ok(Role::Node { nodes, .. }) if nodes > 1 => {
            println!(
                "one process a machine: ranks over several machines want one process each, by mpirun or srun"
            );
        }
        _ => {}
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

/// The names of what a claim was read from.
fn variables(claim: &Claim) -> String {
    let numbers = [
        &claim.rank,
        &claim.world_size,
        &claim.local_rank,
        &claim.local_world_size,
        &claim.node,
        &claim.nodes,
    ];
    let by = numbers.into_iter().flatten().map(|said| said.by.as_str());
    let mut names: Vec<&str> = by.chain(claim.rendezvous.iter().map(|Said { by, .. }| by.as_str())).collect();
    names.dedup();
    names.join(", ")
}
