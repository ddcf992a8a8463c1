//! A result that is ready, or the files it waits for.

use std::fmt;
use std::path::PathBuf;

/// A ready value, or the files that other ranks must write first.
#[derive(Clone, Debug)]
pub enum Readiness<T> {
    /// The value is available.
    Ready(T),
    /// The value needs these files.
    Pending(Vec<PendingFile>),
}

/// A file that does not exist yet.
#[derive(Clone, Debug)]
pub struct PendingFile {
    /// Its future path.
    pub path: PathBuf,
    /// Rank that writes it.
    pub rank: usize,
}

impl fmt::Display for PendingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {})", self.path.display(), self.rank)
    }
}

impl<T> Readiness<T> {
    /// A value that waits for one file.
    pub fn file(path: PathBuf, rank: usize) -> Readiness<T> {
        Readiness::Pending(vec![PendingFile { path, rank }])
    }

    /// The value, if ready.
    pub fn ready(&self) -> Option<&T> {
        if let Readiness::Ready(it) = self { Some(it) } else { None }
    }

    /// Applies `follows` to a ready value.
    pub fn map<U>(self, follows: impl FnOnce(T) -> U) -> Readiness<U> {
        match self {
            Readiness::Ready(it) => Readiness::Ready(follows(it)),
            Readiness::Pending(owed) => Readiness::Pending(owed),
        }
    }
}

/// Collects all values, or the union of the files that any of them waits for.
impl<T> FromIterator<Readiness<T>> for Readiness<Vec<T>> {
    fn from_iter<I: IntoIterator<Item = Readiness<T>>>(all: I) -> Readiness<Vec<T>> {
        let (mut ready, mut missing) = (Vec::new(), Vec::new());
        for one in all {
            match one {
                Readiness::Ready(it) => ready.push(it),
                Readiness::Pending(owed) => missing.extend(owed),
            }
        }
        if missing.is_empty() { Readiness::Ready(ready) } else { Readiness::Pending(missing) }
    }
}
