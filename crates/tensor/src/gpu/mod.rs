//! Data sheets of GPUs, for plans: predicting a run there needs no driver and no device.
//!
//! A rate is a published peak times the share of it that libraries reach on large shapes. Peaks are from NVIDIA's data
//! sheets (H100 SXM, H200 SXM, HGX B200), dense, without sparsity. Shares:
//!
//! - products: cuBLASLt reaches 788 of 989 TFLOP/s at 8192 x 8192 x 8192 on one H200; shapes of a training step are a
//!   tenth slower. The same share is assumed for Blackwell.
//! - attention: NVIDIA's table for cuDNN 9.19 on H200 (cudnn-frontend, bf16, causal, 64 and 8 heads of 128 columns,
//!   32 768 tokens): 688 TFLOP/s forward, 581 backward. B200: 1605 forward (FlashAttention 4, 71 % of the peak), backward
//!   by the same ratio.
//! - one exponential per pair and head: 3.9 T/s on Hopper (FlashAttention 3, section 1). Blackwell has as many units;
//!   FlashAttention 4 computes half of them on the ordinary ones.
//! - memory: nine tenths of the peak. Link: PCIe 5 x16 has 64 GB/s in each direction; pinned copies reach about 52.
//! - nodes (DGX H100, H200 and B200 user guides): eight devices over NVSwitch, 450 GB/s in each direction for each device (NVLink
//!   4), 900 GB/s on Blackwell (NVLink 5); an adapter of 400 Gb/s for each device (ConnectX-7). One direction of NVLink was
//!   measured at 380 of 450 GB/s (github.com/NVIDIA/nccl, issue 1264; the same share is taken for NVLink 5), of the adapter nine
//!   tenths are taken. Latencies of a hop: 3.4 us within a node, 14 us between nodes (NCCL 2.19 and later, src/graph/tuning.cc,
//!   ring and tree with the protocol for large messages).

mod attention;
mod experts;
mod scans;
mod sizes;

pub use attention::{AttentionParts, AttentionScratch, attention_list};
pub use experts::{GROUP_ROWS, GroupedScratch};
pub use scans::ScanScratch;
pub use sizes::{GRANULE, MATMUL_SCRATCH};

use crate::profile::{Hardware, OpDesc, Portions, Profile, Rates};
use crate::{Fabric, Line};

/// Names that [`named`] accepts.
pub const NAMES: [&str; 7] = ["h100", "h200", "b200", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-h100-fp8"];

/// Default host memory of a single device, if `machine.host_bytes` is not given.
const HOST_BYTES: u64 = 128 << 30;

/// One device and its share of a host.
struct Figures {
    isa: &'static str,
    multiprocessors: usize,
    memory_bytes: u64,
    bf16_peak: f64,
    f32_peak: f64,
    attention: [f64; 2],
    exponentials: f64,
    memory_peak: f64,
    /// In one direction.
    nvlink_peak: f64,
}

/// The data sheet of a device, alone or (`dgx-...`) with its interconnect; `None` for names not in [`NAMES`].
pub fn named(name: &str) -> Option<Profile> {
    if name == "dgx-h100-fp8" {
        return named("dgx-h100").map(|profile| fp8(&profile, name));
    }
    let hopper = Figures {
        isa: "sm_90",
        multiprocessors: 132,
        memory_bytes: 80 << 30,
        bf16_peak: 989e12,
        f32_peak: 67e12,
        attention: [688e12, 581e12],
        exponentials: 3.9e12,
        memory_peak: 3.35e12,
        nvlink_peak: 450e9,
    };
    let device = name.strip_prefix("dgx-");
    let figures = match device.unwrap_or(name) {
        "h100" => hopper,
        // 141 GB are sold; 140 GiB less the driver's share are usable.
        "h200" => Figures { memory_bytes: 139 << 30, memory_peak: 4.8e12, ..hopper },
        "b200" => Figures {
            isa: "sm_100",
            multiprocessors: 148,
            memory_bytes: 178 << 30,
            bf16_peak: 2250e12,
            f32_peak: 80e12,
            attention: [1605e12, 1605e12 * 581.0 / 688.0],
            exponentials: 2.0 * 3.9e12,
            memory_peak: 8e12,
            nvlink_peak: 900e9,
        },
        _ => return None,
    };
    let profile = figures.profile(name);
    // Eight devices of a node share its 2 TB.
    let host_bytes = if device.is_some() { Some(256 << 30) } else { profile.host_bytes };
    Some(Profile { fabric: device.map(|_| figures.fabric()), host_bytes, ..profile })
}

/// DGX H100 with FP8 products, as far as NVIDIA's own runs show: the rates of products and of the node's lines are
/// chosen so that plans of Llama 2 7B have the published throughput at 8K and 16K tokens (NeMo 2,
/// performance_long_sequence.md: 730 and 660 TFLOP/s). Everything else, notably attention in bf16, is as in `dgx-h100`.
fn fp8(device: &Profile, name: &str) -> Profile {
    let mut profile = Profile { name: name.to_string(), ..device.clone() };
    if let Some(rates) = &mut profile.rates {
        rates.matmul_bf16_flops_per_s = FP8_PRODUCTS;
    }
    if let Some(fabric) = &mut profile.fabric {
        fabric.node.bytes_per_s = FP8_NODE;
    }
    profile
}

/// FLOP/s of FP8 products, including conversions (fitted).
const FP8_PRODUCTS: f64 = 908e12;
/// Bytes per second of a rank's lines within a node: fitted, and far above the device's own, since NVIDIA's runs hide
/// this traffic behind products. A higher value changes nothing: the plan then has 654 TFLOP/s at 16K.
const FP8_NODE: f64 = 10e12;

impl Figures {
    fn fabric(&self) -> Fabric {
        let node = Line { bytes_per_s: 380.0 / 450.0 * self.nvlink_peak, latency_s: 3.4e-6 };
        let network = Line { bytes_per_s: 0.9 * 50e9, latency_s: 14e-6 };
        Fabric { node_ranks: 8, node, network, copied: false }
    }

    fn profile(&self, name: &str) -> Profile {
        let products = 788.0 / 989.0 * 0.9;
        let pair_s = 1.0 / self.exponentials;
        // The published rates are for heads of 128 columns and include the exponentials.
        let [forward, backward] = [(4.0, self.attention[0]), (10.0, self.attention[1])]
            .map(|(per_pair, rate)| per_pair * 128.0 / (per_pair * 128.0 / rate - pair_s));
        let memory = 0.9 * self.memory_peak;
        let rates = Rates {
            matmul_bf16_flops_per_s: products * self.bf16_peak,
            matmul_f32_flops_per_s: products * self.f32_peak,
            attention_forward_flops_per_s: forward,
            attention_backward_flops_per_s: backward,
            attention_pair_s: pair_s,
            memory_bytes_per_s: memory,
            elementwise_bytes_per_s: memory,
            call_s: 4e-6,
            disk_write_bytes_per_s: 5e9,
            disk_read_bytes_per_s: 6e9,
            host_bytes_per_s: 52e9,
        };
        Profile {
            name: name.to_string(),
            hardware: Hardware::Graphics,
            granule: GRANULE,
            threads: self.multiprocessors,
            isa: self.isa.to_string(),
            memory_bytes: Some(self.memory_bytes),
            host_bytes: Some(HOST_BYTES),
            outside_pool_bytes: None,
            rates: Some(rates),
            fabric: None,
            portions: portions(self.memory_bytes),
            workspace,
        }
    }
}

/// Portions for a device with this much memory. Products of the head want thousands of tokens: a tile of 128, as many
/// as 32 MiB hold for a large vocabulary, gives only some tens of blocks to 132 multiprocessors, and each part of its
/// gradient reads and writes the main gradient.
pub fn portions(memory_bytes: u64) -> Portions {
    let bytes = (memory_bytes / 64).min(1 << 30) as usize;
    Portions { logits_bytes: bytes, logit_grads_bytes: bytes, squares_at_once: true }
}

/// Scratch bytes of an operation: cuBLASLt's for products; lists of slots for grouped ones and, on Hopper, what
/// cuBLASLt takes for them ([`GroupedScratch`]); for attention what cuDNN's engines ask for ([`AttentionScratch`]). The
/// kernels for shapes that libraries refuse need no more.
pub fn workspace(profile: &Profile, op: &OpDesc) -> u64 {
    match *op {
        OpDesc::MatMul { .. } | OpDesc::WithTerms { .. } => MATMUL_SCRATCH,
        // GPUs do not multiply packed weights.
        OpDesc::Packed { .. } | OpDesc::PackedGrouped { .. } => 0,
        OpDesc::Narrow { .. } => NarrowScratch::of(op).map_or(0, |scratch| scratch.bytes()),
        OpDesc::Grouped { .. } => experts::scratch(&profile.isa, op),
        OpDesc::GatedNorm { .. } => 0,
        OpDesc::Ssd { .. } | OpDesc::Delta { .. } => ScanScratch::of(op).map_or(0, |scratch| scratch.bytes),
        OpDesc::Attention(_) => AttentionScratch::of(op).map_or(0, |scratch| scratch.bytes()),
    }
}

/// Scratch of one product of narrow operands: both as multiplied, in two bytes per element if emulated and in one byte
/// with scales if not, and cuBLASLt's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowScratch {
    /// A's bytes.
    pub a: u64,
    /// B's bytes.
    pub b: u64,
    /// Bytes for the scales of each operand, including the sums that they are made from.
    pub scales: [u64; 2],
}

impl NarrowScratch {
    /// Scratch of a call; `None` if it is not a narrow product.
    pub fn of(op: &OpDesc) -> Option<NarrowScratch> {
        let OpDesc::Narrow { m, n, k, input, .. } = *op else { return None };
        // Rows of elements are padded to 16, scales to whole tiles of 128 x 4 (cuBLASLt's layout of block scales).
        let operand = |rows: usize| (rows * k.next_multiple_of(16) * input.bytes()) as u64;
        let scales = |rows: usize| {
            let blocks = k.div_ceil(32).next_multiple_of(4) * rows.next_multiple_of(128);
            (blocks as u64).max(4 * (k.div_ceil(128) * rows.next_multiple_of(4)) as u64) + NARROW_SUMS
        };
        Some(NarrowScratch { a: operand(m), b: operand(n), scales: [scales(m), scales(n)] })
    }

    /// Total size.
    pub fn bytes(&self) -> u64 {
        self.offsets()[4] + MATMUL_SCRATCH
    }

    /// Offsets of the parts: A, B, scales of A and of B, cuBLASLt's.
    pub fn offsets(&self) -> [u64; 5] {
        let NarrowScratch { a, b, scales: [of_a, of_b] } = *self;
        let mut at = 0;
        [a, b, of_a, of_b, 0].map(|part| {
            let start = at;
            at += part.next_multiple_of(GRANULE);
            start
        })
    }
}

/// Bytes for partial maxima of an operand, from which its largest element is found.
const NARROW_SUMS: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_runs_at_the_published_rates() {
        let profile = named("h200").unwrap();
        let rates = profile.rates.unwrap();
        let (pairs, columns) = (1e12, 128.0);
        for (per_pair, rate, backward) in [(4.0, 688e12, false), (10.0, 581e12, true)] {
            let flops = per_pair * pairs * columns;
            let seconds = rates.attention_s(flops, pairs, backward);
            assert!((flops / seconds / rate - 1.0).abs() < 1e-9);
        }
        // Heads of 64 columns are slower, as exponentials weigh twice as much.
        let narrow = 4.0 * pairs * 64.0;
        assert!(narrow / rates.attention_s(narrow, pairs, false) < 560e12);
    }
}
