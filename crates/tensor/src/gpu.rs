//! Data sheets of graphics processors, for plans: no driver and no device is needed to ask what a run would take there.
//!
//! A rate is a published peak times the share of it that libraries reach on large shapes. Peaks are of NVIDIA's data
//! sheets (H100 SXM, H200 SXM, HGX B200), dense, without sparsity. Shares:
//!
//! - products: cuBLASLt reaches 788 of 989 TFLOP/s at 8192 x 8192 x 8192 on one H200; shapes of a training step are a
//!   tenth slower. The same share is taken on Blackwell.
//! - attention: NVIDIA's table for cuDNN 9.19 on H200 (cudnn-frontend, bf16, causal, 64 and 8 heads of 128 columns,
//!   32 768 tokens): 688 TFLOP/s forward, 581 backward. B200: 1605 forward (FlashAttention 4, 71 % of the peak), backward
//!   by the same ratio.
//! - one exponential per pair and head: 3.9 T/s on Hopper (FlashAttention 3, section 1). Blackwell has as many units;
//!   FlashAttention 4 computes half of them on the ordinary ones.
//! - memory: nine tenths of the peak. Link: PCIe 5 x16 has 64 GB/s in each direction, pinned copies see some 52.

use crate::profile::{OpDesc, Profile, Rates};

/// The names that [`named`] knows.
pub const NAMES: [&str; 3] = ["h100", "h200", "b200"];

/// Charges on a device: what CUDA's allocators round to.
const GRANULE: u64 = 512;
/// Scratch that NVIDIA recommends for cuBLASLt on Hopper and later.
const MATMUL_SCRATCH: u64 = 32 << 20;

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
}

/// The data sheet of a device; `None` for a name that is not among [`NAMES`].
pub fn named(name: &str) -> Option<Profile> {
    let hopper = Figures {
        isa: "sm_90",
        multiprocessors: 132,
        memory_bytes: 80 << 30,
        bf16_peak: 989e12,
        f32_peak: 67e12,
        attention: [688e12, 581e12],
        exponentials: 3.9e12,
        memory_peak: 3.35e12,
    };
    let figures = match name {
        "h100" => hopper,
        // 141 GB are sold, 140 GiB less some are there: the driver takes its share.
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
        },
        _ => return None,
    };
    Some(figures.profile(name))
}

impl Figures {
    fn profile(&self, name: &str) -> Profile {
        let products = 788.0 / 989.0 * 0.9;
        let pair_s = 1.0 / self.exponentials;
        // The published rates are of heads of 128 columns and include the exponentials.
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
            granule: GRANULE,
            threads: self.multiprocessors,
            isa: self.isa.to_string(),
            memory_bytes: Some(self.memory_bytes),
            host_bytes: Some(128 << 30),
            rates: Some(rates),
            workspace,
        }
    }
}

/// Scratch bytes of an operation: cuBLASLt's, and cuDNN's for attention backward (9.19, H200: f32 gradients of all
/// queries, and bf16 gradients of keys and values for every query head where heads share them). Grouped products have
/// their rows brought together first.
pub fn workspace(_: &Profile, op: &OpDesc) -> u64 {
    match *op {
        OpDesc::MatMul { .. } => MATMUL_SCRATCH,
        OpDesc::Grouped { tokens, slots, inner, out, input, output, weight } => {
            let output = if weight { input } else { output };
            let rows = inner * input.bytes() + out * output.bytes();
            MATMUL_SCRATCH + (tokens * slots * (rows + 4)) as u64
        }
        OpDesc::Attention { backward: false, .. } => 256,
        OpDesc::Attention { q_tokens, k_tokens, heads, kv_heads, head_dim, .. } => {
            let shared = if heads == kv_heads { 0 } else { 2 * k_tokens * heads * head_dim * 2 };
            (q_tokens * heads * head_dim * 4 + shared) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

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
        // Heads of 64 columns: slower, as exponentials weigh twice as much.
        let narrow = 4.0 * pairs * 64.0;
        assert!(narrow / rates.attention_s(narrow, pairs, false) < 560e12);
    }

    #[test]
    fn attention_backward_needs_what_the_library_was_seen_to_ask_for() {
        let profile = named("h200").unwrap();
        let backward = |tokens, heads, kv_heads| OpDesc::Attention {
            q_tokens: tokens,
            k_tokens: tokens,
            heads,
            kv_heads,
            head_dim: 128,
            dtype: DType::Bf16,
            slices: 1,
            backward: true,
        };
        for op in [backward(131_072, 64, 8), backward(1_048_576, 8, 1)] {
            assert_eq!(profile.workspace(&op), 2 * 4_294_967_296);
        }
    }
}
