//! Random numbers that are functions of (seed, weight, position) alone.

/// Initialisation settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Init {
    /// Deviation of weights other than output projections of sub-layers; 0.02 in the families' own files.
    pub deviation: f64,
    /// Random seed.
    pub seed: u64,
}

impl Init {
    /// Settings with the usual deviation.
    pub fn new(seed: u64) -> Init {
        Init { deviation: 0.02, seed }
    }
}

/// Normal values from Box-Muller pairs, elements `first` onwards.
pub(super) fn normals(key: u64, first: usize, deviation: f64, out: &mut [f32]) {
    let (second, pairs) = out.split_at_mut((first % 2).min(out.len()));
    second.iter_mut().for_each(|out| *out = pair(key, first / 2, deviation)[1]);
    for (index, out) in pairs.chunks_mut(2).enumerate() {
        let pair = pair(key, first.div_ceil(2) + index, deviation);
        out.copy_from_slice(&pair[..out.len()]);
    }
}

fn pair(key: u64, index: usize, deviation: f64) -> [f32; 2] {
    let bits = mix(key ^ mix(index as u64));
    // Two 32-bit uniforms, the first never zero.
    let u = ((bits >> 32) as f64 + 1.0) / 4_294_967_296.0;
    let angle = (bits & 0xffff_ffff) as f64 / 4_294_967_296.0 * std::f64::consts::TAU;
    let radius = deviation * (-2.0 * u.ln()).sqrt();
    [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
}

/// The finaliser of SplitMix64 (Steele et al., 2014).
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
