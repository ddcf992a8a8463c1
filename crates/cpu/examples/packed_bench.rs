//! Times packing and unpacking of weights: gigabytes of elements per second, the best of several runs, for each
//! instruction set.
//!
//!     cargo run --release -p fathom-cpu --example packed_bench

use std::sync::Arc;
use std::time::Instant;

use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_tensor::{BlockFormat, Category, DType, Device, Pack, Unpack};

const ROWS: usize = 4096;
const COLS: usize = 4096;

/// Gigabytes of elements per second.
fn rate(bytes: u64, work: impl Fn()) -> f64 {
    let time = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    bytes as f64 / (0..10).map(|_| time()).fold(f64::INFINITY, f64::min) / 1e9
}

fn main() {
    for isa in Isa::ALL {
        let device = Device::new(Arc::new(Cpu::new(1, Some(isa))), 1 << 30);
        let x: Vec<f32> = (0..ROWS * COLS).map(|at| (at as f32 * 0.1).sin()).collect();
        let x = device.from_f32(ROWS, COLS, &x, Category::Data);
        for format in [BlockFormat::Nf4, BlockFormat::Int8] {
            let packed = device.empty(ROWS, format.row_bytes(COLS), DType::U8, Category::Data);
            let pack = rate(x.bytes(), || device.machine.pack(&Pack { format, x: &x, out: &packed }));
            let unpack = [DType::Bf16, DType::F32].map(|dtype| {
                let out = device.empty(ROWS, COLS, dtype, Category::Data);
                rate(out.bytes(), || device.machine.unpack(&Unpack { format, packed: &packed, out: &out }))
            });
            println!(
                "{:<12} {:<5} pack {pack:6.2}  to bf16 {:6.2}  to f32 {:6.2} GB/s of one thread",
                isa.name(),
                format.name(),
                unpack[0],
                unpack[1]
            );
        }
    }
}
