//! The curation of a corpus: the part of its recipe that determines bytes.

use fathom_base::recipe::Loaded;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::error::Error;
use crate::pipeline::{Recipe, refuse, refuse_secrets};

/// Stages whose work the corpus does itself.
const OWN: [&str; 4] = ["shuffle", "split", "write", "tokenize"];

/// The parts of a curation recipe that determine the bytes of a corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curation(pub(super) Recipe);

impl Curation {
    /// Takes a recipe without its output folder, threads, memory and spill folder. Salts are replaced by their
    /// hashes.
    ///
    /// # Errors
    /// The recipe contains a secret or a stage that a corpus cannot use.
    pub fn of(mut loaded: Loaded<Recipe>) -> Result<Curation, Error> {
        refuse_secrets(&loaded)?;
        shorten(&mut loaded)?;
        let mut recipe = loaded.value;
        let Recipe { out, threads, memory, spill, .. } = Recipe::default();
        (recipe.out, recipe.threads, recipe.memory, recipe.spill) = (out, threads, memory, spill);
        for salt in recipe.stage.iter_mut().filter_map(|stage| stage.options.get_mut("salt")) {
            *salt = format!("{:032x}", XxHash3_128::oneshot(salt.to_string().as_bytes())).into();
        }
        Ok(Curation(recipe))
    }

    /// Returns true if the recipe names its own input.
    pub fn names_input(&self) -> bool {
        names_input(&self.0)
    }
}

pub(super) fn names_input(recipe: &Recipe) -> bool {
    !recipe.input.paths.is_empty() || !recipe.input.snapshot.name.is_empty()
}

/// Removes trailing stages whose work the corpus does itself.
///
/// # Errors
/// Another stage follows one of them, so that its work would be lost; or the recipe has a blend, which belongs to a
/// run.
pub(super) fn shorten(loaded: &mut Loaded<Recipe>) -> Result<(), Error> {
    let own = |kind: &str| OWN.contains(&kind);
    let stages = &loaded.value.stage;
    if let Some(at) = stages.iter().position(|stage| stage.kind == "blend") {
        let message = "a run blends its sources itself, by data.blend; leave this stage out";
        return Err(refuse(loaded, at, "use", message).into());
    }
    let end = stages.iter().position(|stage| own(&stage.kind)).unwrap_or(stages.len());
    if let Some(behind) = stages[end..].iter().position(|stage| !own(&stage.kind)) {
        let message = format!(
            "it stands behind `{}`, which a run does itself, as all that follows; put it in front",
            stages[end].kind
        );
        return Err(refuse(loaded, end + behind, "use", message).into());
    }
    loaded.value.stage.truncate(end);
    Ok(())
}
