//! Polls a server once a second on a thread, to see whether it still answers.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Interval between requests, and time limit of an answer.
const EACH: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(3);

/// Address of the health check: `http://HOST:PORT/PATH`.
#[derive(Clone, Debug)]
pub struct Address {
    host: String,
    path: String,
}

impl Address {
    /// Reads a URL.
    pub fn parse(url: &str) -> Result<Address> {
        let Some(rest) = url.strip_prefix("http://") else {
            bail!("--ready {url}: write http://HOST:PORT/PATH, e.g. http://127.0.0.1:8000/health/ready");
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_string() } else { format!("{host}:80") };
        if host.starts_with(':') || url.contains(char::is_whitespace) {
            bail!("--ready {url}: names no host");
        }
        host.to_socket_addrs().with_context(|| format!("--ready {url}: cannot find {host}"))?;
        Ok(Address { host, path: if path.is_empty() { "/".into() } else { path.to_string() } })
    }

    /// Status of the answer, if one arrives in time.
    fn ask(&self) -> Option<u16> {
        let address = self.host.to_socket_addrs().ok()?.next()?;
        let mut stream = TcpStream::connect_timeout(&address, ANSWER).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        stream.set_write_timeout(Some(ANSWER)).ok()?;
        // Sent in one piece: a server may answer and close before reading a second one, and the answer would be lost.
        let request =
            format!("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.path, self.host);
        stream.write_all(request.as_bytes()).ok()?;
        // "HTTP/1.1 200"
        let mut head = [0; 12];
        stream.read_exact(&mut head).ok()?;
        std::str::from_utf8(&head).ok()?.strip_prefix("HTTP/1.")?.get(2..)?.parse().ok()
    }
}

/// State of a server since its start.
pub struct Pulse {
    started: Instant,
    seen: Arc<PulseState>,
}

#[derive(Default)]
struct PulseState {
    /// Whether it was ever ready.
    ready: AtomicBool,
    /// Milliseconds from the start to the last answer; 0 before the first.
    answered_ms: AtomicU64,
    over: AtomicBool,
}

impl Pulse {
    /// Starts polling.
    pub fn start(address: &Address) -> Pulse {
        let (started, seen, address) = (Instant::now(), Arc::new(PulseState::default()), address.clone());
        let own = seen.clone();
        thread::spawn(move || {
            while !own.over.load(Ordering::Relaxed) {
                // Any answer is a sign of life; a server that is shutting down returns 503.
                if let Some(status) = address.ask() {
                    own.answered_ms.store(started.elapsed().as_millis() as u64, Ordering::Relaxed);
                    own.ready.fetch_or((200..300).contains(&status), Ordering::Relaxed);
                }
                thread::sleep(EACH);
            }
        });
        Pulse { started, seen }
    }

    /// Returns whether it was ever ready.
    pub fn was_ready(&self) -> bool {
        self.seen.ready.load(Ordering::Relaxed)
    }

    /// Time since its last answer, or since its start.
    pub fn silent(&self) -> Duration {
        self.started
            .elapsed()
            .saturating_sub(Duration::from_millis(self.seen.answered_ms.load(Ordering::Relaxed)))
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.seen.over.store(true, Ordering::Relaxed);
    }
}
