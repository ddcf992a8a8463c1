//! `fathom supervise -- COMMAND`: restarts a job that dies from its last checkpoint.
//!
//! The job's ranks end together (mpirun and srun see to that), so there is one process to watch. The run's folder
//! shows whether a restart can help: a job that repeatedly saved nothing new would only fail again. Processes left by
//! a dead job are killed.
//!
//! With `--ready URL` the job is a server: it is also restarted when it is silent, and it counts as progress if it
//! was ready.

mod left;
mod ready;
mod signal;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use fathom_base::human;
use fathom_base::metrics::{Event, read_events};
use fathom_train::Checkpoints;
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2};

use crate::args::{Args, Supervise, Verb};
use crate::commands::train;
use crate::console;
use crate::exit::{ExitCode, RESUME};
use left::Mark;
use ready::{Address, Pulse};
use signal::{LOOK, Signal, kill};

/// Signals after which the job is not restarted. The first one asks it to save and stop ([`ASK`]): mpirun passes that
/// on to its ranks, and answers the others by ending them. A second one of the same kind ends the job at once, as it
/// does a run.
const ENDS: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGUSR1];
const ASK: i32 = SIGUSR1;
/// Asks a server to end.
const DRAIN: i32 = SIGTERM;
/// Passed on unchanged.
const OTHER: i32 = SIGUSR2;
/// Longest wait before a restart.
const LONGEST_S: f64 = 60.0;

/// Runs the verb.
pub fn run(args: &Supervise) -> Result<ExitCode> {
    let job = match (&args.ready, &args.out) {
        (Some(url), _) => Kind::Server(Address::parse(url)?),
        (None, Some(out)) => Kind::Run(out.clone()),
        (None, None) => Kind::Run(folder_of(&args.command)?),
    };
    let signals = ENDS.into_iter().chain([OTHER]).map(Signal::watched).collect::<Result<Vec<_>>>()?;
    let mut watch = Watch { args, job, signals, restarts: 0, idle: 0, stopped: false };
    let mark = Mark::new();
    loop {
        let before = watch.job.saved();
        let started = Instant::now();
        let ended = watch.until_it_ends(start(&args.command, &mark)?)?;
        // Leftover processes would hold devices, ports and files that the next job needs.
        if !matches!(ended.status.code(), Some(code) if code == 0 || code == i32::from(RESUME)) {
            mark.end()?;
        }
        if let Some(code) = watch.judge(ended, before, started.elapsed()) {
            return Ok(code);
        }
    }
}

/// The run's folder, if the command is a `fathom train` behind a launcher. The launcher's own words may include
/// `train`, so the verb is the first one followed by a recipe.
fn folder_of(command: &[String]) -> Result<PathBuf> {
    let mut refused = None;
    for at in (0..command.len()).filter(|at| command[*at] == "train") {
        let words = ["fathom"].into_iter().chain(command[at..].iter().map(String::as_str));
        let Ok(Args { verb: Verb::Train(args), .. }) = Args::try_parse_from(words) else { continue };
        match train::recipe(&args) {
            Ok(recipe) => return Ok(recipe.value.run.out),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) => Err(error),
        None => bail!("the command is not a `fathom train RECIPE ...`; say with --out where its run is"),
    }
}

/// Starts the job in a process group of its own, so that a terminal's signals to the supervisor reach it only once.
fn start(command: &[String], mark: &Mark) -> Result<Child> {
    let Some((program, args)) = command.split_first() else { bail!("no command to supervise") };
    let job = mark.on(Command::new(program).args(args).process_group(0)).spawn();
    job.with_context(|| format!("cannot start {program}"))
}

/// Step of the newest checkpoint, or of the copy in memory or on a local disk from which the job last resumed.
fn last_saved(out: &Path) -> Option<u64> {
    let checkpoint = Checkpoints::new(&out.join("checkpoints"), 1).latest();
    let events = read_events(out.join("metrics.jsonl")).unwrap_or_default();
    let resumed = events.iter().rev().find_map(|event| match Event::from_value(event) {
        Some(Event::Resume(resume)) => Some(resume.step),
        _ => None,
    });
    checkpoint.max(resumed)
}

fn say(text: &str) {
    console::line(&format!("supervise: {text}"));
}

/// Kind of a supervised job.
enum Kind {
    /// A run, in its folder.
    Run(PathBuf),
    Server(Address),
}

impl Kind {
    fn saved(&self) -> Option<u64> {
        match self {
            Kind::Run(out) => last_saved(out),
            Kind::Server(_) => None,
        }
    }

    /// The signal that requests an orderly end.
    fn ask(&self) -> i32 {
        match self {
            Kind::Run(_) => ASK,
            Kind::Server(_) => DRAIN,
        }
    }
}

struct JobOutcome {
    status: ExitStatus,
    /// Whether a server was ready before.
    was_ready: bool,
    /// How long a server was silent before it was ended for that.
    silent: Option<Duration>,
}

/// A supervised job.
struct Watch<'a> {
    args: &'a Supervise,
    job: Kind,
    signals: Vec<Signal>,
    restarts: u32,
    /// Number of consecutive ends without a new checkpoint.
    idle: u32,
    /// Whether an end was requested.
    stopped: bool,
}

impl Watch<'_> {
    /// Signals to pass to the job for those that arrived since the last check.
    fn came(&mut self) -> Vec<i32> {
        let (mut passed_on, ask) = (Vec::new(), self.job.ask());
        for Signal { number, came, before } in &mut self.signals {
            if !came.swap(false, Ordering::Relaxed) {
                continue;
            }
            let again = std::mem::replace(before, true);
            match (ENDS.contains(number), again) {
                (false, _) => passed_on.push(*number),
                // The first ends a launcher, and the second a run that was asked before.
                (true, true) => passed_on.extend([*number, ask]),
                (true, false) if self.stopped => {}
                (true, false) => passed_on.push(ask),
            }
            self.stopped |= ENDS.contains(number);
        }
        passed_on
    }

    /// Passes signals on until the job ends; kills a silent server.
    fn until_it_ends(&mut self, mut job: Child) -> Result<JobOutcome> {
        let pulse = match &self.job {
            Kind::Server(address) => Some(Pulse::start(address)),
            Kind::Run(_) => None,
        };
        let was_ready = || pulse.as_ref().is_some_and(Pulse::was_ready);
        let mut silent = None;
        loop {
            if let Some(status) = job.try_wait().context("cannot wait for the job")? {
                return Ok(JobOutcome { status, was_ready: was_ready(), silent });
            }
            for signal in self.came() {
                kill(signal, &job.id().to_string())?;
            }
            let limit = if was_ready() { self.args.silent } else { self.args.starting };
            let quiet = pulse.as_ref().map(Pulse::silent).filter(|quiet| quiet.as_secs_f64() > limit);
            if let (Some(quiet), None) = (quiet, silent) {
                silent = Some(quiet);
                // Kills its process group; this signal ends stopped processes too.
                kill(SIGKILL, &format!("-{}", job.id()))?;
            }
            sleep(LOOK);
        }
    }

    /// The exit code, or `None` to restart the job.
    fn judge(&mut self, ended: JobOutcome, before: Option<u64>, ran: Duration) -> Option<ExitCode> {
        let JobOutcome { status, was_ready, silent } = ended;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        let exit = Some(ExitCode::from(u8::try_from(code).unwrap_or(1)));
        if code == 0 || code == i32::from(RESUME) {
            return exit;
        }
        let (saved, ran) = (self.job.saved(), human::seconds(ran.as_secs_f64()));
        let how = match status.signal() {
            _ if let Some(silent) = silent => {
                format!("was silent for {} and was ended after {ran}", human::seconds(silent.as_secs_f64()))
            }
            Some(signal) => format!("was killed by signal {signal} after {ran}"),
            None => format!("ended with code {code} after {ran}"),
        };
        if self.stopped {
            say(&format!("the job {how}; it was asked to end and is not started again"));
            return exit;
        }
        let moved = saved > before || was_ready;
        self.idle = if moved { 0 } else { self.idle + 1 };
        let at = match saved {
            _ if matches!(self.job, Kind::Server(_)) => {
                if was_ready {
                    "it was ready before".into()
                } else {
                    "it was never ready".into()
                }
            }
            Some(step) if moved => format!("it saved step {step}"),
            Some(step) => format!("its last checkpoint is still that of step {step}"),
            None => "it has saved nothing".into(),
        };
        if self.idle > self.args.patience {
            say(&format!(
                "the job {how}; {at}, {} times in a row, so it would end like this again",
                self.idle
            ));
            return exit;
        }
        if self.restarts >= self.args.max_restarts {
            say(&format!("the job {how}; {at}; it was started again {} times, which is all", self.restarts));
            return exit;
        }
        self.restarts += 1;
        let pause = match self.idle {
            0 => 0.0,
            idle => (self.args.backoff * 2f64.powi(idle as i32 - 1)).min(LONGEST_S),
        };
        say(&format!(
            "the job {how}; {at}: restart {} of {}{}",
            self.restarts,
            self.args.max_restarts,
            if pause > 0.0 { format!(" in {}", human::seconds(pause)) } else { String::new() }
        ));
        self.pause(pause).then(|| ExitCode::from(RESUME))
    }

    /// Waits; returns whether an end was requested meanwhile. Saved state is left as it is.
    fn pause(&mut self, seconds: f64) -> bool {
        let until = Instant::now() + Duration::from_secs_f64(seconds.max(0.0));
        while !self.stopped && Instant::now() < until {
            sleep(LOOK);
            self.came();
        }
        self.stopped
    }
}
