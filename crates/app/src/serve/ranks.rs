//! A served model split over ranks: threads, each with a part of the weights, keys and values, and a share of the
//! machine. The first rank has the queue and the clients; the others follow its steps.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fathom_engine::{Engine, Follower, ranks, service};
use fathom_model::HfFolder;
use fathom_tensor::mesh::Mesh;
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;
use fathom_train::recipe::Precision;

use super::draft::Draft;
use super::hosted::{ModelFolder, Opener, fits_next_to_served};
use super::order::Order;
use super::sizes::{self, Sizes};
use crate::crew::{Crew, on_threads};
use crate::error::{Context, Result, caught, refuse};
use crate::events::Silent;
use crate::machine::Machine;
use crate::models;
use crate::place::RankPlace;
use crate::spread::ResolvedMesh;

/// Timeout of a rank's wait for another one in a step.
const WAIT: Duration = Duration::from_secs(600);
/// Interval at which the first rank checks whether a loading rank has failed.
const LOOK: Duration = Duration::from_millis(50);

/// Plans the memory of each rank, all of which have the same number of pages; returns each rank's sizes and their
/// total.
///
/// # Errors
/// A model that cannot be split so; no memory for a part of it.
pub(super) fn planned(
    machine: &Machine,
    (folder, opened, dtype): (&Path, &HfFolder, DType),
    tokenizer: &Tokenizer,
    order: &Order,
) -> Result<(Vec<Sizes>, Sizes)> {
    let ResolvedMesh { grid, experts } =
        order.mesh.spread(machine, (opened, dtype), order.held().as_ref())?;
    let own = Crew::Threads.place(machine, grid.ranks());
    let of = |rank: usize| -> Result<Sizes> {
        let device = machine.rank(sizes::lone(grid, rank), RankPlace { local: rank, ..own })?;
        let mut sizes = sizes::of(&device, (folder, opened, dtype), tokenizer, order)
            .with_context(|| format!("rank {rank} of {}", grid.ranks()))?;
        sizes.experts.clone_from(&experts);
        Ok(sizes)
    };
    let mut all = (0..grid.ranks()).map(of).collect::<Result<Vec<_>>>()?;
    let together = sizes::agreed(&mut all).context("a mesh without ranks")?;
    Ok((all, together))
}

/// Serves a model until all handles are dropped.
///
/// # Errors
/// Before it is ready: no model there; a model that cannot be split so; no memory for its parts. After that: a rank
/// failed, and with it all.
pub(super) fn run(name: &str, path: &Path, order: &Order, (opening, _): Opener<'_>) -> Result<()> {
    let folder = models::model_folder(path)?;
    let tokenizer = Arc::new(models::tokenizer(&folder)?);
    let machine = order.machine(&Silent);
    let opened = fathom_model::open(&folder)?;
    let dtype = order.precision.map_or_else(|| models::stored_dtype(&opened.source), Precision::dtype);
    let (each, sizes) = planned(&machine, (&folder, &opened, dtype), &tokenizer, order)?;
    let held = order.held();
    let model_folder =
        ModelFolder { name, folder: &folder, tokenizer: &tokenizer, dtype, held: held.as_ref() };
    let beginnings = model_folder.beginnings(&machine.profile()?.isa, order)?;
    drop(opened);
    fits_next_to_served(name, &sizes, order)?;
    let (grid, limits, capacity) = (sizes.grid, sizes.limits, sizes.capacity.clone());
    let (leader, followers) = ranks(each.len().saturating_sub(1));
    let followers: Vec<Mutex<Option<Follower>>> =
        followers.into_iter().map(|follower| Mutex::new(Some(follower))).collect();
    let (ready, loaded) = channel();
    let first = |device: Device| {
        let part = caught(|| models::open_part(path, Some(dtype), held.as_ref(), device))?;
        // The draft model runs on the first rank for all.
        let alone = sizes::whole(&part.loaded.device);
        let draft = Draft::load(&alone, order)?;
        let drafting = draft.as_ref().map(|draft| draft.engine(&alone, limits));
        let mut engine =
            Engine::new(part.loaded.view(), &part.tokenizer, limits).reserving(each[0].workspace_bytes);
        if let Some(drafting) = &drafting {
            engine = engine.drafting(drafting)?;
        }
        let (handle, commands) = service(model_folder.facts(&engine, &capacity, order)?);
        let commands = commands.leading(leader);
        followers.iter().try_for_each(|_| heard(&loaded, &part.loaded.device.mesh))?;
        if !opening.ready(handle, sizes) {
            return Ok(());
        }
        caught(|| Ok(commands.serve(&engine, capacity.clone(), beginnings.as_ref())?))
            .with_context(|| format!("{name}, served over {} ranks, cannot go on", grid.ranks()))
    };
    let other = |device: Device| {
        let rank = device.mesh.rank();
        let own = rank.checked_sub(1).and_then(|at| followers.get(at));
        let own = own.and_then(|own| own.lock().unwrap_or_else(PoisonError::into_inner).take());
        let follower = own.context("a rank without a leader")?;
        let part = caught(|| models::open_part(path, Some(dtype), held.as_ref(), device))?;
        let engine =
            Engine::new(part.loaded.view(), &part.tokenizer, limits).reserving(each[rank].workspace_bytes);
        // The receiver may have failed, in which case it reports the error itself.
        _ = ready.send(());
        caught(|| Ok(follower.follow(&engine, capacity.clone(), beginnings.as_ref())?)).map(drop)
    };
    on_threads((&machine, grid), WAIT, first, &other)
}

/// Waits until another rank has loaded its part.
fn heard(loaded: &Receiver<()>, mesh: &Mesh) -> Result<()> {
    loop {
        match loaded.recv_timeout(LOOK) {
            Ok(()) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => mesh.check().map_err(fathom_engine::Error::from)?,
            Err(RecvTimeoutError::Disconnected) => {
                refuse!("a rank ended before it had its part of the model")
            }
        }
    }
}
