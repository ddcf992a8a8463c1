//! Models of a server by name: each is started once, by whoever needs it first, and again when it is reloaded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use fathom_base::{Administer, Service};
use fathom_serve::Reload;

use super::hosted::{self, ServeFn, Watch};
use super::order::Order;
use super::sizes::Sizes;
use super::{encoder, ranks};
use crate::error::{Result, refuse};
use crate::guardrails::Starter;
use crate::host::ModelThread;
use crate::models;

/// A served model, with its path and options.
pub(super) struct RosterEntry {
    pub name: String,
    pub path: PathBuf,
    pub order: Order,
}

/// A running model, with the memory that it takes.
pub(super) struct StartedModel {
    pub service: Arc<dyn Service>,
    pub sizes: Sizes,
}

/// The models of a server.
pub(super) struct Roster {
    models: Vec<RosterEntry>,
    watch: Watch,
    threads: Mutex<Vec<JoinHandle<Result<()>>>>,
    /// Models that a rail started, until the server takes them.
    waiting: Mutex<BTreeMap<String, StartedModel>>,
    /// Bytes of each model that runs.
    bytes: Mutex<BTreeMap<String, u64>>,
}

impl Roster {
    /// Models with their names, of which none is started.
    pub fn new(order: &Order, named: Vec<(String, PathBuf)>, watch: Watch) -> Roster {
        let served = |(at, (name, path))| RosterEntry { name, path, order: order.of(at) };
        let models = named.into_iter().enumerate().map(served).collect();
        Roster {
            models,
            watch,
            threads: Mutex::default(),
            waiting: Mutex::default(),
            bytes: Mutex::default(),
        }
    }

    /// All models, in the order of the command.
    pub fn models(&self) -> &[RosterEntry] {
        &self.models
    }

    /// Starts a model, unless a rail did.
    ///
    /// # Errors
    /// No model of this name, or none in its folder; out of memory; an adapter that does not fit.
    pub fn start(&self, name: &str) -> Result<StartedModel> {
        if let Some(started) = lock(&self.waiting).remove(name) {
            return Ok(started);
        }
        let served = self.served(name)?;
        let started = self.open(served, &served.order)?;
        lock(&self.bytes).insert(name.to_string(), started.sizes.bytes());
        Ok(started)
    }

    /// The function that starts a model for rails that name it; the server takes it later.
    pub fn starter(self: Arc<Self>) -> Box<Starter> {
        Box::new(move |name| {
            self.models.iter().find(|served| served.name == name)?;
            let started = self.start(name).map(|started| {
                let service = started.service.clone();
                lock(&self.waiting).insert(name.to_string(), started);
                service
            });
            Some(started.map_err(fathom_base::Error::product))
        })
    }

    /// The function that starts models again, each within the memory that it has now.
    pub fn reload(self: Arc<Self>) -> Reload {
        Arc::new(move |name| {
            let again = || -> Result<Arc<dyn Service>> {
                let served = self.served(name)?;
                let bytes = lock(&self.bytes).get(name).copied();
                let memory_bytes = served.order.memory_bytes.or(bytes);
                let order = Order { again: true, memory_bytes, ..served.order.clone() };
                lock(&self.threads).retain(|thread| !thread.is_finished());
                Ok(self.open(served, &order)?.service)
            };
            again().map_err(fathom_base::Error::product)
        })
    }

    /// Returns whether the threads of all engines have ended.
    pub fn is_over(&self) -> bool {
        lock(&self.threads).iter().all(JoinHandle::is_finished)
    }

    fn served(&self, name: &str) -> Result<&RosterEntry> {
        match self.models.iter().find(|served| served.name == name) {
            Some(served) => Ok(served),
            None => refuse!("no model is called {name}"),
        }
    }

    /// Starts the engine and loads its adapters.
    fn open(&self, served: &RosterEntry, order: &Order) -> Result<StartedModel> {
        let serving: ServeFn = if models::is_encoder(&served.path) {
            encoder::run
        } else if order.mesh.is_spread() {
            ranks::run
        } else {
            hosted::run
        };
        let ModelThread { service, found: sizes, thread } =
            hosted::start(&served.name, &served.path, order, &self.watch, serving)?;
        lock(&self.threads).push(thread);
        for (adapter, folder) in &order.adapters {
            service.load_adapter(adapter, folder)?;
        }
        Ok(StartedModel { service: Arc::new(service), sizes })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
