//! Models behind a server: each on a thread of its own, which owns its device and its pages.

mod draft;
mod hosted;
mod order;
mod sizes;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use fathom_base::Service;
use fathom_base::recipe::{Layers, Recipe as Loaded};
use fathom_serve::{Keys, Log, Opening, Recipe, Reload, Settings, Shared, is_loopback};
use hosted::Hosted;

use crate::error::{Result, refuse};
use crate::events::Events;
use crate::models;

pub use fathom_engine::{KeptModel, Stored};
pub use order::{Around, Order};
pub use sizes::Sizes;

/// What engines have to end.
const LAST: Duration = Duration::from_secs(2);

/// What is wrong with a draft model that may not guess.
const DRAFTLESS: &str =
    "is 0, so the draft model (serve.draft, --draft) would guess nothing; leave one of them out";

/// Threads of engines.
type Threads = Mutex<Vec<JoinHandle<()>>>;

/// A model that is served: where it is, and how.
#[derive(Clone)]
struct Served {
    name: String,
    path: PathBuf,
    order: Order,
}

impl Served {
    /// Starts its engine, with its adapters.
    fn start(&self, log: Option<&Log>, threads: &Threads) -> Result<(Arc<dyn Service>, Sizes)> {
        let Hosted { service, sizes, thread } = hosted::start(&self.name, &self.path, &self.order, log)?;
        threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        for (adapter, folder) in &self.order.adapters {
            service.load_adapter(adapter, folder)?;
        }
        Ok((Arc::new(service), sizes))
    }
}

/// What loads models again, each into as much memory as it has now.
fn reloading(models: Vec<(Served, u64)>, log: Option<Log>, threads: Arc<Threads>) -> Reload {
    Arc::new(move |name| {
        let found = models.iter().find(|(served, _)| served.name == name);
        let (served, bytes) =
            found.ok_or_else(|| fathom_base::Error::product(format!("no model is called {name}")))?;
        let mut again = served.clone();
        again.order.again = true;
        again.order.memory_bytes = again.order.memory_bytes.or(Some(*bytes));
        threads.lock().unwrap_or_else(PoisonError::into_inner).retain(|thread| !thread.is_finished());
        let (service, _) = again.start(log.as_ref(), &threads).map_err(fathom_base::Error::product)?;
        Ok(service)
    })
}

fn ended(threads: &Threads) -> bool {
    threads.lock().unwrap_or_else(PoisonError::into_inner).iter().all(JoinHandle::is_finished)
}

/// Loads the keys of a server: a file's, if there is one, and settings over it.
///
/// # Errors
/// What is wrong with them, and where that was written.
pub fn settings(file: Option<&Path>, settings: &[String]) -> Result<Settings> {
    if let Some(key) = settings.iter().find(|setting| setting.starts_with("mesh.")) {
        refuse!(
            "{key}: a server is one rank: what time decides (deadlines, waiting, drafts) each rank would decide for itself; \
             `fathom generate --tp N --pp N` runs over ranks"
        );
    }
    let layers = file.iter().fold(Layers::new(), |layers, file| layers.file(file));
    let loaded: Loaded<Recipe> = Loaded::load(layers.sets(settings))?;
    for key in ["sequences", "chunk_tokens", "max_requests", "max_answers"] {
        let path = format!("serve.{key}");
        if loaded.rows().iter().any(|row| row.path == path && row.value == "0") {
            return Err(loaded.refuse(&path, "has to be at least 1").into());
        }
    }
    if loaded.value.serve.draft.is_some() && loaded.value.serve.draft_tokens == 0 {
        return Err(loaded.refuse("serve.draft_tokens", DRAFTLESS).into());
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

/// Serves models until it is asked to end, and what it has started has ended.
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
    let models: Vec<Served> = named
        .into_iter()
        .enumerate()
        .map(|(at, (name, path))| Served { name, path, order: order.of(at) })
        .collect();
    let (log, threads) = (around.log.clone(), Arc::new(Threads::default()));
    let mut started = Vec::new();
    for served in models {
        let (service, sizes) = served.start(log.as_ref(), &threads)?;
        around.events.note(&format!("{}: {}", served.name, sizes.said()));
        started.push((served, service, sizes));
    }
    let again: Vec<(Served, u64)> =
        started.iter().map(|(served, _, sizes)| (served.clone(), sizes.bytes())).collect();
    let opening = Opening {
        settings: order.settings.clone(),
        keys,
        open,
        log: log.clone(),
        version: order.version.clone(),
        reload: Some(reloading(again, log, threads.clone())),
    };
    let server = Arc::new(Shared::new(opening));
    for (served, service, _) in started {
        server.add(&served.name, service)?;
    }
    fathom_serve::serve(&server, &order.at, around.stop, around.heard)?;
    drop(server);
    // An engine ends with its last handle; one that a request still holds is not waited for.
    let began = Instant::now();
    while !ended(&threads) && began.elapsed() < LAST {
        sleep(Duration::from_millis(5));
    }
    Ok(())
}
