//! A result that is ready, or the files it waits for.

use std::fmt;
use std::path::PathBuf;

/// A ready value, or the files that other ranks must write first.
#[derive(Clone, Debug)]
pub enum Awaited<T> {
    /// The value is available.
    Ready(T),
    /// The value needs these files.
    Owed(Vec<Owed>),
}

/// A file that does not exist yet.
#[derive(Clone, Debug)]
pub struct Owed {
    /// Its future path.
    pub path: PathBuf,
    /// Rank that writes it.
    pub rank: usize,
}

impl fmt::Display for Owed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {})", self.path.display(), self.rank)
    }
}

impl<T> Awaited<T> {
    /// A value that waits for one file.
    pub fn file(path: PathBuf, rank: usize) -> Awaited<T> {
        Awaited::Owed(vec![Owed { path, rank }])
    }

    /// The value, if ready.
    pub fn ready(&self) -> Option<&T> {
        if let Awaited::Ready(it) = self { Some(it) } else { None }
    }

    /// Applies `follows` to a ready value.
    pub fn map<U>(self, follows: impl FnOnce(T) -> U) -> Awaited<U> {
        match self {
            Awaited::Ready(it) => Awaited::Ready(follows(it)),
            Awaited::Owed(owed) => Awaited::Owed(owed),
        }
    }
}

/// Collects all values, or the union of the files that any of them waits for.
impl<T> FromIterator<Awaited<T>> for Awaited<Vec<T>> {
    fn from_iter<I: IntoIterator<Item = Awaited<T>>>(all: I) -> Awaited<Vec<T>> {
        let (mut ready, mut missing) = (Vec::new(), Vec::new());
        for one in all {
            match one {
                Awaited::Ready(it) => ready.push(it),
                Awaited::Owed(owed) => missing.extend(owed),
            }
        }
        if missing.is_empty() { Awaited::Ready(ready) } else { Awaited::Owed(missing) }
    }
}
