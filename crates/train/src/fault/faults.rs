//! A plan of faults, as text and in memory.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs};

use fathom_base::files::no_follow;

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The rank panics.
    Kill,
    /// The rank stops making progress.
    Hang,
    /// Its steps take longer from this step on.
    Slow,
    /// The rank is requested to stop.
    Term,
    /// One of its gradients is NaN.
    Nan,
    /// A bit of a weight flips.
    Flip,
}

const KINDS: [(Kind, &str); 6] = [
    (Kind::Kill, "kill"),
    (Kind::Hang, "hang"),
    (Kind::Slow, "slow"),
    (Kind::Term, "term"),
    (Kind::Nan, "nan"),
    (Kind::Flip, "flip"),
];

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind.
    pub kind: Kind,
    /// The rank that it hits.
    pub rank: usize,
    /// The step during which it happens; the first is 1.
    pub step: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, rank, step } = self;
        let name = KINDS.iter().find(|(of, _)| of == kind).map_or("", |(_, name)| name);
        write!(f, "{name} rank {rank} at step {step}")
    }
}

/// Pending faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub(super) left: Vec<Fault>,
    /// File that records past faults, for a restarted run.
    happened: Option<PathBuf>,
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Faults, String> {
        let left = text.split(',').map(fault).collect::<Option<_>>().ok_or_else(|| {
            let names = KINDS.map(|(_, name)| name).join(", ");
            format!(
                "`{text}` is no list of faults like `kill rank 1 at step 3, flip rank 2 at step 5` ({names})"
            )
        })?;
        Ok(Faults { left, happened: None })
    }
}

pub(super) fn fault(text: &str) -> Option<Fault> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, "rank", rank, "at", "step", step] = words[..] else { return None };
    let (kind, _) = *KINDS.iter().find(|(_, of)| *of == name)?;
    Some(Fault { kind, rank: rank.parse().ok()?, step: step.parse().ok()? })
}

impl Faults {
    /// Removes the faults that an earlier start of this rank recorded in a file; future ones are recorded there too.
    pub fn remember(mut self, path: &Path) -> Faults {
        let before: Vec<Fault> =
            fs::read_to_string(path).unwrap_or_default().lines().filter_map(fault).collect();
        self.left.retain(|fault| !before.contains(fault));
        Faults { happened: Some(path.to_path_buf()), ..self }
    }

    /// True if a fault hits a rank in a step; each does so only once, except slowness.
    pub fn strike(&mut self, kind: Kind, rank: usize, step: u64) -> bool {
        if kind == Kind::Slow {
            let slow = |fault: &Fault| fault.kind == kind && fault.rank == rank && fault.step <= step;
            return self.left.iter().any(slow);
        }
        self.past(|fault| *fault == Fault { kind, rank, step })
    }

    /// Removes and records the faults selected by `which`; returns whether there were any.
    pub(super) fn past(&mut self, which: impl Fn(&Fault) -> bool) -> bool {
        let past: Vec<Fault> = self.left.extract_if(.., |fault| which(fault)).collect();
        if let Some(path) = self.happened.as_ref().filter(|_| !past.is_empty()) {
            let file = no_follow(fs::OpenOptions::new().create(true).append(true)).open(path);
            // If the disk refuses this, the fault merely happens again.
            let _ = file.and_then(|mut file| past.iter().try_for_each(|fault| writeln!(file, "{fault}")));
        }
        !past.is_empty()
    }

    /// True if a bit flips in a step, on any rank.
    pub(super) fn flips(&self, step: u64) -> bool {
        self.left.iter().any(|fault| (fault.kind, fault.step) == (Kind::Flip, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_and_happen_once() {
        let mut faults: Faults = "kill rank 1 at step 3, slow rank 0 at step 2".parse().unwrap();
        assert!(!faults.strike(Kind::Kill, 1, 2) && !faults.strike(Kind::Kill, 0, 3));
        assert!(!faults.strike(Kind::Hang, 1, 3));
        assert!(faults.strike(Kind::Kill, 1, 3));
        assert!(!faults.strike(Kind::Kill, 1, 3), "once");
        assert!(
            !faults.strike(Kind::Slow, 0, 1)
                && faults.strike(Kind::Slow, 0, 2)
                && faults.strike(Kind::Slow, 0, 7)
        );
        let folder = tempfile::tempdir().unwrap();
        let again = || -> Faults {
            let plan = "term rank 0 at step 4, slow rank 0 at step 1, kill rank 0 at step 5";
            plan.parse::<Faults>().unwrap().remember(&folder.path().join("faults"))
        };
        assert!(again().strike(Kind::Term, 0, 4) && again().strike(Kind::Slow, 0, 4));
        assert!(!again().strike(Kind::Term, 0, 4), "once, however often it is started");
        assert!(again().strike(Kind::Slow, 0, 4) && again().strike(Kind::Kill, 0, 5));
        for wrong in ["", "kill", "kill rank 1", "maim rank 1 at step 2", "kill rank x at step 2"] {
            assert!(wrong.parse::<Faults>().unwrap_err().contains("kill rank 1 at step 3"), "{wrong}");
        }
    }
}
