//! Models of rails: each opened once, on a thread of its own, when a configuration first names it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fathom_base::{Error as BaseError, Service};
use fathom_engine::{Limits, TextEncoder, service};
use fathom_guard::needs::Models;
use fathom_model::SafeTensors;

use crate::error::{Result, caught};
use crate::events::Silent;
use crate::host::{Host, HostOptions, ModelThread, Opening};
use crate::machine::Machine;
use crate::{exported, models, serve};

/// Texts that a judge is asked about at once.
const SEQUENCES: usize = 16;

/// Opens models by their folders.
pub struct GuardModels {
    machine: Mutex<Machine>,
    open: Mutex<BTreeMap<PathBuf, Opened>>,
}

/// An open model.
enum Opened {
    Decoder(Box<Host>),
    Encoder(Arc<dyn Service>),
}

impl Opened {
    fn service(&self) -> Arc<dyn Service> {
        match self {
            Opened::Decoder(host) => host.service().clone(),
            Opened::Encoder(service) => service.clone(),
        }
    }
}

impl GuardModels {
    /// Models on a machine.
    pub fn new(machine: &Machine) -> GuardModels {
        GuardModels { machine: Mutex::new(machine.again()), open: Mutex::default() }
    }

    fn opened(&self, path: &Path) -> Result<Opened> {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner).again();
        if !models::is_encoder(path) {
            let options = HostOptions { sequences: SEQUENCES, ..HostOptions::new(path, &machine) };
            return Ok(Opened::Decoder(Box::new(Host::open(options, &Silent)?)));
        }
        let name = path.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned());
        let (called, path) = (name.clone(), path.to_path_buf());
        let work = move |opening: &Opening<()>| {
            let folder = models::model_folder(&path)?;
            exported::verify(&folder)?;
            let tokenizer = Arc::new(models::tokenizer(&folder)?);
            let device = machine.open()?;
            let dtype = models::stored_dtype(&SafeTensors::open_folder(&folder)?);
            let chunk_tokens = Limits::default().chunk_tokens;
            caught(|| {
                let encoder =
                    TextEncoder::open(&device, &folder, (dtype, tokenizer.clone()), None, chunk_tokens)?;
                let facts =
                    serve::encoder_facts(&called, &folder, (&encoder, dtype), &tokenizer, usize::MAX)?;
                let (handle, commands) = service(facts);
                if opening.ready(handle, ()) {
                    commands.serve_texts(&encoder);
                }
                Ok(())
            })
        };
        Ok(Opened::Encoder(Arc::new(ModelThread::start(&name, &Silent, work)?.service)))
    }
}

impl Models for GuardModels {
    fn service(&self, name: &str) -> fathom_base::Result<Arc<dyn Service>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = open.get(Path::new(name)) {
            return Ok(opened.service());
        }
        let opened = self.opened(Path::new(name)).map_err(BaseError::product)?;
        let service = opened.service();
        open.insert(PathBuf::from(name), opened);
        Ok(service)
    }
}
