//! `scale tokens[id] + positions[position]`: table look-up (Gemma multiplies by the root of the width) with learned
//! positions (GPT-2: Radford et al., 2019).

use crate::testing::{Matrix, Stream};

/// Tables [vocab, d] and [max_positions, d] to [t, d].
pub(crate) fn embed(stream: &Stream, tokens: &Matrix, positions: Option<&Matrix>, scale: f32) -> Matrix {
    Matrix::new(stream.tokens(), tokens.cols, |t, col| {
        let learned = positions.map_or(0.0, |table| table[(stream.positions[t] as usize, col)]);
        f64::from(scale) * tokens[(stream.ids[t] as usize, col)] + learned
    })
}
