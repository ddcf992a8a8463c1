//! A process that compiles a structure before the server does, so that one that takes hours or all memory costs seconds and a bounded
//! number of bytes. A thread could not be ended.

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fathom_base::Structure;
use llguidance::toktrie::TokTrie;
use serde::{Deserialize, Serialize};

use super::{compiled, factory, first_line, grammar, refused, with_stack};
use crate::error::Error;

/// The verb of the program that answers.
pub const VERB: &str = "compile-structure";
/// The longest time that a process may take.
pub const MOST_TIME: Duration = Duration::from_secs(10);
/// The most memory that it may hold.
pub const MOST_MEMORY: u64 = 1 << 30;
/// Its exit code where it took too long, and where it took too much memory.
pub const TOO_LONG: u8 = 3;
/// See [`TOO_LONG`].
pub const TOO_LARGE: u8 = 4;
/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(2);
/// Longest reason that is read from it.
const REASON: u64 = 4096;

/// What a process is asked, as JSON on its standard input.
#[derive(Serialize, Deserialize)]
pub struct ProbeRequest {
    /// What to compile.
    pub structure: Structure,
    /// Tokens of the vocabulary.
    pub size: usize,
    /// Those that are not text, which grammars name.
    pub special: Vec<(u32, Vec<u8>)>,
    /// Those that end a text.
    pub stops: Vec<u32>,
}

/// Compiles what standard input asks for, over a vocabulary of single bytes: all that does not depend on tokens, with the same limits.
///
/// # Errors
/// Why it cannot be compiled, in a line.
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

/// A program that answers ([`answer`]) when it is called with [`VERB`] and the seconds that it may take.
pub struct Probe {
    program: PathBuf,
}

impl Probe {
    /// Of a program.
    pub fn new(program: PathBuf) -> Probe {
        Probe { program }
    }

    /// Lets a process compile what is asked; ends it where it takes too long or is no longer wanted.
    ///
    /// # Errors
    /// Why it does not compile.
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
        let mut running = Running(command.spawn().map_err(why)?);
        let started = Instant::now();
        // It reads all of it first; one that has ended is judged by how.
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
            // It ends by itself at its limit; this is for one that cannot.
            if started.elapsed() > 2 * MOST_TIME {
                return Err(too_long());
            }
            thread::sleep(LOOK);
        };
        let mut reason = String::new();
        if let Some(out) = running.0.stdout.take() {
            // What is no text is no reason.
            _ = out.take(REASON).read_to_string(&mut reason);
        }
        judged(ended, &reason)
    }
}

fn too_long() -> Error {
    let most = MOST_TIME.as_secs();
    refused(format!("it takes more than {most} s to compile; say it more simply"))
}

/// What the end of a process says of a structure.
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
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and nothing can be done about one that cannot be ended.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
