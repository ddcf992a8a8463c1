//! State and messages that both sides of a service share, and facts about the model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fathom_base::{Conversation, Load, ModelCard, Numbers, Result, Sink, TextIds, VectorSink};
use fathom_text::Tokenizer;

use crate::bounds::Bounds;
use crate::error::Error;
use crate::schedule::CheckedRequest;
use crate::structure::Structures;
use crate::texts::TextReading;

/// Renders a conversation as a prompt.
pub type Render = dyn Fn(&Conversation) -> Result<String> + Send + Sync;

/// Resolves an adapter's folder and refuses those of other bases.
pub type Accept = dyn Fn(&Path) -> Result<PathBuf> + Send + Sync;

/// Properties of a model needed by handles.
pub struct Facts {
    /// Description of the model.
    pub card: ModelCard,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Limits of requests.
    pub bounds: Bounds,
    /// Its template; `None` if the model does not support conversations.
    pub render: Option<Box<Render>>,
    /// Checks adapters before they are read; `None` if there are to be none.
    pub adapters: Option<Box<Accept>>,
    /// Maximum number of open requests.
    pub queue: usize,
    /// Compiler of requested structures.
    pub structures: Structures,
    /// Settings for reading texts to embed or score.
    pub reading: TextReading,
}

/// State seen by both sides.
#[derive(Default)]
pub(super) struct ServiceState {
    pub load: Mutex<Load>,
    /// Names of adapters, with the hash of each one's files.
    pub adapters: Mutex<BTreeMap<String, String>>,
    pub requested: AtomicU64,
    pub open: AtomicU64,
}

impl ServiceState {
    /// Sets the load.
    pub fn loaded(&self, load: Load) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }

    /// The names of adapters.
    pub fn adapters(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message to the engine's thread.
pub(super) enum Command {
    Submit(u64, Box<CheckedRequest>, Sink),
    Cancel(u64),
    Numbers(u64, Vec<TextIds>, Numbers, VectorSink),
    Erase(Sender<u64>),
    Load(String, PathBuf, Sender<std::result::Result<(), Error>>),
    Unload(String, Sender<()>),
}
