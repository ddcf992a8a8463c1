//! `fathom curate --engine ballista` with a scheduler and two executors on this machine: one executor is killed while
//! it works, and the results equal those of a run without a cluster, byte for byte.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::curate::bytes_of;
use crate::text;

const RECIPE: &str = r#"
[[stage]]
use = "exact"

[[stage]]
use = "fuzzy"
bands = 8
rows = 4

[[stage]]
use = "shuffle"

[[stage]]
use = "write"
format = "jsonl"
"#;

/// Input files: each becomes a part of the first table, and so a task.
const FILES: u64 = 12;

/// A process that ends with its test.
struct TestProcess(Child);

impl TestProcess {
    fn kill(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the binary in `folder`, with output to `name.log` there.
fn start(folder: &Path, name: &str, args: &[String]) -> TestProcess {
    let log = fs::File::create(folder.join(format!("{name}.log"))).unwrap();
    let mut command = crate::program();
    command.current_dir(folder).args(args).stdin(Stdio::null());
    TestProcess(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
}

/// Ports that are free, and followed by a free one.
fn free_ports<const N: usize>() -> [u16; N] {
    let pair = |_| loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        if let Some(second) = port.checked_add(1).and_then(|next| TcpListener::bind(("127.0.0.1", next)).ok())
        {
            return (port, first, second);
        }
    };
    // All are held until the last is found, so that they differ.
    let held: [_; N] = std::array::from_fn(pair);
    held.map(|(port, ..)| port)
}

/// Waits until `is` holds; panics with the processes' output.
#[track_caller]
fn wait_until(folder: &Path, what: &str, mut is: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < Duration::from_secs(120), "{what} did not happen\n{}", said(folder));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn said(folder: &Path) -> String {
    let logs = ["scheduler", "first", "second", "client"].map(|name| {
        let text = fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
        format!("== {name}\n{text}")
    });
    logs.concat()
}

/// Text in which every tenth document is repeated unchanged, and every tenth with another ending.
fn write_input(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for file in 0..FILES {
        let line = |n: u64| {
            let (base, end) = match n % 10 {
                0 => (n - n % 100, ""),
                1 => (n - n % 100 + 2, " the end"),
                _ => (n, ""),
            };
            let words: Vec<String> =
                (1..60).map(|w| format!("w{}", (w * w * 31 + base * w) % 1009)).collect();
            format!("{{\"text\":\"{}{end}\"}}\n", words.join(" "))
        };
        let text: String = (file * 200..file * 200 + 200).map(line).collect();
        fs::write(folder.join(format!("{file:02}.jsonl")), text).unwrap();
    }
}

/// Arguments of a curation; paths are relative, so that two runs have equal manifests.
fn args(engine: &[&str]) -> Vec<String> {
    let fixed = [
        "curate",
        "../recipe.toml",
        "input.paths=../data",
        "input.unit_bytes=100000",
        "threads=1",
        "out=out",
    ];
    fixed.iter().chain(engine).map(ToString::to_string).collect()
}

/// Returns whether a work folder holds results of a task.
fn has_results(work: &Path) -> bool {
    let mut folders: Vec<PathBuf> = vec![work.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) => return true,
                Err(_) => {}
            }
        }
    }
    false
}

#[test]
fn a_cluster_that_loses_an_executor_gives_the_same_bytes() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path();
    fs::write(root.join("recipe.toml"), RECIPE).unwrap();
    write_input(&root.join("data"));
    let [embedded, cluster] = ["embedded", "cluster"].map(|name| root.join(name));
    for folder in [&embedded, &cluster] {
        fs::create_dir(folder).unwrap();
    }

    let alone = crate::program().current_dir(&embedded).args(args(&[])).output().unwrap();
    assert!(alone.status.success(), "{}", text(&alone.stderr));

    let [scheduler, first, second] = free_ports();
    let url = format!("df://127.0.0.1:{scheduler}");
    let answers = |port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok();
    let mut running = Vec::new();
    let verb = |rest: &[&str]| ["curate"].iter().chain(rest).map(ToString::to_string).collect::<Vec<_>>();
    running.push(start(&cluster, "scheduler", &verb(&["scheduler", "--port", &scheduler.to_string()])));
    wait_until(&cluster, "the scheduler's start", || answers(scheduler));
    for (name, port) in [("first", first), ("second", second)] {
        let port = port.to_string();
        let flags = ["executor", "--scheduler", &url, "--port", &port, "--work-dir", name, "--threads", "1"];
        running.push(start(&cluster, name, &verb(&[&flags[..], &["--memory", "256MiB"]].concat())));
    }
    wait_until(&cluster, "the executors' start", || answers(first) && answers(second));

    let mut client = start(&cluster, "client", &args(&["--engine", "ballista", "--scheduler", &url]));
    wait_until(&cluster, "work on the second executor", || {
        assert!(
            client.0.try_wait().unwrap().is_none(),
            "the client ended before the kill:\n{}",
            said(&cluster)
        );
        has_results(&cluster.join("second"))
    });
    running[2].kill();
    assert!(client.0.try_wait().unwrap().is_none(), "it ended before the kill:\n{}", said(&cluster));
    let status = client.0.wait().unwrap();
    assert!(status.success(), "{status}\n{}", said(&cluster));
    assert!(has_results(&cluster.join("first")), "the first executor did nothing:\n{}", said(&cluster));

    let (expected, found) = (bytes_of(&embedded.join("out")), bytes_of(&cluster.join("out")));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(expected.keys().any(|name| name.contains("shuffle")), "{:?}", expected.keys());
    for (name, bytes) in &expected {
        assert!(found[name] == *bytes, "{name} differs\n{}", said(&cluster));
    }
}

#[test]
fn a_scheduler_that_does_not_answer_is_named() {
    let [unused] = free_ports();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::write(folder.path().join("recipe.toml"), "[[stage]]\nuse = \"shuffle\"\n").unwrap();
    fs::write(folder.path().join("data/a.jsonl"), "{\"text\":\"one\"}\n").unwrap();
    let url = format!("df://127.0.0.1:{unused}");
    let mut args = args(&["--engine", "ballista", "--scheduler", &url]);
    args[1] = folder.path().join("recipe.toml").display().to_string();
    args[2] = format!("input.paths={}", folder.path().join("data").display());
    args[5] = format!("out={}", folder.path().join("out").display());
    crate::refused(args, &["reach the scheduler", &url, "fathom curate scheduler"]);
    crate::refused(["curate", "executor", "--scheduler", &url], &["reach the scheduler", &url]);
}
