//! `fathom curate scheduler|executor` and `--engine ballista`: a Ballista cluster for whole-table plans.

use anyhow::{Result, bail};
use fathom_curate::tables::TableEngine;

use crate::args::{Curate, Executor, Scheduler, Where};

/// The engine for a curation's whole-table plans.
pub fn engine(args: &Curate) -> Result<TableEngine> {
    match (args.engine, &args.scheduler) {
        (Where::Embedded, None) => Ok(TableEngine::Embedded),
        (Where::Embedded, Some(_)) => bail!("--scheduler needs --engine ballista"),
        (Where::Ballista, scheduler) => on_cluster(scheduler.as_deref()),
    }
}

#[cfg(feature = "ballista")]
fn on_cluster(scheduler: Option<&str>) -> Result<TableEngine> {
    match scheduler {
        Some(scheduler) => Ok(TableEngine::ballista(scheduler)?),
        None => bail!("--engine ballista needs --scheduler, such as df://localhost:50050"),
    }
}

#[cfg(not(feature = "ballista"))]
fn on_cluster(_: Option<&str>) -> Result<TableEngine> {
    not_built()
}

/// Runs a scheduler until the process is ended.
#[cfg(feature = "ballista")]
pub fn scheduler(args: &Scheduler) -> Result<()> {
    crate::messages::others_too();
    let ready = |address: &str| crate::console::line(&format!("scheduler at {address}"));
    Ok(fathom_curate::tables::scheduler(&listen(&args.listen, args.port), ready)?)
}

/// Runs an executor until the process or its scheduler ends it.
#[cfg(feature = "ballista")]
pub fn executor(args: &Executor) -> Result<()> {
    use anyhow::Context;

    crate::messages::others_too();
    let memory = args.memory.as_deref().map(fathom_base::human::parse_bytes).transpose();
    let options = fathom_curate::tables::ExecutorOptions {
        listen: listen(&args.listen, args.port),
        scheduler: args.scheduler.clone(),
        work: args.work_dir.clone(),
        threads: args.threads,
        memory_bytes: memory.map_err(anyhow::Error::msg).context("--memory")?,
    };
    Ok(fathom_curate::tables::executor(&options)?)
}

#[cfg(feature = "ballista")]
fn listen(args: &crate::args::Listen, port: u16) -> fathom_curate::tables::Listen {
    fathom_curate::tables::Listen { bind: args.bind, host: args.host.clone(), port }
}

/// Runs a scheduler.
#[cfg(not(feature = "ballista"))]
pub fn scheduler(_: &Scheduler) -> Result<()> {
    not_built()
}

/// Runs an executor.
#[cfg(not(feature = "ballista"))]
pub fn executor(_: &Executor) -> Result<()> {
    not_built()
}

#[cfg(not(feature = "ballista"))]
fn not_built<T>() -> Result<T> {
    bail!(
        "this fathom was built without Ballista; build one with `cargo build --release -p fathom-cli --features ballista`"
    )
}
