//! Several adapters over one base in one run: each has a job of its own, in its own folder inside the run's.

use std::path::PathBuf;

use fathom_base::recipe::{Layers, Loaded};
use fathom_train::recipe::Recipe;
use toml::{Table, Value};

use crate::adapters::FOLDER;
use crate::error::{Context, Result};
use crate::events::Events;
use crate::job::Job;
use crate::library::{LIBRARY, load};
use crate::plan::plan;

/// Folder inside a run's folder that holds one folder per adapter, with its log, checkpoints and lessons.
const EACH: &str = "each";

/// Returns the jobs of the selected adapters of a run of several, in the recipe's order. Each plan accounts for the
/// other adapters.
///
/// # Errors
/// An invalid recipe of one adapter, which is named.
pub fn jobs(loaded: &Loaded<Recipe>, which: &[usize], events: &dyn Events) -> Result<Vec<Job>> {
    let recipe = &loaded.value;
    let one = |index: &usize| {
        let name = &recipe.adapters[*index].name;
        let made = || -> Result<Job> {
            let mut own = recipe_of(loaded, *index)?;
            own.value.adapters = recipe.among(*index, which);
            let exports = Some(recipe.run.out.join(FOLDER).join(name));
            Ok(Job { exports, ..Job::new(own, events)? })
        };
        made().with_context(|| format!("adapter \"{name}\""))
    };
    which.iter().map(one).collect()
}

/// Returns the recipe of one adapter alone.
pub(crate) fn recipe_of(loaded: &Loaded<Recipe>, index: usize) -> Result<Loaded<Recipe>> {
    let recipe = &loaded.value;
    let one = &recipe.adapters[index];
    let unread = "the recipe could not be taken apart";
    let mut all: Table = loaded.text().parse().context(unread)?;
    all.remove("adapters");
    all.insert("adapter".into(), Value::try_from(one.over(&recipe.adapter)).context(unread)?);
    let mut set = |table: &str, key: &str, value: Value| {
        if let Some(table) = all.get_mut(table).and_then(Value::as_table_mut) {
            table.insert(key.into(), value);
        }
    };
    let text = |path: &PathBuf| Value::from(path.display().to_string());
    set("run", "out", text(&recipe.run.out.join(EACH).join(&one.name)));
    set("data", "paths", Value::Array(one.paths.iter().map(text).collect()));
    if let Some(reward) = &one.reward {
        set("rl", "reward", text(reward));
    }
    let named = format!("the recipe of adapter {}", one.name);
    load(Layers::with_library(LIBRARY).text(&named, &toml::to_string(&all).context(unread)?))
}

/// Returns the job to plan for a recipe: of several adapters, the one whose step needs most memory, next to the weights
/// and state of the others.
///
/// # Errors
/// Those of [`Job::new`] and of the adapters' plans.
pub fn planned(loaded: Loaded<Recipe>, events: &dyn Events) -> Result<Job> {
    if loaded.value.adapters.is_empty() {
        return Job::new(loaded, events);
    }
    let all: Vec<usize> = (0..loaded.value.adapters.len()).collect();
    let mut most: Option<(u64, Job)> = None;
    for job in jobs(&loaded, &all, events)? {
        let plans = plan(&job, None)?;
        let peak_of = |index: usize| -> Result<u64> {
            let draft = plans.draft(index);
            let (step, rollout) = (draft.plan()?.usage.peak_reserved, plans.rollout(&draft)?);
            Ok(step.max(rollout.map_or(0, |usage| usage.peak_reserved)))
        };
        let peaks = (0..job.stages.len()).map(peak_of);
        let peak = peaks.collect::<Result<Vec<u64>>>()?.into_iter().max().unwrap_or(0);
        if most.as_ref().is_none_or(|(bytes, _)| peak > *bytes) {
            most = Some((peak, job));
        }
    }
    let (_, job) = most.context("no adapter to plan")?;
    let name = job.exports.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
    events.line(&format!(
        "{} adapters over one base, a step of each in turns: planned is \"{}\", which needs most, with the others in memory",
        all.len(),
        name.display()
    ));
    Ok(job)
}
