//! Processes that a job leaves behind, also those in sessions of their own: found by a variable of their environment, which a job's
//! processes inherit.

use std::fs;
use std::process::{Command, id};
use std::thread::sleep;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use signal_hook::consts::SIGKILL;

use super::{LOOK, kill};

/// Looks at most, for processes that start others while they are ended.
const LOOKS: usize = 50;

/// The variable of one supervisor's jobs.
pub(super) struct Mark(String);

impl Mark {
    pub fn new() -> Mark {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Mark(format!("FATHOM_SUPERVISED_{}_{}", id(), now.as_nanos()))
    }

    /// Gives it to a job.
    pub fn on<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(&self.0, "1")
    }

    /// Ends what is left of a job that has ended.
    ///
    /// # Errors
    /// No signal can be sent.
    pub fn end(&self) -> Result<()> {
        for _ in 0..LOOKS {
            let left = self.left();
            if left.is_empty() {
                break;
            }
            kill(SIGKILL, &left.join(" "))?;
            sleep(LOOK);
        }
        Ok(())
    }

    /// The processes that have it and run; where the system does not show them, none.
    fn left(&self) -> Vec<String> {
        let set = format!("{}=1", self.0);
        let has = |pid: &String| {
            let set_in = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            set_in.split(|byte| *byte == 0).any(|variable| variable == set.as_bytes())
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).filter(has).collect()
    }
}
