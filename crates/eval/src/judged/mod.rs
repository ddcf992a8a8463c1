//! Answers that a model judges: pairs in both orders, and ratings; rates of wins with intervals, and with the effect of
//! length taken out.

mod length;
mod prompt;
mod rates;

pub use length::{Fit, Judgement, fit};
pub use prompt::{Order, compare, rate, rating, verdict};
pub use rates::{RESAMPLES, Rate, Rates, interval};
