//! A Ballista cluster for the plans of whole tables (cargo feature `ballista`): its scheduler, its executors, and contexts
//! whose queries run there.
//!
//! No code travels: plans name functions, and each of the three processes has them because all are this program. Data lies
//! in files that all of them see under the same paths; between stages it lies in the executors' work folders. Executors
//! read any file that a plan names, so the addresses belong into a network of trust.

use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::error::BallistaError;
use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::utils::default_session_builder;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::start_server;
use datafusion::error::Result as PlanResult;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{FunctionRegistry, SessionState, SessionStateBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use tokio::runtime::Runtime;
use url::Url;

use super::session::{functions, within};
use crate::error::Error;

/// Port of a scheduler whose address names none; Ballista's own default.
const SCHEDULER_PORT: u16 = 50050;

/// Tasks that a query is cut into at most; as many sorted runs are merged at its end, 1024 rows of each in memory.
const PARTITIONS: usize = 32;

/// Longest message: a document travels in one, and the largest that readers let pass is far smaller.
const MESSAGE_BYTES: u32 = 256 << 20;

/// Seconds between signs of life of an executor, and without any until its tasks go to others.
const HEARTBEAT_S: u64 = 3;
const LOST_S: u64 = 30;

/// Where a process of the cluster listens.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Address to listen on.
    pub bind: IpAddr,
    /// Name or address under which others reach it; the one it listens on if none.
    pub host: Option<String>,
    /// Port.
    pub port: u16,
}

impl Listen {
    fn host(&self) -> String {
        self.host.clone().unwrap_or_else(|| self.bound())
    }

    /// The address to listen on as the host of a URL.
    fn bound(&self) -> String {
        match self.bind {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        }
    }

    /// Refuses a port that is taken, before the cluster's own services would say so in their log.
    fn check(&self, port: u16) -> Result<(), Error> {
        match std::net::TcpListener::bind((self.bind, port)) {
            Ok(_) => Ok(()),
            Err(error) => {
                let address = format!("{}:{port}", self.bound());
                Err(failed("listen on", &address, error, "choose another with --bind or --port"))
            }
        }
    }
}

/// Resources of an executor.
#[derive(Clone, Debug)]
pub struct ExecutorOptions {
    /// Where it listens; the port after the one given is used as well.
    pub listen: Listen,
    /// Address of the scheduler, `df://host:port`.
    pub scheduler: String,
    /// Folder of its own for results between stages and for spills.
    pub work: PathBuf,
    /// Threads, each for one task; 0 for all cores.
    pub threads: usize,
    /// Memory of all tasks together, beyond which they spill; 70 % of the machine's if none.
    pub memory_bytes: Option<u64>,
}

/// Runs a scheduler until the process is ended. `ready` receives its address.
///
/// # Errors
/// An address that cannot be listened on.
pub fn scheduler(listen: &Listen, ready: impl FnOnce(&str)) -> Result<(), Error> {
    listen.check(listen.port)?;
    let config = SchedulerConfig {
        bind_host: listen.bound(),
        bind_port: listen.port,
        external_host: listen.host(),
        task_distribution: TaskDistributionPolicy::RoundRobin,
        grpc_server_max_decoding_message_size: MESSAGE_BYTES,
        grpc_server_max_encoding_message_size: MESSAGE_BYTES,
        grpc_client_max_message_size: MESSAGE_BYTES,
        executor_timeout_seconds: LOST_S,
        expire_dead_executor_interval_seconds: HEARTBEAT_S,
        no_executors_grace_period_seconds: 2 * LOST_S,
        override_session_builder: Some(Arc::new(session)),
        ..SchedulerConfig::default()
    };
    let address = format!("df://{}:{}", listen.host(), listen.port);
    let socket = (listen.bind, listen.port).into();
    threads(0)?
        .block_on(async {
            let cluster = BallistaCluster::new_from_config(&config).await?;
            ready(&address);
            start_server(cluster, socket, Arc::new(config)).await
        })
        .map_err(|e| ended("run the scheduler at", &address, &e))
}

/// Runs an executor until the process is ended, or the scheduler ends it.
///
/// # Errors
/// A folder that cannot be made, an address that cannot be listened on, or a scheduler that does not answer.
pub fn executor(options: &ExecutorOptions) -> Result<(), Error> {
    let ExecutorOptions { listen, scheduler, work, threads: count, memory_bytes } = options;
    let (host, port) = reach(scheduler)?;
    listen.check(listen.port)?;
    let Some(next) = listen.port.checked_add(1) else {
        let address = format!("{}:{}", listen.bound(), listen.port);
        return Err(failed("listen behind", &address, "there is no such port", "choose another with --port"));
    };
    listen.check(next)?;
    std::fs::create_dir_all(work).map_err(|e| Error::write("create", work, e))?;
    let work = std::path::absolute(work).map_err(|e| Error::read(work, e))?;
    let spill = work.clone();
    let state = session(SessionConfig::new_with_ballista())
        .map_err(|e| failed("prepare the executor at", &listen.host(), e, "report this"))?;
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    let count = if *count == 0 { all } else { *count };
    let config = ExecutorProcessConfig {
        bind_host: listen.bound(),
        external_host: Some(listen.host()),
        port: listen.port,
        grpc_port: next,
        scheduler_host: host,
        scheduler_port: port,
        scheduler_connect_timeout_seconds: 10,
        vcores: count,
        work_dir: Some(work.display().to_string()),
        grpc_max_decoding_message_size: MESSAGE_BYTES,
        grpc_max_encoding_message_size: MESSAGE_BYTES,
        executor_heartbeat_interval_seconds: HEARTBEAT_S,
        memory_pool_size: *memory_bytes,
        override_runtime_producer: Some(Arc::new(move |_: &SessionConfig| within(u64::MAX, &spill))),
        override_function_registry: Some(Arc::new(BallistaFunctionRegistry::from(&state))),
        ..ExecutorProcessConfig::default()
    };
    threads(count)?
        .block_on(start_executor_process(Arc::new(config)))
        .map_err(|e| ended("run an executor for", scheduler, &e))
}

/// A context whose queries run on the cluster of this scheduler.
pub(super) fn connect(
    scheduler: &str,
    config: SessionConfig,
    environment: Arc<RuntimeEnv>,
) -> Result<SessionContext, Error> {
    let (host, port) = reach(scheduler)?;
    let config = config
        .with_target_partitions(PARTITIONS)
        .upgrade_for_ballista()
        .with_ballista_grpc_client_max_message_size(MESSAGE_BYTES as usize)
        // Our plans are sorts; there is nothing to learn from their first stage.
        .with_ballista_adaptive_query_planner(false);
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(environment)
        .build();
    let state = state
        .upgrade_for_ballista(format!("http://{host}:{port}"))
        .map_err(|e| failed("use the scheduler at", scheduler, e, "report this"))?;
    Ok(SessionContext::new_with_state(state))
}

/// A session as scheduler and executors have it.
fn session(config: SessionConfig) -> PlanResult<SessionState> {
    let mut state = default_session_builder(config)?;
    for function in functions() {
        state.register_udf(Arc::new(function))?;
    }
    Ok(state)
}

/// Host and port of a scheduler that answers.
pub(super) fn reach(scheduler: &str) -> Result<(String, u16), Error> {
    let advice = "give an address such as df://localhost:50050";
    let url = Url::parse(scheduler).map_err(|e| failed("use the scheduler at", scheduler, e, advice))?;
    let Some(host) = url.host_str().filter(|_| ["df", "http"].contains(&url.scheme())) else {
        return Err(failed("use the scheduler at", scheduler, "not such an address", advice));
    };
    let port = url.port().unwrap_or(SCHEDULER_PORT);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let advice = "start one with `fathom curate scheduler`, and executors with `fathom curate executor`";
    answers(bare, port).map_err(|e| failed("reach the scheduler at", scheduler, e, advice))?;
    Ok((host.to_owned(), port))
}

fn answers(host: &str, port: u16) -> std::io::Result<()> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn threads(count: usize) -> Result<Runtime, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if count > 0 {
        // Tasks compute on these threads; one more keeps the signs of life coming.
        builder.worker_threads(count + 1);
    }
    builder.enable_all().build().map_err(|e| Error::Threads { detail: e.to_string() })
}

fn ended(doing: &'static str, address: &str, error: &BallistaError) -> Error {
    failed(doing, address, error, "check the addresses and ports of the cluster")
}

fn failed(doing: &'static str, address: &str, detail: impl ToString, advice: &'static str) -> Error {
    Error::Cluster { doing, address: address.to_owned(), detail: detail.to_string(), advice }
}
