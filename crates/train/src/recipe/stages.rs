//! Expansion of stages: the short form is expanded, and each stage gets a unique name.

use super::{Recipe, Stage};
use crate::error::Error;

impl Recipe {
    /// Replaces the short form `stages` by stages, and numbers those with the name of an earlier one.
    ///
    /// # Errors
    /// If there is no stage at all.
    pub fn expand_stages(&mut self) -> Result<(), Error> {
        if !self.stages.is_empty() {
            let model = self.stage.last().cloned().unwrap_or_default();
            let name = |tokens: usize| fathom_base::tokens::format(tokens as u64);
            self.stage = std::mem::take(&mut self.stages)
                .into_iter()
                .map(|seq_tokens| Stage { name: name(seq_tokens), seq_tokens, ..model.clone() })
                .collect();
        }
        for index in 1..self.stage.len() {
            let name = &self.stage[index].name;
            let taken = |name: &str| self.stage.iter().any(|stage| stage.name == name);
            let again = self.stage[..index].iter().any(|stage| stage.name == *name);
            let numbered = (2..).map(|number| format!("{name}-{number}")).find(|name| !taken(name));
            if let (true, Some(name)) = (again, numbered) {
                self.stage[index].name = name;
            }
        }
        if self.stage.is_empty() {
            Err(Error::Recipe { key: "stage".into(), message: "a run needs at least one [[stage]]".into() })
        } else {
            Ok(())
        }
    }
}
