//! The stages of a GPU run, in order: figures with bars come first, so that an interrupted run loses only the rest.

use super::rival;
use super::session::{Session, Step};
use super::table::{GRAPHS, LARGE, LEAN, OFFLOADED, PEAKED};

/// Time limit in seconds of all stages of one command together, which is designed for eight minutes.
pub const ALL_S: u64 = 476;
/// Time limit in seconds for querying the device.
pub const DEVICE_S: u64 = 10;

/// A stage of the run.
#[derive(Debug, PartialEq, Eq)]
pub struct Stage {
    /// Name on the command line.
    pub name: &'static str,
    /// Time limit in seconds.
    pub limit_s: u64,
    /// Runs only with `--long`, or alone.
    pub long: bool,
}

const fn short(name: &'static str, limit_s: u64) -> Stage {
    Stage { name, limit_s, long: false }
}

const fn long(name: &'static str, limit_s: u64) -> Stage {
    Stage { name, limit_s, long: true }
}

/// All stages, in the order they are run.
pub const STAGES: [Stage; 16] = [
    short("rates", 50),
    short("parity", 45),
    short("steps", STEPS[0].3 + STEPS[1].3 + STEPS[2].3 + LEAN_STEP.3),
    short("rival", rival::SHORT_S),
    short("fp8", 3 * super::fp8::STEP_S),
    short("losses", 5 * super::losses::RUN_S),
    short("ranks", 25),
    long("fp8-losses", 3 * super::fp8::RUN_S),
    long("graphs", GRAPHS_STEP.3),
    long("peaked", PEAKED_STEP.3 + rival::PEAKED_S),
    long("rival-32768", rival::MIDDLE_S),
    long("step-262144", LONG.3),
    long("large", 2 * LARGE_STEP.3),
    long("rival-longest", rival::LONGEST_S),
    long("pinned", 30),
    long("longest", LONGEST.3),
];

impl Stage {
    /// The stage named `name`.
    pub fn named(name: &str) -> Option<&'static Stage> {
        STAGES.iter().find(|stage| stage.name == name)
    }
}

/// All names, for messages.
pub fn names() -> String {
    STAGES.iter().map(|stage| stage.name).collect::<Vec<_>>().join(", ")
}

const KEPT: &str = "activations.recompute_granularity=none";
const LINEAR: &str = "activations.recompute_granularity=linear";
const AUTO: &str = "activations.memory=auto";
const STEPS: [Step; 3] = [("8192", KEPT, "5", 25), ("32768", LINEAR, "3", 30), ("131072", LINEAR, "2", 55)];
/// With an optimizer state like PyTorch's; only in the shortest step is the update a noticeable share of the time.
const LEAN_STEP: Step = ("8192", KEPT, "5", 15);
/// With attention scores like those of a trained model; all other steps use random weights.
const PEAKED_STEP: Step = ("8192", KEPT, "5", 25);
/// With blocks as CUDA graphs.
const GRAPHS_STEP: Step = ("8192", KEPT, "5", 40);
const LONG: Step = ("262144", AUTO, "1", 120);
const LARGE_STEP: Step = ("262144", AUTO, "1", 900);
/// The bar for the longest step; it takes longer than everything else together.
const LONGEST: Step = ("1048576", AUTO, "1", 1500);

impl Session {
    /// Runs a stage.
    pub(super) fn run(&mut self, stage: &Stage) {
        match stage.name {
            "rates" | "ranks" | "parity" | "pinned" => self.check(stage.name, stage.limit_s),
            "losses" => self.losses(),
            "steps" => {
                STEPS.into_iter().for_each(|step| self.bench(step, None));
                self.bench(LEAN_STEP, Some(LEAN));
            }
            "peaked" => {
                self.bench(PEAKED_STEP, Some(PEAKED));
                self.rival("peaked", rival::PEAKED_S);
            }
            "graphs" => self.bench(GRAPHS_STEP, Some(GRAPHS)),
            "fp8" => self.fp8_steps(),
            "fp8-losses" => self.fp8_losses(),
            "step-262144" => self.bench(LONG, None),
            "large" => [LARGE, OFFLOADED].into_iter().for_each(|name| self.bench(LARGE_STEP, Some(name))),
            "longest" => self.bench(LONGEST, None),
            name => self.rival(name, stage.limit_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_a_command_fit_into_its_time() {
        let limits = STAGES.iter().filter(|stage| !stage.long).map(|stage| stage.limit_s).sum::<u64>();
        assert!(DEVICE_S + limits <= ALL_S, "{DEVICE_S} + {limits} s");
        // Stages of `--long` come after all others.
        assert!(STAGES.is_sorted_by_key(|stage| stage.long));
    }
}
