//! `fathom recipes`: lists, shows and copies the recipes inside the binary.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fathom_app::editors::json_schema;
use fathom_app::foreign::{Translation, translate, translate_as};
use fathom_app::library::{CURATE, LIBRARY, groups, is_curation, layers, resolve};
use fathom_base::recipe::header;
use fathom_train::recipe::Recipe;

use super::curate;
use crate::args::Recipes;
use crate::console;

/// Runs the verb.
pub fn run(action: &Recipes) -> Result<()> {
    match action {
        Recipes::Ls => list(),
        Recipes::Show { name, settings } if is_curation(name) => curate::show(name, settings),
        Recipes::Show { name, settings } => {
            out!("{}", resolve(layers(name, settings))?.text());
            Ok(())
        }
        Recipes::Cp { name, file } => copy(name, file.as_deref()),
        Recipes::Schema { curate } => {
            let schema = if *curate { curate::schema()? } else { json_schema::<Recipe>("Fathom recipe") };
            outln!("{schema:#}");
            Ok(())
        }
        Recipes::From { file, out, method } => from(file, out.as_deref(), method.as_deref()),
    }
}

fn list() -> Result<()> {
    for (number, (library, group)) in groups()?.into_iter().enumerate() {
        let gap = if number == 0 { "" } else { "\n" };
        outln!("{gap}{}", console::painted(console::HEAD, &group.heading));
        for name in &group.names {
            let about = header(name, &library.text(name)?.unwrap_or_default(), "about")?;
            outln!("  {name:<24}  {}", about.unwrap_or_default());
        }
    }
    Ok(())
}

fn copy(name: &str, file: Option<&Path>) -> Result<()> {
    let library = if is_curation(name) { CURATE } else { LIBRARY };
    let Some(text) = library.text(name)? else {
        bail!("no recipe `{name}`; `fathom recipes ls` lists them");
    };
    let file = file.map_or_else(|| PathBuf::from(format!("{name}.toml")), Path::to_path_buf);
    if file.symlink_metadata().is_ok() {
        bail!("{} exists; name another file", file.display());
    }
    std::fs::write(&file, text.as_bytes()).with_context(|| format!("cannot write {}", file.display()))?;
    outln!("{}", file.display());
    Ok(())
}

/// Translates another tool's settings to a recipe, on standard output or in a file; unsupported settings go to
/// standard error.
fn from(file: &Path, out: Option<&Path>, method: Option<&str>) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let translated = method.map_or_else(|| translate(&text), |method| translate_as(&text, method));
    let translated = translated.with_context(|| format!("{}", file.display()))?;
    match out {
        None => out!("{}", translated.recipe),
        Some(out) if out.symlink_metadata().is_ok() => bail!("{} exists; name another file", out.display()),
        Some(out) => {
            std::fs::write(out, &translated.recipe)
                .with_context(|| format!("cannot write {}", out.display()))?;
        }
    }
    let Translation { tool, base, unsaid, .. } = translated;
    console::line(&format!("{}: settings of {tool}, over the recipe {base}", file.display()));
    for (key, why) in unsaid {
        console::line(&format!("  not said: {key}: {why}"));
    }
    Ok(())
}
