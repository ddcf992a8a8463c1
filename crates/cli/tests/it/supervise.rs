//! `fathom supervise` on jobs of a few lines of shell, and `fathom doctor --dist`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::text;

fn supervise(folder: &Path, flags: &[&str], job: &str) -> Command {
    let mut command = crate::program();
    command.arg("supervise").args(flags).args(["--", "sh", "-c", job]).current_dir(folder);
    command
}

/// Counts its calls in `calls`.
const COUNT: &str = "n=$(cat calls 2>/dev/null || echo 0); n=$((n + 1)); echo $n > calls;";
/// Saves as many steps as there were calls.
const SAVE: &str = "mkdir -p run/checkpoints; printf 'step-%08d' $n > run/checkpoints/LATEST;";

#[track_caller]
fn ends(flags: &[&str], job: &str, code: i32, calls: &str, says: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let flags = [&["--out", "run", "--backoff", "0.01"], flags].concat();
    let Output { status, stderr, .. } = supervise(folder.path(), &flags, job).output().unwrap();
    let err = text(&stderr);
    assert_eq!(status.code(), Some(code), "{err}");
    assert_eq!(fs::read_to_string(folder.path().join("calls")).unwrap().trim(), calls, "{err}");
    for said in says {
        assert!(err.contains(said), "`{said}` is not in: {err}");
    }
}

#[test]
fn a_job_that_moves_on_is_started_again() {
    let dies = format!("{COUNT} {SAVE} [ $n = 3 ] || kill -9 $$");
    ends(
        &[],
        &dies,
        0,
        "3",
        &["was killed by signal 9", "it saved step 1: restart 1 of 10", "it saved step 2: restart 2 of 10"],
    );
    ends(&["--max-restarts", "1"], &dies, 137, "2", &["it was started again 1 times, which is all"]);
    // Without checkpoints, from copies of its own, which only its log shows.
    let resumed = r#"mkdir -p run; [ $n = 1 ] || echo "{\"event\":\"resume\",\"step\":$n,\"unix_s\":1}" >> run/metrics.jsonl;"#;
    let goes_on = format!("{COUNT} {resumed} [ $n = 5 ] || exit 7");
    ends(&[], &goes_on, 0, "5", &["it saved step 2: restart 2", "it saved step 4: restart 4"]);
}

#[test]
fn a_job_that_does_not_move_on_is_given_up() {
    ends(&[], &format!("{COUNT} exit 7"), 7, "2", &["it has saved nothing", "2 times in a row"]);
    let once = format!("{COUNT} [ $n = 2 ] && {{ {SAVE} }}; exit 7");
    ends(&[], &once, 7, "4", &["it saved step 2: restart 2", "its last checkpoint is still that of step 2"]);
    ends(&["--patience", "0"], &format!("{COUNT} exit 3"), 3, "1", &["1 times in a row"]);
}

#[test]
fn a_job_that_ends_or_saves_and_stops_is_left() {
    ends(&[], &format!("{COUNT} exit 0"), 0, "1", &[]);
    ends(&[], &format!("{COUNT} exit 75"), 75, "1", &[]);
}

#[test]
fn what_a_job_that_died_left_is_ended_in_a_session_of_its_own_too() {
    let folder = tempfile::tempdir().unwrap();
    let job = "setsid sleep 60 > /dev/null 2>&1 & echo $! > other; sleep 60 > /dev/null 2>&1 & echo $! > same; exit 3";
    let flags = ["--out", "run", "--patience", "0"];
    let Output { status, stderr, .. } = supervise(folder.path(), &flags, job).output().unwrap();
    assert_eq!(status.code(), Some(3), "{}", text(&stderr));
    for name in ["other", "same"] {
        let pid = fs::read_to_string(folder.path().join(name)).unwrap();
        let command = fs::read_to_string(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
        assert!(!command.contains("sleep"), "{name}: {command}");
    }
}

/// Sends each signal once the job has written the file of its number, and returns the exit code.
fn signalled(job: &str, signals: &[&str]) -> Option<i32> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = supervise(folder.path(), &["--out", "run"], job);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    for (index, signal) in signals.iter().enumerate() {
        while !folder.path().join(index.to_string()).exists() {
            sleep(Duration::from_millis(5));
        }
        let kill = format!("kill -{signal} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
    child.wait().unwrap().code()
}

#[test]
fn signals_ask_the_job_to_save_and_stop() {
    let forever = "echo > 0; while :; do sleep 0.02; done";
    for signal in ["TERM", "INT", "USR1"] {
        assert_eq!(signalled(&format!("trap 'exit 75' USR1; {forever}"), &[signal]), Some(75), "{signal}");
    }
    assert_eq!(signalled(&format!("trap 'exit 0' USR2; {forever}"), &["USR2"]), Some(0));
    // An unresponsive job gets the second signal unchanged.
    let deaf = format!("trap 'echo > 1' USR1; trap 'exit 5' TERM; {forever}");
    assert_eq!(signalled(&deaf, &["TERM", "TERM"]), Some(5));
    // One that is still saving is ended by it, but continues saving if the second is of another kind.
    let saving = format!("trap 'echo > 1; trap \"exit 6\" USR1' USR1; trap '' INT; {forever}");
    assert_eq!(signalled(&saving, &["INT", "INT"]), Some(6));
    let saved = "trap 'echo > 1; trap \"exit 6\" USR1; sleep 0.5; exit 75' USR1; trap '' TERM";
    assert_eq!(signalled(&format!("{saved}; {forever}"), &["USR1", "TERM"]), Some(75));
}

#[test]
fn a_job_that_is_not_running_is_not_started_again_when_asked_to_end() {
    for signal in ["USR1", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let job = format!("{COUNT} exit 7");
        let mut command = supervise(folder.path(), &["--out", "run", "--backoff", "60"], &job);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        // The wait is reported.
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("restart 1 of 10 in"), "{line}");
        let kill = format!("kill -{signal} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(75), "{signal}");
        assert_eq!(fs::read_to_string(folder.path().join("calls")).unwrap().trim(), "1");
    }
}

#[test]
fn a_command_without_a_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Output { status, stderr, .. } = supervise(folder.path(), &[], "exit 0").output().unwrap();
    assert!(!status.success() && text(&stderr).contains("--out"), "{}", text(&stderr));
}

#[test]
fn the_run_is_found_behind_a_launcher_whose_words_may_be_the_verb() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = crate::program();
        command.args(["supervise", "--backoff", "0.01", "--", "sh", "-c"]);
        // A job that has saved a step in the run's folder, which it is not given.
        command.arg("mkdir -p found/checkpoints; echo step-00000007 > found/checkpoints/LATEST; exit 7");
        text(&command.args(words).current_dir(folder.path()).output().unwrap().stderr)
    };
    for words in [
        &["fathom", "train", "quickstart", "run.out=found"][..],
        &["-p", "train", "fathom", "train", "quickstart", "run.out=found"],
        &["--job-name", "train", "-n", "2", "fathom", "train", "quickstart", "run.out=found"],
    ] {
        let err = run(words);
        assert!(err.contains("step 7"), "{words:?}: {err}");
    }
    let err = run(&["-p", "train", "fathom", "train", "quickstart", "run.oot=found"]);
    assert!(err.contains("run.oot") && err.contains("run.out"), "{err}");
}

/// `fathom doctor --dist` with only these environment variables.
fn doctor(variables: &[(&str, &str)], flags: &[&str]) -> Output {
    let mut command = crate::program();
    command
        .args(["doctor", "--dist"])
        .args(flags)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn doctor_tells_who_this_process_is() {
    let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "1")];
    let out = text(&doctor(&mpirun, &[]).stdout);
    for said in
        ["Open MPI", "won", "by OMPI_COMM_WORLD_RANK", "fits", "this process: rank 1 of 4 (from Open MPI)"]
    {
        assert!(out.contains(said), "`{said}` is not in: {out}");
    }
    let rows = crate::rows(&text(&doctor(&mpirun, &["--json"]).stdout));
    assert_eq!(rows[0]["winner"], "Open MPI");
    assert_eq!(rows[0]["claim"]["rank"]["value"], 1);
    let both = [&mpirun[..], &[("RANK", "2"), ("WORLD_SIZE", "4")]].concat();
    let output = doctor(&both, &[]);
    let err = text(&output.stderr);
    assert!(
        !output.status.success() && err.contains("RANK=2") && err.contains("OMPI_COMM_WORLD_RANK=1"),
        "{err}"
    );
    let out = text(&doctor(&both, &["--rank", "0", "--world-size", "2"]).stdout);
    assert!(out.contains("rank 0 of 2 (from flags)"), "{out}");
    assert!(text(&doctor(&[], &[]).stdout).contains("a process alone"));
}

/// Processes that this build or launcher cannot connect are refused, with a remedy.
#[test]
fn a_launched_process_that_cannot_be_connected_says_why() {
    let train = |variables: &[(&str, &str)], keys: &[&str]| {
        let mut command = crate::program();
        command.args(["train", "quickstart", "run.out=nowhere"]).args(keys).env_clear();
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let two = [("RANK", "0"), ("WORLD_SIZE", "2")];
    let err = train(&two, &[]);
    assert!(err.contains("2 processes") && err.contains("has 1 ranks") && err.contains("mesh.dp"), "{err}");
    if !cfg!(feature = "mpi") {
        let err = train(&two, &["mesh.pp=2"]);
        assert!(err.contains("cargo build --release --features mpi"), "{err}");
    }
    let node = [("PET_NODE_RANK", "0"), ("PET_NNODES", "2")];
    let err = train(&node, &["mesh.pp=2"]);
    assert!(err.contains("(from PET)") && err.contains("mpirun or srun"), "{err}");
}

/// A server that returns `200`: its port, its number of answers, and whether it is silent.
struct MockServer {
    port: u16,
    answered: AtomicU32,
    silent: AtomicBool,
}

fn answering() -> Arc<MockServer> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = Arc::new(MockServer { port, answered: AtomicU32::new(0), silent: AtomicBool::new(false) });
    let own = server.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if !own.silent.load(Ordering::Relaxed) {
                let (mut request, mut part) = (Vec::new(), [0; 512]);
                while !request.ends_with(b"\r\n\r\n") {
                    match stream.read(&mut part) {
                        Ok(bytes) if bytes > 0 => request.extend(&part[..bytes]),
                        _ => break,
                    }
                }
                _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                own.answered.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    server
}

/// A supervisor that ends with its test.
struct Supervisor(Child);

impl Drop for Supervisor {
    fn drop(&mut self) {
        _ = self.0.kill();
    }
}

#[test]
fn a_server_that_is_silent_is_started_again() {
    let server = answering();
    let url = format!("http://127.0.0.1:{}/health/ready", server.port);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Its third life ends by itself, and its child processes are ended too.
    let job = format!("{COUNT} [ $n = 3 ] && exit 0; sleep 100 & echo $! > child$n; wait");
    let flags = ["--ready", &url, "--silent", "4", "--starting", "4", "--backoff", "0.01"];
    let stderr = fs::File::create(at("said")).unwrap();
    let mut supervisor = Supervisor(supervise(folder.path(), &flags, &job).stderr(stderr).spawn().unwrap());
    while server.answered.load(Ordering::Relaxed) < 2 || !at("child1").exists() {
        sleep(Duration::from_millis(20));
    }
    server.silent.store(true, Ordering::Relaxed);
    let status = supervisor.0.wait().unwrap();
    let err = fs::read_to_string(at("said")).unwrap();
    assert_eq!((status.code(), fs::read_to_string(at("calls")).unwrap().trim()), (Some(0), "3"), "{err}");
    for said in ["was silent for", "it was ready before: restart 1", "it was never ready: restart 2"] {
        assert!(err.contains(said), "`{said}` is not in: {err}");
    }
    let started = fs::read_to_string(at("child1")).unwrap();
    let gone = Command::new("sh").args(["-c", &format!("kill -0 {} 2>&1", started.trim())]).status().unwrap();
    assert!(!gone.success());
    let refused = supervise(folder.path(), &["--ready", "localhost:8000"], "true").output().unwrap();
    assert!(text(&refused.stderr).contains("write http://HOST:PORT/PATH"));
}

#[test]
fn a_server_is_asked_to_drain() {
    let url = format!("http://127.0.0.1:{}/", answering().port);
    let folder = tempfile::tempdir().unwrap();
    let job = "trap 'exit 0' TERM; echo > up; while :; do sleep 0.02; done";
    let mut command = supervise(folder.path(), &["--ready", &url], job);
    let mut child = Supervisor(command.stderr(Stdio::null()).spawn().unwrap());
    while !folder.path().join("up").exists() {
        sleep(Duration::from_millis(5));
    }
    let kill = format!("kill -TERM {}", child.0.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}
