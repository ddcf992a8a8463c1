//! A table of environments with the expected result of each.

use super::slurm::{first_host, tasks_of};
use super::*;

fn environment(text: &str) -> Environment {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_string(), value.replace(';', "\n"))).collect()
}

fn resolved(text: &str) -> Resolution {
    resolve(&Claim::default(), &environment(text))
}

/// Checks the line that a run prints.
#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(resolved(text).to_string(), expected, "{text}");
}

const SLURM: &str = "SLURM_JOB_ID=30007 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=6 SLURM_LOCALID=1 SLURM_NODEID=1 \
    SLURM_NNODES=3 SLURM_TASKS_PER_NODE=2(x3) SLURM_JOB_NODELIST=gpu[07-09]";
const OMPI: &str = "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=5";
const TORCH: &str = "RANK=6 WORLD_SIZE=8 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=a \
    MASTER_PORT=1234 TORCHELASTIC_RUN_ID=x";

#[test]
fn every_launcher_of_the_table() {
    check("", "a process alone: no launcher says otherwise");
    check("HOME=/x PATH=/bin", "a process alone: no launcher says otherwise");
    check("RANK=1 WORLD_SIZE=2", "rank 1 of 2 (from torchrun)");
    check("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h", "rank 1 of 2, at h:29500 (from torchrun)");
    check(TORCH, "rank 6 of 8, local rank 2 of 4, node 1 of 2, at a:1234 (from torchrun)");
    check(OMPI, "rank 5 of 8, local rank 1 of 4 (from Open MPI)");
    // Ranks on one machine can meet if the job has a name.
    let here = OMPI.replace("LOCAL_SIZE=4", "LOCAL_SIZE=8");
    check(&here, "rank 5 of 8, local rank 1 of 8 (from Open MPI)");
    check(
        &format!("{here} PMIX_NAMESPACE=2815885313"),
        "rank 5 of 8, local rank 1 of 8, at 127.0.0.1:35914 (from Open MPI)",
    );
    check(&format!("{OMPI} PMIX_NAMESPACE=2815885313"), "rank 5 of 8, local rank 1 of 4 (from Open MPI)");
    check(
        "PMI_RANK=0 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=4",
        "rank 0 of 4, local rank 0 of 4 (from PMI)",
    );
    check("MV2_COMM_WORLD_RANK=2 MV2_COMM_WORLD_SIZE=4", "rank 2 of 4 (from PMI)");
    check(SLURM, "rank 3 of 6, local rank 1 of 2, node 1 of 3, at gpu07:30007 (from Slurm)");
    check(
        &format!("{SLURM} PMIX_RANK=3"),
        "rank 3 of 6, local rank 1 of 2, node 1 of 3, at gpu07:30007 (from Slurm)",
    );
    check(
        "PET_NPROC_PER_NODE=8 PET_NODE_RANK=1 PET_NNODES=4 PET_MASTER_ADDR=m PET_MASTER_PORT=29400",
        "8 local ranks, node 1 of 4, at m:29400 (from PET)",
    );
    check(
        "PET_NPROC_PER_NODE=1 PET_NODE_RANK=1 PET_NNODES=4",
        "rank 1 of 4, 1 local rank, node 1 of 4 (from PET)",
    );
    check("PET_NPROC_PER_NODE=auto PET_NODE_RANK=0 PET_NNODES=2", "node 0 of 2 (from PET)");
    check(
        "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS=10.0.0.1;10.0.0.2 SKYPILOT_NUM_GPUS_PER_NODE=4",
        "4 local ranks, node 1 of 2, at 10.0.0.1:29500 (from SkyPilot)",
    );
    // A pod does not know the number of pods.
    check("JOB_COMPLETION_INDEX=2", "a process alone: no launcher says otherwise");
    check("JOB_COMPLETION_INDEX=2 RANK=1 WORLD_SIZE=4", "rank 1 of 4, node 2 (from torchrun)");
}

#[test]
fn what_does_not_count() {
    let alone = "a process alone: no launcher says otherwise";
    check(&SLURM.replace("SLURM_STEP_ID=0", ""), alone);
    check("SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1", alone);
    check("RANK=1", alone);
    check("WORLD_SIZE=4", alone);
    check("PET_NODE_RANK=0 PET_NNODES=1:4", alone);
    check("RANK= WORLD_SIZE=", alone);
    // An address given by any source is preferred to one derived from a list of hosts.
    for (environment, by) in
        [(OMPI, "rank 5 of 8, local rank 1 of 4"), (SLURM, "rank 3 of 6, local rank 1 of 2, node 1 of 3")]
    {
        let source = if environment == OMPI { "Open MPI" } else { "Slurm" };
        let said = format!("{environment} MASTER_ADDR=a MASTER_PORT=7");
        check(&said, &format!("{by}, at a:7 (from {source})"));
    }
    // torchrun and mpirun inside Slurm: the step belongs to the launcher.
    check(
        &format!("{TORCH} {SLURM}"),
        "rank 6 of 8, local rank 2 of 4, node 1 of 2, at a:1234 (from torchrun)",
    );
    check(&format!("{OMPI} {SLURM}"), "rank 5 of 8, local rank 1 of 4 (from Open MPI)");
    let verdicts = resolved(&format!("{OMPI} {SLURM}")).sources;
    let slurm = verdicts.iter().find(|source| source.name == "Slurm").unwrap();
    assert!(matches!(&slurm.verdict, Verdict::PassedOver(why) if why.contains("mpirun")), "{slurm:?}");
    check(
        &format!("{TORCH} {OMPI}"),
        "rank 6 of 8, local rank 2 of 4, node 1 of 2, at a:1234 (from torchrun)",
    );
}

#[test]
fn contradictions_name_both() {
    check(
        &format!("{OMPI} RANK=1 WORLD_SIZE=8"),
        "RANK=1 (torchrun) and OMPI_COMM_WORLD_RANK=5 (Open MPI) disagree about the rank; unset one of them, or say --rank and --world-size",
    );
    check(
        &format!("{SLURM} RANK=3 WORLD_SIZE=4"),
        "WORLD_SIZE=4 (torchrun) and SLURM_NTASKS=6 (Slurm) disagree about the number of ranks; unset one of them, or say --rank and --world-size",
    );
    check(
        &format!("{SLURM} PMIX_RANK=2"),
        "PMIX_RANK=2 (PMIx) and SLURM_PROCID=3 (Slurm) disagree about the rank; unset one of them, or say --rank and --world-size",
    );
    // Even an incomplete source must not contradict the winner.
    check(
        &format!("{SLURM} RANK=2"),
        "RANK=2 (torchrun) and SLURM_PROCID=3 (Slurm) disagree about the rank; unset one of them, or say --rank and --world-size",
    );
    check("RANK=4 WORLD_SIZE=4", "RANK=4 is not below WORLD_SIZE=4: ranks are counted from 0");
    check("RANK=x WORLD_SIZE=4", "RANK=x is not a number from 0; unset it, or set it rightly");
    assert!(resolved("RANK=4 WORLD_SIZE=4").role().unwrap_err().to_string().contains("WORLD_SIZE=4"));
}

#[test]
fn flags_decide() {
    let setting = |value: usize, by: &str| Some(Setting { value, by: by.to_string() });
    let flags =
        Claim { rank: setting(1, "--rank"), world_size: setting(2, "--world-size"), ..Claim::default() };
    let found = resolve(&flags, &environment(&format!("{OMPI} RANK=x")));
    assert_eq!(found.to_string(), "rank 1 of 2 (from flags)");
    let found = resolve(&flags, &environment(&format!("{OMPI} RANK=3 WORLD_SIZE=9")));
    assert_eq!(found.to_string(), "rank 1 of 2 (from flags)");
    assert_eq!(found.role().unwrap(), Role::Rank { rank: 1, ranks: 2 });
    let half = Claim { rank: setting(1, "--rank"), ..Claim::default() };
    assert!(resolve(&half, &Environment::new()).role().is_err());
}

#[test]
fn roles() {
    assert_eq!(resolved("").role().unwrap(), Role::Alone);
    assert_eq!(resolved(OMPI).role().unwrap(), Role::Rank { rank: 5, ranks: 8 });
    let node = resolved("PET_NPROC_PER_NODE=8 PET_NODE_RANK=1 PET_NNODES=4").role().unwrap();
    assert_eq!(node, Role::Node { node: 1, nodes: 4 });
    let sources = resolved("").sources;
    assert_eq!(sources.iter().map(|source| source.name).collect::<Vec<_>>(), SOURCES);
    assert!(sources.iter().all(|source| source.verdict == Verdict::Absent));
}

#[test]
fn lists_of_slurm() {
    for (list, host) in [
        ("gpu[07-12,20],login", "gpu07"),
        ("a,b", "a"),
        ("rack[1-2]n[3-4]", "rack1n3"),
        ("n[3,5]-ib.site", "n3-ib.site"),
        ("single", "single"),
    ] {
        assert_eq!(first_host(list).as_deref(), Some(host));
    }
    assert_eq!(first_host(""), None);
    let tasks: Vec<_> = (0..5).map(|node| tasks_of("2(x3),1", node)).collect();
    assert_eq!(tasks, [Some(2), Some(2), Some(2), Some(1), None]);
}
