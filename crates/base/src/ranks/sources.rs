//! Environment variables of each launcher.

use super::claim::{Claim, Environment, Setting};
use super::slurm;
use super::values::{number, port, text};

/// Values of a source, or an error for a variable that cannot be read, and the reason why the source is ignored, if
/// it is.
pub(super) struct SourceValues {
    pub claim: Result<Claim, String>,
    pub passed_over: Option<String>,
}

/// Reads all sources of the environment, in order.
pub(super) fn read(environment: &Environment) -> [SourceValues; 8] {
    let elastic = has(environment, "TORCHELASTIC_RUN_ID");
    let mpirun = has(environment, "OMPI_COMM_WORLD_RANK");
    let counts = |claim| SourceValues { claim, passed_over: None };
    let inside = |claim: Result<Claim, String>, outer: bool, launcher: &str| {
        let speaks = claim.as_ref().is_ok_and(|claim| !claim.is_empty());
        let why = format!("is about the processes of {launcher}, which started this one");
        SourceValues { claim, passed_over: (outer && speaks).then_some(why) }
    };
    let agent = |claim| inside(claim, elastic, "torchrun");
    let slurm = match slurm::is_a_step(environment) {
        Err(why) => {
            SourceValues { claim: slurm::claim(environment).or(Ok(Claim::default())), passed_over: Some(why) }
        }
        Ok(()) if elastic => agent(slurm::claim(environment)),
        Ok(()) => inside(slurm::claim(environment), mpirun, "mpirun"),
    };
    [
        counts(torchrun(environment)),
        agent(open_mpi(environment)),
        agent(pmi(environment)),
        agent(pmix(environment)),
        slurm,
        agent(pet(environment)),
        agent(sky(environment)),
        agent(kubernetes(environment)),
    ]
}

fn has(environment: &Environment, name: &str) -> bool {
    text(environment, name).is_some()
}

/// Like [`number`], but ignores values that are not numbers, such as `auto`.
fn perhaps(environment: &Environment, name: &str) -> Option<Setting<usize>> {
    number(environment, &[name]).unwrap_or_default()
}

/// Address `host:port` from two variables.
fn address(environment: &Environment, host: &str, port: &str) -> Option<Setting<String>> {
    let name = text(environment, host)?;
    let value = format!("{name}:{}", text(environment, port).unwrap_or("29500"));
    Some(Setting { value, by: host.into() })
}

fn torchrun(environment: &Environment) -> Result<Claim, String> {
    let number = |name| number(environment, &[name]);
    Ok(Claim {
        rank: number("RANK")?,
        world_size: number("WORLD_SIZE")?,
        local_rank: number("LOCAL_RANK")?,
        local_world_size: number("LOCAL_WORLD_SIZE")?,
        node: number("GROUP_RANK")?,
        nodes: number("GROUP_WORLD_SIZE")?,
        rendezvous: address(environment, "MASTER_ADDR", "MASTER_PORT"),
    })
}

/// `OMPI_COMM_WORLD_NODE_RANK` is the rank among the processes of one machine, not the machine's index, and is not
/// used. Processes on a single machine meet on that machine, at a port derived from the job's name. For several
/// machines, no variable gives the host of the first rank.
fn open_mpi(environment: &Environment) -> Result<Claim, String> {
    let number = |name| number(environment, &[name]);
    let world_size = number("OMPI_COMM_WORLD_SIZE")?;
    let local_world_size = number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let [all, here] =
        [&world_size, &local_world_size].map(|setting| setting.as_ref().map(|setting| setting.value));
    let job = text(environment, "PMIX_NAMESPACE").filter(|_| all.is_some() && all == here);
    let rendezvous = job.map(|name| {
        let job = name.bytes().fold(0u64, |job, byte| job.wrapping_mul(31).wrapping_add(byte.into()));
        Setting { value: format!("127.0.0.1:{}", port(job)), by: "PMIX_NAMESPACE".into() }
    });
    Ok(Claim {
        rank: number("OMPI_COMM_WORLD_RANK")?,
        local_rank: number("OMPI_COMM_WORLD_LOCAL_RANK")?,
        world_size,
        local_world_size,
        rendezvous,
        ..Claim::default()
    })
}

/// MPICH, Intel MPI, MVAPICH and `srun --mpi=pmi2`.
fn pmi(environment: &Environment) -> Result<Claim, String> {
    let number = |names: [&str; 2]| number(environment, &names);
    Ok(Claim {
        rank: number(["PMI_RANK", "MV2_COMM_WORLD_RANK"])?,
        world_size: number(["PMI_SIZE", "MV2_COMM_WORLD_SIZE"])?,
        local_rank: number(["MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"])?,
        local_world_size: number(["MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"])?,
        ..Claim::default()
    })
}

/// PMIx sets only the rank.
fn pmix(environment: &Environment) -> Result<Claim, String> {
    Ok(Claim { rank: number(environment, &["PMIX_RANK"])?, ..Claim::default() })
}

/// Variables set by Kubeflow's TrainJob: one process per node, which starts the node's ranks.
fn pet(environment: &Environment) -> Result<Claim, String> {
    Ok(of_node(Claim {
        local_world_size: perhaps(environment, "PET_NPROC_PER_NODE"),
        node: number(environment, &["PET_NODE_RANK"])?,
        nodes: perhaps(environment, "PET_NNODES"),
        rendezvous: address(environment, "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        ..Claim::default()
    }))
}

fn sky(environment: &Environment) -> Result<Claim, String> {
    let first = text(environment, "SKYPILOT_NODE_IPS").and_then(|ips| ips.lines().next());
    Ok(of_node(Claim {
        local_world_size: perhaps(environment, "SKYPILOT_NUM_GPUS_PER_NODE")
            .filter(|setting| setting.value > 0),
        node: number(environment, &["SKYPILOT_NODE_RANK"])?,
        nodes: number(environment, &["SKYPILOT_NUM_NODES"])?,
        rendezvous: first
            .map(|host| Setting { value: format!("{}:29500", host.trim()), by: "SKYPILOT_NODE_IPS".into() }),
        ..Claim::default()
    }))
}

/// A pod of an Indexed Job is given its index but not the number of pods.
fn kubernetes(environment: &Environment) -> Result<Claim, String> {
    Ok(Claim { node: number(environment, &["JOB_COMPLETION_INDEX"])?, ..Claim::default() })
}

/// Treats a node with a single rank as that rank.
fn of_node(mut claim: Claim) -> Claim {
    if claim.local_world_size.as_ref().is_some_and(|setting| setting.value == 1) {
        claim.rank.clone_from(&claim.node);
        claim.world_size.clone_from(&claim.nodes);
    }
    claim
}
