//! Checks of addresses in a recipe.

use fathom_base::recipe::Loaded;
use fathom_base::secrets::{in_address, redacted};

use crate::error::{Result, refuse};
use crate::recipe::Recipe;

/// Refuses addresses of text with a password or a signature, since the recipe is saved with the run.
pub(super) fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    let data = &loaded.value.data;
    let named = data.paths.iter().map(|path| ("data.paths".to_string(), path));
    let held_out = data.held_out_paths.iter().map(|path| ("data.held_out_paths".to_string(), path));
    let each = loaded.value.adapters.iter().enumerate();
    let of_adapters =
        each.flat_map(|(at, one)| one.paths.iter().map(move |path| (format!("adapters.{at}.paths"), path)));
    for (key, path) in named.chain(held_out).chain(of_adapters) {
        let path = path.to_string_lossy();
        if let Some(what) = in_address(&path) {
            let message = format!(
                "`{}` has {what} in it, which would be saved; download the file and name its path",
                redacted(&path)
            );
            return refuse(loaded, &key, message);
        }
    }
    Ok(())
}
