//! The link over lines of the simulated device, and control messages over real sockets.
#![allow(unsafe_code)]

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fathom_tensor::mesh::{Axis, Grid, LinkError, Mesh, conformance};
use fathom_tensor::{Category, DType, Device, gpu};

use super::line::{Carrier, PIECE_BYTES};
use super::watch::{Connect, WatchState};
use super::world::{crowded, ctas, rounds};
use super::*;
use crate::driver::fake::Fake;
use crate::driver::{Rows, Stream};
use crate::machine::MachineLibraries;
use crate::programs::tests::Writer;
use crate::{Cuda, Result};

/// A direction on the simulated device.
struct FakeLine {
    fake: Arc<Fake>,
    line: u64,
    asked: AtomicUsize,
    cut: AtomicBool,
}

// SAFETY: the simulated device moves exactly the requested bytes.
unsafe impl Carrier for FakeLine {
    unsafe fn send(&self, from: u64, bytes: usize, stream: Stream) -> Result<()> {
        self.fake.give(self.line, Rows::flat(from, bytes), stream);
        Ok(())
    }
    unsafe fn receive(&self, into: u64, bytes: usize, stream: Stream) -> Result<()> {
        // A real device would wait; this one works only when results are requested.
        let (number, started) = (self.asked.fetch_add(1, Ordering::Relaxed), Instant::now());
        while self.fake.given(self.line) <= number && !self.cut.load(Ordering::Relaxed) {
            assert!(started.elapsed() < Duration::from_secs(60), "no rank sends");
            std::thread::yield_now();
        }
        self.fake.get(self.line, Rows::flat(into, bytes), stream);
        Ok(())
    }
}

struct OverFake {
    fake: Arc<Fake>,
    made: Mutex<Vec<Arc<FakeLine>>>,
    /// True if work in flight never ends.
    hangs: bool,
}

impl Connect for OverFake {
    fn connect(&self, shared: &WatchState, other: usize, sends: bool) -> Result<Arc<dyn Carrier>> {
        let (from, to) = if sends { (shared.rank, other) } else { (other, shared.rank) };
        let (fake, line) = (self.fake.clone(), (from * 100 + to) as u64);
        let line = FakeLine { fake, line, asked: AtomicUsize::new(0), cut: AtomicBool::new(false) };
        let line = Arc::new(line);
        self.made.lock().unwrap().push(line.clone());
        Ok(line)
    }

    fn failure(&self, _: Duration) -> Option<String> {
        None
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self) {
        for line in self.made.lock().unwrap().iter() {
            line.cut.store(true, Ordering::Relaxed);
            self.fake.cut(line.line);
        }
        if self.hangs {
            loop {
                std::thread::park();
            }
        }
    }
}

/// Set if work in flight should never end.
const HANGS: &str = "FATHOM_TEST_HANGS";

/// An address without a listener.
fn place() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("127.0.0.1:{}", listener.local_addr().unwrap().port())
}

/// Runs a program on every rank, each a thread with its own streams and memory.
fn world(grid: Grid, deadline: Duration, program: impl Fn(&Device) + Sync) -> Arc<Fake> {
    let (fake, at) = (Arc::new(Fake::new(1 << 30)), place());
    std::thread::scope(|scope| {
        for rank in 0..grid.ranks() {
            let (fake, at, program) = (fake.clone(), &at, &program);
            scope.spawn(move || {
                let compiler = Box::new(Writer(Arc::default(), "1"));
                let sheet = gpu::named("h200").unwrap();
                let cuda =
                    Arc::new(Cuda::with(fake.clone(), sheet, compiler, MachineLibraries::default()).unwrap());
                let world = World::meet(at, [rank, grid.ranks()], deadline).unwrap();
                assert_eq!(
                    world.gather(rank as u64 + 5).unwrap(),
                    (5..5 + grid.ranks() as u64).collect::<Vec<_>>()
                );
                assert_eq!(world.tell(rank as u64 + 9).unwrap(), 9);
                let by =
                    Arc::new(OverFake { fake, made: Mutex::default(), hangs: std::env::var(HANGS).is_ok() });
                let link = world.link_by(cuda.streams(), by).unwrap();
                let device = Device::on_mesh(cuda.clone(), 64 << 20, Mesh::new(grid, link));
                program(&device);
                // No rank leaves before all have received what was sent; after a failure there is nothing to wait for.
                cuda.synchronise().unwrap();
                let _ = world.gather(0);
            });
        }
    });
    fake
}

const SOON: Duration = Duration::from_secs(60);

#[test]
fn every_collective_conforms() {
    let grids = [
        Grid::default(),
        Grid { tp: 2, ..Grid::default() },
        Grid { tp: 3, pp: 2, ..Grid::default() },
        Grid { cp: 2, dp: 2, ep: 2, ..Grid::default() },
    ];
    for grid in grids {
        let fake = world(grid, SOON, |device| {
            conformance::check(device);
            let wires: u64 = device.mesh.wires().values().map(|wire| wire.bytes).sum();
            assert_eq!(wires, device.mesh.traffic().sent_bytes);
        });
        assert!(fake.is_clean() && fake.used() == 0, "{grid}");
    }
}

#[test]
fn long_messages_with_gaps_go_in_pieces() {
    world(Grid { tp: 2, ..Grid::default() }, SOON, |device| {
        let group = device.mesh.group(&[Axis::Tp]);
        let (rows, cols) = (5, PIECE_BYTES / 4 / 4 + 3);
        let wide = device.zeros(rows, cols + 2, DType::F32, Category::Data);
        let numbers: Vec<f32> = (0..rows * cols).map(|at| (at % 8191 + group.index()) as f32).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mine = wide.view_cols(1..cols + 1);
        device.machine.write(&mine, &bytes);
        let theirs = device.zeros(rows, cols, DType::F32, Category::Data);
        let other = 1 - group.index();
        group.exchange(device, "shift", &[(other, &mine)], &[(other, &theirs)]).wait();
        let found = device.to_f32(&theirs);
        let right = found.iter().enumerate().all(|(at, x)| *x == (at % 8191 + other) as f32);
        assert!(right);
    });
}

#[test]
fn programs_that_differ_are_reported() {
    world(Grid { tp: 2, ..Grid::default() }, SOON, |device| {
        let group = device.mesh.group(&[Axis::Tp]);
        let other = 1 - group.index();
        let len = 4 + group.index();
        let mine = device.zeros(1, len, DType::F32, Category::Data);
        let theirs = device.zeros(1, len, DType::F32, Category::Data);
        group.exchange(device, "shift", &[(other, &mine)], &[(other, &theirs)]).wait();
        let started = Instant::now();
        let error = loop {
            match device.mesh.check() {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(started.elapsed() < SOON),
            }
        };
        assert!(error.contains("their programs differ"), "{error}");
    });
}

#[test]
fn a_rank_that_ends_the_run_ends_the_waits_of_others() {
    world(Grid { tp: 3, ..Grid::default() }, SOON, |device| {
        let group = device.mesh.group(&[Axis::Tp]);
        if group.index() == 2 {
            device.mesh.link().unwrap().abort("no more");
            return;
        }
        let theirs = device.zeros(1, 4, DType::F32, Category::Data);
        group.exchange(device, "shift", &[], &[(2, &theirs)]).wait();
        let error = device.mesh.check().unwrap_err();
        assert!(matches!(&error, LinkError::Aborted { rank, .. } if *rank != group.index()), "{error}");
        assert!(error.to_string().contains("no more"), "{error}");
    });
}

#[test]
fn who_does_not_come_is_said() {
    let error = World::meet(&place(), [0, 2], Duration::from_millis(50)).err().unwrap().to_string();
    assert!(error.contains("1 of 2 ranks came"), "{error}");
    let error = World::meet("nowhere", [0, 2], Duration::from_millis(50)).err().unwrap().to_string();
    assert!(error.contains("host:port"), "{error}");
}

#[test]
fn a_message_that_no_rank_sends_is_late() {
    world(Grid { tp: 2, ..Grid::default() }, Duration::from_secs(2), |device| {
        let group = device.mesh.group(&[Axis::Tp]);
        let link = device.mesh.link().unwrap();
        if group.index() == 0 {
            let theirs = device.zeros(1, 4, DType::F32, Category::Data);
            group.exchange(device, "shift", &[], &[(1, &theirs)]).wait();
            assert!(
                matches!(link.check(), Err(LinkError::TimedOut { rank: 0, peer: 1, .. })),
                "{:?}",
                link.check()
            );
        } else {
            let started = Instant::now();
            while link.check().is_ok() {
                assert!(started.elapsed() < SOON);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}

#[test]
fn every_rank_meets_each_other_once_and_at_the_same_time() {
    for ranks in 1..=64 {
        let all: Vec<Vec<usize>> = (0..ranks).map(|rank| rounds(rank, ranks).collect()).collect();
        for (rank, met) in all.iter().enumerate() {
            let others: std::collections::BTreeSet<_> = met.iter().copied().collect();
            assert!(others.len() == ranks - 1 && met.len() == ranks - 1 && !others.contains(&rank));
        }
        // Meetings take place in order, each as soon as both ranks are free: no more rounds than an odd number of ranks
        // needs.
        let (mut next, mut took) = (vec![0; ranks], 0);
        while (0..ranks).any(|rank| next[rank] < all[rank].len()) {
            let wants = |rank: usize| all[rank].get(next[rank]).copied();
            let meets = |rank: &usize| wants(*rank).is_some_and(|other| wants(other) == Some(*rank));
            let now: Vec<usize> = (0..ranks).filter(meets).collect();
            assert!(!now.is_empty(), "{ranks} ranks wait for each other");
            now.into_iter().for_each(|rank| next[rank] += 1);
            took += 1;
        }
        assert!(took <= ranks.next_multiple_of(2), "{ranks}: {took}");
    }
}

#[test]
fn messages_take_no_more_of_the_device_than_they_may() {
    let all = |ranks: usize| 2 * (ranks as i32 - 1) * ctas(ranks);
    assert_eq!([1, 2, 4, 6, 8, 16, 64].map(ctas), [8, 8, 8, 4, 4, 2, 1]);
    assert!((2..=33).all(|ranks| all(ranks) <= 64) && all(64) == 126);
}

#[test]
fn streams_that_share_queues_are_reported() {
    assert_eq!(crowded(3, None), None);
    assert!(crowded(4, None).unwrap().contains("CUDA_DEVICE_MAX_CONNECTIONS=10 "));
    assert_eq!(crowded(4, Some(10)), None);
    assert!(crowded(64, Some(31)).unwrap().contains("=32 "));
    assert_eq!(crowded(64, Some(32)), None);
}

/// Prints the crate's log.
struct LogPrinter;

impl log::Log for LogPrinter {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        eprintln!("{}", record.args());
    }

    fn flush(&self) {}
}

#[test]
fn a_process_whose_work_does_not_end_ends_itself() {
    if std::env::var(HANGS).is_ok() {
        log::set_logger(&LogPrinter).unwrap();
        log::set_max_level(log::LevelFilter::Error);
        world(Grid { tp: 2, ..Grid::default() }, Duration::from_secs(3), |device| {
            device.mesh.link().unwrap().abort("no more");
        });
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "nccl::tests::a_process_whose_work_does_not_end_ends_itself", "--nocapture"]);
    let output = command.env(HANGS, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no more; NCCL does not end its work on rank"), "{said}");
    assert!(!output.status.success());
}

#[test]
fn one_thread_at_a_time_calls_nccl_and_who_aborts_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    fathom_rehearsal::install(folder.path()).unwrap();
    let nccl = Nccl::open(&folder.path().join("libnccl.so.2")).unwrap();
    let fake = Fake::new(1 << 20);
    assert_eq!(nccl.failure(Duration::ZERO), None);
    let turn = nccl.turn();
    std::thread::scope(|scope| {
        let aborts = scope.spawn(|| nccl.abort(&fake));
        while !nccl.is_aborting() {
            std::thread::yield_now();
        }
        assert_eq!(nccl.failure(SOON), None);
        assert!(nccl.failure(Duration::ZERO).unwrap().contains("has not come back"));
        assert!(!aborts.is_finished());
        drop(turn);
        aborts.join().unwrap();
    });
    assert!(!nccl.is_aborting() && nccl.failure(Duration::ZERO).is_none());
}
