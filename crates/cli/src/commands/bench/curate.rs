//! Steps of a curation on generated text, on one thread.

use anyhow::{Result, bail};
use fathom_curate::bench::{STAGES, run as measure};

use super::row::Row;
use super::watch::Watch;
use crate::args::bench::Curate;

/// Runs the benchmark.
pub fn run(args: &Curate) -> Result<()> {
    let wanted: Vec<&str> = args.stage.as_deref().map_or(STAGES.to_vec(), |stage| vec![stage]);
    for stage in wanted {
        let watch = Watch::begin();
        let Some(row) = measure(stage)? else {
            bail!("--stage {stage}: there are {}", STAGES.join(", "));
        };
        Row::new(row.bench)
            .with("stage", row.stage)
            .figure("mb_per_s", row.mb_per_s)
            .figure("docs_per_s", row.docs_per_s)
            .with("threads", row.threads)
            .print(watch.loaded());
    }
    Ok(())
}
