//! Variables set by `srun`, with its formats for lists of hosts and of tasks.

use super::claim::{Claim, Environment, Setting};
use super::values::{number, port, text};

/// Checks that the process is a task of a step of several; otherwise the error is the reason why Slurm's variables
/// are ignored.
pub(super) fn is_a_step(environment: &Environment) -> Result<(), String> {
    if text(environment, "SLURM_PROCID").is_none() && text(environment, "SLURM_JOB_ID").is_none() {
        return Ok(());
    }
    if text(environment, "SLURM_STEP_ID").is_none() {
        return Err("an allocation and not a step of it: SLURM_STEP_ID is not set".into());
    }
    let tasks = number(environment, &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]);
    match tasks {
        Ok(Some(tasks)) if tasks.value <= 1 => Err("a step of one task".into()),
        _ => Ok(()),
    }
}

pub(super) fn claim(environment: &Environment) -> Result<Claim, String> {
    let number = |names: &[&str]| number(environment, names);
    let node = number(&["SLURM_NODEID"])?;
    Ok(Claim {
        rank: number(&["SLURM_PROCID"])?,
        world_size: number(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])?,
        local_rank: number(&["SLURM_LOCALID"])?,
        local_world_size: local_tasks(environment, node.as_ref().map(|setting| setting.value)),
        nodes: number(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES"])?,
        node,
        rendezvous: rendezvous(environment),
    })
}

fn local_tasks(environment: &Environment, node: Option<usize>) -> Option<Setting<usize>> {
    let names = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
    let (by, list) = names.iter().find_map(|name| Some((*name, text(environment, name)?)))?;
    Some(Setting { value: tasks_of(list, node?)?, by: by.into() })
}

/// Number of tasks on a node, from a list such as `2(x3),1`: three nodes with two each, then one with one.
pub(super) fn tasks_of(list: &str, node: usize) -> Option<usize> {
    let mut first = 0;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse::<usize>().ok()?),
            None => (part, 1),
        };
        first += nodes;
        if node < first {
            return tasks.trim().parse().ok();
        }
    }
    None
}

fn rendezvous(environment: &Environment) -> Option<Setting<String>> {
    let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let (by, list) = names.iter().find_map(|name| Some((*name, text(environment, name)?)))?;
    let job: u64 =
        ["SLURM_JOB_ID", "SLURM_JOBID"].iter().find_map(|name| text(environment, name)?.parse().ok())?;
    let value = format!("{}:{}", first_host(list)?, port(job));
    Some(Setting { value, by: by.into() })
}

/// First host of a list such as `gpu[07-12,20],login` or `rack[1-2]n[3-4]`.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim().chars();
    while let Some(c) = rest.next() {
        match c {
            ',' => break,
            '[' => {
                let inside: String = rest.by_ref().take_while(|c| *c != ']').collect();
                host += inside.split([',', '-']).next().unwrap_or_default();
            }
            other => host.push(other),
        }
    }
    (!host.is_empty()).then_some(host)
}
