//! `rate`: requests of one key, or of one thread, within a time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use fathom_base::clock::Clock;
use serde::Deserialize;

use crate::config::Setting;
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Reason};

/// Keys and threads that are counted at most; the one that was quiet longest is forgotten.
const MOST: usize = 10_000;

/// Options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Requests at most.
    max_requests: usize,
    /// Seconds in which they are counted.
    #[serde(default = "minute")]
    per_s: f64,
    /// Counts the requests of each thread rather than those of each key.
    #[serde(default)]
    by_thread: bool,
}

fn minute() -> f64 {
    60.0
}

/// The rail.
pub struct Rate {
    options: Options,
    clock: Clock,
    times: Mutex<HashMap<String, VecDeque<f64>>>,
}

impl RailKind for Rate {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "rate",
        summary: "more requests of a key or a thread than allowed",
        directions: &[Direction::Input],
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Text,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        if options.max_requests == 0 || options.max_requests > 1_000_000 {
            return Err(OptionError::new("max_requests", "should be from 1 to 1000000"));
        }
        if !(options.per_s > 0.0 && options.per_s.is_finite()) {
            return Err(OptionError::new("per_s", "should be more than 0"));
        }
        Ok(Box::new(Rate { options, clock: needs.clock.clone(), times: Mutex::default() }))
    }
}

impl Rail for Rate {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        let context = judged.context;
        let by = if self.options.by_thread { &context.thread } else { &context.key };
        let now_s = self.clock.now_s();
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        if times.len() >= MOST && !times.contains_key(by.as_deref().unwrap_or("")) {
            let last = |times: &VecDeque<f64>| times.back().copied().unwrap_or(f64::MIN);
            let quiet =
                times.iter().min_by(|a, b| last(a.1).total_cmp(&last(b.1))).map(|(key, _)| key.clone());
            quiet.and_then(|key| times.remove(&key));
        }
        let own = times.entry(by.clone().unwrap_or_default()).or_default();
        while own.front().is_some_and(|at| now_s - at >= self.options.per_s) {
            own.pop_front();
        }
        if own.len() >= self.options.max_requests {
            return Ok(Opinion::whole(judged, Reason::Rate, "rate"));
        }
        own.push_back(now_s);
        Ok(Opinion::clean())
    }

    fn horizon(&self) -> Horizon {
        Horizon::Bytes(0)
    }
}
