//! Verification that a result file is unchanged since it was written. Checking its size is not enough: disks, copies
//! and other programs alter bytes.
//!
//! For this purpose a run reads each finished file once, at disk speed. Files that this process has written or
//! verified are not read again while their size and modification time stay the same.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

/// Bytes per read.
const CHUNK: usize = 1 << 20;

/// Identity of a file: size and hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Size of the file.
    pub bytes: u64,
    /// XXH3-128 of its bytes, in hexadecimal. Detects accidents, not forgeries.
    pub hash: String,
}

/// Known file hashes by path, each with the size and modification time for which it holds.
#[derive(Default)]
pub(crate) struct HashCache(Mutex<HashMap<PathBuf, CachedHash>>);

/// Size, modification time and hash.
type CachedHash = (u64, Option<SystemTime>, String);

impl HashCache {
    /// Current size and hash of a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        let metadata = std::fs::metadata(path)?;
        let (bytes, changed) = seen(&metadata);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned();
        if let Some((_, _, hash)) = known.filter(|known| (known.0, known.1) == (bytes, changed)) {
            return Ok(FileFacts { bytes, hash });
        }
        let hash = hash_of(path)?;
        self.put(path, &metadata, &hash);
        Ok(FileFacts { bytes, hash })
    }

    /// Records a file that was just written.
    pub fn note(&self, path: &Path, facts: &FileFacts) {
        // A file that is missing or has a different size is checked when it is needed.
        if let Ok(metadata) = std::fs::metadata(path)
            && metadata.len() == facts.bytes
        {
            self.put(path, &metadata, &facts.hash);
        }
    }

    fn put(&self, path: &Path, metadata: &Metadata, hash: &str) {
        let (bytes, changed) = seen(metadata);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(path.to_owned(), (bytes, changed, hash.to_owned()));
    }
}

fn seen(metadata: &Metadata) -> (u64, Option<SystemTime>) {
    (metadata.len(), metadata.modified().ok())
}

fn hash_of(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut chunk) = (File::open(path)?, XxHash3_128::new(), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(format!("{:032x}", hash.finish_128())),
            Ok(count) => hash.write(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
