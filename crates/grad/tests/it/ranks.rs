//! The stack on several ranks of a context axis: loss and gradients are the sums over ranks, and a step's memory and
//! messages equal the plan's, for all places and tiles.

use std::sync::Arc;
use std::time::Duration;

use fathom_cpu::Cpu;
use fathom_grad::{CpComm, Place, Places};
use fathom_tensor::mesh::{CountingLink, Grid, Mesh, Seat, ThreadsOptions, Wires, threads};
use fathom_tensor::{DType, Device, Machine, Mark, Meta};

use crate::stack::{Setup, Variant, whole};

const DOCS: [usize; 3] = [190, 51, 79];
const CP: usize = 2;

/// Loss, gradients by name, the timeline of a step, and its messages.
type Rank = (f64, Vec<(String, Vec<f64>)>, Vec<Mark>, Wires);

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
}

fn step(setup: &Setup, device: Device) -> Rank {
    let mut stack = setup.build_on(device.clone(), &|_| true);
    stack.accumulate(&whole(&DOCS), &DOCS);
    device.pool.record();
    stack.accumulate(&whole(&DOCS), &DOCS);
    let marks = device.pool.recorded();
    let outcome = stack.outcome();
    let grads = outcome.grads.iter().map(|(name, bytes)| (name.clone(), floats(bytes))).collect();
    (floats(&outcome.loss).first().copied().unwrap_or(0.0), grads, marks, device.mesh.wires())
}

fn ranks(setup: &Setup, chaos: Option<u64>) -> Vec<Rank> {
    let grid = Grid { cp: CP, ..Grid::default() };
    let options = ThreadsOptions { deadline: Duration::from_secs(600), chaos };
    std::thread::scope(|scope| {
        let rank = |seat: Seat| {
            scope.spawn(move || {
                let mesh = Mesh::new(grid, Box::new(seat.take()));
                step(setup, Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 30, mesh))
            })
        };
        let ranks: Vec<_> = threads(CP, options).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| panic!("a rank panicked"))).collect()
    })
}

fn plan(setup: &Setup, rank: usize) -> Rank {
    let machine: Arc<dyn Machine> = Arc::new(Meta::new(Cpu::new(1, None).profile().clone()));
    let mesh = Mesh::new(Grid { cp: CP, ..Grid::default() }, Box::new(CountingLink::new(rank, CP)));
    step(setup, Device::on_mesh(machine, 1 << 30, mesh))
}

fn check(setup: &Setup) {
    let at = format!("{:?}, {}, {:?}", setup.variant, setup.comm, setup.places);
    let alone = step(setup, Device::new(Arc::new(Cpu::new(1, None)), 1 << 30));
    let found = ranks(setup, None);
    let loss: f64 = found.iter().map(|rank| rank.0).sum();
    assert!((loss - alone.0).abs() <= 1e-6 * alone.0.abs(), "{at}: loss {loss}, alone {}", alone.0);
    let largest = |values: &[f64]| values.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let floor = 1e-3 * alone.1.iter().map(|(_, grad)| largest(grad)).fold(0.0, f64::max);
    for (index, (name, expected)) in alone.1.iter().enumerate() {
        let scale = largest(expected).max(floor);
        for (element, expected) in expected.iter().enumerate() {
            let sum: f64 = found.iter().map(|rank| rank.1[index].1[element]).sum();
            assert!(
                (sum - expected).abs() <= 1e-5 * scale,
                "{at}: {name}[{element}] is {sum}, alone {expected}"
            );
        }
    }
    assert!(ranks(setup, Some(11)) == found, "{at}: another run, other bits");
    for (rank, found) in found.iter().enumerate() {
        let planned = plan(setup, rank);
        assert!(found.2 == planned.2, "{at}: the timeline of rank {rank} is not the plan's");
        assert_eq!(found.3, planned.3, "{at}: wire of rank {rank}");
    }
}

#[test]
fn a_stack_over_ranks_is_the_stack() {
    let offloaded = Places::linear().offload_all(Place::Host);
    let tables = [
        Places::none(),
        Places::linear().with_tiles(Some(128)),
        Places::full(),
        offloaded.with_head_groups(2),
    ];
    for variant in Variant::ALL {
        for (places, comm) in
            tables.clone().into_iter().zip([CpComm::A2a, CpComm::P2p, CpComm::AllGather, CpComm::P2p])
        {
            check(&Setup { places, comm, ..Setup::new(variant, DType::F32) });
        }
    }
}
