//! What is ready of a table, or what it waits for.

use std::fmt;
use std::path::PathBuf;

/// What is ready, or the files that other ranks owe before it is.
#[derive(Clone, Debug)]
pub enum Awaited<T> {
    /// It is there.
    Ready(T),
    /// It is not, for lack of these.
    Owed(Vec<Owed>),
}

/// A file that is not there yet.
#[derive(Clone, Debug)]
pub struct Owed {
    /// Where it will be.
    pub path: PathBuf,
    /// The rank that makes it.
    pub rank: usize,
}

impl fmt::Display for Owed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {})", self.path.display(), self.rank)
    }
}

impl<T> Awaited<T> {
    /// What waits for one file.
    pub fn file(path: PathBuf, rank: usize) -> Awaited<T> {
        Awaited::Owed(vec![Owed { path, rank }])
    }

    /// What is there.
    pub fn ready(&self) -> Option<&T> {
        if let Awaited::Ready(it) = self { Some(it) } else { None }
    }

    /// The same of what follows from it.
    pub fn map<U>(self, follows: impl FnOnce(T) -> U) -> Awaited<U> {
        match self {
            Awaited::Ready(it) => Awaited::Ready(follows(it)),
            Awaited::Owed(owed) => Awaited::Owed(owed),
        }
    }
}

/// All of them, or everything that any of them waits for.
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
