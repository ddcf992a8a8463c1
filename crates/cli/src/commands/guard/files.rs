//! Files that the verbs write.

use std::path::Path;

use anyhow::{Context, Result};
use fathom_app::output::regular;

/// Refuses files that are not to be replaced, before any work is done.
pub fn check(files: &[Option<&Path>]) -> Result<()> {
    files.iter().flatten().try_for_each(|file| Ok(regular(file)?))
}

/// Writes a file, if one is asked for.
pub fn write(file: Option<&Path>, text: impl FnOnce() -> String) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    fathom_base::files::write(file, text().as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}
