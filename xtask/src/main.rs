//! Repository chores, called as `cargo xtask <command>`. They depend on the layout of the repository, not on what the
//! crates compute.

mod ci;
mod claims;
mod gpu_check;
mod gpu_plans;
mod gpu_run;
mod gpu_sources;
mod kill_test;
mod lessons;
mod lint;
mod python;
mod quickstart;
mod random;
mod record;
mod soak;
mod tidy;
mod trial;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

  ci --quick             before a push: format, clippy, tidy, the unit tests of the crates that differ from main
  lint [--if-changed]    clippy over the workspace; --if-changed: unless xtask/lint.toml says that these sources passed
  python                 write the Python package's keys and recipes from their declarations, build its library, and link it into place
  wheel OUT              build the Python package's wheel (manylinux_2_28) and its sdist into a folder
  tidy                   hold the budgets and the dependency arrows; prints file:line: message
  check-quickstart DIR   check the results that `fathom quickstart --out DIR` left
  kill-test N            kill a small quickstart N times at random moments, resume it, compare every loss
  lessons                what rewards, preferences and a reward model teach a small model, over three seeds
  claims NAME BINARY     train the arms of a claim (xtask/claims/NAME.toml) with a binary over three seeds, and print its tables
  soak MODEL ABORTS MINUTES
                         `fathom serve MODEL`: so many requests that are left at random moments, then a mixture of clients that
                         ask, leave, stall and send garbage; no page may be lost, memory may grow by 32 MiB
  marathon MODEL MINUTES `fathom supervise` over a server that is killed and stopped up to five times; a canary asks every second
  gpu-check [--if-changed]
                         compile every kernel of the GPU for every chip, and have cuDNN plan every case of attention, with
                         libraries fetched into target/; no device is needed; --if-changed: unless crates/cuda/gpu-check.toml
                         says that these sources were checked
  gpu-run [--long] [--log] [--patience TIMES] [--stage NAMES] [DIR]
                         rates, every operation and training steps of a GPU against the CPU, the figures that have bars, ranks;
                         meant for eight minutes; --long: then what takes longer; --stage: these stages alone, with commas
                         between them; --log: the table goes into docs/log; DIR has `gpu` and `fathom` built";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let complaints = match args[..] {
        ["ci", "--quick"] => ci::quick(),
        ["tidy"] => tidy::run(),
        ["check-quickstart", dir] => Ok(quickstart::check(dir.as_ref())),
        ["gpu-check"] => gpu_sources::run(),
        ["gpu-check", "--if-changed"] => gpu_sources::run_if_changed(),
        ["gpu-run", ref words @ ..] => gpu_run::Args::parse(words).and_then(|args| gpu_run::run(&args)),
        ["lint"] => lint::run(),
        ["lint", "--if-changed"] => lint::run_if_changed(),
        ["claims", name, binary] => claims::run(name, binary.as_ref()),
        ["lessons"] => lessons::run(),
        ["python"] => python::generate(),
        ["wheel", out] => python::wheel(out),
        ["soak", model, aborts, minutes] => both(aborts, minutes).and_then(|(a, m)| soak::run(model, a, m)),
        ["marathon", model, minutes] => both("0", minutes).and_then(|(_, m)| soak::marathon::run(model, m)),
        ["kill-test", kills] => kills.parse().map_err(|_| USAGE.to_string()).and_then(kill_test::run),
        _ => Err(USAGE.to_string()),
    };
    match complaints {
        Ok(complaints) if complaints.is_empty() => {
            println!("{}: no violations", args.join(" "));
            ExitCode::SUCCESS
        }
        Ok(complaints) => {
            complaints.iter().for_each(|complaint| println!("{complaint}"));
            eprintln!("{}: violations: {}", args.join(" "), complaints.len());
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn both(aborts: &str, minutes: &str) -> Result<(u64, f64), String> {
    match (aborts.parse(), minutes.parse()) {
        (Ok(aborts), Ok(minutes)) => Ok((aborts, minutes)),
        _ => Err(USAGE.to_string()),
    }
}
