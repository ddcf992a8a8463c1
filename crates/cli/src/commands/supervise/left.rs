//! Processes that a job leaves behind, even in other sessions: found by an environment variable, which a job's
//! processes inherit.

use std::fs;
use std::process::{Command, id};
use std::thread::sleep;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use signal_hook::consts::SIGKILL;

use super::signal::{LOOK, kill};

/// Most rounds, as processes may start others while they are being ended.
const LOOKS: usize = 50;

/// The environment variable of one supervisor's jobs.
pub(super) struct Mark(String);

impl Mark {
    pub fn new() -> Mark {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Mark(format!("FATHOM_SUPERVISED_{}_{}", id(), now.as_nanos()))
    }

    /// Sets it for a job.
    pub fn on<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(&self.0, "1")
    }

    /// Kills what is left of an ended job.
    ///
    /// # Errors
    /// If signals cannot be sent.
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

    /// Running processes with the variable; none if the system does not expose them.
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
