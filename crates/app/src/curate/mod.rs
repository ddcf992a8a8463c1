//! Curation: text by a separate recipe, cleaned, filtered and deduplicated.

mod models;
mod rank;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fathom_base::recipe::Loaded;
use fathom_curate::pipeline::{
    Functions, Outcome, Pipeline, Progress, Rank, Recipe, RunOptions, Stats, save_page,
};
use fathom_curate::tables::TableEngine;
use fathom_curate::{Error as CurateError, RemoteOptions};

pub(crate) use models::Engines;
pub use rank::rank;

use crate::error::{Result, caught};
use crate::events::{Event, Events};
use crate::output;

/// Interval between checks of the other processes' progress.
const LOOK: Duration = Duration::from_secs(2);

/// Options of a curation.
pub struct Order {
    /// This process among those that share the folder.
    pub rank: Rank,
    /// Engine that sorts whole tables.
    pub engine: TableEngine,
    /// Seconds to wait for the others before a stage that needs the whole table.
    pub wait_s: f64,
    /// Set by the caller to request a stop.
    pub stop: Arc<AtomicBool>,
    /// Functions of the caller that take part as stages.
    pub functions: Option<Arc<dyn Functions>>,
}

/// Outcome of a curation.
pub enum CurationOutcome {
    /// Complete.
    Done(Box<Stats>),
    /// Other processes have not finished: either a stage needs their part, or this process is done and they are not.
    Waiting {
        /// Stage that needs the missing parts.
        stage: Option<String>,
        /// Parts that are missing.
        missing: Vec<String>,
    },
    /// Stopped on request; a message.
    Interrupted(String),
}

/// A resolved curation.
pub struct Curation(Pipeline);

impl Curation {
    /// Resolves a recipe.
    ///
    /// # Errors
    /// An invalid recipe; input that cannot be read.
    pub fn new(recipe: &Loaded<Recipe>) -> Result<Curation> {
        caught(|| Ok(Curation(Pipeline::with_remote(recipe, remote())?)))
    }

    /// Returns the curation's folder.
    pub fn out(&self) -> &Path {
        self.0.out()
    }

    /// Runs until complete, until other processes have to be awaited, or until a stop is requested. The first process
    /// writes the page.
    ///
    /// # Errors
    /// Those of its stages; output written before stays valid.
    pub fn run(&self, order: &Order, events: &Arc<dyn Events>) -> Result<CurationOutcome> {
        let (stop, reports, said) = (order.stop.clone(), events.clone(), events.clone());
        let options = RunOptions {
            threads: 0,
            rank: order.rank,
            engine: order.engine.clone(),
            on_read: None,
            stop: Some(Arc::new(move |_: &str| stop.load(Ordering::Relaxed))),
            progress: Some(Arc::new(move |progress: &Progress| {
                reports.on(Event::Curating(progress.clone()))
            })),
            say: Some(Arc::new(move |text: &str| said.line(text))),
            models: Some(Arc::new(Engines(events.clone()))),
            functions: order.functions.clone(),
        };
        caught(|| self.until_it_ends(order, &options))
    }

    fn until_it_ends(&self, order: &Order, options: &RunOptions) -> Result<CurationOutcome> {
        let started = Instant::now();
        loop {
            let ran = match self.0.run(options) {
                Err(stopped @ CurateError::Interrupted { .. }) => {
                    return Ok(CurationOutcome::Interrupted(stopped.to_string()));
                }
                ran => ran?,
            };
            match ran {
                Outcome::Done(stats) => {
                    if order.rank.rank == 0 {
                        page(self.out(), &stats)?;
                    }
                    return Ok(CurationOutcome::Done(stats));
                }
                Outcome::Waiting { stage, missing } => {
                    if stage.is_none() || started.elapsed().as_secs_f64() >= order.wait_s {
                        return Ok(CurationOutcome::Waiting { stage, missing });
                    }
                    std::thread::sleep(LOOK);
                }
            }
        }
    }
}

/// Returns the options for inputs on S3, from environment variables that begin with `AWS_` (`AWS_ACCESS_KEY_ID` etc.).
pub(crate) fn remote() -> RemoteOptions {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let s3 = std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("AWS_"));
    RemoteOptions { s3: s3.collect(), ..RemoteOptions::default() }
}

/// Writes the page of a curation.
pub(crate) fn page(out: &Path, stats: &Stats) -> Result<()> {
    output::regular(&out.join("report.html"))?;
    save_page(out, stats)?;
    Ok(())
}
