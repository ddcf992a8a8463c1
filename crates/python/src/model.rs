//! Models: each on a thread of its own, asked from any thread.

use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use fathom_app::host::{Host, HostOptions};
use fathom_app::{Error, Machine, Silent, models};
use fathom_base::{
    Describe, Error as BaseError, Evaluate, Event, Generate, GenerateRequest, Numbers, Relay, RequestOutput,
    TextIds, TextPair, Ticket, Tokenize,
};
use fathom_train::recipe::{Machine as Asked, MachineKind, Precision};
use pyo3::prelude::*;
use serde_json::json;

use crate::array::Array;
use crate::edge::{check_fork, detached, interruptible};
use crate::error;
use crate::tokenizer::Tokenizer;

/// An opened model. Its memory is that of its thread, and returns when the handle is closed or dropped.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Model {
    host: Mutex<Option<Arc<Host>>>,
}

impl Model {
    fn host(&self, py: Python<'_>) -> PyResult<Arc<Host>> {
        check_fork(py)?;
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).clone();
        host.ok_or_else(|| error::refuse(py, "the model is closed; open it again with Model.from_pretrained"))
    }
}

/// Options of a model, as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ModelOptions {
    adapter: Option<PathBuf>,
    precision: Option<String>,
    threads: usize,
    memory_bytes: Option<u64>,
    context: Option<usize>,
    sequences: usize,
    draft_tokens: usize,
    device: String,
}

/// Computes while the caller's thread polls for signals; returns the exception that ended it.
fn polled<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&dyn Fn() -> bool) -> fathom_app::Result<T> + Send,
) -> PyResult<T> {
    let interrupt = Mutex::new(None);
    let done = detached(py, || {
        work(&|| {
            let mut interrupt = interrupt.lock().unwrap_or_else(PoisonError::into_inner);
            // Looking at a signal takes it, so what was interrupted stays so.
            if interrupt.is_none() {
                *interrupt = Python::attach(|py| py.check_signals()).err();
            }
            interrupt.is_none()
        })
    });
    match interrupt.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(raised) => Err(raised),
        None => done,
    }
}

fn unwanted() -> Error {
    Error::Refused("the request was interrupted".into())
}

#[pymethods]
impl Model {
    /// Opens a model; waits until it is ready.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, options: ModelOptions) -> PyResult<Model> {
        let ModelOptions { adapter, precision, threads, memory_bytes, context, .. } = options;
        let ModelOptions { sequences, draft_tokens, device, .. } = options;
        let named = |name: &str| Precision::ALL.iter().find(|it| it.name() == name).copied();
        let dtype = match precision.as_deref().map(|name| named(name).ok_or(name)).transpose() {
            Ok(precision) => precision.map(Precision::dtype),
            Err(name) => {
                return Err(error::refuse(
                    py,
                    &format!("precision \"{name}\": \"bf16\" and \"f32\" are there"),
                ));
            }
        };
        let Some(kind) = MachineKind::ALL.iter().find(|it| it.name() == device).copied() else {
            return Err(error::refuse(
                py,
                &format!("device \"{device}\": \"auto\", \"cpu\" and \"cuda\" are there"),
            ));
        };
        let host = interruptible(py, "open", move |_| {
            let asked = Asked { kind, threads, memory_bytes, ..Asked::default() };
            let machine = Machine::new(asked, &Silent);
            let folder = models::model_folder(&path)?;
            let options = HostOptions {
                adapter,
                dtype,
                sequences,
                draft_tokens,
                context_tokens: context,
                ..HostOptions::new(folder, &machine)
            };
            Host::open(options, &Silent)
        })?;
        Ok(Model { host: Mutex::new(Some(Arc::new(host))) })
    }

    /// Facts about the model, as JSON.
    fn card(&self, py: Python<'_>) -> PyResult<String> {
        let host = self.host(py)?;
        let (card, facts) = (host.service().card(), host.facts());
        let spec = &facts.spec;
        Ok(json!({
            "card": card, "folder": facts.folder, "family": spec.family.to_string(), "layers": spec.layers.len(),
            "hidden": spec.hidden, "heads": spec.heads, "kv_heads": spec.kv_heads, "scores": spec.scores,
        })
        .to_string())
    }

    /// Its tokenizer.
    fn tokenizer(&self, py: Python<'_>) -> PyResult<Tokenizer> {
        let host = self.host(py)?;
        detached(py, || Tokenizer::of(host.facts().tokenizer.clone(), &host.facts().folder))
    }

    /// Submits a request, given as JSON.
    fn submit(&self, py: Python<'_>, request: &str) -> PyResult<Request> {
        let host = self.host(py)?;
        let (answers, ticket, relay) = detached(py, || {
            models_writes(&host)?;
            let request: GenerateRequest = serde_json::from_str(request)?;
            let answers = request.answers;
            let (ticket, relay) = host.events(request)?;
            Ok((answers, ticket, relay))
        })?;
        let output = RequestOutput::of(answers);
        Ok(Request { host, ticket: Mutex::new(Some(ticket)), events: Mutex::new((relay, output)) })
    }

    /// Answers requests, given as JSON, that are computed together; returns a JSON object for each.
    fn generate(&self, py: Python<'_>, requests: Vec<String>) -> PyResult<Vec<String>> {
        let host = self.host(py)?;
        polled(py, |wanted| {
            models_writes(&host)?;
            let requests = requests.iter().map(|request| serde_json::from_str(request));
            let requests = requests.collect::<Result<Vec<GenerateRequest>, _>>()?;
            let outputs =
                host.service().outputs_while(requests, wanted).map_err(|error| host.cause(error))?;
            outputs.ok_or_else(unwanted)?.into_iter().map(|output| output_json(&host, output)).collect()
        })
    }

    /// Token ids of a prompt, given as JSON.
    fn ids(&self, py: Python<'_>, prompt: &str) -> PyResult<Vec<u32>> {
        let host = self.host(py)?;
        detached(py, || {
            let prompt = serde_json::from_str(prompt)?;
            Ok(host.service().ids(&prompt)?)
        })
    }

    /// Numbers of texts given as ids: `logits` (of the last `last` tokens), `logprobs`, `hidden`, `top` or `scores`.
    #[pyo3(signature = (texts, kind, last=usize::MAX, k=0, temperature=1.0))]
    fn look(
        &self,
        py: Python<'_>,
        texts: Vec<Vec<u32>>,
        kind: &str,
        last: usize,
        k: usize,
        temperature: f64,
    ) -> PyResult<Vec<Array>> {
        let host = self.host(py)?;
        let spec = &host.facts().spec;
        let (numbers, columns) = match kind {
            "logits" => (Numbers::Logits { last }, spec.vocab),
            "logprobs" => (Numbers::Logprobs, 2),
            "hidden" => (Numbers::Hidden, spec.hidden),
            "top" => (Numbers::Top { k, temperature }, 2 * k.max(1)),
            "scores" => (Numbers::Scores, 1),
            other => return Err(error::refuse(py, &format!("no numbers are called {other}"))),
        };
        let texts: Vec<TextIds> = texts.into_iter().map(TextIds::from).collect();
        let rows = self.numbers(py, texts, numbers)?;
        Ok(rows.into_iter().map(|row| Array::rows(row, columns)).collect())
    }

    /// Unit vectors of texts.
    fn embed(&self, py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<Array>> {
        let texts = texts.into_iter().map(|text| (text, None)).collect();
        Ok(self.read(py, texts, Numbers::Vector)?.into_iter().map(Array::vector).collect())
    }

    /// Relevance of each text to a query, or the model's scores of each pair.
    fn rerank(&self, py: Python<'_>, query: &str, texts: Vec<String>) -> PyResult<Vec<f32>> {
        let texts = texts.into_iter().map(|text| (query.to_string(), Some(text))).collect();
        let rows = self.read(py, texts, Numbers::Relevance)?;
        Ok(rows.into_iter().map(|row| row.first().copied().unwrap_or(f32::NAN)).collect())
    }

    /// Closes the model; waits until its memory is free.
    fn close(&self, py: Python<'_>) {
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(host));
    }

    /// Whether the model is open.
    #[getter]
    fn is_open(&self) -> bool {
        self.host.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Model {
    fn numbers(&self, py: Python<'_>, texts: Vec<TextIds>, numbers: Numbers) -> PyResult<Vec<Vec<f32>>> {
        let host = self.host(py)?;
        polled(py, |wanted| {
            let rows =
                host.service().look_while(texts, numbers, wanted).map_err(|error| host.cause(error))?;
            rows.ok_or_else(unwanted)
        })
    }

    fn read(&self, py: Python<'_>, texts: Vec<TextPair>, numbers: Numbers) -> PyResult<Vec<Vec<f32>>> {
        let host = self.host(py)?;
        let most = host.facts().spec.max_positions;
        let ids = detached(py, || {
            let read = |text: &TextPair| host.service().read(text, numbers, Some(most));
            Ok(texts.iter().map(read).collect::<fathom_base::Result<Vec<_>>>()?)
        })?;
        self.numbers(py, ids, numbers)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let host = self.host.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The model's thread is waited for, and it needs no interpreter.
        Python::try_attach(|py| py.detach(|| drop(host)));
    }
}

/// Refuses a reward model.
fn models_writes(host: &Host) -> fathom_app::Result<()> {
    if host.facts().spec.scores == 0 {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} is a reward model, which writes no text; ask it for scores (Model.score)",
        host.facts().folder.display()
    )))
}

/// Everything that a request's events reported, as JSON.
fn output_json(host: &Host, output: RequestOutput) -> fathom_app::Result<String> {
    let RequestOutput { prompt, logprobs, answers, usage, failed } = output;
    if let Some(error) = failed {
        return Err(host.cause(error));
    }
    let Some(usage) = usage else {
        return Err(
            host.cause(BaseError::Gone { what: "the model ended while it worked on this request".into() })
        );
    };
    let answers: Vec<_> = answers
        .into_iter()
        .map(|of| json!({"text": of.text, "ids": of.ids, "logprobs": of.logprobs, "stop": of.stop}))
        .collect();
    Ok(json!({"prompt": prompt, "prompt_logprobs": logprobs, "answers": answers, "usage": usage}).to_string())
}

/// A running request. It is cancelled when it is dropped.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Request {
    host: Arc<Host>,
    ticket: Mutex<Option<Ticket>>,
    /// Events to come, and those that have been read.
    events: Mutex<(Relay, RequestOutput)>,
}

/// A piece of an answer: index of the answer, text, ids, and log-probabilities as JSON if there are any.
type Piece = (usize, String, Vec<u32>, Option<String>);

#[pymethods]
impl Request {
    /// All pieces that have come; waits for the first. `None` after the last.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Vec<Piece>>> {
        polled(py, |wanted| {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            let (relay, output) = &mut *events;
            let mut pieces = Vec::new();
            while pieces.is_empty() {
                if let Some(error) = output.failed.take() {
                    return Err(self.host.cause(error));
                }
                let Some(found) = relay.all_while(wanted) else { return Ok(None) };
                for event in found {
                    if let Event::Piece { answer, text, ids, logprobs } = &event
                        && !(text.is_empty() && ids.is_empty())
                    {
                        let judged = (!logprobs.is_empty()).then(|| serde_json::to_string(logprobs));
                        pieces.push((*answer, text.clone(), ids.clone(), judged.transpose()?));
                    }
                    output.push(event);
                }
            }
            Ok(Some(pieces))
        })
    }

    /// The whole answer, after the last piece, as [`Model::generate`] returns it; `None` if the request was cancelled.
    fn answer(&self, py: Python<'_>) -> PyResult<Option<String>> {
        detached(py, || {
            let output = mem::take(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner).1);
            let is_cancelled = self.ticket.lock().unwrap_or_else(PoisonError::into_inner).is_none();
            if is_cancelled && !output.is_over() {
                return Ok(None);
            }
            output_json(&self.host, output).map(Some)
        })
    }

    /// Cancels the request.
    fn cancel(&self, py: Python<'_>) {
        let ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(ticket));
    }
}
