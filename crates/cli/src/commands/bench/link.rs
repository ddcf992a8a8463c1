//! Cost of a message between two ranks that are threads of one process, each with half of the cores. Both send, and
//! both copy the other's message, as in every collective.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use fathom_cpu::Cpu;
use fathom_tensor::mesh::{Axis, Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{Category, DType, Device, Line};

use super::bed::Bed;

/// Message sizes in bytes for the rate and for the latency.
const SIZES: [u64; 2] = [64 << 20, 4 << 10];
/// Messages of each size per repeat.
const MESSAGES: [usize; 2] = [4, 200];

/// Measures the line between two ranks; the best repeat counts.
pub(super) fn measure(bed: &Bed, repeat: usize) -> Result<Line> {
    let own = bed.device.machine.profile();
    let (cores, isa, budget) = ((own.threads / 2).max(1), bed.cpu.isa(), bed.device.pool.budget());
    let rank = move |seat: Seat| {
        let grid = Grid { tp: 2, ..Grid::default() };
        let mesh = Mesh::new(grid, Box::new(seat.take()));
        let device = Device::on_mesh(Arc::new(Cpu::new(cores, Some(isa))), budget, mesh);
        let mut best = [f64::INFINITY; 2];
        for _ in 0..repeat.max(1) {
            for at in 0..2 {
                best[at] = best[at].min(seconds(&device, SIZES[at], MESSAGES[at]));
            }
        }
        best
    };
    let mut seats = threads(2, ThreadsOptions::default()).into_iter();
    let (Some(first), Some(second)) = (seats.next(), seats.next()) else { bail!("a link without ends") };
    let best = std::thread::scope(|scope| {
        let other = scope.spawn(move || rank(second));
        let best = rank(first);
        other.join().map(|_| best)
    });
    let [large_s, small_s] = best.map_err(|_| anyhow!("a rank of the link panicked"))?;
    let bytes_per_s = (SIZES[0] as f64 / (large_s - small_s).max(f64::MIN_POSITIVE)).round();
    Ok(Line { bytes_per_s, latency_s: small_s })
}

/// Seconds per message of this size in each direction.
fn seconds(device: &Device, bytes: u64, messages: usize) -> f64 {
    let group = device.mesh.group(&[Axis::Tp]);
    let other = 1 - group.index();
    let [mine, theirs] =
        [(); 2].map(|()| device.zeros(1024, bytes as usize / 1024, DType::U8, Category::Comm));
    let once = || group.exchange(device, "bench", &[(other, &mine)], &[(other, &theirs)]).wait();
    once();
    let started = Instant::now();
    (0..messages).for_each(|_| once());
    started.elapsed().as_secs_f64() / messages as f64
}
