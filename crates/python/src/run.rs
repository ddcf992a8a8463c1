//! Runs: each on a thread of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fathom_app::train::{Functions, Order, RunOutcome, check};
use fathom_app::{Job, Result, rounds, train};
use fathom_base::clock::Clock;
use fathom_base::recipe::Loaded;
use fathom_train::Outcome;
use fathom_train::recipe::{Recipe, WriteName};
use pyo3::prelude::*;
use serde_json::json;

use crate::edge::{PendingResult, check_fork, detached, guarded, thread};
use crate::error;
use crate::events::{Channel, EventSender};
use crate::functions::{Calls, functions};
use crate::recipe::{Base, Setting, load};

/// A run of a recipe.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Run {
    stop: Arc<AtomicBool>,
    save_requests: Arc<AtomicU64>,
    folder: PathBuf,
    done: Arc<PendingResult<Result<String>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Options of a run, as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct RunOptions {
    command: String,
    rewards: Vec<(String, Py<Calls>)>,
    environment: Option<Py<Calls>>,
    allow_processes: bool,
}

/// A run's arguments besides its recipe.
struct RunArguments {
    command: String,
    functions: Functions,
    allow_processes: bool,
    events: EventSender,
    stop: Arc<AtomicBool>,
    save_requests: Arc<AtomicU64>,
}

#[pymethods]
impl Run {
    /// Starts a run. `rewards` are the functions of tables with `rule = "function"`, by name.
    #[staticmethod]
    fn start(
        py: Python<'_>,
        recipe: (Base, Vec<Setting>),
        options: RunOptions,
        channel: &Channel,
    ) -> PyResult<Run> {
        check_fork(py)?;
        let RunOptions { command, rewards, environment, allow_processes } = options;
        let rewards = rewards.into_iter().map(|(name, calls)| (name, calls.get().0.clone())).collect();
        let functions = functions(rewards, environment.map(|calls| calls.get().0.clone()));
        let loaded = detached(py, || {
            let loaded = load(&recipe.0, &recipe.1)?;
            check(&loaded)?;
            Ok(loaded)
        })?;
        let (stop, save_requests) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let done = PendingResult::new();
        let folder = loaded.value.run.out.clone();
        let arguments = RunArguments {
            command,
            functions,
            allow_processes,
            events: channel.0.clone(),
            stop: stop.clone(),
            save_requests: save_requests.clone(),
        };
        let to = done.clone();
        let work = move || {
            let ended = guarded(|| run(loaded, &arguments));
            to.put(ended);
            arguments.events.0.end();
        };
        let thread = thread("run", work)?;
        Ok(Run { stop, save_requests, folder, done, thread: Mutex::new(Some(thread)) })
    }

    /// Asks the run to save and stop.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Asks for a checkpoint after the step in progress.
    fn save(&self) {
        self.save_requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the run has been asked to stop.
    #[getter]
    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Its folder.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    /// The result as JSON, once, after at most `seconds`; `None` while the run goes on.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<String>> {
        check_fork(py)?;
        let done = py.detach(|| {
            let done = self.done.take(Duration::from_secs_f64(seconds))?;
            // The thread's memory is free once it has ended.
            if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = thread.join();
            }
            Some(done)
        });
        done.transpose().map_err(|failed| error::raise(py, &failed))
    }
}

fn run(loaded: Loaded<Recipe>, arguments: &RunArguments) -> Result<String> {
    let RunArguments { command, functions, allow_processes, events, stop, save_requests } = arguments;
    let order = Order {
        command: command.clone(),
        stop: stop.clone(),
        save_requests: save_requests.clone(),
        allow_processes: *allow_processes,
        functions: functions.clone(),
        clock: Clock::start(),
        ..Order::default()
    };
    if loaded.value.rounds.write != WriteName::None {
        return Ok(said(&rounds::run(&loaded, &order, events)?));
    }
    let job = Job::new(loaded, events)?;
    Ok(said(&train(&job, &order, events)?))
}

fn said(ended: &RunOutcome) -> String {
    let outcome = match ended.outcome {
        Outcome::Finished => "finished",
        Outcome::Interrupted => "interrupted",
    };
    let report = ended.report.as_ref();
    json!({
        "outcome": outcome,
        "page": report.map(|report| &report.page),
        "seconds": report.map(|report| report.seconds),
        "unsaved": ended.unsaved,
    })
    .to_string()
}
