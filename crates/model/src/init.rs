//! Random initialisation: normal with a given deviation, divided by `sqrt(2 layers)` where a sub-layer ends (GPT-2), norms
//! at the identity, biases zero.
//!
//! Every element is a function of (seed, weight, position) alone, so the result does not depend on threads or chunks.

use std::collections::BTreeSet;
use std::ops::Range;

use fathom_grad::{ParamId, Params};
use fathom_tensor::{DType, Device};

use crate::block::{FfnParams, QkvParams};
use crate::files::convert;
use crate::model::Model;
use crate::portion::Shard;

/// How weights begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Init {
    /// Deviation of the weights that do not end a sub-layer; the families' own files say 0.02.
    pub deviation: f64,
    /// Key of all randomness.
    pub seed: u64,
}

impl Init {
    /// The usual deviation.
    pub fn new(seed: u64) -> Init {
        Init { deviation: 0.02, seed }
    }
}

/// Elements made and written at once; even, because normals come in pairs.
const CHUNK: usize = 1 << 20;

/// Fills all weights.
///
/// # Panics
/// If `params` are not this model's.
pub fn initialise(device: &Device, model: &Model, params: &mut Params, init: Init) {
    if !device.machine.has_data() {
        return;
    }
    let ends: BTreeSet<ParamId> =
        model.blocks.iter().flat_map(|block| ends(&block.ffn).chain([block.attn_out.weight])).collect();
    let norms = norm_weights(model);
    let threads = device.machine.profile().threads.max(1);
    let (mut raw, mut bytes) = (Vec::new(), Vec::new());
    for (id, param) in params.iter() {
        let fill = if norms.contains(&id) {
            Fill::Constant(if model.spec.norm.plus_one { 0.0 } else { 1.0 })
        } else if !param.decays {
            Fill::Constant(0.0)
        } else {
            let ends = if ends.contains(&id) { (2.0 * model.spec.layers.len() as f64).sqrt() } else { 1.0 };
            Fill::Normal {
                deviation: init.deviation / ends,
                key: mix(mix(init.seed) ^ u64::from(model.holdings[id.index()].number)),
            }
        };
        param.value.fill(|range, weight| {
            for start in (0..range.len()).step_by(CHUNK) {
                let end = range.len().min(start + CHUNK);
                let values = fill.part(
                    &model.holdings[id.index()].shard,
                    range.start + start..range.start + end,
                    threads,
                );
                raw.clear();
                raw.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                convert(DType::F32, &raw, weight.dtype(), &mut bytes);
                device.machine.write(&weight.view_cols(start..end), &bytes);
            }
        });
    }
}

/// Weights at the end of a feed-forward network.
fn ends(ffn: &FfnParams) -> impl Iterator<Item = ParamId> {
    let (down, shared) = match ffn {
        FfnParams::Dense(mlp) => (mlp.down, None),
        FfnParams::Experts(experts) => (experts.down, experts.shared),
    };
    [Some(down.weight), shared.map(|shared| shared.mlp.down.weight)].into_iter().flatten()
}

fn norm_weights(model: &Model) -> BTreeSet<ParamId> {
    let of_block = |block: &crate::block::BlockParams| {
        let norms = [block.attn_norm, block.q_norm, block.k_norm];
        let more = [block.attn_post_norm, block.mlp_norm, block.mlp_post_norm];
        let latent = match block.qkv {
            QkvParams::Latent(latent) => [latent.q_down.map(|(_, norm)| norm), Some(latent.kv_norm)],
            QkvParams::Fused(_) => [None, None],
        };
        norms.into_iter().chain(more).chain(latent).flatten().map(|norm| norm.weight)
    };
    model.blocks.iter().flat_map(of_block).chain(model.last.map(|last| last.norm.weight)).collect()
}

enum Fill {
    Constant(f32),
    Normal { deviation: f64, key: u64 },
}

impl Fill {
    /// The elements of a rank's part of a weight.
    fn part(&self, shard: &Shard, range: Range<usize>, threads: usize) -> Vec<f32> {
        if !shard.is_parted() {
            return self.values(range, threads);
        }
        let mut values = Vec::with_capacity(range.len());
        for (here, at, len) in shard.runs() {
            let (from, to) = (here.max(range.start), (here + len).min(range.end));
            if from < to {
                // Normals come in pairs.
                let first = at + from - here;
                let odd = first % 2;
                values.extend(&self.values(first - odd..first + to - from, 1)[odd..]);
            }
        }
        values
    }

    /// The elements of a range that starts at an even position.
    fn values(&self, range: Range<usize>, threads: usize) -> Vec<f32> {
        let Fill::Normal { deviation, key } = *self else {
            let Fill::Constant(value) = *self else { return Vec::new() };
            return vec![value; range.len()];
        };
        let mut values = vec![0.0; range.len()];
        let share = range.len().div_ceil(threads).next_multiple_of(2);
        std::thread::scope(|scope| {
            for (index, part) in values.chunks_mut(share).enumerate() {
                let first = range.start + index * share;
                scope.spawn(move || normals(key, first as u64 / 2, deviation, part));
            }
        });
        values
    }
}

/// Box and Muller's pairs number `first`, `first + 1`, ...
fn normals(key: u64, first: u64, deviation: f64, out: &mut [f32]) {
    for (pair, out) in out.chunks_mut(2).enumerate() {
        let bits = mix(key ^ mix(first + pair as u64));
        // Two uniforms of 32 bits, the first never zero.
        let u = ((bits >> 32) as f64 + 1.0) / 4_294_967_296.0;
        let angle = (bits & 0xffff_ffff) as f64 / 4_294_967_296.0 * std::f64::consts::TAU;
        let radius = deviation * (-2.0 * u.ln()).sqrt();
        out[0] = (radius * angle.cos()) as f32;
        if let Some(second) = out.get_mut(1) {
            *second = (radius * angle.sin()) as f32;
        }
    }
}

/// The finaliser of SplitMix64 (Steele et al., 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_are_normal_whatever_the_threads() {
        let fill = Fill::Normal { deviation: 0.02, key: mix(7) };
        let [one, three] = [1, 3].map(|threads| fill.values(0..100_001, threads));
        assert_eq!(one, three);
        assert_eq!(fill.values(4096..5000, 2), one[4096..5000]);
        let mean = one.iter().map(|x| f64::from(*x)).sum::<f64>() / one.len() as f64;
        let square = one.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / one.len() as f64;
        assert!(mean.abs() < 3e-4 && (square.sqrt() - 0.02).abs() < 2e-4, "{mean} {square}");
        assert!(one.iter().any(|x| x.abs() > 0.07));
    }
}
