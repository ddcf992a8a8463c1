//! Several adapters over one base in one run, each with its own job.

use fathom_base::recipe::Loaded;
use fathom_train::recipe::Recipe;

use super::begin::{check_alone, is_done};
use super::named::name;
use crate::error::{Context, Result};
use crate::events::Events;
use crate::job::Job;
use crate::several::{jobs, recipe_of};

/// Refuses a run of several adapters if one of them cannot be trained.
pub(super) fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    for (index, one) in loaded.value.adapters.iter().enumerate() {
        let named = || format!("adapter \"{}\"", one.name);
        check_alone(&recipe_of(loaded, index).with_context(named)?).with_context(named)?;
    }
    Ok(())
}

/// Returns the jobs of the unfinished adapters, each in its own folder.
///
/// # Errors
/// An invalid recipe of one adapter, which is named.
pub(super) fn unfinished(whole: &Job, events: &dyn Events) -> Result<Vec<Job>> {
    let mut left = Vec::new();
    let which: Vec<usize> = (0..whole.recipe().adapters.len()).collect();
    for (index, job) in jobs(&whole.loaded, &which, events)?.iter().enumerate() {
        if is_done(job)? {
            events.line(&format!("{}: finished already; it is {}", name(job), job.adapter().display()));
        } else {
            left.push(index);
        }
    }
    jobs(&whole.loaded, &left, events)
}
