//! Connections: accepted up to a limit, over TLS if configured, with time limits for sending and receiving.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener as Bound};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::drain::Phase;
use crate::error::Error;
use crate::route::Route;
use crate::routes::router;
use crate::shared::ServerState;

/// Binds an address.
///
/// # Errors
/// An address in use, or not available.
pub fn bind(host: &str, port: u16) -> Result<Bound, Error> {
    let address = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let refuse = |source: io::Error| {
        let hint = match source.kind() {
            io::ErrorKind::AddrInUse => {
                "; another program listens there: end it, or give another --port (0: any free one)"
            }
            io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege: give another --port",
            _ => "",
        };
        Error::Listen { address: address.clone(), source, hint }
    };
    let bound = Bound::bind(&address).map_err(refuse)?;
    bound.set_nonblocking(true)?;
    Ok(bound)
}

/// The TLS acceptor for a certificate.
///
/// # Errors
/// Files that are invalid, or do not belong together.
pub fn tls(certificate: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let fault = |file: &Path, why: &dyn std::fmt::Display| Error::Tls(format!("{}: {why}", file.display()));
    let chain = CertificateDer::pem_file_iter(certificate).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let chain = chain.map_err(|error| fault(certificate, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| fault(key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| fault(certificate, &error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts connections until the server is cut off.
///
/// # Errors
/// The listener cannot be used.
pub async fn accept(
    bound: Bound,
    tls: Option<TlsAcceptor>,
    routes: &'static [Route],
    server: Arc<ServerState>,
) -> io::Result<()> {
    let router = router(&server, routes);
    let listener = TcpListener::from_std(bound)?;
    let room = Arc::new(Semaphore::new(server.settings.max_connections.clamp(1, 1 << 20) as usize));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return Ok(()) };
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The connection is gone, or file descriptors are exhausted; later ones may succeed.
            Err(_) => {
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let (router, server, tls) = (router.clone(), server.clone(), tls.clone());
        tokio::spawn(async move {
            _ = stream.set_nodelay(true);
            connection(stream, tls, router, &server).await;
            drop(place);
        });
    }
}

/// The address of a listener.
///
/// # Errors
/// The system does not know it.
pub fn address(bound: &Bound) -> io::Result<SocketAddr> {
    bound.local_addr()
}

fn seconds(s: f64) -> Duration {
    Duration::from_secs_f64(s.clamp(0.01, 86_400.0))
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, server: &ServerState) {
    let limit = seconds(server.settings.stall_s);
    match tls {
        None => drive(TimedStream::new(stream, limit), router, server).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(seconds(server.settings.head_s), tls.accept(stream)).await {
                drive(TimedStream::new(stream, limit), router, server).await;
            }
        }
    }
}

async fn drive<S: AsyncRead + AsyncWrite + Unpin>(stream: S, router: Router, server: &ServerState) {
    let ends = server.drain.phase() > Phase::Serving;
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(seconds(server.settings.head_s))
        .keep_alive(!ends)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    if !ends {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = server.drain.reaches(Phase::Draining) => connection.as_mut().graceful_shutdown(),
        }
    }
    // Errors of a client only end its connection.
    _ = connection.await;
}

/// A stream that breaks if the other side receives nothing for too long.
struct TimedStream<S> {
    stream: S,
    limit: Duration,
    since: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedStream<S> {
    fn new(stream: S, limit: Duration) -> TimedStream<S> {
        TimedStream { stream, limit, since: None }
    }

    /// Returns the result of a write, unless it waits too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, write: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.since = None;
            return write;
        }
        let limit = self.limit;
        let since = self.since.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(since.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, shutdown)
    }
}
