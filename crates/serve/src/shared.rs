//! State shared by all requests of a server.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use fathom_base::{Load, Service};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::admission::{Admission, Room};
use crate::drain::Drain;
use crate::error::Error;
use crate::fault::Fault;
use crate::keys::{ApiKeys, Names};
use crate::knowledge::KnowledgeBase;
use crate::metrics::Metrics;
use crate::now::now_s;
use crate::rails::{RailRecord, RailedModel, Rails};
use crate::settings::Settings;
use crate::traces::Traces;
use crate::view::View;

/// Receives the log's lines, as JSON: settings of requests, never their contents.
pub type Log = Arc<dyn Fn(&Value) + Send + Sync>;

/// Loads the model of a name again, in addition to the current one.
pub type Reload = Arc<dyn Fn(&str) -> fathom_base::Result<Arc<dyn Service>> + Send + Sync>;

/// Number of bodies of maximum size that may be read at once.
pub(crate) const BODIES: u64 = 4;

/// A served model.
pub struct Model {
    /// Its name.
    pub name: String,
    /// The model, with the server's guardrails around it.
    pub service: Arc<dyn Service>,
    /// The rails around the model of one request.
    pub record: Option<Arc<dyn RailRecord>>,
    /// Its admission limits.
    pub admission: Arc<Admission>,
}

/// A server's state.
pub struct ServerState {
    /// The models by name.
    models: RwLock<BTreeMap<String, Arc<Model>>>,
    /// The settings of its recipe.
    pub settings: Settings,
    /// The accepted keys.
    pub keys: ApiKeys,
    /// The accepted host names.
    pub names: Names,
    /// Open requests.
    pub requests: Arc<Room>,
    /// Bytes of the bodies being read and prepared.
    pub(crate) bodies: Arc<Room>,
    /// Turns of checks that only compute.
    pub(crate) turns: Semaphore,
    /// Documents that answers cite, if it has any.
    pub knowledge: Option<KnowledgeBase>,
    /// The page of a server that has one of its own.
    pub view: Option<Arc<dyn View>>,
    /// Its phase.
    pub drain: Drain,
    /// Its metrics.
    pub metrics: Metrics,
    /// Spans of requests.
    pub traces: Arc<Traces>,
    /// Receiver of the log's lines.
    pub log: Option<Log>,
    /// The guardrails around every model.
    pub rails: Option<Arc<dyn Rails>>,
    /// The program's version.
    pub version: String,
    /// Start time, in seconds since 1970.
    pub began: u64,
    random: RandomState,
    asked: AtomicU64,
    reload: Option<Reload>,
    /// Folders of adapters loaded at run time, by model and name. Locked during a reload.
    adapters: Mutex<BTreeMap<(String, String), PathBuf>>,
}

/// Configuration of a server.
#[derive(Default)]
pub struct ServeOptions {
    /// The settings of its recipe.
    pub settings: Settings,
    /// The accepted keys.
    pub keys: ApiKeys,
    /// True if the server can be reached from other machines.
    pub open: bool,
    /// Receiver of the log's lines.
    pub log: Option<Log>,
    /// The program's version.
    pub version: String,
    /// Reloads models; `None` if that is not possible.
    pub reload: Option<Reload>,
    /// Guardrails around every model.
    pub rails: Option<Arc<dyn Rails>>,
    /// Documents that answers cite; `None` for none.
    pub knowledge: Option<KnowledgeBase>,
    /// A page of its own; `None` for that of models.
    pub view: Option<Arc<dyn View>>,
}

impl ServerState {
    /// A server without models.
    pub fn new(opening: ServeOptions) -> ServerState {
        let ServeOptions { settings, keys, open, log, version, reload, rails, knowledge, view } = opening;
        let names = Names {
            hosts: settings.hosts.clone(),
            origins: settings.origins.clone(),
            open,
            keyed: keys.asked(),
        };
        ServerState {
            models: RwLock::default(),
            requests: Room::new(settings.max_requests),
            bodies: Room::new(settings.body_bytes.saturating_mul(BODIES)),
            turns: Semaphore::new(std::thread::available_parallelism().map_or(2, usize::from)),
            settings,
            keys,
            names,
            knowledge,
            view,
            drain: Drain::default(),
            metrics: Metrics::default(),
            traces: Arc::default(),
            log,
            rails,
            version,
            began: now_s(),
            random: RandomState::new(),
            asked: AtomicU64::new(0),
            reload,
            adapters: Mutex::default(),
        }
    }

    /// Serves a model under a name.
    ///
    /// # Errors
    /// The name is taken.
    pub fn add(&self, name: &str, service: Arc<dyn Service>) -> Result<(), Error> {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = service.card().adapters.into_keys().collect();
        names.push(name.to_string());
        let taken = |model: &Arc<Model>| {
            let adapters = model.service.card().adapters;
            names.iter().find(|name| **name == model.name || adapters.contains_key(*name)).cloned()
        };
        if let Some(name) = models.values().find_map(taken) {
            return Err(Error::Twice(name));
        }
        models.insert(name.to_string(), self.admitting(name, service));
        Ok(())
    }

    /// A model with guardrails around it and admission limits from its pages.
    fn admitting(&self, name: &str, service: Arc<dyn Service>) -> Arc<Model> {
        let service = match &self.rails {
            Some(rails) => rails.around(name, service),
            None => service,
        };
        let load = service.load();
        let room = 4 * (load.pages.max(1) * load.page_tokens.max(1)) as u64;
        // For a model without known pages, the limit follows from its context and the number of requests.
        let unknown = self.settings.max_requests.saturating_mul(service.card().context_tokens as u64);
        let pages = if load.pages > 0 { room } else { unknown };
        let tokens = self.settings.max_tokens.unwrap_or(pages);
        let admission = Arc::new(Admission::new(tokens, self.settings.max_first_token_s));
        Arc::new(Model { name: name.to_string(), service, record: None, admission })
    }

    /// Loads a model again and uses it for new requests; running ones keep the old model, which is dropped with the
    /// last of them. Adapters loaded at run time are loaded over the new one.
    ///
    /// # Errors
    /// The model or an adapter over it cannot be loaded, and the old one stays; another reload is in progress.
    pub fn reload(&self, name: &str) -> Result<Arc<Model>, Fault> {
        let Some(reload) = &self.reload else {
            return Err(Fault::bad("models cannot be loaded again here; start the server again"));
        };
        let adapters = match self.adapters.try_lock() {
            Ok(adapters) => adapters,
            Err(TryLockError::Poisoned(adapters)) => adapters.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Fault::busy("a model is being loaded", 1.0)),
        };
        let service = reload(name).map_err(Fault::refused)?;
        for ((_, adapter), folder) in adapters.iter().filter(|((model, _), _)| model == name) {
            service.load_adapter(adapter, folder).map_err(Fault::refused)?;
        }
        let model = self.admitting(name, service);
        self.models.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_string(), model.clone());
        Ok(model)
    }

    /// Adapters loaded at run time: their folders by model and name. Reloads wait while this is locked.
    pub fn loaded_adapters(&self) -> MutexGuard<'_, BTreeMap<(String, String), PathBuf>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All models.
    pub fn models(&self) -> Vec<Arc<Model>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The model of a name, or the only model; with the adapter, if the name is an adapter's.
    ///
    /// # Errors
    /// There is none.
    pub fn model(&self, name: Option<&str>) -> Result<(Arc<Model>, Option<String>), Fault> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = name.and_then(|name| models.get(name)) {
            return Ok((model.clone(), None));
        }
        match name {
            None if models.len() == 1 => models.values().next().map(|model| (model.clone(), None)),
            None => return Err(Fault::field("model", "is missing, and there are several")),
            Some(name) => models
                .values()
                .find(|model| model.service.card().adapters.contains_key(name))
                .map(|model| (model.clone(), Some(name.to_string()))),
        }
        .ok_or_else(|| {
            let names = |model: &Arc<Model>| {
                std::iter::once(model.name.clone()).chain(model.service.card().adapters.into_keys())
            };
            let there: Vec<String> = models.values().flat_map(names).collect();
            Fault::no_model(name.unwrap_or_default(), &there)
        })
    }

    /// A model within the guardrails that a request selects.
    ///
    /// # Errors
    /// Those of [`Rails::for_request`]; a selection on a server without guardrails.
    pub fn railed(
        &self,
        model: Arc<Model>,
        selection: Option<&Value>,
        key: &str,
    ) -> Result<Arc<Model>, Fault> {
        match (&self.rails, selection) {
            (None, None) => Ok(model),
            (None, Some(_)) => {
                Err(Fault::field("guardrails", "selects rails, and this server has none (--guard DIR)"))
            }
            (Some(rails), _) => {
                let RailedModel { service, record } = rails.for_request(&model.name, selection, key)?;
                let (name, admission) = (model.name.clone(), model.admission.clone());
                Ok(Arc::new(Model { name, service, record: Some(record), admission }))
            }
        }
    }

    /// Loads of the models.
    pub fn loads(&self) -> Vec<(String, Load)> {
        self.models().iter().map(|model| (model.name.clone(), model.service.load())).collect()
    }

    /// A unique name that cannot be guessed.
    pub fn unique(&self, prefix: &str) -> String {
        let count = self.asked.fetch_add(1, Ordering::Relaxed);
        let [a, b] = [0u8, 1].map(|half| self.random.hash_one((count, half, self.began)));
        format!("{prefix}{a:016x}{b:016x}")
    }

    /// A seed for a request without one.
    pub fn seed(&self) -> u64 {
        let count = self.asked.fetch_add(1, Ordering::Relaxed);
        self.random.hash_one((count, "seed")) >> 1
    }

    /// Number of spans that the collector did not accept.
    pub fn traces_lost(&self) -> u64 {
        self.traces.lost()
    }

    /// Writes a line to the log.
    pub fn log(&self, line: impl FnOnce() -> Value) {
        if let Some(log) = &self.log {
            log(&line());
        }
    }
}
