//! Adapters of an engine: models of their own over the weights of one base, which all of them share.
//!
//! A request names its adapter, and holds it until it has ended. The rows of a step are grouped by adapter. Those of the base and of
//! adapters that change what its products give (low-rank terms with lengths or without, factors, biases of projections) go through the
//! base together, and each projection does with the rows of an adapter what that does; any other adapter's rows are a forward pass of its
//! own over the same pages. What is remembered of a prompt belongs to the hash of the adapter's files, not to its name.
//!
//! Ranks with parts of the base have the same parts of an adapter. Each reads its part first, and when all have, they adopt it together.

use std::path::Path;
use std::rc::{Rc, Weak};

use fathom_base::human;
use fathom_grad::{Counters, Params, Terms};
use fathom_model::{Model, open_peft, share_base, shared_bytes};
use fathom_tensor::{Category, Tensor};

use crate::engine::Engine;
use crate::error::Error;

/// The files of an adapter that say what it computes.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// The base with an adapter.
pub(crate) struct Adapted {
    model: Model,
    params: Params,
    /// What it does at the base's products, if that is all that it does.
    pub terms: Option<Rc<Terms>>,
    /// The hash of the adapter's files.
    pub identity: String,
}

/// An adapter that was read, with its name.
pub(crate) struct Read(String, Adapted);

/// An adapter without its name; gone when the last request with it has ended.
pub(crate) type Unloaded = Weak<Adapted>;

impl<'a> Engine<'a> {
    /// The same, whose adapters leave so many bytes of the device's memory free: what a step takes.
    pub fn reserving(self, bytes: u64) -> Engine<'a> {
        Engine { reserved_bytes: bytes, ..self }
    }

    /// Reads an adapter from its folder, as PEFT writes it, to answer requests that name it.
    ///
    /// # Errors
    /// There is one of this name; an adapter of another model, or one that changes its base; no room for it.
    pub fn load_adapter(&self, name: &str, folder: &Path) -> Result<(), Error> {
        self.adopt(self.read_adapter(name, folder)?);
        Ok(())
    }

    /// The same up to where requests can name it; no rank waits for another.
    ///
    /// # Errors
    /// As [`Engine::load_adapter`].
    pub(crate) fn read_adapter(&self, name: &str, folder: &Path) -> Result<Read, Error> {
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
        Ok(Read(name.into(), Adapted { model, params, terms: None, identity }))
    }

    /// Requests can name it from now on; ranks with parts of it all do this at once.
    pub(crate) fn adopt(&self, Read(name, adapted): Read) {
        let terms = adapted.model.terms(self.device, &adapted.params).map(Rc::new);
        self.adapters.borrow_mut().insert(name, Rc::new(Adapted { terms, ..adapted }));
    }

    /// Removes an adapter's name: no later request has it, and those that have it keep it until they have ended.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn unload_adapter(&self, name: &str) -> Result<(), Error> {
        self.take_adapter(name).map(drop)
    }

    /// The same; what is left of it.
    pub(crate) fn take_adapter(&self, name: &str) -> Result<Unloaded, Error> {
        let adapter = self.adapters.borrow_mut().remove(name);
        adapter.map(|adapter| Rc::downgrade(&adapter)).ok_or_else(|| Error::NoAdapter(name.into()))
    }

    /// The adapter of a name.
    pub(crate) fn adapter(&self, name: &str) -> Result<Rc<Adapted>, Error> {
        self.adapters.borrow().get(name).cloned().ok_or_else(|| Error::NoAdapter(name.into()))
    }

    /// The engine of an adapter's model.
    pub(crate) fn over<'b>(&'b self, Adapted { model, params, .. }: &'b Adapted) -> Engine<'b> {
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

    /// Hidden states of groups of rows, below each other.
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
