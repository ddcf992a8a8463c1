//! PyTorch on the same device, if it is installed. The script itself reports if it is not, since a check beforehand
//! would import it twice.

use std::path::PathBuf;
use std::process::Command;

use super::session::Session;
use super::table::PEAKED;

/// Time limit in seconds for the first and last lengths, each compiled and warmed up, and attention alone.
pub const SHORT_S: u64 = 95;
/// Time limit in seconds for the length between them.
pub const MIDDLE_S: u64 = 90;
/// Time limit in seconds for the first length with peaked attention.
pub const PEAKED_S: u64 = 60;
/// Time limit in seconds for the longest step, by bisection.
pub const LONGEST_S: u64 = 600;
/// The PyTorch script.
const SCRIPT: &str = "oracle/bench/gpu_step.py";

/// The script in the working directory, or else in the repository this was built from.
fn script() -> Option<PathBuf> {
    [PathBuf::from(SCRIPT), crate::gpu_check::root().join(SCRIPT)].into_iter().find(|path| path.is_file())
}

impl Session {
    /// Runs `rival`, `rival-32768`, `rival-longest` or `peaked`.
    pub(super) fn rival(&mut self, stage: &str, limit_s: u64) {
        let Some(script) = script() else {
            println!("== PyTorch skipped: {SCRIPT} is neither here nor where this was built");
            return;
        };
        let mut command = Command::new("python3");
        command.arg(script).args(match stage {
            "rival-longest" => ["--longest", "--attention=0", "--scores=flat"],
            "rival-32768" => ["--tokens=32768", "--attention=0", "--scores=flat"],
            "peaked" => ["--tokens=8192", "--attention=0", "--scores=peaked"],
            _ => ["--tokens=8192,131072", "--attention=32768", "--scores=flat"],
        });
        command.arg(format!("--seconds={}", limit_s - 10));
        let ran = self.stage(&format!("PyTorch, {stage}"), limit_s, &mut command);
        self.results.add(&ran.lines, (stage == "peaked").then_some(PEAKED));
    }
}
