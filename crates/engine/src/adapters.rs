//! Adapters of an engine: several models over the shared weights of one base.
//!
//! A request names its adapter, and holds it until the request has ended. The rows of a step are grouped by adapter.
//! Rows of the base and of adapters that only change the outputs of its projections (low-rank terms with or without
//! magnitudes, factors, biases) go through the base together, and each projection applies an adapter's terms to that
//! adapter's rows; the rows of any other adapter are a separate forward pass over the same pages. Cached prefixes are
//! keyed by the hash of the adapter's files, not by its name.
//!
//! Ranks with parts of the base hold the same parts of an adapter. Each reads its part first, and when all have
//! succeeded, they adopt it together.

use std::path::Path;
use std::rc::Rc;

use fathom_base::human;
use fathom_grad::Counters;
use fathom_model::{open_peft, share_base, shared_bytes};
use fathom_tensor::{Category, Tensor};

use crate::adapted::{AdaptedModel, AdapterRef, LoadedAdapter};
use crate::engine::Engine;
use crate::error::Error;

/// The files of an adapter that determine its computation.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

impl<'a> Engine<'a> {
    /// Sets how many bytes of device memory adapters must leave free for a step.
    pub fn reserving(self, bytes: u64) -> Engine<'a> {
        Engine { reserved_bytes: bytes, ..self }
    }

    /// Loads an adapter from a folder in PEFT's format, for requests that name it.
    ///
    /// # Errors
    /// The name is already used, the adapter is for another model or changes its base, or there is no room for it.
    pub fn load_adapter(&self, name: &str, folder: &Path) -> Result<(), Error> {
        self.adopt(self.read_adapter(name, folder)?);
        Ok(())
    }

    /// Reads an adapter without making it available to requests; ranks do not wait for each other.
    pub(crate) fn read_adapter(&self, name: &str, folder: &Path) -> Result<LoadedAdapter, Error> {
        if self.adapters.borrow().contains_key(name) {
            return Err(Error::AdapterTwice(name.into()));
        }
        let (spec, tensors) = open_peft(folder, self.model.spec.clone())?;
        let misfit = |misfit: fathom_model::Misfit| Error::Unsupported(format!("adapter `{name}`: {misfit}"));
        self.model.portion.check(&spec).map_err(misfit)?;
        let bytes = shared_bytes(self.view(), (&spec, &tensors));
        let pool = &self.device.pool;
        let free = pool.budget().saturating_sub(pool.usage().live).saturating_sub(self.reserved_bytes);
        if bytes > free {
            let (bytes, free) = (human::bytes(bytes), human::bytes(free));
            return Err(Error::Unsupported(format!(
                "adapter `{name}` takes {bytes} and {free} are free; unload another, or give the engine more memory"
            )));
        }
        let identity = identity(folder)?;
        let (model, params) = share_base(self.view(), (&spec, &tensors))?;
        Ok(LoadedAdapter(name.into(), AdaptedModel { model, params, terms: None, identity }))
    }

    /// Makes a read adapter available to requests; all ranks with parts of it do this at the same time.
    pub(crate) fn adopt(&self, LoadedAdapter(name, adapted): LoadedAdapter) {
        let terms = adapted.model.terms(self.device, &adapted.params).map(Rc::new);
        self.adapters.borrow_mut().insert(name, Rc::new(AdaptedModel { terms, ..adapted }));
    }

    /// Removes an adapter's name: later requests cannot use it, and current ones keep it until they have ended.
    ///
    /// # Errors
    /// There is no adapter of this name.
    pub fn unload_adapter(&self, name: &str) -> Result<(), Error> {
        self.take_adapter(name).map(drop)
    }

    /// Removes an adapter's name, and returns a weak reference to the adapter.
    pub(crate) fn take_adapter(&self, name: &str) -> Result<AdapterRef, Error> {
        let adapter = self.adapters.borrow_mut().remove(name);
        adapter.map(|adapter| Rc::downgrade(&adapter)).ok_or_else(|| Error::NoAdapter(name.into()))
    }

    pub(crate) fn adapter(&self, name: &str) -> Result<Rc<AdaptedModel>, Error> {
        self.adapters.borrow().get(name).cloned().ok_or_else(|| Error::NoAdapter(name.into()))
    }

    /// The engine of an adapter's model.
    pub(crate) fn over<'b>(&'b self, AdaptedModel { model, params, .. }: &'b AdaptedModel) -> Engine<'b> {
        Engine {
            device: self.device,
            model,
            params,
            tokenizer: self.tokenizer,
            limits: self.limits,
            counters: Counters::default(),
            temperature: self.temperature,
            adapters: Default::default(),
            reserved_bytes: self.reserved_bytes,
            draft: None,
            sentence: None,
        }
    }

    /// Concatenates the rows of hidden states of several groups.
    pub(crate) fn joined(&self, mut groups: Vec<Tensor>) -> Tensor {
        if groups.len() == 1 {
            return groups.swap_remove(0);
        }
        let rows = groups.iter().map(Tensor::rows).sum();
        let all = self.device.empty(rows, groups[0].cols(), groups[0].dtype(), Category::Activations);
        let mut end = 0;
        for group in groups {
            end += group.rows();
            self.device.machine.copy(&group, &all.view_rows(end - group.rows()..end));
        }
        all
    }
}

fn identity(folder: &Path) -> Result<String, Error> {
    let mut hasher = blake3::Hasher::new();
    for name in FILES {
        let file = folder.join(name);
        let failed = |error: std::io::Error| Error::Unsupported(format!("{}: {error}", file.display()));
        let opened = std::fs::File::open(&file).map_err(failed)?;
        hasher.update(&opened.metadata().map_err(failed)?.len().to_le_bytes());
        hasher.update_reader(opened).map_err(failed)?;
    }
    Ok(hasher.finalize().to_hex()[..32].to_string())
}
