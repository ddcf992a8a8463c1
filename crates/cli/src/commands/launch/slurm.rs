//! A script for sbatch.

use std::fmt::Write;

use anyhow::{Result, bail};

use super::text::{command, one_line, quote};
use super::work::{Work, hand_over, this_program};
use crate::args::Slurm;
use crate::exit::{ExitCode, RESUME};

/// Prints or submits the script.
pub fn run(args: &Slurm) -> Result<ExitCode> {
    hand_over(&args.job, &script(args)?, &["sbatch"])
}

fn script(args: &Slurm) -> Result<String> {
    let work = Work::of(&args.job)?;
    work.warn_of_paths("the folder that sbatch is called in, on every machine");
    let spread = work.spread(&args.machines)?;
    if let Some(seconds) = args.time.as_deref().and_then(seconds)
        && seconds <= u64::from(args.machines.grace)
    {
        bail!(
            "--grace {} is not less than --time {}, so the job would save and queue again before it has trained; give it more time, or less \
             grace",
            args.machines.grace,
            args.time.as_deref().unwrap_or_default()
        );
    }
    let mut script = String::from("#!/bin/bash\n");
    let mut option = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(script, "#SBATCH --{name}={value}");
    };
    option("job-name", &work.name);
    option("nodes", &spread.nodes);
    option("ntasks-per-node", &spread.per_node);
    for (name, value) in
        [("cpus-per-task", args.machines.cpus_per_rank), ("gpus-per-node", args.machines.gpus_per_node)]
    {
        value.iter().for_each(|value| option(name, value));
    }
    for (name, value) in [("time", &args.time), ("partition", &args.partition), ("account", &args.account)] {
        if let Some(value) = value {
            option(name, &quote(one_line(&format!("--{name}"), value)?));
        }
    }
    option("output", &"%x-%j.log");
    option("open-mode", &"append");
    script += "#SBATCH --requeue\n# Before the end of their time the ranks save and stop; Slurm may say so a minute early.\n";
    let _ = writeln!(script, "#SBATCH --signal=USR1@{}", args.machines.grace);
    let program = work.program(this_program);
    let bound =
        args.machines.cpus_per_rank.map(|cores| format!(" --cpus-per-task={cores}")).unwrap_or_default();
    let queues = match args.machines.gpus_per_node {
        Some(_) => {
            "# Messages that wait for each other have queues of their own on a GPU.\nexport CUDA_DEVICE_MAX_CONNECTIONS=32\n"
        }
        None => "",
    };
    let _ = write!(
        script,
        r#"
{queues}# Cancelled is cancelled: only what ran out of time queues again.
cancelled=
trap 'cancelled=1' TERM

# A rank that dies ends the step, and the step is started again from the last checkpoint.
code=0
{} \
    srun --mpi=pmix --kill-on-bad-exit=1{bound} \
    {} || code=$?
if [ "$code" = {RESUME} ] && [ -z "$cancelled" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"#,
        command(&work.supervise(&program)),
        command(&work.train(&program, None)),
    );
    Ok(script)
}

/// Seconds of a time in sbatch's syntax: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
/// days-hours:minutes, or days-hours:minutes:seconds. `None` for anything else, which sbatch reports itself.
fn seconds(time: &str) -> Option<u64> {
    let (days, rest) = match time.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u64>().ok()?), rest),
        None => (None, time),
    };
    let parts = rest.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let [hours, minutes, seconds] = match (days.is_some(), parts.as_slice()) {
        (true, [hours]) => [*hours, 0, 0],
        (true, [hours, minutes]) => [*hours, *minutes, 0],
        (false, [minutes]) => [0, *minutes, 0],
        (false, [minutes, seconds]) => [0, *minutes, *seconds],
        (_, [hours, minutes, seconds]) => [*hours, *minutes, *seconds],
        _ => return None,
    };
    // Slurm reads 0 as no limit.
    let all = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?.checked_mul(60)?.checked_add(minutes)?;
    Some(all.checked_mul(60)?.checked_add(seconds)?).filter(|all| *all > 0)
}
