//! All checks and benchmarks on a GPU, in one command designed for eight minutes: libraries and rates, every operation
//! and training steps compared with the CPU machine, the figures with bars next to PyTorch's, ranks on one device,
//! NCCL, CUDA graphs. Each stage has a time limit, and a failed stage does not stop the others. The results are printed
//! as a dated table for the month's page in `docs/log`. Each stage can also be run alone.

mod args;
mod fp8;
mod losses;
mod rival;
mod stage;
mod stages;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub use args::Args;
use stage::Ran;
use stages::{ALL_S, DEVICE_S, LARGE_SHAPE, SHAPE, STAGES, Stage, Step};
use table::{GRAPHS, LARGE, LEAN, OFFLOADED, PEAKED, Results};

/// The paths of the two programs: in a given folder, or as built by cargo.
struct Programs {
    gpu: PathBuf,
    fathom: PathBuf,
}

impl Programs {
    fn find(folder: Option<&Path>) -> Result<Programs, String> {
        if let Some(folder) = folder {
            let [gpu, fathom] = ["gpu", "fathom"].map(|name| folder.join(name));
            let absent = [&gpu, &fathom].into_iter().find(|path| !path.is_file());
            if let Some(path) = absent {
                return Err(format!("{}: no such program", path.display()));
            }
            return Ok(Programs { gpu, fathom });
        }
        let build = ["build", "--release", "--bin", "fathom", "--example", "gpu"];
        let status = Command::new("cargo").args(build).status();
        if !status.map_err(|error| error.to_string())?.success() {
            return Err(format!("cargo {} fails", build.join(" ")));
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        let release = target.join("release");
        Ok(Programs { gpu: release.join("examples/gpu"), fathom: release.join("fathom") })
    }
}

/// The state of a run.
struct Session {
    programs: Programs,
    started: Instant,
    limit: Duration,
    patience: u32,
    results: Results,
    complaints: Vec<String>,
}

impl Session {
    /// Runs a program within its time limit and the remaining total time.
    fn stage(&mut self, name: &str, limit_s: u64, command: &mut Command) -> Ran {
        let left = self.limit.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            self.complaints.push(format!("{name}: not run, the time is up"));
            return Ran { lines: Vec::new(), failed: Some("not run".into()), ended: false, seconds: 0.0 };
        }
        println!("== {name}");
        let ran = stage::run(command, left.min(self.patience * Duration::from_secs(limit_s)));
        println!("== {name}: {:.0} s, {:.0} s in all", ran.seconds, self.started.elapsed().as_secs_f64());
        if let Some(failed) = &ran.failed {
            self.complaints.push(format!("{name}: {failed}"));
        }
        if ran.ended {
            // Device memory held by the program is not available immediately to the next one.
            stage::run(Command::new(&self.programs.gpu).arg("free"), Duration::from_secs(30));
        }
        ran
    }

    fn gpu(&mut self, what: &str, limit_s: u64) -> bool {
        let mut command = Command::new(&self.programs.gpu);
        let ran = self.stage(&format!("gpu {what}"), limit_s, command.arg(what));
        self.results.add(&ran.lines, None);
        ran.failed.is_none()
    }

    fn check(&mut self, what: &str, limit_s: u64) {
        // A failure has already been added to the complaints.
        let _ = self.gpu(what, limit_s);
    }

    /// The command `fathom bench step` for a shape, a kind of attention scores and a sequence length, with tiled
    /// processing.
    fn bench_step(&self, (shape, scores): (&str, &str), tokens: &str, repeat: &str) -> Command {
        let mut command = Command::new(&self.programs.fathom);
        command.args([
            "bench",
            "step",
            "--repeat",
            repeat,
            "--scores",
            scores,
            "machine.kind=cuda",
            "activations.tile_rows=8192",
        ]);
        command.arg(format!("stages={tokens}")).args(shape.split(' '));
        command
    }

    /// Benchmarks a step with the given memory options; `name` selects a variant or another shape.
    fn bench(&mut self, (tokens, places, repeat, limit_s): Step, name: Option<&str>) {
        let shape = if matches!(name, Some(LARGE | OFFLOADED)) { LARGE_SHAPE } else { SHAPE };
        let more: &[&str] = match name {
            Some(GRAPHS) => &["machine.graphs=true"],
            Some(OFFLOADED) => &["machine.offload_optimizer=true", "machine.offload_to=host"],
            Some(LEAN | LARGE) => &["optimizer.moments=bf16", "optimizer.master_weights=false"],
            _ => &[],
        };
        let scores = if name == Some(PEAKED) { "peaked" } else { "flat" };
        let mut command = self.bench_step((shape, scores), tokens, repeat);
        command.arg(places).args(more);
        if repeat == "1" {
            command.arg("--once");
        }
        let what = format!("step of {tokens} tokens, {}", name.unwrap_or("Llama-3.2-1B shape"));
        let ran = self.stage(&what, limit_s, &mut command);
        self.results.add(&ran.lines, name);
    }
}

/// Runs all requested stages; returns complaints about differences.
///
/// # Errors
/// One line if a program cannot be built or there is no device.
pub fn run(args: &Args) -> Result<Vec<String>, String> {
    let programs = Programs::find(args.folder.as_deref())?;
    let mut stages: Vec<&Stage> = args.stages.clone();
    let alone = !stages.is_empty();
    stages.extend(STAGES.iter().filter(|stage| if stage.long { args.long } else { !alone }));
    // Stages run alone, or with the long ones, have only their own limits.
    let limits = stages.iter().map(|stage| stage.limit_s).sum::<u64>() + DEVICE_S;
    let limit = Duration::from_secs(if alone || args.long { limits } else { ALL_S });
    let (started, patience) = (Instant::now(), args.patience as u32);
    let (results, complaints) = (Results::default(), Vec::new());
    let mut session = Session { programs, started, limit: patience * limit, patience, results, complaints };
    if !session.gpu("device", DEVICE_S) {
        return Err("gpu-run: no GPU to run on; the lines above say why".to_string());
    }
    stages.into_iter().for_each(|stage| session.run(stage));
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    let date = date.unwrap_or_default();
    let (table, missed) = session.results.table(&date);
    println!("== for docs/log\n\n{table}\n");
    session.complaints.extend(missed);
    if args.log && session.results.is_rehearsed() {
        session.complaints.push("--log: what a rehearsal found is about no GPU".to_string());
    } else if args.log {
        log(Path::new("docs/log"), &date, &table)?;
    }
    Ok(session.complaints)
}

/// Appends a table to its month's page, creating the page with a heading if necessary.
fn log(folder: &Path, date: &str, table: &str) -> Result<(), String> {
    let month = date.get(..7).ok_or("--log: `date` does not print a date")?;
    let path = folder.join(format!("{month}.md"));
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("# Log, {month}"),
        read => read.map_err(failed)?,
    };
    std::fs::write(&path, format!("{}\n\n{table}\n", text.trim_end())).map_err(failed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_table_is_appended_to_the_page_of_its_month() {
        let folder = tempfile::tempdir().unwrap();
        let page = |month: &str| std::fs::read_to_string(folder.path().join(month)).unwrap();
        std::fs::write(folder.path().join("2026-01.md"), "# Log\n\n## Past\n\nx\n").unwrap();
        super::log(folder.path(), "2026-01-31", "## Found\n\nz").unwrap();
        assert_eq!(page("2026-01.md"), "# Log\n\n## Past\n\nx\n\n## Found\n\nz\n");
        super::log(folder.path(), "2026-02-01", "## More\n\ny").unwrap();
        assert_eq!(page("2026-02.md"), "# Log, 2026-02\n\n## More\n\ny\n");
        assert!(super::log(&folder.path().join("none"), "2026-02-01", "").is_err());
        assert!(super::log(folder.path(), "", "").is_err());
    }
}
