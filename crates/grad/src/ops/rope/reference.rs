//! Rotary position embedding (Su et al., 2021, eq. 15): pair i of a head turns by `position x inv_freq[i]`. Pairs are
//! the halves of the rotated columns (GPT-NeoX, Llama in Hugging Face's layout) or neighbours (GPT-J); columns beyond
//! the rotated ones stay. `factor` multiplies both (YaRN: Peng et al., 2023, eq. 22).

use super::RopeUse;
use crate::testing::{Matrix, Stream};

/// x [t, heads x head_dim] to the same shape.
pub(crate) fn rope(x: &Matrix, stream: &Stream, how: RopeUse) -> Matrix {
    let Some(rotation) = &stream.rotation else { return x.clone() };
    let pairs = rotation.inv_freq.len();
    let mut y = x.clone();
    for t in 0..x.rows {
        for head in (0..x.cols).step_by(how.head_dim) {
            for (pair, inv_freq) in rotation.inv_freq.iter().enumerate() {
                let [a, b] = if how.interleaved { [2 * pair, 2 * pair + 1] } else { [pair, pair + pairs] };
                let (sin, cos) = (f64::from(stream.positions[t]) * f64::from(*inv_freq)).sin_cos();
                let (from_a, from_b) = (x[(t, head + a)], x[(t, head + b)]);
                let factor = f64::from(rotation.factor);
                y[(t, head + a)] = factor * (from_a * cos - from_b * sin);
                y[(t, head + b)] = factor * (from_b * cos + from_a * sin);
            }
        }
    }
    y
}
