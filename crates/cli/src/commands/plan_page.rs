//! `fathom plan --html`: the pictures of a plan as one page, without a run.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use fathom_base::metrics::{Event, events};
use fathom_base::recipe::Recipe as Loaded;
use fathom_model::Model;
use fathom_report::{RunLog, html};
use fathom_tensor::{Device, Meta, Profile};
use fathom_train::recipe::Recipe;
use fathom_train::{Budgets, Draft, Subject, Workload, longest_stage};

use super::plan::specs;
use super::plan_ranks;
use crate::{args, device, pipeline};

/// Plans every stage and writes the page.
pub fn write(
    args: &args::Plan,
    loaded: &Loaded<Recipe>,
    profile: &Profile,
    budgets: Budgets,
    path: &Path,
) -> Result<()> {
    let recipe = &loaded.value;
    let specs = specs(recipe)?;
    let command = format!("fathom plan {} {}", args.recipe, args.settings.join(" "));
    let mut all = vec![Event::Run(pipeline::run_event(loaded, command.trim_end()))];
    if let Some(spec) = specs.first() {
        let nowhere = Device::new(Arc::new(Meta::new(profile.clone())), u64::MAX);
        let (_, params) = Model::declare(&nowhere, spec, device::precision(recipe.model.precision));
        all.push(Event::Model(pipeline::model_event(spec, params.num_elements())));
    }
    for (index, (spec, table)) in specs.iter().zip(&recipe.stage).enumerate() {
        let draft = Draft { profile, spec, recipe: recipe.clone(), index, budgets, rank: 0 };
        let settled = draft.settle()?;
        let subject =
            Subject { stage: &table.name, work: Workload { how: settled.how, ..draft.workload()? } };
        all.push(Event::Stage(events::Stage {
            name: table.name.clone(),
            index: index as u64,
            seq_len_tokens: table.seq_tokens as u64,
            ..events::Stage::default()
        }));
        all.extend(subject.events(&settled.plan, 0).0);
        let mesh = plan_ranks::of(&draft)?;
        all.extend(mesh.and_then(|mesh| mesh.event(&table.name)).map(Event::Pipeline));
        if longest_stage(recipe) == Some(index) {
            all.push(Event::Lengths(subject.lengths(budgets.memory)));
        }
    }
    let mut log = RunLog::default();
    all.into_iter().for_each(|event| log.add(event));
    Ok(html::write_page(&log, path)?)
}
