//! Conformance test of links, and failures of this one: run by `mpirun` on several ranks, as in `.ci/mpi`.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use fathom_cpu::Cpu;
use fathom_mpi::Mpi;
use fathom_tensor::mesh::{Axis, Grid, Link, Mesh, ThreadsOptions, conformance, threads};
use fathom_tensor::{Category, DType, Device};

/// Logs the link's reports like the binary.
struct Reports;

impl log::Log for Reports {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        eprintln!("{}", record.args());
    }

    fn flush(&self) {}
}

fn main() {
    log::set_logger(&Reports).unwrap();
    log::set_max_level(log::LevelFilter::Error);
    let case = std::env::args().nth(1).unwrap_or_else(|| "conforms".into());
    let deadline = if case == "gone" { Duration::from_millis(300) } else { Duration::from_secs(120) };
    let mpi = Mpi::start(deadline).unwrap();
    match case.as_str() {
        "conforms" => conforms(&mpi),
        "gone" => gone(&mpi),
        "apart" => apart(&mpi),
        "abort" => abort(&mpi),
        "panic" => unwinds(&mpi),
        other => panic!("no case {other}"),
    }
    mpi.tell(0);
    if mpi.rank() == 0 {
        println!("{case}: {} ranks", mpi.ranks());
    }
}

fn device(grid: Grid, link: Box<dyn Link>) -> Device {
    Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 29, Mesh::new(grid, link))
}

fn conforms(mpi: &Mpi) {
    let n = mpi.ranks();
    let one = Grid::default();
    let mut grids = vec![
        Grid { tp: n, ..one },
        Grid { cp: n, ..one },
        Grid { dp: n, ep: n, ..one },
        Grid { pp: n, ..one },
    ];
    if n == 4 {
        grids.extend([Grid { tp: 2, cp: 2, etp: 2, ..one }, Grid { pp: 2, dp: 2, ep: 2, ..one }]);
    }
    for grid in grids {
        let device = device(grid, mpi.link());
        let before = device.mesh.traffic();
        conformance::check(&device);
        let wires: u64 = device.mesh.wires().values().map(|wire| wire.bytes).sum();
        let after = device.mesh.traffic();
        assert_eq!(wires, after.sent_bytes - before.sent_bytes, "{grid}");
        let all = |bytes: u64| mpi.gather(bytes).iter().sum::<u64>();
        assert_eq!(all(after.sent_bytes), all(after.received_bytes), "{grid}");
        assert_eq!(device.pool.usage().by_category[Category::Comm], 0);
    }
    same_bits_as_threads(mpi);
    large(mpi);
    assert_eq!(mpi.tell(mpi.rank() as u64 + 7), 7);
    assert_eq!(mpi.gather(mpi.rank() as u64), (0..n as u64).collect::<Vec<_>>());
}

/// A sum that depends on its order, in bf16.
fn sum(device: &Device, len: usize) -> Vec<u8> {
    let rank = device.mesh.rank();
    let values: Vec<f32> = (0..len).map(|at| ((at + 1) as f32).sqrt() * 1.37f32.powi(rank as i32)).collect();
    let wide = device.from_f32(1, len, &values, Category::Data);
    let x = device.empty(1, len, DType::Bf16, Category::Data);
    device.machine.copy(&wide, &x);
    device.mesh.group(&[Axis::Dp]).all_reduce(device, &x);
    device.machine.read(&x).wait()
}

fn same_bits_as_threads(mpi: &Mpi) {
    let grid = Grid { dp: mpi.ranks(), ..Grid::default() };
    for len in [100, 10_000] {
        let ours = sum(&device(grid, mpi.link()), len);
        let theirs: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let rank = |seat: fathom_tensor::mesh::Seat| {
                scope.spawn(move || sum(&device(grid, Box::new(seat.take())), len))
            };
            let ranks: Vec<_> =
                threads(grid.ranks(), ThreadsOptions::default()).into_iter().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(ours == theirs[mpi.rank()], "a sum of {len} differs from that of threads");
    }
}

/// A tensor larger than one message, from columns of a wider tensor.
fn large(mpi: &Mpi) {
    let (n, rank) = (mpi.ranks(), mpi.rank());
    let device = device(Grid { cp: n, ..Grid::default() }, mpi.link());
    let (rows, cols) = (5000, 1000);
    let values = |rank: usize| move |at: usize| (at % 1013) as f32 + rank as f32;
    let wide: Vec<f32> = (0..rows * 2 * cols).map(values(rank)).collect();
    let wide = device.from_f32(rows, 2 * cols, &wide, Category::Data);
    let mine = wide.view_cols(cols..2 * cols);
    let theirs = device.zeros(rows, cols, DType::F32, Category::Data);
    let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
    let group = device.mesh.group(&[Axis::Cp]);
    if n > 1 {
        group.exchange(&device, "large", &[(next, &mine)], &[(last, &theirs)]).wait();
        let expected = values(last);
        let found = device.to_f32(&theirs);
        assert!((0..rows * cols).all(|at| found[at] == expected(at / cols * 2 * cols + cols + at % cols)));
    }
}

/// The last rank does not take part.
fn gone(mpi: &Mpi) {
    if mpi.rank() + 1 == mpi.ranks() {
        sleep(Duration::from_secs(600));
    }
    let device = device(Grid { tp: mpi.ranks(), ..Grid::default() }, mpi.link());
    device.pool.enter("test", 5);
    let x = device.zeros(1, 9, DType::F32, Category::Data);
    device.mesh.group(&[Axis::Tp]).all_reduce(&device, &x);
}

/// Ranks whose programs differ.
fn apart(mpi: &Mpi) {
    let device = device(Grid { dp: mpi.ranks(), ..Grid::default() }, mpi.link());
    let x = device.zeros(1, 9 + mpi.rank(), DType::F32, Category::Data);
    device.mesh.group(&[Axis::Dp]).all_reduce(&device, &x);
}

fn abort(mpi: &Mpi) {
    let device = device(Grid { pp: mpi.ranks(), ..Grid::default() }, mpi.link());
    if mpi.rank() == 1 {
        mpi.link().abort("the disk is full");
    }
    let x = device.zeros(1, 9, DType::F32, Category::Data);
    device.mesh.group(&[Axis::Pp]).broadcast(&device, 1, &x);
}

/// A panic with transfers in flight.
fn unwinds(mpi: &Mpi) {
    let device = device(Grid { pp: mpi.ranks(), ..Grid::default() }, mpi.link());
    let x = device.zeros(5000, 1000, DType::F32, Category::Data);
    let group = device.mesh.group(&[Axis::Pp]);
    let flying = group.exchange(&device, "test", &[((mpi.rank() + 1) % mpi.ranks(), &x)], &[]);
    let unwinding = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _flying = flying;
        panic!("somewhere in a step");
    }));
    assert!(unwinding.is_err());
    if mpi.rank() == 0 {
        mpi.abort("it panicked; its message is above");
    }
    sleep(Duration::from_secs(600));
}
