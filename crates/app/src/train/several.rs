//! Several adapters over one base in one run: each is a job of its own.

use fathom_base::recipe::Loaded;
use fathom_train::recipe::Recipe;

use super::begin::{check_alone, is_done};
use super::named::name;
use crate::error::{Context, Result};
use crate::events::Events;
use crate::job::Job;
use crate::several::{jobs, recipe_of};

/// Refuses a run of several of which one cannot be trained.
///
/// # Errors
/// The first that cannot, by name.
pub(super) fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    for (index, one) in loaded.value.adapters.iter().enumerate() {
        let named = || format!("adapter \"{}\"", one.name);
        check_alone(&recipe_of(loaded, index).with_context(named)?).with_context(named)?;
    }
    Ok(())
}

/// The jobs of the adapters that are not finished, each in a folder of its own.
///
/// # Errors
/// What is wrong with the recipe of one, which is named.
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
