//! Rates of the kernels used on this processor, with those that plans expect, to reveal slow paths.

use std::sync::Arc;

use anyhow::Result;
use fathom_app::{Machine, Silent, resources};
use fathom_base::memory::Memory;
use fathom_cpu::Cpu;
use fathom_tensor::{DType, Device, Profile, Rates};
use fathom_train::recipe::MachineKind;

use super::attention::{Case, attend};
use super::bed::Bed;
use super::gemm;
use super::profile::{activate, copy};
use super::watch::Watch;

/// Memory of the measurements.
const BYTES: u64 = 256 << 20;
/// Extents of the product, and tokens, heads and head size of the attention: short even for plain code.
const SIZES: [usize; 3] = [1024; 3];
const TOKENS: usize = 2048;
const HEADS: usize = 4;
const HEAD_DIM: usize = 128;
/// Duration of a measurement at the planned rate. The best repeat counts, as other work can only slow down a short
/// measurement.
const SECONDS: f64 = 0.15;

/// Bytes copied, and rows and columns of the activation function: larger than most caches.
const COPY_BYTES: usize = 64 << 20;
const ACTIVATE: [usize; 2] = [8192, 2816];
/// Least share of products in a backward pass's time, whatever its pairs cost.
const LEAST_SHARE: f64 = 0.3;

/// Rate of a kernel.
pub struct Rate {
    /// The kernel.
    pub kernel: &'static str,
    /// FLOP, or bytes.
    pub unit: &'static str,
    /// Measured.
    pub per_s: f64,
    /// Expected by a plan without a measured profile.
    pub planned_per_s: f64,
}

/// Result of a short measurement.
pub struct Measurement {
    /// Rate of each kernel.
    pub rates: [Rate; 5],
    /// Whether other processes were computing.
    pub loaded: bool,
    /// This machine's profile for plans, with these rates.
    pub profile: Profile,
}

/// Measures a bf16 product, both directions of bf16 attention, a copy and an activation function on all threads.
pub fn rates() -> Result<Measurement> {
    let cpu = Arc::new(Cpu::new(0, resources::isa_mask()?));
    let bed = Bed { device: Device::new(cpu.clone(), BYTES), cpu, dtype: DType::Bf16 };
    let profile = Machine::of_kind(MachineKind::Cpu, bed.threads(), &Silent).profile()?;
    let planned = profile.rates.unwrap_or_default();
    let case = Case::plain(TOKENS, HEADS, HEAD_DIM);
    let both = Case { backward: true, ..case };
    let pairs = case.flops() / (4 * HEAD_DIM) as f64;
    let [rows, cols] = ACTIVATE;
    // FLOPs or bytes.
    let (forward, backward) = (case.flops(), both.flops() - case.flops());
    let work = [gemm::flops(SIZES), forward, backward, 2.0 * COPY_BYTES as f64, (rows * cols * 3) as f64];
    let planned_s = [
        work[0] / planned.matmul_bf16_flops_per_s,
        planned.attention_s(forward, pairs, false),
        planned.attention_s(backward, pairs, true),
        work[3] / planned.memory_bytes_per_s,
        work[4] / planned.elementwise_bytes_per_s,
    ];
    let repeat = planned_s.map(|planned_s| ((SECONDS / planned_s) as usize).clamp(3, 200));
    let watch = Watch::begin();
    let product_s = gemm::product(&bed, SIZES, false, 1, repeat[0]).best_s;
    let forward_s = attend(&bed, &case, repeat[1]).best_s;
    let backward_s = attend(&bed, &both, repeat[2]).best_s - forward_s;
    let copy_s = copy(&bed, repeat[3], COPY_BYTES).best_s;
    let activate_s = activate(&bed, repeat[4], ACTIVATE).best_s;
    let measured_s = [product_s, forward_s, backward_s, copy_s, activate_s];
    let kernels = ["product", "attention forward", "attention backward", "copy", "activation"];
    let rate = |at: usize| Rate {
        kernel: kernels[at],
        unit: if at < 3 { "FLOP" } else { "B" },
        per_s: work[at] / measured_s[at],
        planned_per_s: work[at] / planned_s[at],
    };
    let faster = std::array::from_fn(|at| planned_s[at] / measured_s[at]);
    let rates = Some(as_measured(&planned, faster, (backward, backward_s, pairs)));
    let profile = Profile { memory_bytes: Memory::read().map(|memory| memory.total_bytes), rates, ..profile };
    Ok(Measurement { rates: std::array::from_fn(rate), loaded: watch.loaded(), profile })
}

/// Scales planned rates by measured speedups: f32 products like bf16's, and attention's cost per pair like its
/// forward pass. `backward` is the work, time and pairs of the backward pass.
fn as_measured(planned: &Rates, faster: [f64; 5], backward: (f64, f64, f64)) -> Rates {
    let [product, forward, _, memory, elementwise] = faster;
    let (work, measured_s, pairs) = backward;
    let attention_pair_s = planned.attention_pair_s / forward;
    let products_s = (measured_s - pairs * attention_pair_s).max(LEAST_SHARE * measured_s);
    Rates {
        matmul_bf16_flops_per_s: product * planned.matmul_bf16_flops_per_s,
        matmul_f32_flops_per_s: product * planned.matmul_f32_flops_per_s,
        attention_forward_flops_per_s: forward * planned.attention_forward_flops_per_s,
        attention_backward_flops_per_s: work / products_s,
        attention_pair_s,
        memory_bytes_per_s: memory * planned.memory_bytes_per_s,
        elementwise_bytes_per_s: elementwise * planned.elementwise_bytes_per_s,
        ..*planned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_with_measured_rates_predicts_what_was_measured() {
        let planned = Rates {
            matmul_bf16_flops_per_s: 100.0,
            matmul_f32_flops_per_s: 50.0,
            attention_forward_flops_per_s: 80.0,
            attention_backward_flops_per_s: 40.0,
            attention_pair_s: 0.01,
            memory_bytes_per_s: 30.0,
            elementwise_bytes_per_s: 20.0,
            ..Rates::default()
        };
        // Half as fast as planned; the backward pass a third as fast.
        let (flops, pairs) = (400.0, 10.0);
        let backward_s = 3.0 * planned.attention_s(2.5 * flops, pairs, true);
        let found = as_measured(&planned, [0.5, 0.5, 1.0 / 3.0, 0.25, 2.0], (2.5 * flops, backward_s, pairs));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} {b}");
        near(found.attention_s(flops, pairs, false), 2.0 * planned.attention_s(flops, pairs, false));
        near(found.attention_s(2.5 * flops, pairs, true), backward_s);
        assert_eq!([found.matmul_bf16_flops_per_s, found.matmul_f32_flops_per_s], [50.0, 25.0]);
        assert_eq!([found.memory_bytes_per_s, found.elementwise_bytes_per_s], [7.5, 40.0]);
    }
}
