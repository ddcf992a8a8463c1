//! Peaked attention, for benchmarks that match trained models.
//!
//! Random weights give scores within a few units of each other. A trained model's rows span hundreds, so nearly all
//! of its probabilities underflow, which is up to ten times slower on some processors if they keep denormal numbers.
//! Benchmarks reach that span by scaling the scores only: every shape, and every other operand, is unchanged.

use fathom_model::{QkNorm, Spec};

use crate::args::bench::Scores;

/// Span of a row's peaked scores.
const SPAN: f32 = 200.0;
/// Span of a row's scores of deviation one: three deviations to each side.
const FLAT: f32 = 6.0;
/// Factor of scores of deviation one.
pub const SPREAD: f32 = SPAN / FLAT;

/// The model with the requested scores, for weights of this deviation. A row of `x W` has deviation `sqrt(hidden)
/// deviation`, or 1 if normalised, by the norm of queries and keys or by that of latents.
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
