//! Indexes of documents, and rails that judge texts.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use fathom_app::guardrails::{Guardrails, needs};
use fathom_app::retrieval::{IndexRequest, Library, LibraryOptions, Question, account, index as run_index};
use fathom_app::{Error, Machine, Result, Silent};
use fathom_retrieval::{Condition, IndexOptions, Mode, StoreAddress};
use fathom_train::recipe::MachineKind;
use pyo3::prelude::*;

use crate::edge::{check_fork, detached, interruptible};
use crate::error;
use crate::events::Channel;

/// The machine of a verb, without a listener.
fn machine(device: &str, threads: usize) -> Result<Machine> {
    let kind = MachineKind::from_str(device).map_err(|error| Error::Refused(format!("device: {error}")))?;
    Ok(Machine::of_kind(kind, threads, &Silent))
}

/// Options of [`index`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct IndexSettings {
    encoder: Option<PathBuf>,
    chunk_bytes: Option<usize>,
    personal_data_out: bool,
    store: Option<String>,
    device: String,
    threads: usize,
}

/// Writes or updates an index; returns an account of it as JSON.
#[pyfunction]
pub fn index(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    out: PathBuf,
    options: IndexSettings,
    channel: &Channel,
) -> PyResult<String> {
    let events = channel.0.clone();
    interruptible(py, "index", move |stop| {
        let machine = machine(&options.device, options.threads)?.stopped_by(stop);
        let plain = IndexOptions::default();
        let chunk_bytes = options.chunk_bytes.unwrap_or(plain.chunk_bytes);
        let store = options.store.as_deref().map(StoreAddress::from_str).transpose()?;
        let request = IndexRequest {
            paths,
            out,
            options: IndexOptions { chunk_bytes, personal_data_out: options.personal_data_out, store },
            encoder: options.encoder,
        };
        Ok(account(&run_index(&request, &machine, &events)?).to_string())
    })
}

/// Options of an opened index, as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct OpenOptions {
    encoder: Option<PathBuf>,
    reranker: Option<PathBuf>,
    sparse: bool,
    device: String,
    threads: usize,
}

/// An opened index with its models.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Index {
    library: Mutex<Option<Arc<Library>>>,
}

#[pymethods]
impl Index {
    /// Opens an index.
    #[staticmethod]
    fn open(py: Python<'_>, folder: PathBuf, options: OpenOptions) -> PyResult<Index> {
        let library = interruptible(py, "open", move |_| {
            let OpenOptions { encoder, reranker, sparse, device, threads } = options;
            let options = LibraryOptions { index: folder, encoder, reranker, sparse };
            Library::open(&options, &machine(&device, threads)?, &Silent)
        })?;
        Ok(Index { library: Mutex::new(Some(Arc::new(library))) })
    }

    /// Hits of a query, the best first: a JSON object each.
    fn search(
        &self,
        py: Python<'_>,
        query: String,
        k: usize,
        conditions: Vec<String>,
        mode: String,
        exact: bool,
    ) -> PyResult<Vec<String>> {
        check_fork(py)?;
        let library = self.library.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(library) = library else {
            return Err(error::refuse(py, "the index is closed; open it again with Index.open"));
        };
        detached(py, || {
            let condition = |text: &String| Ok(text.parse::<Condition>()?);
            let conditions = conditions.iter().map(condition).collect::<Result<_>>()?;
            let mode = Mode::from_str(&mode).map_err(|error| Error::Refused(format!("mode {error}")))?;
            let hits = library.ask(&Question { text: query, k, conditions, mode, exact })?;
            hits.iter().map(|hit| Ok(serde_json::to_string(hit)?)).collect::<Result<_>>()
        })
    }

    /// Frees the memory of its models.
    fn close(&self) {
        self.library.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The rails of a folder, without a model that they are around.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Guard {
    rails: Arc<Guardrails>,
}

#[pymethods]
impl Guard {
    /// Loads `guard.toml` of a folder, or those of its subfolders.
    #[staticmethod]
    fn open(py: Python<'_>, folder: PathBuf, device: String) -> PyResult<Guard> {
        let rails =
            interruptible(py, "open", move |_| Guardrails::load(&folder, &needs(&machine(&device, 0)?)))?;
        Ok(Guard { rails: Arc::new(rails) })
    }

    /// Judges a request of `/v1/checks`, given as JSON; returns its answer as JSON.
    fn check(&self, py: Python<'_>, request: &str) -> PyResult<String> {
        check_fork(py)?;
        detached(py, || Ok(self.rails.judge(&serde_json::from_str(request)?)?.to_string()))
    }
}
