//! Who a process is among how many, and where they meet: from flags and from what launchers put into the environment.
//!
//! [`resolve`] is a pure function over the environment. Every source says what it knows; the first that is complete wins, in
//! the order of [`SOURCES`]; two that disagree are an error that names both. A launcher inside another one (torchrun or mpirun
//! inside a Slurm step) is asked alone: what the outer one says is about the launcher's own processes. Nothing here knows how
//! ranks are connected.

mod slurm;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::{Error, Result};

/// The environment, by name.
pub type Environment = BTreeMap<String, String>;

/// The sources, in the order in which they win.
pub const SOURCES: [&str; 9] =
    ["flags", "torchrun", "Open MPI", "PMI", "PMIx", "Slurm", "PET", "SkyPilot", "Kubernetes index"];

/// A value, and the variable or flag that says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said<T> {
    /// What it says.
    pub value: T,
    /// Its name.
    pub by: String,
}

/// What is said of a process. Everything is counted from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// Which rank it is.
    pub rank: Option<Said<usize>>,
    /// Number of ranks.
    pub world_size: Option<Said<usize>>,
    /// Which of the ranks on its machine it is.
    pub local_rank: Option<Said<usize>>,
    /// Ranks on its machine.
    pub local_world_size: Option<Said<usize>>,
    /// Which machine it is on.
    pub node: Option<Said<usize>>,
    /// Number of machines.
    pub nodes: Option<Said<usize>>,
    /// `host:port` of the first rank.
    pub rendezvous: Option<Said<String>>,
}

/// What became of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It says nothing.
    Absent,
    /// It decides.
    Won,
    /// It decides nothing and contradicts nothing.
    Agrees,
    /// It does not count, for this reason.
    PassedOver(String),
}

/// A source, what it says and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// One of [`SOURCES`].
    pub name: &'static str,
    /// What it says.
    pub claim: Claim,
    /// Whether it counts.
    pub verdict: Verdict,
}

/// All sources, and what follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolution {
    /// In the order in which they win.
    pub sources: Vec<Source>,
    /// What counts: what the winner and those that agree with it say together. Empty for a process alone.
    pub claim: Claim,
    /// Who won; none for a process alone.
    pub winner: Option<&'static str>,
    /// Why there is no answer.
    pub refused: Option<String>,
}

/// What a process is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything: it was not launched with others.
    Alone,
    /// It is one rank.
    Rank {
        /// Which.
        rank: usize,
        /// Of how many.
        ranks: usize,
    },
    /// It was started once on a machine and has the machine's ranks to start.
    Node {
        /// Which machine.
        node: usize,
        /// Of how many.
        nodes: usize,
    },
}

impl Resolution {
    /// What this process is to do.
    ///
    /// # Errors
    /// Sources that disagree, and values that cannot be.
    pub fn role(&self) -> Result<Role> {
        if let Some(message) = &self.refused {
            return Err(Error::Ranks { message: message.clone() });
        }
        let value = |said: &Option<Said<usize>>| said.as_ref().map(|said| said.value);
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
    /// One line: who this process is and who says so.
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
    /// `rank 3 of 8, local rank 1 of 4, node 0 of 2, at host:29500`; what is not said is left out.
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
        parts.extend(self.rendezvous.iter().map(|said| format!("at {}", said.value)));
        write!(f, "{}", parts.join(", "))
    }
}

impl Claim {
    /// The numbers, with their names.
    fn numbers(&self) -> [(&'static str, &Option<Said<usize>>); 6] {
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

    /// Whether it says which of how many.
    fn is_complete(&self) -> bool {
        self.rank.is_some() && self.world_size.is_some() || self.node.is_some() && self.nodes.is_some()
    }

    /// Takes over what is missing.
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

    /// A number that is not below its count.
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

/// Finds out who this process is. `flags` are what the user says; they win, and contradict nothing.
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

/// Who wins, and whether those who count agree.
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
        // In their order: what a flag or MASTER_ADDR says comes before what follows from a launcher's list of hosts.
        counting.iter().for_each(|index| claim.complete(&sources[*index].claim));
        refused = refused.or_else(|| claim.beyond());
    }
    Resolution { winner: winner.map(|index| sources[index].name), sources, claim, refused }
}

/// The first thing that a source and a later one say differently.
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
