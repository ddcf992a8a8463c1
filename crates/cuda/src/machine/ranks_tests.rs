//! Ranks that share the simulated device: every collective, with work executed as late as possible.

use std::sync::Arc;
use std::time::Duration;

use fathom_tensor::mesh::{Axis, Grid, Mesh, ThreadsOptions, conformance, threads};
use fathom_tensor::{Category, Device, gpu};

use super::Cuda;
use super::build::MachineLibraries;
use crate::driver::fake::Fake;
use crate::programs::tests::Writer;

const BUDGET: u64 = 32 << 20;

/// Runs a program on every rank of a mesh, each with its own streams and memory of one device.
fn on_one_device(grid: Grid, chaos: Option<u64>, program: fn(&Device)) -> Arc<Fake> {
    let fake = Arc::new(Fake::new(1 << 30));
    let options = ThreadsOptions { deadline: Duration::from_secs(60), chaos };
    std::thread::scope(|scope| {
        for seat in threads(grid.ranks(), options) {
            let fake = fake.clone();
            scope.spawn(move || {
                let compiler = Box::new(Writer(Arc::default(), "1"));
                let sheet = gpu::named("h200").unwrap();
                let cuda = Arc::new(Cuda::with(fake, sheet, compiler, MachineLibraries::default()).unwrap());
                let device = Device::on_mesh(cuda, BUDGET, Mesh::new(grid, Box::new(seat.take())));
                program(&device);
            });
        }
    });
    fake
}

#[test]
fn ranks_of_one_device_exchange_rightly_and_without_the_host() {
    let grids = [
        Grid { tp: 2, ..Grid::default() },
        Grid { tp: 3, pp: 2, ..Grid::default() },
        Grid { cp: 2, dp: 2, ep: 2, ..Grid::default() },
    ];
    for grid in grids {
        for chaos in [None, Some(7)] {
            let fake = on_one_device(grid, chaos, conformance::check);
            assert!(fake.is_clean() && fake.used() == 0, "{grid}");
        }
    }
}

/// A receiver gets the values at the time of sending, even if the sender overwrites them at once and no rank has
/// computed yet.
#[test]
fn a_sender_writes_again_after_the_copy_and_a_receiver_gets_what_was_sent() {
    on_one_device(Grid { tp: 2, ..Grid::default() }, None, |device| {
        let group = device.mesh.group(&[Axis::Tp]);
        let other = 1 - group.index();
        let mine = device.from_f32(3, 5, &[group.index() as f32 + 1.0; 15], Category::Data);
        let wide = device.zeros(3, 9, fathom_tensor::DType::F32, Category::Data);
        device.machine.copy(&mine, &wide.view_cols(2..7));
        let theirs = device.zeros(3, 5, fathom_tensor::DType::F32, Category::Data);
        let sent = wide.view_cols(2..7);
        for round in 0..50 {
            group.exchange(device, "shift", &[(other, &sent)], &[(other, &theirs)]).wait();
            device.machine.add(&sent, &mine, &sent);
            let expected = (other as f32 + 1.0) * (round + 1) as f32;
            let found = device.to_f32(&theirs);
            assert!(found.iter().all(|x| *x == expected), "round {round}: {found:?}, not {expected}");
        }
    });
}
