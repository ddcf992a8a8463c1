//! `fathom guard from`: a folder of NeMo Guardrails as a guard.toml.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fathom_base::human;
use fathom_guard::import::from_nemo;

use crate::console;

/// Runs the verb.
pub fn run(folder: &Path, out: Option<&Path>) -> Result<()> {
    let found = from_nemo(folder)?;
    match out {
        None => out!("{}", found.toml),
        Some(out) if out.symlink_metadata().is_ok() => bail!("{} exists; name another file", out.display()),
        Some(out) => {
            fathom_base::files::write(out, found.toml.as_bytes())
                .with_context(|| format!("cannot write {}", out.display()))?;
        }
    }
    console::line(&format!("{}: {}", folder.display(), human::counted(found.rails as u64, "rail")));
    for unsaid in &found.unsaid {
        console::line(&format!("  not said: {unsaid}"));
    }
    Ok(())
}
