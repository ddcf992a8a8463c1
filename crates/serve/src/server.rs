//! The life of a server from its first connection to its last.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use crate::drain::Phase;
use crate::error::Error;
use crate::keys::ApiKeys;
use crate::listen;
use crate::routes::{ADMIN, ROUTES, VIEW};
use crate::shared::ServerState;

/// Interval of checks for a request to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Time that streams have to send their last event.
const LAST: Duration = Duration::from_secs(1);

/// Addresses of a server.
#[derive(Clone, Debug)]
pub struct ServerAddresses {
    /// The address or host name.
    pub host: String,
    /// The port; 0 for any free one.
    pub port: u16,
    /// The port of the admin listener, on the loopback.
    pub admin_port: Option<u16>,
    /// Certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// True if an address is reachable from this machine only.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Serves until `stop` is set or the server is drained, and running requests have ended. `heard` receives its
/// addresses.
///
/// # Errors
/// An address that is not available, invalid certificates, an admin listener without keys.
pub fn serve(
    server: &Arc<ServerState>,
    at: &ServerAddresses,
    stop: &AtomicBool,
    heard: impl FnOnce(&[SocketAddr]),
) -> Result<(), Error> {
    let mut heard = Some(heard);
    run(server, at, stop, &mut |addresses| heard.take().into_iter().for_each(|heard| heard(addresses)))
}

/// Checks that the server could listen, before a model is loaded.
///
/// # Errors
/// Those of [`serve`].
pub fn check(at: &ServerAddresses, keys: &ApiKeys) -> Result<(), Error> {
    open(at, keys).map(drop)
}

/// The listeners, and the TLS acceptor.
fn open(
    at: &ServerAddresses,
    keys: &ApiKeys,
) -> Result<(TcpListener, Option<TcpListener>, Option<TlsAcceptor>), Error> {
    let tls = at.tls.as_ref().map(|(certificate, key)| listen::tls(certificate, key)).transpose()?;
    let main = listen::bind(&at.host, at.port)?;
    let admin = match at.admin_port {
        None => None,
        Some(_) if !keys.asked() => {
            let message = "an admin listener needs keys (--api-key-file FILE)";
            return Err(Error::Refused(message.into()));
        }
        Some(port) => Some(listen::bind("127.0.0.1", port)?),
    };
    Ok((main, admin, tls))
}

/// [`serve`] without type parameters: with them, every crate that serves would compile the whole server again.
fn run(
    server: &Arc<ServerState>,
    at: &ServerAddresses,
    stop: &AtomicBool,
    heard: &mut dyn FnMut(&[SocketAddr]),
) -> Result<(), Error> {
    let (main, admin, tls) = open(at, &server.keys)?;
    let version = server.version.clone();
    let collector = server.settings.otlp.as_deref();
    let traces = collector.map(|collector| server.traces.clone().start(collector, version)).transpose()?;
    let mut addresses = vec![listen::address(&main)?];
    addresses.extend(admin.as_ref().map(listen::address).transpose()?);
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(64)
        .thread_name("fathom-serve")
        .enable_all()
        .build()?;
    runtime.block_on(async {
        traces.into_iter().for_each(|traces| _ = tokio::spawn(traces));
        let routes = if server.view.is_some() { VIEW } else { ROUTES };
        tokio::spawn(listen::accept(main, tls, routes, server.clone()));
        if let Some(admin) = admin {
            tokio::spawn(listen::accept(admin, None, ADMIN, server.clone()));
        }
        heard(&addresses);
        while !stop.load(Ordering::Relaxed) && server.drain.phase() == Phase::Serving {
            sleep(LOOK).await;
        }
        end(server).await;
        server.traces.flush(LAST).await;
    });
    runtime.shutdown_timeout(LAST);
    Ok(())
}

/// Lets running requests finish, up to a time limit, and cuts off the rest.
async fn end(server: &ServerState) {
    server.drain.go(Phase::Draining);
    let limit = Duration::from_secs_f64(server.settings.drain_s.clamp(0.0, 86_400.0));
    until(server, limit).await;
    server.drain.go(Phase::Cut);
    until(server, LAST).await;
    // Time to send what was written.
    sleep(5 * LOOK).await;
}

/// Waits until no request is open, or the limit has passed.
async fn until(server: &ServerState, limit: Duration) {
    let started = Instant::now();
    while server.requests.used() > 0 && started.elapsed() < limit {
        sleep(LOOK).await;
    }
}
