//! Distance of a student's hidden states from a teacher's.

use crate::Tensor;

/// Distance between two rows of `d` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The mean of the squared differences.
    Mse,
    /// One minus the cosine of the angle between them, each length at least 1e-8.
    Cosine,
}

/// The distance of each row from another, and its gradient.
#[derive(Clone, Copy, Debug)]
pub struct RowDistance<'a> {
    /// Kind of distance.
    pub distance: Distance,
    /// [r, d], f32 or bf16.
    pub x: &'a Tensor,
    /// [r, d] of the same type; constant.
    pub target: &'a Tensor,
    /// i32 [1, r]; below zero: ignored (no loss, zero gradient).
    pub labels: &'a Tensor,
    /// f32 [1, r]: multiplies a row's gradient.
    pub weights: &'a Tensor,
    /// Multiplies all gradients.
    pub factor: f32,
    /// f32 [1, r]: the distances.
    pub loss: &'a Tensor,
    /// [r, d] of the type of `x`: gradient of `factor sum(weight x distance)` with respect to `x`; may share storage
    /// with `target`.
    pub dx: &'a Tensor,
}
