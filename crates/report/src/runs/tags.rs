//! Tags of a run: words in the file `tags.json` of its folder.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{Error, Result};

const FILE: &str = "tags.json";

/// Returns the tags of a run; none where the file is missing or damaged.
pub fn tags(run: &Path) -> BTreeSet<String> {
    let text = std::fs::read(run.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Replaces the tags of a run.
///
/// # Errors
/// A file that cannot be written.
pub fn write_tags(run: &Path, tags: &BTreeSet<String>) -> Result<()> {
    let path = run.join(FILE);
    let part = path.with_extension("json.part");
    let text = format!("{}\n", serde_json::Value::from_iter(tags.iter().cloned()));
    fathom_base::files::write(&part, text.as_bytes()).map_err(|error| Error::write(&part, error))?;
    std::fs::rename(&part, &path).map_err(|error| Error::write(&path, error))
}
