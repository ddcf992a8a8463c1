//! Models of a server by the names that they are served under, for the rails around them and for rails that ask one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fathom_base::{
    Administer, Conversation, Describe, Evaluate, Generate, GenerateRequest, Load, ModelCard, Numbers,
    Result, Service, Sink, SpecialTokens, TextIds, TextPair, Ticket, Tokenize, VectorSink,
};

/// Starts the model that has a name; `None` if the server has no such model.
pub type Starter = dyn Fn(&str) -> Option<Result<Arc<dyn Service>>> + Send + Sync;

/// Models without rails by name.
#[derive(Default)]
pub struct ServedModels {
    models: Mutex<BTreeMap<String, Arc<ServedModel>>>,
    start: Option<Box<Starter>>,
}

impl ServedModels {
    /// Models that are started when a rail first names them, which may be before the server starts them itself.
    pub fn new(start: Box<Starter>) -> ServedModels {
        ServedModels { models: Mutex::default(), start: Some(start) }
    }

    /// Adds a model, or replaces the one of this name, for rails that ask it too.
    pub fn put(&self, name: &str, service: Arc<dyn Service>) {
        let mut models = self.models();
        match models.get(name) {
            Some(model) => model.replace(service),
            None => _ = models.insert(name.to_string(), Arc::new(ServedModel::new(service))),
        }
    }

    /// The model that has a name now.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Service>> {
        self.models().get(name).map(|model| model.current())
    }

    /// A model that stays the one of this name when the server loads it again; started if it is not running yet. `None` if
    /// the server has no such model.
    pub fn service(&self, name: &str) -> Option<Result<Arc<dyn Service>>> {
        let mut models = self.models();
        if let Some(model) = models.get(name) {
            return Some(Ok(model.clone()));
        }
        let started = self.start.as_ref()?(name)?;
        Some(started.map(|service| {
            let model = Arc::new(ServedModel::new(service));
            models.insert(name.to_string(), model.clone());
            model as Arc<dyn Service>
        }))
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ServedModel>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The model that a name stands for, which a reload replaces.
struct ServedModel(Mutex<Arc<dyn Service>>);

impl ServedModel {
    fn new(service: Arc<dyn Service>) -> ServedModel {
        ServedModel(Mutex::new(service))
    }

    fn current(&self) -> Arc<dyn Service> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, service: Arc<dyn Service>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = service;
    }
}

impl Describe for ServedModel {
    fn card(&self) -> ModelCard {
        self.current().card()
    }

    fn load(&self) -> Load {
        self.current().load()
    }
}

impl Tokenize for ServedModel {
    fn encode(&self, text: &str, reading: SpecialTokens) -> Result<Vec<u32>> {
        self.current().encode(text, reading)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.current().decode(ids)
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.current().token_bytes(id)
    }

    fn render(&self, conversation: &Conversation) -> Result<String> {
        self.current().render(conversation)
    }
}

impl Generate for ServedModel {
    fn submit_while(
        &self,
        request: GenerateRequest,
        sink: Sink,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Ticket> {
        self.current().submit_while(request, sink, wanted)
    }
}

impl Evaluate for ServedModel {
    fn read(&self, text: &TextPair, asked: Numbers, most: Option<usize>) -> Result<TextIds> {
        self.current().read(text, asked, most)
    }

    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket> {
        self.current().numbers(texts, asked, sink)
    }
}

impl Administer for ServedModel {
    fn load_adapter(&self, name: &str, folder: &Path) -> Result<()> {
        self.current().load_adapter(name, folder)
    }

    fn unload_adapter(&self, name: &str) -> Result<()> {
        self.current().unload_adapter(name)
    }

    fn erase_prefixes(&self) -> Result<u64> {
        self.current().erase_prefixes()
    }
}
