//! Scaling laws: fits of a loss over parameters, training tokens and compute, with bootstrap intervals.
//!
//! | law | form | source |
//! |---|---|---|
//! | [`PowerLaw`] | `E + A / x^alpha`, with or without `E` | Hestness and others, 2017; Kaplan and others, 2020; Henighan and others, 2020 |
//! | [`Surface`] | `E + A / N^alpha + B / D^beta` | Hoffmann and others, 2022 (Chinchilla), approach 3 |
//! | [`Joint`] | `((Nc / N)^(aN / aD) + Dc / D)^aD` | Kaplan and others, 2020, equation 1.5 |
//! | [`profiles`] | a parabola in `log N` for each compute budget | Chinchilla, approach 2 |
//! | [`envelope`] | the lowest of all training curves at each compute | Chinchilla, approach 1 |
//!
//! Every law is a sum of exponentials of linear forms, so all of them share one minimiser: Newton's method on the Huber
//! loss of log residuals, with exact second derivatives.
//!
//! This crate knows nothing of models, runs or files.

mod bootstrap;
mod envelope;
mod laws;
mod newton;
mod profiles;
mod random;

pub use bootstrap::{Interval, Resamples, resample};
pub use envelope::{Curve, Frontier, envelope};
pub use laws::{Joint, Law, PowerLaw, Surface, fit_joint, fit_power, fit_surface};
pub use newton::HUBER_DELTA;
pub use profiles::{Allocation, Profile, allocation, profiles};

/// One training run: its size, its training tokens, its compute, and its final loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Parameters.
    pub params: f64,
    /// Training tokens.
    pub tokens: f64,
    /// FLOPs of the run.
    pub flops: f64,
    /// Loss in nats per token.
    pub loss: f64,
}
