//! A plan of faults, for tests: which fault hits which rank in which step.
//!
//! `kill rank 1 at step 3, flip rank 2 at step 5`: a rank panics between its gradients and its update (`kill`), waits
//! forever at a place where a wait can be ended (`hang`), is slow from that step on (`slow`), is asked to stop as by
//! SIGTERM (`term`), gets a gradient that is not a number (`nan`), or a weight with one flipped bit (`flip`). Each
//! happens once, however often the step is repeated and the run is restarted.
//!
//! The run does not know about faults: [`around`] wraps its parts. The wrapped `source` is called in every step, its
//! `link` checks for failures before every update, and its `machine` writes every gradient.

mod link;
mod machine;
mod source;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fmt, fs};

use fathom_base::files::no_follow;
use fathom_tensor::Device;
use fathom_tensor::mesh::Mesh;

use crate::error::{Error, Result};
use crate::run::{RunParts, own_folder};
use source::Injector;

/// Wraps the parts of a run with the faults of its recipe (`machine.fault`), if it has any. `stop` is the flag that
/// asks the run to stop.
///
/// # Errors
/// A text that is not a list of faults.
pub fn around<'a>(parts: RunParts<'a>, stop: &Arc<AtomicBool>) -> Result<RunParts<'a>> {
    let Some(text) = &parts.recipe.machine.fault else { return Ok(parts) };
    let faults: Faults =
        text.parse().map_err(|message| Error::Recipe { key: "machine.fault".into(), message })?;
    let RunParts { mut trainer, sources, .. } = parts;
    let rank = trainer.device.mesh.rank();
    let faults = faults.remember(&own_folder(parts.folder, rank).join("faults"));
    let hits =
        |kinds: &[Kind]| faults.left.iter().any(|fault| fault.rank == rank && kinds.contains(&fault.kind));
    let (ends, spoils) = (hits(&[Kind::Kill, Kind::Hang]), hits(&[Kind::Nan]));
    let injector = Arc::new(Injector::new(faults, rank, stop.clone()));
    let Device { machine, pool, mesh } = trainer.device;
    let machine = if spoils { machine::around(machine, &injector) } else { machine };
    let mesh = if ends { Mesh::new(*mesh.grid(), link::around(mesh, &injector)) } else { mesh };
    trainer.device = Device { machine, pool, mesh };
    Ok(RunParts { trainer, sources: source::around(sources, &injector), ..parts })
}

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
    left: Vec<Fault>,
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

fn fault(text: &str) -> Option<Fault> {
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
    fn past(&mut self, which: impl Fn(&Fault) -> bool) -> bool {
        let past: Vec<Fault> = self.left.extract_if(.., |fault| which(fault)).collect();
        if let Some(path) = self.happened.as_ref().filter(|_| !past.is_empty()) {
            let file = no_follow(fs::OpenOptions::new().create(true).append(true)).open(path);
            // If the disk refuses this, the fault merely happens again.
            let _ = file.and_then(|mut file| past.iter().try_for_each(|fault| writeln!(file, "{fault}")));
        }
        !past.is_empty()
    }

    /// True if a bit flips in a step, on any rank.
    fn flips(&self, step: u64) -> bool {
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
