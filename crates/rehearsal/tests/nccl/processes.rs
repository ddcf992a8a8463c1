//! Ranks in separate processes: the test program starts itself.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const ROLE: &str = "FATHOM_TEST_NCCL";

fn start(test: &str, role: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn to_text(id: UniqueId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_text(text: &str) -> UniqueId {
    let mut id = UniqueId([0; 128]);
    for index in 0..128 {
        id.0[index] = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap();
    }
    id
}

/// The id that another process gave its rank to join, if this is a child process.
fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

fn exchange(rank: &Rank) {
    let other = 1 - rank.rank;
    let values = vec![rank.rank as f32; 1 << 18];
    let (out, into) = (rank.buffer(&values), rank.buffer(&vec![9.0; values.len()]));
    for _ in 0..4 {
        group(|| {
            assert_eq!((rank.send(out, other), rank.receive(into, other)), (SUCCESS, SUCCESS));
        });
    }
    // SAFETY: memory of the device.
    let summed = unsafe { ncclAllReduce(out.at(), out.at(), 1 << 18, FLOAT, 0, rank.comm, rank.stream) };
    assert_eq!(summed, SUCCESS);
    rank.wait();
    assert!(into.values().iter().all(|value| *value == other as f32));
    assert!(out.values().iter().all(|value| *value == 1.0));
}

#[test]
fn two_processes() {
    let _turn = turn();
    if let Some(text) = role() {
        let rank = Rank::join(from_text(&text), 1, 2);
        exchange(&rank);
        return rank.destroy();
    }
    let id = id();
    let other = start("processes::two_processes", &to_text(id));
    let rank = Rank::join(id, 0, 2);
    exchange(&rank);
    rank.destroy();
    let output = other.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("rehearsal:"));
}

#[test]
fn a_process_that_dies_is_a_remote_error() {
    let _turn = turn();
    if let Some(text) = role() {
        let rank = Rank::join(from_text(&text), 1, 2);
        exchange(&rank);
        println!("\ndone");
        loop {
            std::thread::park();
        }
    }
    let id = id();
    let mut other = start("processes::a_process_that_dies_is_a_remote_error", &to_text(id));
    let rank = Rank::join(id, 0, 2);
    exchange(&rank);
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "done"));
    let buffer = rank.buffer(&[1.0]);
    assert_eq!((rank.receive(buffer, 1), rank.asked()), (SUCCESS, SUCCESS));
    other.kill().unwrap();
    other.wait().unwrap();
    rank.until(REMOTE);
    assert!(!rank.is_idle());
    assert_eq!(ncclCommAbort(rank.comm), SUCCESS);
    rank.wait();
}

/// Runs a test in a separate process, as a failed device affects its whole process.
fn alone(test: &str, words: &str, run: impl FnOnce()) {
    if role().is_some() {
        return run();
    }
    let output = start(test, "alone").wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(words), "{said}");
}

#[test]
fn sizes_that_differ_fail_the_device() {
    let _turn = turn();
    let words = "both ends must say the same";
    alone("processes::sizes_that_differ_fail_the_device", words, || {
        ranks(2, |rank| {
            let buffer = rank.buffer(&vec![0.0; 3 + rank.rank]);
            let status = if rank.rank == 0 { rank.send(buffer, 1) } else { rank.receive(buffer, 0) };
            // A device that has already failed accepts no further calls.
            assert!(status == SUCCESS || status == 1);
            rank.wait();
            until(|| state().failed.is_some());
        });
    });
}

#[test]
fn collectives_that_differ_fail_the_device() {
    let _turn = turn();
    let words = "both ends must say the same";
    alone("processes::collectives_that_differ_fail_the_device", words, || {
        ranks(2, |rank| {
            let (buffer, into) = (rank.buffer(&[0.0; 2]), rank.buffer(&[0.0; 4]));
            // SAFETY: memory of the device.
            let status = unsafe {
                match rank.rank {
                    0 => ncclAllReduce(buffer.at(), buffer.at(), 2, FLOAT, 0, rank.comm, rank.stream),
                    _ => ncclAllGather(buffer.at(), into.at(), 2, FLOAT, rank.comm, rank.stream),
                }
            };
            // A device that has already failed accepts no further calls.
            assert!(status == SUCCESS || status == 1);
            rank.wait();
            until(|| state().failed.is_some());
        });
    });
}

#[test]
fn an_abort_is_warned_of_while_another_thread_is_in_a_call() {
    let _turn = turn();
    let words = "another thread is in a call of another communicator";
    alone("processes::an_abort_is_warned_of_while_another_thread_is_in_a_call", words, || {
        let (ids, calls, ended) = ([id(), id()], AtomicBool::new(false), AtomicBool::new(false));
        // Aborting before the other end has joined would be an error of that end.
        let joined = Barrier::new(4);
        let run = |aborts: bool, own: usize| {
            let rank = Rank::join(ids[usize::from(aborts)], own, 2);
            joined.wait();
            let buffer = rank.buffer(&[1.0]);
            match (aborts, own) {
                (true, _) => {
                    until(|| calls.load(Ordering::SeqCst));
                    assert_eq!(ncclCommAbort(rank.comm), SUCCESS);
                    ended.store(true, Ordering::SeqCst);
                }
                (false, 0) => {
                    group(|| {
                        assert_eq!(rank.send(buffer, 1), SUCCESS);
                        calls.store(true, Ordering::SeqCst);
                        until(|| ended.load(Ordering::SeqCst));
                    });
                    rank.wait();
                    rank.destroy();
                }
                (false, _) => {
                    assert_eq!(rank.receive(buffer, 0), SUCCESS);
                    rank.wait();
                    rank.destroy();
                }
            }
        };
        std::thread::scope(|scope| {
            for index in 0..4 {
                let run = &run;
                scope.spawn(move || run(index / 2 == 1, index % 2));
            }
        });
    });
}
