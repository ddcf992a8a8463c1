//! What a server is asked to serve, and what is around it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_serve::{Listening, Log, Settings};
use fathom_tensor::PageFormat;
use fathom_train::recipe::{Machine as Asked, MachineKind, Precision};

use crate::adapters::Held;
use crate::error::{Result, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::spread::AskedMesh;

/// What is served, and how.
#[derive(Clone, Debug)]
pub struct Order {
    /// Folders of runs, or Hugging Face folders.
    pub models: Vec<PathBuf>,
    /// Their names, in the same order; those without one are called as their folders.
    pub names: Vec<String>,
    /// Adapters: a name, and a folder each; of the first model.
    pub adapters: Vec<(String, PathBuf)>,
    /// Type of the weights; none as they are stored.
    pub precision: Option<Precision>,
    /// How keys and values are held.
    pub kv: PageFormat,
    /// A file with the chat template; none for the models' own.
    pub template: Option<PathBuf>,
    /// What computes.
    pub machine: MachineKind,
    /// Threads of each model; 0 for all cores.
    pub threads: usize,
    /// The ranks of each model.
    pub mesh: AskedMesh,
    /// Bytes that each model may use, with its weights; none for what is there.
    pub memory_bytes: Option<u64>,
    /// A folder where beginnings of prompts are kept; none keeps none.
    pub prefixes: Option<PathBuf>,
    /// Keys of the recipe.
    pub settings: Settings,
    /// Where it listens.
    pub at: Listening,
    /// A file of keys; none asks for none.
    pub keys: Option<PathBuf>,
    /// The program's version.
    pub version: String,
    /// It is served already, and loaded next to that.
    pub again: bool,
    /// The program that compiles structures of answers in processes of its own ([`compile_structure`]); without one they are compiled in
    /// this process, in which nothing ends one that takes for ever.
    pub compiler: Option<PathBuf>,
}

/// What the program does while a server goes on.
pub struct Around<'a> {
    /// Asks it to end.
    pub stop: &'a Arc<AtomicBool>,
    /// Takes lines of the log.
    pub log: Option<Log>,
    /// Receives where it listens.
    pub heard: &'a dyn Fn(&[SocketAddr]),
    /// Hears what there is to say.
    pub events: &'a dyn Events,
}

impl Order {
    /// The name of each model.
    ///
    /// # Errors
    /// Two of one name.
    pub(super) fn named(&self) -> Result<Vec<(String, PathBuf)>> {
        if self.names.len() > self.models.len() {
            refuse!("there are {} names (--name) and {} models", self.names.len(), self.models.len());
        }
        let own = |path: &Path| {
            let folder = path.canonicalize().ok()?;
            // A run's model lies in a folder of the run that every run has.
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

    /// What is asked of the model at a place: adapters and the draft model are the first one's.
    pub(super) fn of(&self, at: usize) -> Order {
        let mut order = self.clone();
        if at > 0 {
            (order.adapters, order.settings.draft) = (Vec::new(), None);
        }
        order
    }

    /// Whether adapters are served, now or later.
    pub(super) fn has_adapters(&self) -> bool {
        !self.adapters.is_empty() || self.settings.adapters.is_some()
    }

    /// How the base is held: as the runs of its adapters held it, if all that say something say the same, and else as its files have it.
    pub(super) fn held(&self) -> Option<Held> {
        Held::of_all(self.adapters.iter().map(|(_, folder)| folder))
    }

    /// The machine of each model.
    pub(super) fn machine(&self, events: &dyn Events) -> Machine {
        let (kind, threads, memory_bytes) = (self.machine, self.threads, self.memory_bytes);
        Machine::new(Asked { kind, threads, memory_bytes, ..Asked::default() }, events)
    }
}
