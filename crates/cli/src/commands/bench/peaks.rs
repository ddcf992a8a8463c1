//! Peaked attention: benchmarks measure what people have.
//!
//! Random weights give scores within a few units of each other. A trained model's rows span hundreds, so that nearly all of its
//! probabilities underflow, which costs some processors ten times as much where they keep denormal numbers. A benchmark reaches that
//! span by the scale of the scores alone: every shape, and every other operand, stays.

use fathom_model::{QkNorm, Spec};

use crate::args::bench::Scores;

/// What a row's scores span when peaked.
const SPAN: f32 = 200.0;
/// What a row's scores of deviation one span, three deviations to each side.
const FLAT: f32 = 6.0;
/// Multiplies scores of deviation one.
pub const SPREAD: f32 = SPAN / FLAT;

/// The model with scores as asked, for weights of this deviation: a row of `x W` has the deviation `sqrt(hidden) deviation`, and a normalised
/// one 1, whether by the norm of queries and keys or by that of latents.
pub fn scored(spec: &Spec, scores: Scores, deviation: f64) -> Spec {
    let mut spec = spec.clone();
    if scores == Scores::Peaked {
        let score = if spec.qk_norm != QkNorm::None || spec.latent.is_some() {
            1.0
        } else {
            spec.hidden as f64 * deviation * deviation
        };
        spec.attention_scale *= SPREAD / score as f32;
    }
    spec
}
