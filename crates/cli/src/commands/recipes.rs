//! `fathom recipes`: lists, shows and copies the recipes inside the binary.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fathom_base::recipe::{Layers, Recipe as Loaded, header};
use fathom_curate::pipeline::{Recipe as Curation, refuse_secrets};

use crate::args::Recipes;
use crate::console;
use crate::library::{CURATE, LIBRARY, groups, layers, resolve};

/// Runs the verb.
pub fn run(action: &Recipes) -> Result<()> {
    match action {
        Recipes::Ls => list(),
        Recipes::Show { name, settings } if CURATE.text(name).is_some() => {
            let layers = Layers::with_library(CURATE).recipe(name).sets(settings);
            let loaded = Loaded::<Curation>::load(layers)?;
            refuse_secrets(&loaded)?;
            print!("{}", loaded.text());
            Ok(())
        }
        Recipes::Show { name, settings } => {
            print!("{}", resolve(layers(name, settings))?.text());
            Ok(())
        }
        Recipes::Cp { name, file } => copy(name, file.as_deref()),
    }
}

fn list() -> Result<()> {
    for (number, (library, (heading, names))) in groups().enumerate() {
        let gap = if number == 0 { "" } else { "\n" };
        println!("{gap}{}", console::painted(console::HEAD, heading));
        for name in *names {
            let about = header(name, library.text(name).unwrap_or_default(), "about")?;
            println!("  {name:<24}  {}", about.unwrap_or_default());
        }
    }
    Ok(())
}

fn copy(name: &str, file: Option<&Path>) -> Result<()> {
    let Some(text) = LIBRARY.text(name).or_else(|| CURATE.text(name)) else {
        bail!("no recipe `{name}`; `fathom recipes ls` lists them");
    };
    let file = file.map_or_else(|| PathBuf::from(format!("{name}.toml")), Path::to_path_buf);
    if file.symlink_metadata().is_ok() {
        bail!("{} exists; name another file", file.display());
    }
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}
