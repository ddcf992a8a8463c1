//! Models behind a server: each on a thread of its own, which owns its device and its pages.

mod hosted;
mod order;
mod sizes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use fathom_base::Service;
use fathom_base::recipe::{Layers, Recipe as Loaded};
use fathom_serve::{Keys, Opening, Recipe, Settings, Shared, is_loopback};

use crate::error::Result;
use crate::events::Events;
use crate::models;

pub use fathom_engine::{KeptModel, Stored};
pub use order::{Around, Order};
pub use sizes::Sizes;

/// What engines have to end.
const LAST: Duration = Duration::from_secs(2);

/// Loads the keys of a server: a file's, if there is one, and settings over it.
///
/// # Errors
/// What is wrong with them, and where that was written.
pub fn settings(file: Option<&Path>, settings: &[String]) -> Result<Settings> {
    let layers = file.iter().fold(Layers::new(), |layers, file| layers.file(file));
    let loaded: Loaded<Recipe> = Loaded::load(layers.sets(settings))?;
    for key in ["sequences", "chunk_tokens", "max_requests", "max_answers"] {
        let path = format!("serve.{key}");
        if loaded.rows().iter().any(|row| row.path == path && row.value == "0") {
            return Err(loaded.refuse(&path, "has to be at least 1").into());
        }
    }
    Ok(loaded.value.serve)
}

/// What each model would need, without loading it.
///
/// # Errors
/// No model there, no memory for it.
pub fn sizes(order: &Order, events: &dyn Events) -> Result<Vec<(String, Sizes)>> {
    let one = |(at, (name, path)): (usize, (String, PathBuf))| {
        let folder = models::model_folder(&path)?;
        let device = order.machine(events).open()?;
        let opened = fathom_model::open(&folder)?;
        let tokenizer = models::tokenizer(&folder)?;
        let dtype = order.precision.map_or_else(|| models::stored_dtype(&opened.source), models::precision);
        Ok((name, sizes::of(&device, (&folder, &opened, dtype), &tokenizer, &order.of(at))?))
    };
    order.named()?.into_iter().enumerate().map(one).collect()
}

/// Serves models until it is asked to end, and what it has begun has ended.
///
/// # Errors
/// No model there, no memory for it, two of one name, keys that open nothing, a port in use.
pub fn serve(order: &Order, around: &Around<'_>) -> Result<()> {
    let named = order.named()?;
    let keys = match &order.keys {
        Some(file) => Keys::read(file)?,
        None => Keys::none(),
    };
    let open = !is_loopback(&order.at.host);
    if open && !keys.asked() {
        around.events.warn(&format!(
            "anybody who reaches {} may use these models; ask for keys (--api-key-file FILE)",
            order.at.host
        ));
    }
    let (settings, version) = (order.settings.clone(), order.version.clone());
    let server = Arc::new(Shared::new(Opening { settings, keys, open, log: around.log.clone(), version }));
    let mut threads = Vec::new();
    for (at, (name, path)) in named.into_iter().enumerate() {
        let order = order.of(at);
        let hosted = hosted::start(&name, &path, &order, around)?;
        around.events.note(&format!("{name}: {}", hosted.sizes.said()));
        for (adapter, folder) in &order.adapters {
            hosted.service.load_adapter(adapter, folder)?;
        }
        let service: Arc<dyn Service> = Arc::new(hosted.service);
        server.add(&name, service)?;
        threads.push(hosted.thread);
    }
    fathom_serve::serve(&server, &order.at, around.stop, around.heard)?;
    drop(server);
    // An engine ends with its last handle; one that a request still holds is not waited for.
    let begun = Instant::now();
    while !threads.iter().all(JoinHandle::is_finished) && begun.elapsed() < LAST {
        sleep(Duration::from_millis(5));
    }
    Ok(())
}
