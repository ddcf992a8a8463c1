//! Ordering of a whole table's documents.

use fathom_base::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::dedup::scratch;
use super::kind::Maker;
use crate::blend::shuffle_key;
use crate::error::Error;
#[cfg(feature = "ballista")]
use crate::pipeline::Batch;
use crate::pipeline::{Barrier, Job, Tally, Work};
#[cfg(feature = "ballista")]
use crate::tables::{TableEngine, shuffled};

/// Options of `shuffle`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShuffleOptions {
    /// Another seed gives another order; none takes the recipe's.
    pub seed: Option<u64>,
}

/// Puts documents in an order determined only by their ids and a seed.
pub(super) struct Shuffle(ShuffleOptions);

impl Maker for Shuffle {
    type Options = ShuffleOptions;
    const NAME: &'static str = "shuffle";
    const ABOUT: &'static str = "puts all documents in a random order that ids and seed decide";

    fn make(options: ShuffleOptions) -> Result<Work, Error> {
        Ok(Work::Table(Box::new(Shuffle(options))))
    }
}

impl Barrier for Shuffle {
    fn run(&self, job: &Job<'_>, _: &mut Tally) -> Result<(), Error> {
        let seed = self.0.seed.unwrap_or(job.seed());
        #[cfg(feature = "ballista")]
        if let TableEngine::Ballista { scheduler } = job.engine() {
            return on_the_cluster(job, scheduler, seed);
        }
        let (disk, memory) = (human::bytes(job.text_bytes()), human::bytes(job.ordered_needs()));
        job.say(&format!(
            "needs {disk} of disk in {} and {memory} of memory a thread",
            job.spill().display()
        ));
        let work = scratch(job)?;
        job.write_ordered(&work, &|id| shuffle_key(seed, id))?;
        std::fs::remove_dir_all(&work).map_err(|e| Error::write("remove", &work, e))
    }
}

/// The same table by a query of a cluster.
#[cfg(feature = "ballista")]
fn on_the_cluster(job: &Job<'_>, scheduler: &str, seed: u64) -> Result<(), Error> {
    let Some(folder) = job.parts().first().and_then(|part| part.path.parent()) else { return Ok(()) };
    let key = |id: &str| shuffle_key(seed, id);
    let Some(mut parts) = job.in_key_order(&key)? else { return Ok(()) };
    shuffled((scheduler, folder), seed, (job.memory_bytes() / 2, job.spill()), &mut |rows| {
        job.point("batch")?;
        parts.push(&Batch::new(rows).map_err(|detail| Error::Table { detail })?)
    })?;
    parts.finish()
}
