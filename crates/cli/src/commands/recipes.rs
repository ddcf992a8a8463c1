//! `fathom recipes`: lists, shows and copies the recipes inside the binary.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fathom_base::recipe::header;

use crate::args::Recipes;
use crate::library::{LIBRARY, layers, load};

/// Runs the verb.
pub fn run(action: &Recipes) -> Result<()> {
    match action {
        Recipes::Ls => list(),
        Recipes::Show { name, settings } => {
            print!("{}", load(layers(name, settings))?.text());
            Ok(())
        }
        Recipes::Cp { name, file } => copy(name, file.as_deref()),
    }
}

fn list() -> Result<()> {
    for name in LIBRARY.names() {
        let text = LIBRARY.text(name).unwrap_or_default();
        let about = header(name, text, "about")?.unwrap_or_default();
        println!("{name:<18} {about}");
    }
    Ok(())
}

fn copy(name: &str, file: Option<&Path>) -> Result<()> {
    let Some(text) = LIBRARY.text(name) else {
        bail!("no recipe `{name}`; `fathom recipes ls` lists them");
    };
    let file = file.map_or_else(|| PathBuf::from(format!("{name}.toml")), Path::to_path_buf);
    if file.exists() {
        bail!("{} exists; name another file", file.display());
    }
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}
