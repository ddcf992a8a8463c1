//! Isolation of untrusted programs: no network, no other processes, a read-only system except for a private folder in
//! memory, and limits on time, memory, processes and files.
//!
//! The jail is made from Linux namespaces with programs of util-linux (`unshare`, `mount`, `pivot_root`, `prlimit`,
//! `setpriv`), without root: inside, the command is root of a user namespace without any capability. If root starts it,
//! it runs as an unprivileged user outside.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

/// Script that runs first inside the namespaces.
const SCRIPT: &str = include_str!("jail.sh");
/// Command that makes the namespaces.
const UNSHARE: &str = "unshare --user --map-root-user --mount --net --pid --ipc --uts --fork --kill-child";
/// Bytes kept of a program's output.
const KEPT: usize = 64 << 10;
/// Output of the script before the program starts.
const READY: &[u8] = b"ready\n";
/// User that replaces root outside of the jail.
const UNPRIVILEGED: &str = "65534";

/// Limits of a program.
#[derive(Clone, Debug)]
pub struct Jail {
    /// Folders that it can read, in addition to those of the system (`/usr`, `/bin`, `/lib`, `/etc`).
    pub shown: Vec<PathBuf>,
    /// Maximum memory of a process, in bytes.
    pub memory_bytes: u64,
    /// Maximum total size of its files, in bytes.
    pub disk_bytes: u64,
    /// Maximum processor time of a process, in seconds.
    pub cpu_s: u64,
    /// Maximum number of concurrent processes.
    pub processes: u64,
    /// Maximum elapsed time.
    pub timeout: Duration,
}

/// Result of a program.
#[derive(Debug)]
pub struct ProgramOutput {
    /// Set if it ended in time with exit status 0.
    pub well: bool,
    /// Beginning of its output.
    pub out: String,
}

/// Temporary folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Folder> {
        let mut number = 0;
        let folder = loop {
            let path = env::temp_dir().join(format!("fathom-jail-{}-{number}", process::id()));
            match fs::create_dir(&path) {
                Ok(()) => break Folder(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        };
        fs::create_dir(folder.0.join("root"))?;
        fs::create_dir(folder.0.join("files"))?;
        for of in ["", "root", "files"] {
            fs::set_permissions(folder.0.join(of), fs::Permissions::from_mode(0o755))?;
        }
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Jail {
    /// Checks that the system can make a jail.
    ///
    /// # Errors
    /// A message about what is missing.
    pub fn check(&self) -> Result<(), String> {
        self.run(&[], &["true".into()]).map(drop)
    }

    /// Runs a command in a folder with the given files.
    ///
    /// # Errors
    /// A message: the jail cannot be made.
    pub fn run(&self, files: &[(&str, &str)], command: &[String]) -> Result<ProgramOutput, String> {
        self.run_through(UNSHARE, files, command)
    }

    fn run_through(
        &self,
        unshare: &str,
        files: &[(&str, &str)],
        command: &[String],
    ) -> Result<ProgramOutput, String> {
        let failed = |error: std::io::Error| format!("cannot write files for a jail: {error}");
        let folder = Folder::new().map_err(failed)?;
        for (name, text) in files {
            let path = folder.0.join("files").join(name);
            fs::write(&path, text).map_err(failed)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).map_err(failed)?;
        }
        let mut child = self.start(unshare, &folder, command)?;
        let kept = (child.stdout.take().map(keep), child.stderr.take().map(keep));
        let status = wait(&mut child, self.timeout);
        let text = |kept: Option<thread::JoinHandle<Vec<u8>>>| {
            kept.and_then(|it| it.join().ok()).unwrap_or_default()
        };
        let (out, err) = (text(kept.0), text(kept.1));
        let Some(out) = out.strip_prefix(READY) else {
            let said = String::from_utf8_lossy(&err);
            let said = match said.trim() {
                "" => "it was not ready in time",
                said => said,
            };
            return Err(missing(said));
        };
        let well = status.is_some_and(|status| status.success());
        Ok(ProgramOutput { well, out: String::from_utf8_lossy(out).into_owned() })
    }

    fn start(&self, unshare: &str, folder: &Folder, command: &[String]) -> Result<Child, String> {
        let of_root = fs::metadata("/proc/self").is_ok_and(|of| of.uid() == 0);
        // Killing the run kills its programs, because the thread that starts one waits for it.
        let mut words = ["setpriv", "--pdeathsig=KILL"].map(String::from).to_vec();
        if of_root {
            // Process limits do not apply to root itself.
            words.push("--clear-groups".into());
            words.extend(["reuid", "regid"].map(|id| format!("--{id}={UNPRIVILEGED}")));
        }
        words.extend(unshare.split(' ').map(String::from));
        words.extend(["sh", "-c", SCRIPT, "jail"].map(String::from));
        words.push(folder.0.display().to_string());
        // The time limit inside takes effect if the run can no longer enforce its own.
        let clock_s = self.timeout.as_secs().saturating_add(1);
        let limits = [self.disk_bytes, self.memory_bytes, self.cpu_s, self.processes];
        let numbers = limits.into_iter().chain([clock_s, self.shown.len() as u64]);
        words.extend(numbers.map(|number| number.to_string()));
        words.extend(self.shown.iter().map(|folder| folder.display().to_string()));
        words.extend_from_slice(command);
        let mut started = Command::new(&words[0]);
        started.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        started.spawn().map_err(|error| missing(&format!("{} cannot be started: {error}", words[0])))
    }
}

/// Returns a message about how to make a jail possible.
fn missing(said: &str) -> String {
    format!(
        "programs cannot be run in a jail here: {said}; it needs unshare, mount, prlimit and setpriv (the package util-linux), timeout (coreutils) and leave to \
         make user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp profile)"
    )
}

/// Reads all output and keeps the first part.
fn keep(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut kept, mut some) = (Vec::new(), [0; 8192]);
        while let Ok(read) = from.read(&mut some)
            && read > 0
        {
            let room = KEPT.saturating_sub(kept.len());
            kept.extend_from_slice(&some[..read.min(room)]);
        }
        kept
    })
}

/// Waits for a program, and kills it with everything that it started after the timeout.
fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + timeout;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            Ok(Some(status)) => return Some(status),
            _ => {
                // The first process of the namespace is killed with it, and then all others in it.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn jail() -> Jail {
        Jail {
            shown: Vec::new(),
            memory_bytes: 1 << 30,
            disk_bytes: 1 << 20,
            cpu_s: 10,
            processes: 16,
            timeout: Duration::from_secs(20),
        }
    }

    #[test]
    fn what_a_jail_lacks_on_a_system_is_reported() {
        let jail = jail();
        for unshare in ["no-such-unshare", "unshare --no-such-namespace", "false"] {
            let error = jail.run_through(unshare, &[], &["true".into()]).unwrap_err();
            assert!(error.contains("util-linux") && error.contains("user namespaces"), "{unshare}: {error}");
        }
    }

    /// The death signal follows the thread that started the program.
    #[test]
    fn a_program_ends_with_the_run_that_started_it() {
        let jail = jail();
        if let Err(why) = jail.check() {
            eprintln!("not tested: {why}");
            return;
        }
        let folder = Folder::new().unwrap();
        let command = ["sleep", "5"].map(String::from);
        let started = thread::scope(|scope| {
            let start = || {
                let mut child = jail.start(UNSHARE, &folder, &command).unwrap();
                let mut ready = [0; READY.len()];
                child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
                child
            };
            scope.spawn(start).join().unwrap()
        });
        let ended = started.wait_with_output().unwrap();
        assert_eq!(ended.status.signal(), Some(9), "{ended:?}");
    }

    #[test]
    fn a_clock_inside_ends_a_program_that_is_no_longer_watched() {
        let jail = jail();
        if let Err(why) = jail.check() {
            eprintln!("not tested: {why}");
            return;
        }
        let (folder, command) = (Folder::new().unwrap(), ["sh", "-c", "sleep 5 & wait"].map(String::from));
        let jail = Jail { timeout: Duration::ZERO, ..jail };
        let ended = jail.start(UNSHARE, &folder, &command).unwrap().wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(128 + 9), "{ended:?}");
    }
}
