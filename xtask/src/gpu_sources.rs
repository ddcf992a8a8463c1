//! `gpu-check`, and the record of the sources that it last found nothing to complain about.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::gpu_check::{self, root};
use crate::gpu_plans;

/// Holds the record, and is committed.
const FILE: &str = "crates/cuda/gpu-check.toml";
/// Folders and files that a check depends on.
const SOURCES: [&str; 4] =
    ["crates/cuda/kernels", "crates/cuda/src", "xtask/src/gpu_check.rs", "xtask/src/gpu_plans.rs"];

/// Record of a check without complaints.
#[derive(Deserialize, Serialize)]
struct Record {
    /// Day of the check, as `2026-11-29`.
    date: String,
    /// BLAKE3 of the sources.
    sources: String,
}

/// Unless these very sources were checked before without complaints, checks them ([`run`]).
///
/// # Errors
/// As [`run`].
pub fn run_if_changed() -> Result<Vec<String>, String> {
    match checked()? {
        Some(date) => {
            println!("gpu-check: the sources are those that were checked on {date}");
            Ok(Vec::new())
        }
        None => run(),
    }
}

/// Compiles every kernel for every architecture and builds every plan of attention, and records the sources if there are no
/// complaints.
///
/// # Errors
/// A message when cargo cannot be run, or the record not written.
pub fn run() -> Result<Vec<String>, String> {
    let kernels = gpu_check::kernels()?;
    let plans = gpu_plans::run()?;
    if let (Some([]), Some([])) = (kernels.as_deref(), plans.as_deref()) {
        remember()?;
    }
    Ok([kernels, plans].into_iter().flatten().flatten().collect())
}

/// The day on which these very sources were checked, if they were.
///
/// # Errors
/// A message when a source cannot be read.
fn checked() -> Result<Option<String>, String> {
    let record = fs::read_to_string(root().join(FILE)).ok().and_then(|text| toml::from_str(&text).ok());
    let Some(Record { date, sources }) = record else { return Ok(None) };
    Ok((sources == hash()?).then_some(date))
}

/// Writes that the sources were checked today, without complaints.
///
/// # Errors
/// A message when a source cannot be read, or the record not written.
fn remember() -> Result<(), String> {
    let date = Command::new("date").args(["-u", "+%F"]).output().map_err(|error| format!("date: {error}"))?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_string();
    let record = toml::to_string(&Record { date, sources: hash()? }).map_err(|error| error.to_string())?;
    let text = format!(
        "# Written by `cargo xtask gpu-check`, which CI leaves out while the sources are these.\n{record}"
    );
    fs::write(root().join(FILE), text).map_err(|error| format!("{FILE}: {error}"))
}

/// BLAKE3 of the names and the contents of all sources.
fn hash() -> Result<String, String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&root().join(source), &mut files).map_err(|error| format!("{source}: {error}"))?;
    }
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap_or(&file).to_string_lossy().into_owned();
        let text = fs::read(&file).map_err(|error| format!("{name}: {error}"))?;
        hasher.update(format!("{name}\0{}\0", text.len()).as_bytes()).update(&text);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.is_dir() {
        files.push(path.to_path_buf());
        return Ok(());
    }
    fs::read_dir(path)?.try_for_each(|entry| collect(&entry?.path(), files))
}
