//! Runs one program with a time limit; its output lines are shown as they arrive and collected.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between checks on a program.
const LOOK: Duration = Duration::from_millis(100);

/// The result of a program.
pub struct Ran {
    /// Its output lines.
    pub lines: Vec<String>,
    /// How it failed, if it did.
    pub failed: Option<String>,
    /// True if it exceeded its time limit.
    pub ended: bool,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Runs a program for at most `limit`, then kills it.
pub fn run(command: &mut Command, limit: Duration) -> Ran {
    let started = Instant::now();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (failed, ended) = match command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn() {
        Err(error) => (Some(format!("{}: {error}", command.get_program().display())), false),
        Ok(mut child) => {
            let reader = child.stdout.take().map(|out| {
                let lines = lines.clone();
                // The thread is not joined: a killed program may have left a child that keeps the pipe open.
                std::thread::spawn(move || {
                    for line in BufReader::new(out).lines().map_while(Result::ok) {
                        println!("{line}");
                        lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    }
                })
            });
            let (failed, ended) = wait(&mut child, started, limit);
            let until = Instant::now() + Duration::from_secs(2);
            while reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            (failed, ended)
        }
    };
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ran { lines, failed, ended, seconds: started.elapsed().as_secs_f64() }
}

/// How a program failed, if it did, and whether it was killed.
fn wait(child: &mut Child, started: Instant, limit: Duration) -> (Option<String>, bool) {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return ((!status.success()).then(|| status.to_string()), false),
            Err(error) => return (Some(error.to_string()), false),
            Ok(None) if started.elapsed() > limit => {
                // If the program has just exited by itself, this fails harmlessly.
                let _ = child.kill();
                let _ = child.wait();
                return (Some(format!("ended after its limit of {} s", limit.as_secs())), true);
            }
            Ok(None) => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_listened_to_and_ended() {
        let ran = run(Command::new("sh").args(["-c", "echo a; echo b; exit 3"]), Duration::from_secs(60));
        assert_eq!(ran.lines, ["a", "b"]);
        assert!(ran.failed.unwrap().contains('3') && !ran.ended);
        let ran = run(Command::new("sleep").arg("600"), Duration::from_millis(1));
        assert!(ran.failed.unwrap().contains("limit") && ran.ended && ran.seconds < 300.0);
        assert!(run(&mut Command::new("no-such-program"), Duration::from_secs(1)).failed.is_some());
    }
}
