//! Stand-in for curations in a build without the pipeline: it has no values.

use serde::{Deserialize, Serialize};

/// The parts of a curation recipe that determine the bytes of a corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Curation {}

impl Curation {
    /// Returns true if the recipe names its own input.
    pub fn names_input(&self) -> bool {
        match *self {}
    }
}
