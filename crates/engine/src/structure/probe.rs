//! A process that compiles a structure before the server does, so that one that would take hours or all memory costs
//! only seconds and a bounded amount of memory. A thread could not be ended.

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fathom_base::Structure;
use llguidance::toktrie::TokTrie;
use serde::{Deserialize, Serialize};

use super::compile::{compiled, factory, first_line, grammar, refused, with_stack};
use crate::error::Error;

/// The program's command for this.
pub const VERB: &str = "compile-structure";
/// Time limit of the process.
pub const MOST_TIME: Duration = Duration::from_secs(10);
/// Memory limit of the process.
pub const MOST_MEMORY: u64 = 1 << 30;
/// Exit code for taking too long.
pub const TOO_LONG: u8 = 3;
/// Exit code for taking too much memory.
pub const TOO_LARGE: u8 = 4;
/// Interval of checks for its end.
const LOOK: Duration = Duration::from_millis(2);
/// Maximum length of the error read from it.
const REASON: u64 = 4096;

/// Request to the process, as JSON on its standard input.
#[derive(Serialize, Deserialize)]
pub struct ProbeRequest {
    /// The structure to compile.
    pub structure: Structure,
    /// Size of the vocabulary.
    pub size: usize,
    /// Special tokens, which grammars can name.
    pub special: Vec<(u32, Vec<u8>)>,
    /// End tokens.
    pub stops: Vec<u32>,
}

/// Compiles the structure on standard input for a vocabulary of single bytes: everything that does not depend on
/// tokens, with the same limits.
///
/// # Errors
/// A line with the reason.
pub fn answer(input: &[u8]) -> Result<(), String> {
    let ProbeRequest { structure, size, special, stops } =
        serde_json::from_slice(input).map_err(|error| error.to_string())?;
    let mut words = vec![Vec::new(); size];
    for (id, text) in special {
        if let Some(word) = words.get_mut(id as usize) {
            *word = [&[TokTrie::SPECIAL_TOKEN_MARKER], &text[..]].concat();
        }
    }
    let free = words.iter_mut().filter(|word| word.is_empty());
    free.zip(0..TokTrie::SPECIAL_TOKEN_MARKER).for_each(|(word, byte)| word.push(byte));
    let factory = factory(size, |id| words[id as usize].clone(), &stops)?;
    let (grammar, bytes) = grammar(&structure).map_err(|error| error.to_string())?;
    with_stack(bytes, || compiled(&factory, grammar).map(|_| ())).map_err(|error| match error {
        Error::Structure(why) => why,
        error => error.to_string(),
    })
}

/// A program that runs [`answer`] when called with [`VERB`] and a time limit in seconds.
pub struct Probe {
    program: PathBuf,
}

impl Probe {
    /// Uses this program.
    pub fn new(program: PathBuf) -> Probe {
        Probe { program }
    }

    /// Compiles the request in a process, which is ended if it takes too long or is no longer wanted.
    ///
    /// # Errors
    /// The reason for the failure.
    pub fn ask(&self, asked: &[u8], wanted: &dyn Fn() -> bool) -> Result<(), Error> {
        let mut command = Command::new(&self.program);
        command
            .args([VERB, &MOST_TIME.as_secs().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let why = |error: std::io::Error| {
            refused(format!("no process can be started to compile it ({}): {error}", self.program.display()))
        };
        let mut running = ProbeProcess(command.spawn().map_err(why)?);
        let started = Instant::now();
        // The process reads all input first; if it has ended, its exit status tells why.
        let written = running.0.stdin.take().map_or(Ok(()), |mut to| to.write_all(asked));
        if let Err(error) = written
            && error.kind() != ErrorKind::BrokenPipe
        {
            return Err(why(error));
        }
        let ended = loop {
            if let Some(ended) = running.0.try_wait().map_err(why)? {
                break ended;
            }
            if !wanted() {
                return Err(Error::Unwanted);
            }
            // The process ends by itself at its limit; this handles one that cannot.
            if started.elapsed() > 2 * MOST_TIME {
                return Err(too_long());
            }
            thread::sleep(LOOK);
        };
        let mut reason = String::new();
        if let Some(out) = running.0.stdout.take() {
            // Output that is not text is ignored.
            _ = out.take(REASON).read_to_string(&mut reason);
        }
        judged(ended, &reason)
    }
}

fn too_long() -> Error {
    let most = MOST_TIME.as_secs();
    refused(format!("it takes more than {most} s to compile; say it more simply"))
}

/// The result for a structure from the exit status of the process.
fn judged(ended: ExitStatus, reason: &str) -> Result<(), Error> {
    match ended.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(TOO_LONG) => Err(too_long()),
        Some(code) if code == i32::from(TOO_LARGE) => {
            let most = MOST_MEMORY >> 20;
            Err(refused(format!("it takes more than {most} MiB to compile; say it more simply")))
        }
        Some(_) if !reason.trim().is_empty() => Err(refused(first_line(reason))),
        _ => Err(refused("it cannot be compiled: its rules go too deep; say it more simply".to_string())),
    }
}

/// A process that ends with its owner.
struct ProbeProcess(Child);

impl Drop for ProbeProcess {
    fn drop(&mut self) {
        // The process may have ended, and a process that cannot be killed is beyond help.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
