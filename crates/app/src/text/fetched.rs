//! Lessons at remote addresses, copied into the run's folder once and read from there.

use std::path::{Path, PathBuf};

use fathom_text::lessons::files;

use crate::error::Result;
use crate::events::Events;

/// Returns the files of rows for paths and addresses (`s3://`, `https://`); folders, and prefixes that end with `/`,
/// stand for the files below them. Remote files are copied into `folder` once.
///
/// # Errors
/// Paths that cannot be read; errors of a server.
pub(crate) fn rows(paths: &[PathBuf], folder: &Path, events: &dyn Events) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        match path.to_str().filter(|path| path.contains("://")) {
            Some(address) => all.extend(fetched(address, folder, events)?),
            None => all.push(path.clone()),
        }
    }
    Ok(files(&all)?)
}

#[cfg(feature = "curate")]
fn fetched(address: &str, folder: &Path, events: &dyn Events) -> Result<Vec<PathBuf>> {
    use fathom_base::{human, secrets};
    use fathom_curate::{fetch, remote_files};
    use fathom_text::lessons::has_rows;

    use crate::curate::remote;
    use crate::error::{Context, refuse};

    let options = remote();
    let mut found = remote_files(address, &options)?;
    if address.ends_with('/') {
        found.retain(|name| has_rows(Path::new(name)));
        if found.is_empty() {
            refuse!("{address}: has no .jsonl, .json or .parquet file below it, compressed or not");
        }
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let copy = |address: &String| {
        // The name has a hash of the whole address, since other folders may have files of the same name, and keeps the
        // extension.
        let name = address.rsplit('/').next().unwrap_or_default();
        let to = folder.join(format!("{}-{name}", &blake3::hash(address.as_bytes()).to_hex()[..12]));
        if !to.is_file() {
            let shown = secrets::redacted(address).into_owned();
            events.doing(&format!("reading {shown}"));
            let bytes = fetch(address, &options, &to)?;
            events.line(&format!("{shown}: {}, kept as {}", human::bytes(bytes), to.display()));
        }
        Ok(to)
    };
    found.iter().map(copy).collect()
}

#[cfg(not(feature = "curate"))]
fn fetched(_: &str, _: &Path, _: &dyn Events) -> Result<Vec<PathBuf>> {
    Err(crate::error::Error::NotBuilt(
        "lessons behind an address need the cargo feature `curate`, which has the reader of stores and servers; download the \
         files and name their paths",
    ))
}
