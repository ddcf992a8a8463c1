//! Mutual exclusion of processes by a file lock, which the system releases when its holder ends for any reason.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::files::{no_follow, plain};

/// Grace period, since a killed job may take a moment to exit.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Outcome of an attempt to lock.
#[derive(Debug)]
pub enum Claim {
    /// The lock is held while the file is open.
    Held(File),
    /// Another process holds the lock; its description: `process 17 on node3`.
    Taken(String),
    /// The file system has no locks (as on some clusters), so other processes cannot be kept out.
    Impossible(io::Error),
}

/// Tries to lock `path`, creating the file if it is missing, repeatedly for the duration of `patience`. The holder
/// writes its process and host into the file for others to read.
///
/// # Errors
/// The file cannot be opened.
pub fn claim(path: &Path, patience: Duration) -> io::Result<Claim> {
    let mut options = File::options();
    let options = no_follow(options.read(true).write(true).create(true).truncate(false));
    let mut file = options.open(path).map_err(plain)?;
    let until = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Ok(Claim::Taken(words(path))),
            Err(TryLockError::Error(error)) => return Ok(Claim::Impossible(error)),
        }
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let holder = format!("process {} on {}\n", std::process::id(), host.trim());
    // Only for messages: a full disk must not cause a failure here.
    let _ = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
    Ok(Claim::Held(file))
}

/// Description of the process that holds the lock of a file; `None` if no process does, or there is no such file.
pub fn holder(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    // A shared lock, so that two observers do not block each other.
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then(|| words(path))
}

fn words(path: &Path) -> String {
    let words = fs::read_to_string(path).unwrap_or_default();
    if words.trim().is_empty() { "another process".to_owned() } else { words.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed helper is a failed test.

    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        assert_eq!(holder(&path), None);
        let first = claim(&path, Duration::ZERO).unwrap();
        assert!(matches!(first, Claim::Held(_)), "{first:?}");
        let me = format!("process {} on ", std::process::id());
        let second = claim(&path, Duration::ZERO).unwrap();
        assert!(matches!(&second, Claim::Taken(by) if by.starts_with(&me)), "{second:?}");
        assert!(holder(&path).unwrap().starts_with(&me));
        drop(first);
        assert_eq!(holder(&path), None);
        assert!(matches!(claim(&path, Duration::ZERO).unwrap(), Claim::Held(_)));
        assert!(claim(&folder.path().join("none/.lock"), Duration::ZERO).is_err());
        let [link, precious] = ["link", "precious"].map(|name| folder.path().join(name));
        fs::write(&precious, "mine").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        assert!(claim(&link, Duration::ZERO).unwrap_err().to_string().contains("symbolic link"));
        assert_eq!(fs::read(&precious).unwrap(), b"mine");
    }
}
