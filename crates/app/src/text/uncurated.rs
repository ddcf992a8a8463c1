//! Replaces curation in a build without it: text is read uncurated, and a recipe that names a curation is refused.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_curate::{CorpusSpec, Curation};
use fathom_train::recipe::Data;

use crate::error::{Error, Result};
use crate::events::Events;
use crate::job::Job;

/// Message for a recipe that names a curation.
const NOT_BUILT: &str = "data.curate: this program was built without curation (cargo feature `curate`); build one with it, or give \
                         data.curate=none to train on the text as it is";

/// Always returns `None`.
pub fn name(_: &Data) -> Option<&str> {
    None
}

/// Always returns `None`.
///
/// # Errors
/// A recipe that names a curation.
pub fn curation(data: &Data) -> Result<Option<Curation>> {
    match data.curate.as_str() {
        "none" | "auto" => Ok(None),
        _ => Err(Error::NotBuilt(NOT_BUILT)),
    }
}

/// Notes that gathered text is not filtered, if it would be in a full build.
///
/// # Errors
/// None.
pub fn run(job: &Job, _: &CorpusSpec, _: &Arc<AtomicBool>, events: &dyn Events) -> Result<bool> {
    let data = &job.recipe().data;
    if data.curate == "auto" && data.is_gathered() {
        events.line("note: this program was built without curation, so the text is read as it is");
    }
    Ok(true)
}
