//! Files behind `https://` and `s3://`: read in ranges with one range prefetched and failed ranges retried.
//!
//! Networking runs on its own threads; a reader is an ordinary blocking [`Read`], usable from any thread.

use std::fmt;
use std::io::{self, Cursor, Read};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fathom_base::secrets::{in_address, redacted};
use futures::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, GetOptions, GetRange, ObjectStore, RetryConfig};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use url::Url;

use crate::error::{Error, may_pass};

/// Options for reading remote files.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteOptions {
    /// Bytes per request.
    pub range_bytes: u64,
    /// Number of retries of a failed range, after 1, 2, 4 ... seconds.
    pub retries: u32,
    /// Timeout of one request, in seconds.
    pub timeout_seconds: u64,
    /// Settings of the S3 client by their usual names (`aws_access_key_id`, `aws_region`, `aws_endpoint`,
    /// `aws_skip_signature` ...). This crate does not read the environment; the command line passes `AWS_*`
    /// variables.
    pub s3: Vec<(String, String)>,
    /// Allows `http://`, for stores in a private network.
    pub allow_http: bool,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        let (range_bytes, retries, timeout_seconds) = (8 << 20, 5, 60);
        RemoteOptions { range_bytes, retries, timeout_seconds, s3: Vec::new(), allow_http: false }
    }
}

impl fmt::Debug for RemoteOptions {
    /// Omits the values of the S3 settings, which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.s3.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("RemoteOptions")
            .field("range_bytes", &self.range_bytes)
            .field("retries", &self.retries)
            .field("timeout_seconds", &self.timeout_seconds)
            .field("s3", &names)
            .field("allow_http", &self.allow_http)
            .finish()
    }
}

/// Returns true if a location is an address rather than a path.
pub fn is_remote(location: &str) -> bool {
    location.split_once("://").is_some_and(|(scheme, _)| scheme.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// Network runtime, started by the first remote file.
static NETWORK: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("network").enable_all().build()
});

fn network() -> io::Result<&'static Runtime> {
    NETWORK.as_ref().map_err(|e| io::Error::new(e.kind(), format!("no threads for the network: {e}")))
}

/// A store and a path in it.
#[derive(Clone)]
pub(super) struct Place {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

fn refused(location: &str, detail: impl fmt::Display, advice: &str) -> Error {
    let location = redacted(location).into_owned();
    Error::Remote { location, detail: detail.to_string(), advice: advice.to_string() }
}

/// Advice for an address that contains a secret.
pub(crate) const NO_SECRETS: &str =
    "download the file and name its path; S3 takes credentials from the environment (AWS_ACCESS_KEY_ID ...)";

/// Rejects an address that contains a secret, since the origin of documents is recorded in the results.
pub(crate) fn refuse_secrets(location: &str) -> Result<(), Error> {
    in_address(location)
        .map_or(Ok(()), |what| Err(refused(location, format!("an address with {what}"), NO_SECRETS)))
}

const CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket; \
     Common Crawl is open without an account at https://data.commoncrawl.org/";

impl Place {
    pub(super) fn of(location: &str, options: &RemoteOptions) -> Result<Place, Error> {
        refuse_secrets(location)?;
        let url = Url::parse(location).map_err(|e| refused(location, e, "give a whole address"))?;
        let allows_http = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("aws_allow_http") && matches!(value.as_str(), "true" | "1")
        };
        let client = ClientOptions::new()
            .with_timeout(Duration::from_secs(options.timeout_seconds.max(1)))
            .with_connect_timeout(Duration::from_secs(options.timeout_seconds.clamp(1, 20)))
            .with_allow_http(
                options.allow_http || (url.scheme() == "s3" && options.s3.iter().any(allows_http)),
            );
        // Ranges are retried here, including failures in the body; retries by the client would only multiply.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let path = Path::from_url_path(url.path()).map_err(|e| refused(location, e, "check the address"))?;
        let store: Arc<dyn ObjectStore> = match url.scheme() {
            "https" | "http" if url.scheme() == "https" || options.allow_http => {
                let origin = &url[..url::Position::BeforePath];
                let builder =
                    HttpBuilder::new().with_url(origin).with_client_options(client).with_retry(retry);
                Arc::new(builder.build().map_err(|e| refused(location, e, "check the address"))?)
            }
            "s3" => {
                require_credentials(location, &options.s3)?;
                let mut builder = AmazonS3Builder::new().with_url(location).with_retry(retry);
                for (name, value) in &options.s3 {
                    if let Ok(key) = name.to_ascii_lowercase().parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                let built = builder.with_client_options(client).build();
                Arc::new(built.map_err(|e| refused(location, e, CREDENTIALS))?)
            }
            scheme => {
                return Err(refused(
                    location,
                    format!("no reader for `{scheme}://`"),
                    "use https:// or s3://",
                ));
            }
        };
        Ok(Place { store, path })
    }
}

/// Requires S3 credentials; without any, the client would query a metadata service that exists only on AWS.
fn require_credentials(location: &str, settings: &[(String, String)]) -> Result<(), Error> {
    const ENOUGH: [&str; 6] = [
        "access_key_id",
        "skip_signature",
        "web_identity_token_file",
        "container_credentials_relative_uri",
        "container_credentials_full_uri",
        "metadata_endpoint",
    ];
    let known = |name: &str| {
        let name = name.to_ascii_lowercase();
        ENOUGH.contains(&name.strip_prefix("aws_").unwrap_or(&name))
    };
    if settings.iter().any(|(name, value)| known(name) && !value.is_empty()) {
        return Ok(());
    }
    Err(refused(location, "no credentials for S3", CREDENTIALS))
}

/// Bytes of a range and size of the whole object.
pub(super) type Answer = io::Result<(Vec<u8>, u64)>;

/// Fetches one range and the size of the object, with retries.
async fn fetch(place: &Place, from: u64, options: &RemoteOptions) -> Answer {
    let mut pause = Duration::from_secs(1);
    let mut left = options.retries;
    loop {
        match fetch_once(place, from, options.range_bytes.max(1)).await {
            Ok(answer) => return Ok(answer),
            Err(error) if left == 0 || !may_pass(&error) => return Err(error),
            Err(_) => {
                left -= 1;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(30));
            }
        }
    }
}

async fn fetch_once(place: &Place, from: u64, count: u64) -> Answer {
    let range = Some(GetRange::Bounded(from..from.saturating_add(count)));
    let answer = place.store.get_opts(&place.path, GetOptions { range, ..GetOptions::default() }).await;
    let answer = answer.map_err(|e| refusal(&e))?;
    let size = answer.meta.size;
    Ok((answer.bytes().await.map_err(|e| refusal(&e))?.into(), size))
}

/// Converts a server's error; its kind tells permanent (404) from transient (503) failures.
fn refusal(error: &object_store::Error) -> io::Error {
    use object_store::Error::{
        InvalidPath, NotFound, NotImplemented, NotSupported, PermissionDenied, Unauthenticated,
    };
    let text = error.to_string();
    // The client exposes the status only as text. The rest of its message contains the duration of the request, which
    // must not enter a report.
    let status = text.split_once("status code: ").and_then(|(_, status)| status.split(':').next());
    let number = status.and_then(|status| status.get(..3)).and_then(|number| number.parse::<u16>().ok());
    let kind = match (error, number) {
        (NotFound { .. }, _) | (_, Some(404 | 405 | 410 | 416)) => io::ErrorKind::NotFound,
        (PermissionDenied { .. } | Unauthenticated { .. }, _) | (_, Some(401 | 403 | 451)) => {
            io::ErrorKind::PermissionDenied
        }
        (NotImplemented { .. } | NotSupported { .. } | InvalidPath { .. }, _) => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    let said = status
        .map_or_else(|| redacted(&text).into_owned(), |status| format!("the server said {}", status.trim()));
    io::Error::new(kind, said)
}

/// Starts the request for a range.
pub(super) fn ask(place: &Place, from: u64, options: &RemoteOptions) -> io::Result<Receiver<Answer>> {
    let (sender, receiver) = sync_channel(1);
    let (place, options) = (place.clone(), options.clone());
    network()?.spawn(async move {
        // Sending fails only if the receiver is gone.
        let _ = sender.send(fetch(&place, from, &options).await);
    });
    Ok(receiver)
}

/// Waits for a requested range.
pub(super) fn answered(answer: Receiver<Answer>) -> Answer {
    answer.recv().map_err(|_| io::Error::other("the network's thread ended"))?
}

/// Error of opening a file, given the failure of its first request.
pub(super) fn unopened(location: &str, error: io::Error) -> Error {
    if may_pass(&error) {
        return Error::access(location, None, error);
    }
    let advice = if location.starts_with("s3:") { CREDENTIALS } else { "check the address and the network" };
    refused(location, error, advice)
}

/// A remote file as a reader.
pub(crate) struct Remote {
    place: Place,
    options: RemoteOptions,
    now: Cursor<Vec<u8>>,
    /// Offset after `now`.
    next: u64,
    size: u64,
    coming: Option<Receiver<Answer>>,
}

impl Remote {
    /// Opens a file by requesting its first range, so that a missing file or permission is detected at once.
    ///
    /// # Errors
    /// [`Error::Remote`] with the server's message, [`Error::Unavailable`] if the failure is transient.
    pub(crate) fn open(location: &str, options: &RemoteOptions) -> Result<Remote, Error> {
        let place = Place::of(location, options)?;
        let (options, now) = (options.clone(), Cursor::default());
        let mut remote = Remote { place, options, now, next: 0, size: u64::MAX, coming: None };
        let first = remote.ask().and_then(|answer| remote.receive(answer));
        first.map_err(|error| unopened(location, error))?;
        Ok(remote)
    }

    /// Starts the request for the next range.
    fn ask(&self) -> io::Result<Receiver<Answer>> {
        ask(&self.place, self.next, &self.options)
    }

    /// Waits for a range and requests the following one.
    fn receive(&mut self, answer: Receiver<Answer>) -> io::Result<()> {
        let (bytes, size) = answered(answer)?;
        if bytes.is_empty() && self.next < size {
            return Err(io::Error::other("the server sent an empty range"));
        }
        self.next += bytes.len() as u64;
        self.size = size;
        self.now = Cursor::new(bytes);
        if self.next < size {
            self.coming = Some(self.ask()?);
        }
        Ok(())
    }
}

impl Read for Remote {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.now.position() == self.now.get_ref().len() as u64
            && let Some(answer) = self.coming.take()
        {
            self.receive(answer)?;
        }
        self.now.read(into)
    }
}

/// Files below an `s3://` prefix that ends with `/`, sorted, with their sizes in bytes.
///
/// # Errors
/// [`Error::Remote`] with the server's message; `https://` cannot be listed.
pub(crate) fn list(location: &str, options: &RemoteOptions) -> Result<Vec<(String, u64)>, Error> {
    let place = Place::of(location, options)?;
    if !location.starts_with("s3://") {
        return Err(refused(
            location,
            "https has no listing",
            "name the files; those of Common Crawl are listed by input.snapshot.name",
        ));
    }
    let bucket_end = location["s3://".len()..].find('/').map_or(location.len(), |at| at + "s3://".len());
    let bucket = location[..bucket_end].to_string();
    let (sender, receiver) = sync_channel(1);
    let spawned = network().map(|runtime| {
        runtime.spawn(async move {
            let mut names = Vec::new();
            let mut stream = place.store.list(Some(&place.path));
            while let Some(found) = stream.next().await {
                match found {
                    Ok(meta) => names.push((format!("{bucket}/{}", meta.location), meta.size)),
                    Err(error) => {
                        let _ = sender.send(Err(redacted(&error.to_string()).into_owned()));
                        return;
                    }
                }
            }
            let _ = sender.send(Ok(names));
        });
    });
    spawned.map_err(|e| refused(location, e, CREDENTIALS))?;
    let answer = receiver.recv().unwrap_or_else(|_| Err("the network's thread ended".to_string()));
    let mut names = answer.map_err(|e| refused(location, e, CREDENTIALS))?;
    names.sort();
    Ok(names)
}
