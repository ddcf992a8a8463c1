//! JSON lines as trackio and the like have them: `{"step": .., "timestamp": .., "train/loss": ..}`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Sink;
use crate::error::{Error, Result};

/// A file of scalars, a line a step. A resumed run appends; of two lines of a step the later counts.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    /// Opens the file of a run, which is made if it does not exist.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn open(path: &Path) -> Result<Lines> {
        let mut options = OpenOptions::new();
        let file = fathom_base::files::no_follow(options.create(true).append(true)).open(path);
        Ok(Lines { path: path.to_path_buf(), file: file.map_err(|error| Error::write(path, error))? })
    }
}

impl Sink for Lines {
    fn scalars(&mut self, step: u64, wall_s: f64, scalars: &[(&str, f64)]) -> Result<()> {
        let mut row: Map<String, Value> =
            [("step".into(), step.into()), ("timestamp".into(), wall_s.into())].into_iter().collect();
        // A number that is not finite is null.
        row.extend(scalars.iter().map(|(name, value)| ((*name).to_string(), Value::from(*value))));
        let line = format!("{}\n", Value::Object(row));
        self.file.write_all(line.as_bytes()).map_err(|error| Error::write(&self.path, error))
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}
