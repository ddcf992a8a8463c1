//! Ranks in separate processes over the simulated NCCL: one of them is killed or stopped, and the others must end with
//! a reason, within the deadline. The test program starts itself.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fathom_cuda::Cuda;
use fathom_cuda::libs::{Library, Search, probe};
use fathom_cuda::nccl::{Nccl, World};
use fathom_tensor::mesh::{Axis, Grid, Mesh};
use fathom_tensor::{Category, DType, Device};
use tempfile::NamedTempFile;

/// Role of a process: the address, its rank, the number of ranks, and the scenario.
const ROLE: &str = "FATHOM_TEST_RANK";
const RANKS: usize = 3;
/// The rank that is lost.
const LOST: usize = 1;
/// Deadline of waits that are meant to expire.
const SHORT: Duration = Duration::from_secs(4);
/// Deadline of waits that end because a rank is gone, however busy the machine.
const LONG: Duration = Duration::from_secs(30);
/// Extra time for processes that share a few cores.
const SLACK: Duration = Duration::from_secs(20);

/// When the rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before it has met the others.
    Start,
    /// This many milliseconds after meeting them.
    Connecting(u64),
    /// Between messages.
    Middle,
    /// While the others wait only for completion of what they sent it.
    End,
    /// While the others are only waiting to leave together.
    Leaving,
}

/// A moment, and what the other ranks report.
struct Case {
    moment: Moment,
    signal: &'static str,
    says: &'static [&'static str],
    schedule: &'static str,
}

impl Case {
    fn deadline(&self) -> Duration {
        if self.moment == Moment::Start || self.signal == "-STOP" { SHORT } else { LONG }
    }
}

/// One process.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    errors: NamedTempFile,
}

impl Process {
    /// Reads lines until one begins with `word`; returns its rest.
    fn until(&mut self, word: &str) -> Option<String> {
        self.lines.find_map(|line| line.unwrap().strip_prefix(word).map(str::to_string))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(case: &Case) -> Vec<Process> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let libraries = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fathom_rehearsal::install(libraries.path()).unwrap();
    let one = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "ranks::a_rank_that_goes_ends_the_run_of_all", "--nocapture"]);
        command.env(ROLE, format!("{at} {rank} {RANKS} {:?} {}", case.moment, case.deadline().as_secs()));
        command.env("FATHOM_CUDA_LIBS", libraries.path()).env("FATHOM_CACHE", libraries.path());
        command.env("FATHOM_REHEARSAL_DEVICES", RANKS.to_string());
        command.env("FATHOM_REHEARSAL_SCHEDULE", case.schedule);
        let errors = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.reopen().unwrap());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, lines, errors }
    };
    let mut processes: Vec<Process> = (0..RANKS).map(one).collect();
    // Libraries are open once this is printed, and need no folder any more. Waits begin when all processes are there.
    processes.iter_mut().for_each(|process| assert!(process.until("started").is_some()));
    for process in &mut processes {
        process.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    processes
}

/// A rank's program; returns the reason for which it ended.
fn work(at: &str, [rank, ranks]: [usize; 2], moment: &str, deadline: Duration) -> String {
    let found = probe(&Search::from_environment(), true);
    let cuda = Arc::new(Cuda::open(&found, rank).unwrap());
    let library = found.libraries.iter().find(|found| found.library == Library::Nccl).unwrap();
    let nccl = Arc::new(Nccl::open(library.path.as_ref().unwrap()).unwrap());
    println!("\nstarted");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    if moment == "Start" && rank == LOST {
        std::thread::park();
    }
    let world = match World::meet(at, [rank, ranks], deadline) {
        Ok(world) => world,
        Err(error) => return error.to_string(),
    };
    println!("met");
    let link = match world.link(&cuda, &nccl) {
        Ok(link) => link,
        Err(error) => return error.to_string(),
    };
    println!("linked");
    let grid = Grid { tp: ranks, ..Grid::default() };
    let device = Device::on_mesh(cuda, 64 << 20, Mesh::new(grid, link));
    let group = device.mesh.group(&[Axis::Tp]);
    let empty = || device.zeros(1, 1 << 16, DType::F32, Category::Data);
    if moment == "End" || moment == "Leaving" {
        if rank == LOST {
            std::thread::park();
        }
        if moment == "End" {
            drop(group.exchange(&device, "last", &[(LOST, &empty())], &[]));
        }
        println!("sent");
        drop((group, device));
        return world.gather(0).unwrap_err().to_string();
    }
    let [next, last] = [1, ranks - 1].map(|step| (rank + step) % ranks);
    let (mine, theirs) = (empty(), empty());
    loop {
        group.exchange(&device, "shift", &[(next, &mine)], &[(last, &theirs)]).wait();
        println!("round");
        if let Err(error) = device.mesh.check() {
            return error.to_string();
        }
    }
}

fn check(case: &Case) {
    let mut processes = start(case);
    let [first, lost, last] = &mut processes[..] else { unreachable!() };
    match case.moment {
        Moment::Start => {}
        Moment::Connecting(ms) => {
            assert!(lost.until("met").is_some());
            std::thread::sleep(Duration::from_millis(ms));
        }
        Moment::Middle => (0..20).for_each(|_| assert!(lost.until("round").is_some())),
        Moment::End | Moment::Leaving => {
            assert!([first, last].map(|process| process.until("sent")).iter().all(Option::is_some));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let (started, number) = (Instant::now(), processes[LOST].child.id().to_string());
    assert!(Command::new("kill").args([case.signal, &number]).status().unwrap().success());
    for rank in (0..RANKS).filter(|rank| *rank != LOST) {
        let said = processes[rank].until("ended: ");
        let status = processes[rank].child.wait().unwrap();
        let (took, moment) = (started.elapsed(), case.moment);
        let said = said.unwrap_or_else(|| panic!("rank {rank}, {moment:?}: {status}"));
        let errors = std::fs::read_to_string(processes[rank].errors.path()).unwrap();
        let wrong = errors.lines().find(|line| !KNOWN.iter().any(|known| line.contains(known)));
        assert!(wrong.is_none(), "rank {rank}, {moment:?}: {wrong:?}");
        println!("rank {rank}, {moment:?} {} after {took:.1?}: {said}", case.schedule);
        assert!(case.says.iter().any(|word| said.contains(word)), "rank {rank}, {moment:?}: {said}");
        assert!(
            status.success() && took < case.deadline() + SLACK,
            "rank {rank}, {moment:?}: {status}, {took:?}"
        );
    }
}

/// Text allowed on standard error: nothing about a call that NCCL does not allow.
const KNOWN: &[&str] = &["is gone", "os error", "has failed (Remote)", "operations of two communicators"];
const GONE: &[&str] = &["it is gone;"];
const LATE: &[&str] = &["ranks came", "a later rank did not come", "not all of"];

#[test]
fn a_rank_that_goes_ends_the_run_of_all() {
    if let Ok(role) = std::env::var(ROLE) {
        let words: Vec<&str> = role.split(' ').collect();
        let numbers = [1, 2].map(|index: usize| words[index].parse().unwrap());
        let deadline = Duration::from_secs(words[4].parse().unwrap());
        println!("ended: {}", work(words[0], numbers, words[3], deadline));
        return;
    }
    let killed = |moment, says, schedule| Case { moment, signal: "-KILL", says, schedule };
    let cases = [
        killed(Moment::Start, LATE, "late"),
        killed(Moment::Connecting(0), GONE, "late"),
        killed(Moment::Connecting(10), GONE, "early"),
        killed(Moment::Connecting(30), GONE, "3"),
        killed(Moment::Middle, GONE, "late"),
        killed(Moment::Middle, GONE, "early"),
        killed(Moment::End, GONE, "early"),
        killed(Moment::Leaving, GONE, "late"),
        Case { moment: Moment::Middle, signal: "-STOP", says: &["waited "], schedule: "late" },
    ];
    cases.iter().for_each(check);
}
