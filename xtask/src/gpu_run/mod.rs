//! All checks and benchmarks on a GPU, in one command designed for eight minutes: libraries and rates, every operation
//! and training steps compared with the CPU machine, the figures with bars next to PyTorch's, ranks on one device,
//! NCCL, CUDA graphs. Each stage has a time limit, and a failed stage does not stop the others. The results are printed
//! as a dated table for the month's page in `docs/log`. Each stage can also be run alone.

mod args;
mod fp8;
mod losses;
mod rival;
mod session;
mod stage;
mod stages;
mod table;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub use args::Args;
use session::{Programs, Session};
use stages::{ALL_S, DEVICE_S, STAGES, Stage};
use table::Results;

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
