//! Rank, world size and rendezvous of a process, from flags and from the environment that launchers set up.
//!
//! [`resolve`] is a pure function of the environment. Every source contributes the values it knows; the first
//! complete one wins, in the order of [`SOURCES`]. Two sources that disagree are an error that names both. For a
//! launcher inside another one (torchrun or mpirun inside a Slurm step) only the inner one counts, because the
//! variables of the outer one describe the launcher's own processes. This module knows nothing about how ranks are
//! connected.

mod claim;
mod slurm;
mod sources;
#[cfg(test)]
mod tests;
mod values;

use std::fmt;

pub use claim::{Claim, Environment, Setting};
use serde::Serialize;

use crate::{Error, Result};

/// The sources in order of precedence, highest first.
pub const SOURCES: [&str; 9] =
    ["flags", "torchrun", "Open MPI", "PMI", "PMIx", "Slurm", "PET", "SkyPilot", "Kubernetes index"];

/// The outcome for a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The source sets nothing.
    Absent,
    /// The source decides.
    Won,
    /// The source does not decide, and contradicts nothing.
    Agrees,
    /// The source is ignored, for this reason.
    PassedOver(String),
}

/// A source, its values and the outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// One of [`SOURCES`].
    pub name: &'static str,
    /// Values that it sets.
    pub claim: Claim,
    /// Outcome.
    pub verdict: Verdict,
}

/// All sources, and the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolution {
    /// Sources in order of precedence.
    pub sources: Vec<Source>,
    /// The result: the winner's values combined with those of the sources that agree with it. Empty for a process
    /// alone.
    pub claim: Claim,
    /// Name of the winner; `None` for a process alone.
    pub winner: Option<&'static str>,
    /// Reason why there is no result.
    pub refused: Option<String>,
}

/// The part a process plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The only process: it was not launched with others.
    Alone,
    /// One rank.
    Rank {
        /// Its number.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// The only process started on a machine, which has to start that machine's ranks.
    Node {
        /// Index of the machine.
        node: usize,
        /// Number of machines.
        nodes: usize,
    },
}

impl Resolution {
    /// Returns the role of this process.
    ///
    /// # Errors
    /// Fails if sources disagree or a value is impossible.
    pub fn role(&self) -> Result<Role> {
        if let Some(message) = &self.refused {
            return Err(Error::Ranks { message: message.clone() });
        }
        let value = |setting: &Option<Setting<usize>>| setting.as_ref().map(|setting| setting.value);
        let Claim { rank, world_size, node, nodes, .. } = &self.claim;
        Ok(match (value(rank), value(world_size), value(node), value(nodes)) {
            _ if self.winner.is_none() => Role::Alone,
            (Some(rank), Some(ranks), ..) => Role::Rank { rank, ranks },
            (_, _, Some(node), Some(nodes)) => Role::Node { node, nodes },
            _ => Role::Alone,
        })
    }
}

impl fmt::Display for Resolution {
    /// Writes one line: the place of this process and the source that sets it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(message) = &self.refused {
            return write!(f, "{message}");
        }
        match self.winner {
            None => write!(f, "a process alone: no launcher says otherwise"),
            Some(winner) => write!(f, "{} (from {winner})", self.claim),
        }
    }
}

impl fmt::Display for Claim {
    /// Writes `rank 3 of 8, local rank 1 of 4, node 0 of 2, at host:29500`, without the parts that are not set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let pairs = [
            ("rank", &self.rank, &self.world_size),
            ("local rank", &self.local_rank, &self.local_world_size),
            ("node", &self.node, &self.nodes),
        ];
        for (name, at, of) in pairs {
            match (at, of) {
                (Some(at), Some(of)) => parts.push(format!("{name} {} of {}", at.value, of.value)),
                (Some(at), None) => parts.push(format!("{name} {}", at.value)),
                (None, Some(of)) if of.value == 1 => parts.push(format!("1 {name}")),
                (None, Some(of)) => parts.push(format!("{} {name}s", of.value)),
                (None, None) => {}
            }
        }
        parts.extend(self.rendezvous.iter().map(|setting| format!("at {}", setting.value)));
        write!(f, "{}", parts.join(", "))
    }
}

impl Claim {
    /// The numbers with their names.
    fn numbers(&self) -> [(&'static str, &Option<Setting<usize>>); 6] {
        [
            ("rank", &self.rank),
            ("number of ranks", &self.world_size),
            ("local rank", &self.local_rank),
            ("number of local ranks", &self.local_world_size),
            ("node", &self.node),
            ("number of nodes", &self.nodes),
        ]
    }

    fn is_empty(&self) -> bool {
        *self == Claim::default()
    }

    /// Returns whether both a number and its total are known, for the rank or for the node.
    fn is_complete(&self) -> bool {
        self.rank.is_some() && self.world_size.is_some() || self.node.is_some() && self.nodes.is_some()
    }

    /// Fills in missing values from another claim.
    fn complete(&mut self, other: &Claim) {
        fn fill<T: Clone>(to: &mut Option<T>, from: &Option<T>) {
            if to.is_none() {
                to.clone_from(from);
            }
        }
        fill(&mut self.rank, &other.rank);
        fill(&mut self.world_size, &other.world_size);
        fill(&mut self.local_rank, &other.local_rank);
        fill(&mut self.local_world_size, &other.local_world_size);
        fill(&mut self.node, &other.node);
        fill(&mut self.nodes, &other.nodes);
        fill(&mut self.rendezvous, &other.rendezvous);
    }

    /// Describes the first number that is not below its count.
    fn beyond(&self) -> Option<String> {
        let pairs = [
            (&self.rank, &self.world_size),
            (&self.local_rank, &self.local_world_size),
            (&self.node, &self.nodes),
        ];
        pairs.into_iter().find_map(|(at, of)| {
            let (at, of) = (at.as_ref()?, of.as_ref()?);
            (at.value >= of.value).then(|| {
                let (at, of) = (format!("{}={}", at.by, at.value), format!("{}={}", of.by, of.value));
                format!("{at} is not below {of}: ranks are counted from 0")
            })
        })
    }
}

/// Determines the ranks from `flags`, the values the user gives, and the environment. Flags win, and never conflict
/// with a launcher.
pub fn resolve(flags: &Claim, environment: &Environment) -> Resolution {
    let mut refused = (flags.rank.is_some() != flags.world_size.is_some())
        .then(|| "--rank and --world-size go together".to_string());
    let mut sources = vec![Source { name: SOURCES[0], claim: flags.clone(), verdict: Verdict::Absent }];
    let read = sources::read(environment);
    for (name, read) in SOURCES[1..].iter().zip(read) {
        let (claim, broken) = match read.claim {
            Ok(claim) => (claim, None),
            Err(message) => (Claim::default(), Some(message)),
        };
        if let (false, Some(message)) = (flags.is_complete(), &broken) {
            refused.get_or_insert(message.clone());
        }
        let overruled = (flags.is_complete() && !claim.is_empty()).then(|| "the flags decide".to_string());
        let verdict = read.passed_over.or(broken).or(overruled).map_or(Verdict::Absent, Verdict::PassedOver);
        sources.push(Source { name, claim, verdict });
    }
    settle(sources, refused)
}

/// Picks the winner and checks that the sources that count agree.
fn settle(mut sources: Vec<Source>, mut refused: Option<String>) -> Resolution {
    let mut winner = None;
    let mut counting = Vec::new();
    for (index, source) in sources.iter_mut().enumerate() {
        if source.claim.is_empty() || source.verdict != Verdict::Absent {
            continue;
        }
        source.verdict = Verdict::Agrees;
        counting.push(index);
        if winner.is_none() && source.claim.is_complete() {
            source.verdict = Verdict::Won;
            winner = Some(index);
        }
    }
    for index in &counting {
        refused = refused.or_else(|| disagreement(&sources, &counting, *index));
    }
    let mut claim = Claim::default();
    if winner.is_some() {
        // In order of precedence: a flag or MASTER_ADDR is used before an address derived from a launcher's list of
        // hosts.
        counting.iter().for_each(|index| claim.complete(&sources[*index].claim));
        refused = refused.or_else(|| claim.beyond());
    }
    Resolution { winner: winner.map(|index| sources[index].name), sources, claim, refused }
}

/// Describes the first value in which a source and a later one disagree.
fn disagreement(sources: &[Source], counting: &[usize], index: usize) -> Option<String> {
    let later = counting.iter().filter(|other| **other > index);
    later.into_iter().find_map(|other| {
        let (one, two) = (&sources[index], &sources[*other]);
        one.claim.numbers().into_iter().zip(two.claim.numbers()).find_map(|((what, a), (_, b))| {
            let (a, b) = (a.as_ref()?, b.as_ref()?);
            (a.value != b.value).then(|| {
                format!(
                    "{}={} ({}) and {}={} ({}) disagree about the {what}; unset one of them, or say --rank and --world-size",
                    a.by, a.value, one.name, b.by, b.value, two.name
                )
            })
        })
    })
}
