//! Charts of a plan as one page, without a run.

use std::path::Path;
use std::sync::Arc;

use fathom_base::metrics::{Event, events};
use fathom_model::Model;
use fathom_report::{RunLog, html};
use fathom_tensor::{Device, Meta};
use fathom_train::{Subject, Workload, longest_stage};

use super::stages::Plans;
use crate::error::{Result, caught};
use crate::report;

impl Plans<'_> {
    /// Plans every stage and writes the page; `command` is the command line to show.
    ///
    /// # Errors
    /// Those of the plans; a page that cannot be written.
    pub fn page(&self, command: &str, path: &Path) -> Result<()> {
        caught(|| Ok(html::write_page(&self.log(command)?, path)?)).map_err(|error| self.job.placed(error))
    }

    fn log(&self, command: &str) -> Result<RunLog> {
        let recipe = self.job.recipe();
        let mut all = vec![Event::Run(report::run_event(&self.job.loaded, command))];
        if let Some(spec) = self.job.specs().next() {
            let nowhere = Device::new(Arc::new(Meta::new(self.profile.clone())), u64::MAX);
            let (_, params) = Model::declare(&nowhere, spec, recipe.model.precision.dtype());
            all.push(Event::Model(report::model_event(spec, params.num_elements(), None)));
        }
        for (index, table) in recipe.stage.iter().enumerate() {
            let draft = self.draft(index);
            let settled = draft.settle()?;
            let subject =
                Subject { stage: &table.name, work: Workload { how: settled.how, ..draft.workload()? } };
            all.push(Event::Stage(events::Stage {
                name: table.name.clone(),
                index: index as u64,
                seq_len_tokens: table.seq_tokens as u64,
                ..events::Stage::default()
            }));
            all.extend(subject.events(&settled.plan, 0)?.0);
            let mesh = self.mesh_of(&draft)?;
            all.extend(mesh.and_then(|mesh| mesh.event(&table.name)).map(Event::Pipeline));
            if longest_stage(recipe) == Some(index) {
                all.push(Event::Lengths(subject.lengths(self.budgets.memory)?));
            }
        }
        let mut log = RunLog::default();
        all.into_iter().for_each(|event| log.add(event));
        Ok(log)
    }
}
