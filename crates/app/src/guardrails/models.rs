//! Models of rails: those of the server, and others, each opened once, on a thread of its own, when a configuration first
//! names it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fathom_base::{Error as BaseError, Service};
use fathom_guard::needs::Models;

use super::served::ServedModels;
use crate::error::Result;
use crate::events::Silent;
use crate::host::{EncoderHost, Host, HostOptions};
use crate::machine::Machine;
use crate::models;

/// Texts that a judge is asked about at once.
const SEQUENCES: usize = 16;

/// Opens models by the names that a server has them under, or by their folders.
pub struct GuardModels {
    served: Arc<ServedModels>,
    machine: Mutex<Machine>,
    open: Mutex<BTreeMap<PathBuf, OpenModel>>,
}

/// An open model.
enum OpenModel {
    Decoder(Box<Host>),
    Encoder(EncoderHost),
}

impl OpenModel {
    fn service(&self) -> fathom_base::Result<Arc<dyn Service>> {
        Ok(match self {
            OpenModel::Decoder(host) => host.service().clone(),
            OpenModel::Encoder(host) => host.service()?.clone(),
        })
    }
}

impl GuardModels {
    /// Models of a server, and others on a machine.
    pub fn new(machine: &Machine, served: Arc<ServedModels>) -> GuardModels {
        GuardModels { served, machine: Mutex::new(machine.again()), open: Mutex::default() }
    }

    fn opened(&self, path: &Path) -> Result<OpenModel> {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner).again();
        if !models::is_encoder(path) {
            let options = HostOptions { sequences: SEQUENCES, ..HostOptions::new(path, &machine) };
            return Ok(OpenModel::Decoder(Box::new(Host::open(options, &Silent)?)));
        }
        Ok(OpenModel::Encoder(EncoderHost::open(path, None, &machine, &Silent)?))
    }
}

impl Models for GuardModels {
    fn service(&self, name: &str) -> fathom_base::Result<Arc<dyn Service>> {
        if let Some(served) = self.served.service(name) {
            return served;
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = open.get(Path::new(name)) {
            return opened.service();
        }
        let opened = self.opened(Path::new(name)).map_err(BaseError::product)?;
        let service = opened.service()?;
        open.insert(PathBuf::from(name), opened);
        Ok(service)
    }
}
