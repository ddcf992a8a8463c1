//! Rates of the kernels that a run on this processor takes, with those that plans expect of it: a slow path shows.

use std::sync::Arc;

use anyhow::Result;
use fathom_app::{Machine, Silent, host};
use fathom_cpu::Cpu;
use fathom_tensor::{DType, Device};
use fathom_train::recipe::MachineKind;

use super::attention::{Case, attend};
use super::watch::Watch;
use super::{Bed, gemm};

/// Memory that the measurements take.
const BYTES: u64 = 256 << 20;
/// Extents of the product, and tokens, heads and their columns of the attention: a moment's work for plain code too.
const SIZES: [usize; 3] = [1024; 3];
const TOKENS: usize = 2048;
const HEADS: usize = 4;
const HEAD_DIM: usize = 128;
/// How long a kernel is measured if it has the rate that plans expect; the best of the repeats counts, for other work only ever makes a
/// short measurement slower.
const SECONDS: f64 = 0.15;

/// A kernel's rate.
pub struct Rate {
    /// What was measured.
    pub kernel: &'static str,
    /// Measured.
    pub flops_per_s: f64,
    /// What a plan without a measured profile expects.
    pub planned_flops_per_s: f64,
}

/// Measures a bf16 product and both directions of bf16 attention with all threads; also whether other processes computed meanwhile.
pub fn rates() -> Result<([Rate; 3], bool)> {
    let cpu = Arc::new(Cpu::new(0, host::isa_mask()?));
    let bed = Bed { device: Device::new(cpu.clone(), BYTES), cpu, dtype: DType::Bf16 };
    let planned =
        Machine::of_kind(MachineKind::Cpu, bed.threads(), &Silent).profile()?.rates.unwrap_or_default();
    let case = Case::plain(TOKENS, HEADS, HEAD_DIM);
    let both = Case { backward: true, ..case };
    let flops = [gemm::flops(SIZES), case.flops(), both.flops() - case.flops()];
    let pairs = case.flops() / (4 * HEAD_DIM) as f64;
    let [forward_s, backward_s] =
        [false, true].map(|backward| planned.attention_s(flops[1 + usize::from(backward)], pairs, backward));
    let planned_s = [flops[0] / planned.matmul_bf16_flops_per_s, forward_s, backward_s];
    let repeat = planned_s.map(|planned_s| ((SECONDS / planned_s) as usize).clamp(3, 200));
    let watch = Watch::begin();
    let product_s = gemm::product(&bed, SIZES, false, 1, repeat[0]).best_s;
    let forward_s = attend(&bed, &case, repeat[1]).best_s;
    let backward_s = attend(&bed, &both, repeat[2]).best_s - forward_s;
    let rate = |kernel, at: usize, seconds: f64| Rate {
        kernel,
        flops_per_s: flops[at] / seconds,
        planned_flops_per_s: flops[at] / planned_s[at],
    };
    let rates = [
        rate("product", 0, product_s),
        rate("attention forward", 1, forward_s),
        rate("attention backward", 2, backward_s),
    ];
    Ok((rates, watch.loaded()))
}
