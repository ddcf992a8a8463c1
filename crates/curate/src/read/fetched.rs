//! Downloads of remote files, for callers that read a file more than once.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::remote::{Remote, RemoteOptions, is_remote, list};
use crate::error::Error;

/// Files denoted by an address: itself, or those below an `s3://` prefix that ends with `/`, sorted.
///
/// # Errors
/// [`Error::Remote`] with the server's message.
pub fn remote_files(location: &str, options: &RemoteOptions) -> Result<Vec<String>, Error> {
    if !location.ends_with('/') {
        return Ok(vec![location.to_string()]);
    }
    Ok(list(location, options)?.into_iter().map(|(name, _)| name).collect())
}

/// Atomically downloads a remote file to a path and returns its size in bytes.
///
/// # Errors
/// [`Error::Remote`] and [`Error::Unavailable`] with the server's message, [`Error::Read`] if the path cannot be
/// written.
pub fn fetch(location: &str, options: &RemoteOptions, to: &Path) -> Result<u64, Error> {
    debug_assert!(is_remote(location));
    let mut remote = Remote::open(location, options)?;
    let part = to.with_added_extension("part");
    let written = |error: io::Error| Error::read(&part, error);
    let mut file = BufWriter::new(File::create(&part).map_err(written)?);
    let bytes = io::copy(&mut remote, &mut file).map_err(|error| Error::access(location, None, error))?;
    file.flush().and_then(|()| file.get_ref().sync_all()).map_err(written)?;
    fs::rename(&part, to).map_err(written)?;
    Ok(bytes)
}
