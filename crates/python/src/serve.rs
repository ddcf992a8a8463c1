//! Servers in this process: each on a thread of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fathom_app::serve::{Order, ServerLinks, serve, settings};
use fathom_app::spread::AskedMesh;
use fathom_app::{Error, Result};
use fathom_serve::ServerAddresses;
use fathom_tensor::PageFormat;
use fathom_train::recipe::{MachineKind, Precision};
use pyo3::prelude::*;

use crate::edge::{POLL, PendingResult, check_fork, detached, guarded, thread};
use crate::error;
use crate::events::{Channel, EventSender};

/// Options of a server, as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ServerOptions {
    names: Vec<String>,
    adapters: Vec<(String, PathBuf)>,
    precision: Option<String>,
    threads: usize,
    memory_bytes: Option<u64>,
    settings: Vec<String>,
    host: String,
    port: u16,
    device: String,
    compiler: Option<PathBuf>,
    guard: Option<PathBuf>,
}

/// A running server.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Server {
    stop: Arc<AtomicBool>,
    address: String,
    done: Mutex<Arc<PendingResult<Result<()>>>>,
}

/// First report of a server's thread.
enum First {
    Listening(String),
    Ended,
}

#[pymethods]
impl Server {
    /// Starts a server; waits until it listens.
    #[staticmethod]
    fn start(
        py: Python<'_>,
        models: Vec<PathBuf>,
        options: ServerOptions,
        channel: &Channel,
    ) -> PyResult<Server> {
        check_fork(py)?;
        let order = detached(py, || order(models, options))?;
        let (stop, first, done) =
            (Arc::new(AtomicBool::new(false)), PendingResult::new(), PendingResult::new());
        let (asked, says, to, events) = (stop.clone(), first.clone(), done.clone(), channel.0.clone());
        let work = move || {
            let ended = guarded(|| run(&order, &asked, &says, &events));
            to.put(ended);
            says.put(First::Ended);
        };
        thread("server", work)?;
        loop {
            match py.detach(|| first.take(POLL)) {
                Some(First::Listening(address)) => {
                    return Ok(Server { stop, address, done: Mutex::new(done) });
                }
                Some(First::Ended) => {
                    let ended = py.detach(|| done.take(POLL)).unwrap_or(Ok(()));
                    let failed = ended.err().unwrap_or_else(|| Error::Refused("the server ended".into()));
                    return Err(error::raise(py, &failed));
                }
                None => {}
            }
            if let Err(interrupt) = py.check_signals() {
                stop.store(true, Ordering::Relaxed);
                return Err(interrupt);
            }
        }
    }

    /// Host and port.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Asks the server to end its open requests and stop.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end, at most this long; returns whether it has come.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let ended = py.detach(|| {
            let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).clone();
            done.take(Duration::from_secs_f64(seconds))
        });
        match ended {
            Some(Err(failed)) => Err(error::raise(py, &failed)),
            Some(Ok(())) => Ok(true),
            None => Ok(false),
        }
    }
}

fn order(models: Vec<PathBuf>, options: ServerOptions) -> Result<Order> {
    let refused = |what: &str, why: String| Error::Refused(format!("{what}: {why}"));
    let precision = options.precision.as_deref().map(str::parse::<Precision>).transpose();
    Ok(Order {
        models,
        names: options.names,
        adapters: options.adapters,
        precision: precision.map_err(|why| refused("precision", why.to_string()))?,
        kv: PageFormat::default(),
        template: None,
        machine: options.device.parse::<MachineKind>().map_err(|why| refused("device", why.to_string()))?,
        threads: options.threads,
        mesh: AskedMesh { tp: 1, pp: 1, experts: None },
        memory_bytes: options.memory_bytes,
        prefixes: None,
        guard: options.guard,
        settings: settings(None, &options.settings)?,
        at: ServerAddresses { host: options.host, port: options.port, admin_port: None, tls: None },
        keys: None,
        version: env!("CARGO_PKG_VERSION").into(),
        again: false,
        compiler: options.compiler,
    })
}

fn run(
    order: &Order,
    stop: &Arc<AtomicBool>,
    first: &Arc<PendingResult<First>>,
    events: &EventSender,
) -> Result<()> {
    let heard = |addresses: &[std::net::SocketAddr]| {
        first.put(First::Listening(addresses.first().map(ToString::to_string).unwrap_or_default()));
    };
    serve(order, &ServerLinks { stop, log: None, heard: &heard, events })
}
