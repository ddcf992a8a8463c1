//! `fathom plan --html`: the pictures of a plan as one page, without a run.

use std::path::Path;

use anyhow::Result;
use fathom_base::machine_facts::MachineFacts;
use fathom_base::metrics::{Event, events};
use fathom_base::recipe::Recipe as Loaded;
use fathom_grad::Params;
use fathom_model::{Model, Spec};
use fathom_report::html;
use fathom_tensor::{Device, Meta};
use fathom_train::recipe::Recipe;
use fathom_train::{Subject, longest_stage, stage};

use crate::{device, pipeline};

/// Plans every stage and writes the page.
pub fn write(loaded: &Loaded<Recipe>, path: &Path) -> Result<()> {
    let recipe = &loaded.value;
    let profile = device::cpu_profile(&recipe.machine)?;
    let budget = recipe.machine.memory_bytes.unwrap_or_else(device::default_budget);
    let dtype = device::precision(recipe.model.precision);
    let mut spec = pipeline::spec(recipe)?;
    let mut all = vec![run_event(loaded), Event::Model(model_event(&spec, dtype, &profile))];
    for (index, table) in recipe.stage.iter().enumerate() {
        spec = stage::extend(&spec, table, index)?;
        let how = stage::in_step(recipe, index)?;
        let subject = Subject {
            stage: &table.name,
            profile: &profile,
            spec: &spec,
            dtype,
            how: &how,
            micro_batches: table.micro_batches.max(1),
            tokens: table.seq_tokens * table.samples_per_micro_batch.max(1),
        };
        all.push(Event::Stage(events::Stage {
            name: table.name.clone(),
            index: index as u64,
            seq_len_tokens: table.seq_tokens as u64,
            ..events::Stage::default()
        }));
        all.extend(subject.events(&subject.plan(), 0).0);
        if longest_stage(recipe) == Some(index) {
            all.push(Event::Lengths(subject.lengths(budget)));
        }
    }
    Ok(html::write_plan(all, path)?)
}
