//! `fathom prefixes`: the prompt prefixes that a server keeps.

use anyhow::{Context, Result, bail};
use fathom_app::serve::{KeptModel, StoreLocation};
use fathom_base::human;

use crate::args;

/// Runs the verb.
pub fn run(args: &args::Prefixes) -> Result<()> {
    let folder = &args.folder;
    let kept = StoreLocation::kept(folder).with_context(|| format!("{}", folder.display()))?;
    let wanted = |kept: &&KeptModel| args.model.as_ref().is_none_or(|model| *model == kept.model);
    let listed: Vec<&KeptModel> = kept.iter().filter(wanted).collect();
    if let (Some(model), true) = (&args.model, listed.is_empty()) {
        bail!("{} keeps nothing of a model {model}", folder.display());
    }
    for kept in listed {
        if args.erase {
            StoreLocation::erase(folder, kept)
                .with_context(|| format!("{}", folder.join(&kept.model).display()))?;
        }
        outln!(
            "{}  {} of {}, {}{}",
            kept.model,
            human::counted(kept.pages as u64, "page"),
            human::counted(kept.scopes as u64, "scope"),
            human::bytes(kept.bytes),
            if args.erase { ", erased" } else { "" }
        );
    }
    Ok(())
}
