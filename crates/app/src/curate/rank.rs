//! Rank of this process among several that share a curation.

use fathom_curate::pipeline::Rank;

use crate::error::{Result, refuse};

/// Returns this process's rank: as given, else from a Slurm array, else from a Kubernetes Indexed Job.
///
/// # Errors
/// One number without the other, or numbers that contradict each other.
pub fn rank(own: Option<usize>, processes: Option<usize>) -> Result<Rank> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let first = number("SLURM_ARRAY_TASK_MIN").unwrap_or(0);
    // `--array=0-6:2` makes a task of every second number.
    let step = number("SLURM_ARRAY_TASK_STEP").unwrap_or(1).max(1);
    let slurm = number("SLURM_ARRAY_TASK_ID").map(|id| id.saturating_sub(first) / step);
    let rank = own.or(slurm).or_else(|| number("JOB_COMPLETION_INDEX"));
    let world = processes.or_else(|| number("SLURM_ARRAY_TASK_COUNT")).or_else(|| number("WORLD_SIZE"));
    match (rank, world) {
        (None, None) => Ok(Rank::default()),
        (Some(rank), Some(world_size)) if rank < world_size => Ok(Rank { rank, world_size }),
        (Some(rank), Some(world_size)) => {
            refuse!(
                "rank {rank} of {world_size} processes: ranks are counted from 0, the last is {}",
                world_size.max(1) - 1
            )
        }
        (Some(rank), None) if own.is_none() => {
            let (variable, count) = match slurm {
                Some(_) => ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
                None => ("JOB_COMPLETION_INDEX", "WORLD_SIZE"),
            };
            refuse!(
                "{variable} says that this is process {rank} of several, and nothing says of how many: set the variable {count} \
                 (of a Kubernetes Job to its `completions`), or give --world-size; --rank 0 --world-size 1 works alone"
            )
        }
        (Some(_), None) => refuse!("--rank needs --world-size, the number of processes"),
        (None, Some(_)) if processes.is_none() => Ok(Rank::default()),
        (None, Some(_)) => refuse!("--world-size needs --rank, the number of this process"),
    }
}
