//! Options of a server, and its connections to the program.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_serve::{Log, ServerAddresses, Settings};
use fathom_tensor::PageFormat;
use fathom_train::recipe::{Machine as Asked, MachineKind, Precision};

use crate::adapters::BaseQuantization;
use crate::error::{Result, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::spread::AskedMesh;

/// Models to serve, with options.
#[derive(Clone, Debug)]
pub struct Order {
    /// Folders of runs, or Hugging Face folders.
    pub models: Vec<PathBuf>,
    /// Names of the models, in the same order; a model without one is named after its folder.
    pub names: Vec<String>,
    /// Adapters of the first model: name and folder of each.
    pub adapters: Vec<(String, PathBuf)>,
    /// Type of the weights; `None` keeps the stored one.
    pub precision: Option<Precision>,
    /// Format of keys and values.
    pub kv: PageFormat,
    /// File with a chat template; `None` for the models' own.
    pub template: Option<PathBuf>,
    /// Kind of machine.
    pub machine: MachineKind,
    /// Threads of each model; 0 for one per core.
    pub threads: usize,
    /// Mesh of each model.
    pub mesh: AskedMesh,
    /// Bytes that each model may use, weights included; `None` for the available memory.
    pub memory_bytes: Option<u64>,
    /// Folder in which prefixes of prompts are stored; `None` stores none.
    pub prefixes: Option<PathBuf>,
    /// Folder of guardrails around every model; `None` for none.
    pub guard: Option<PathBuf>,
    /// Keys of the server's recipe.
    pub settings: Settings,
    /// Address to listen on.
    pub at: ServerAddresses,
    /// File of API keys; `None` requires no key.
    pub keys: Option<PathBuf>,
    /// Version of the program.
    pub version: String,
    /// Set if the model is being reloaded next to the one being served.
    pub again: bool,
    /// Program that compiles structures of answers in separate processes ([`compile_structure`]). Without it they are
    /// compiled in this process, where a compilation that never ends cannot be stopped.
    pub compiler: Option<PathBuf>,
}

/// Connections between the program and a running server.
pub struct ServerLinks<'a> {
    /// Set to stop the server.
    pub stop: &'a Arc<AtomicBool>,
    /// Receives lines of the log.
    pub log: Option<Log>,
    /// Receives the addresses that the server listens on.
    pub heard: &'a dyn Fn(&[SocketAddr]),
    /// Receives notes and warnings.
    pub events: &'a dyn Events,
}

impl Order {
    /// Returns the models with their names.
    ///
    /// # Errors
    /// Two models of one name; more names than models.
    pub(super) fn named(&self) -> Result<Vec<(String, PathBuf)>> {
        if self.names.len() > self.models.len() {
            refuse!("there are {} names (--name) and {} models", self.names.len(), self.models.len());
        }
        let own = |path: &Path| {
            let folder = path.canonicalize().ok()?;
            // A run's model is in its folder `model`, so it is named after the run.
            let named = if folder.ends_with("model") { folder.parent()? } else { &folder };
            Some(named.file_name()?.to_string_lossy().into_owned())
        };
        let mut all: Vec<(String, PathBuf)> = Vec::new();
        for (at, path) in self.models.iter().enumerate() {
            let name = self.names.get(at).cloned().or_else(|| own(path)).unwrap_or_else(|| "model".into());
            if all.iter().any(|(other, _)| *other == name) {
                return Err(fathom_serve::Error::Twice(name).into());
            }
            all.push((name, path.clone()));
        }
        Ok(all)
    }

    /// Returns the options of the model at index `at`; adapters and the draft model belong to the first.
    pub(super) fn of(&self, at: usize) -> Order {
        let mut order = self.clone();
        if at > 0 {
            (order.adapters, order.settings.draft) = (Vec::new(), None);
        }
        order
    }

    /// Returns whether adapters are served now, or can be loaded later.
    pub(super) fn has_adapters(&self) -> bool {
        !self.adapters.is_empty() || self.settings.adapters.is_some()
    }

    /// Returns the quantization of the base: that of its adapters' runs if all that record one agree, else `None` for
    /// that of its files.
    pub(super) fn held(&self) -> Option<BaseQuantization> {
        BaseQuantization::of_all(self.adapters.iter().map(|(_, folder)| folder))
    }

    /// Returns the machine of each model.
    pub(super) fn machine(&self, events: &dyn Events) -> Machine {
        let (kind, threads, memory_bytes) = (self.machine, self.threads, self.memory_bytes);
        Machine::new(Asked { kind, threads, memory_bytes, ..Asked::default() }, events)
    }
}
