//! Ranks as threads: every collective on every axis, the same bits under an adversary, and reporting of failures.

use std::sync::Arc;
use std::time::Duration;

use fathom_cpu::Cpu;
use fathom_tensor::mesh::{Axis, Grid, LinkError, Mesh, ThreadsOptions, conformance, threads};
use fathom_tensor::{Category, DType, Device};

/// Runs `body` on every rank and returns the results by rank.
fn world<T: Send>(grid: Grid, options: ThreadsOptions, body: impl Fn(&Device) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let rank = |seat: fathom_tensor::mesh::Seat| {
            let body = &body;
            scope.spawn(move || {
                let mesh = Mesh::new(grid, Box::new(seat.take()));
                body(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 28, mesh))
            })
        };
        let ranks: Vec<_> = threads(grid.ranks(), options).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn every_collective_conforms() {
    let grids = [
        Grid::default(),
        Grid { tp: 2, ..Grid::default() },
        Grid { cp: 3, ..Grid::default() },
        Grid { tp: 2, cp: 2, dp: 2, ep: 4, ..Grid::default() },
        Grid { tp: 2, pp: 2, cp: 2, etp: 2, ..Grid::default() },
    ];
    for grid in grids {
        for chaos in [None, Some(7)] {
            let options = ThreadsOptions { chaos, ..ThreadsOptions::default() };
            let sent = world(grid, options, |device| {
                conformance::check(device);
                assert_eq!(device.pool.usage().by_category[Category::Comm], 0);
                let wires: u64 = device.mesh.wires().values().map(|wire| wire.bytes).sum();
                assert_eq!(wires, device.mesh.traffic().sent_bytes);
                device.mesh.traffic()
            });
            let out: u64 = sent.iter().map(|traffic| traffic.sent_bytes).sum();
            let into: u64 = sent.iter().map(|traffic| traffic.received_bytes).sum();
            assert_eq!(out, into);
        }
    }
}

#[test]
fn sums_round_once_and_are_the_same_everywhere() {
    let grid = Grid { dp: 4, ..Grid::default() };
    for len in [100, 10_000] {
        let bits = |chaos| {
            world(grid, ThreadsOptions { chaos, ..ThreadsOptions::default() }, |device| {
                let rank = device.mesh.rank();
                let values: Vec<f32> =
                    (0..len).map(|at| ((at + 1) as f32).sqrt() * 1.37f32.powi(rank as i32)).collect();
                let wide = device.from_f32(1, len, &values, Category::Data);
                let x = device.empty(1, len, DType::Bf16, Category::Data);
                device.machine.copy(&wide, &x);
                device.mesh.group(&[Axis::Dp]).all_reduce(device, &x);
                device.machine.read(&x).wait()
            })
        };
        let calm = bits(None);
        assert!(calm.iter().all(|rank| *rank == calm[0]));
        assert_eq!(calm, bits(Some(3)));
    }
}

#[test]
fn a_rank_that_is_gone_is_named_in_time() {
    let grid = Grid { tp: 3, ..Grid::default() };
    let options = ThreadsOptions { deadline: Duration::from_millis(200), chaos: None };
    let failures = world(grid, options, |device| {
        if device.mesh.rank() == 2 {
            return None;
        }
        device.pool.enter("test", 5);
        let x = device.zeros(1, 9, DType::F32, Category::Data);
        device.mesh.group(&[Axis::Tp]).all_reduce(device, &x);
        device.mesh.check().err()
    });
    for failure in &failures[..2] {
        let Some(LinkError::Missing { what, missing, .. }) = failure else { panic!("{failure:?}") };
        assert_eq!(what, "all_reduce of 9 F32 in test of layer 5");
        assert!(missing.iter().any(|absent| absent.rank == 2), "{missing:?}");
    }
}

#[test]
fn ranks_that_went_apart_are_reported() {
    let grid = Grid { dp: 2, ..Grid::default() };
    let failures = world(grid, ThreadsOptions::default(), |device| {
        let len = 9 + device.mesh.rank();
        let x = device.zeros(1, len, DType::F32, Category::Data);
        device.mesh.group(&[Axis::Dp]).all_reduce(device, &x);
        device.mesh.check().unwrap_err()
    });
    assert_eq!(failures[0], failures[1]);
    let text = failures[0].to_string();
    assert!(text.contains("all_reduce of 9 F32") && text.contains("all_reduce of 10 F32"), "{text}");
}

#[test]
fn an_abort_wakes_everybody() {
    let grid = Grid { pp: 2, ..Grid::default() };
    let failures = world(grid, ThreadsOptions::default(), |device| {
        match (device.mesh.rank(), device.mesh.link()) {
            (0, Some(link)) => link.abort("the disk is full"),
            _ => {
                let x = device.zeros(1, 9, DType::F32, Category::Data);
                device.mesh.group(&[Axis::Pp]).broadcast(device, 0, &x);
            }
        }
        device.mesh.check().unwrap_err().to_string()
    });
    assert!(failures.iter().all(|text| text == "rank 0 ended the run: the disk is full"), "{failures:?}");
}

/// After a failure, ranks that meet continue as if nothing had happened; if one is missing, none does.
#[test]
fn ranks_restart_together() {
    let grid = Grid { dp: 3, ..Grid::default() };
    let all_have_seen = std::sync::Barrier::new(3);
    let seen = world(grid, ThreadsOptions::default(), |device| {
        let (rank, everybody) = (device.mesh.rank(), device.mesh.everybody());
        let sum = || {
            let x = device.from_f32(1, 1, &[rank as f32 + 1.0], Category::Data);
            everybody.all_reduce(device, &x);
            (device.mesh.check().is_ok(), device.to_f32(&x)[0])
        };
        let mut sums = vec![sum()];
        for round in 0..3 {
            all_have_seen.wait();
            let link = device.mesh.link().unwrap();
            if rank == round {
                link.abort("a test");
            }
            // Transfers in flight end with meaningless data.
            let failed = sum().0;
            assert!(!failed || rank != round);
            while device.mesh.check().is_ok() {
                std::thread::yield_now();
            }
            link.rejoin().unwrap();
            sums.push(sum());
        }
        sums
    });
    assert!(seen.iter().all(|sums| sums == &[(true, 6.0); 4]), "{seen:?}");
    let left = world(grid, ThreadsOptions::default(), |device| {
        let link = device.mesh.link().unwrap();
        if device.mesh.rank() == 1 {
            link.abort("it leaves");
            return String::new();
        }
        link.rejoin().unwrap_err().to_string()
    });
    assert_eq!(left[0], "rank 1 ended the run: it leaves");
    assert_eq!(left[2], left[0]);
}
