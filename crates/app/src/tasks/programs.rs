//! Generated Python programs of tasks, each run in a jail ([`crate::train::jail`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fathom_eval::tasks::digest;

use crate::error::{Error, Result};
use crate::train::jail::Jail;

/// Bytes of a mebibyte.
const MIB: u64 = 1 << 20;
/// Runs a program without its output. A mark shows that it came to its end; a call of `exit` does not get there.
const MAIN: &str = "import os, runpy\nout = os.dup(1)\nos.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n\
                    runpy.run_path('program.py', run_name='__main__')\nos.write(out, b'MARK')\n";

fn jail() -> Jail {
    Jail {
        shown: Vec::new(),
        memory_bytes: 2048 * MIB,
        disk_bytes: 64 * MIB,
        cpu_s: 10,
        processes: 16,
        timeout: Duration::from_secs(10),
    }
}

/// Refuses a system that has no jail, or no Python in it.
///
/// # Errors
/// Which of both is missing.
pub fn check() -> Result<()> {
    let refused = |reason: String| Error::Refused(format!("--run-programs: {reason}"));
    jail().check().map_err(refused)?;
    if run("pass").map_err(refused)? {
        return Ok(());
    }
    Err(refused("there is no python3 in /usr/bin or /bin, the folders that a jail has".into()))
}

fn run(program: &str) -> std::result::Result<bool, String> {
    let mark = digest(program);
    let main = MAIN.replace("MARK", &mark);
    let files = [("program.py", program), ("main.py", &main)];
    let found = jail().run(&files, &["python3".into(), "main.py".into()])?;
    Ok(found.well && found.out == mark)
}

/// True for each program that comes to its end in time, as many at once as there are processors.
///
/// # Errors
/// The jail cannot be made.
pub fn passed(programs: &[String]) -> std::result::Result<Vec<bool>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(programs.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let at = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        at.take_while(|at| *at < programs.len()).map(|at| (at, run(&programs[at]))).collect::<Vec<_>>()
    };
    let mut found: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    });
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, passed)| passed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_passes_if_it_comes_to_its_end() {
        if let Err(why) = check() {
            eprintln!("skipped: {why}");
            return;
        }
        let cases = [
            ("assert 1 + 1 == 2", true),
            ("print('x' * 100000)", true),
            ("assert False", false),
            ("raise SystemExit(0)", false),
            ("import os; os._exit(0)", false),
            ("import socket; socket.create_connection(('127.0.0.1', 9), 1)", false),
            ("def f(:", false),
        ];
        let programs: Vec<String> = cases.iter().map(|case| case.0.to_string()).collect();
        let expected: Vec<bool> = cases.iter().map(|case| case.1).collect();
        assert_eq!(passed(&programs).unwrap(), expected);
    }
}
