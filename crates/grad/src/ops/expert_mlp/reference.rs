//! The MLPs of experts, one after the other on one rank.

use crate::ops::activate::reference::gate;
use crate::ops::experts::reference::experts;
use crate::testing::Matrix;
use fathom_tensor::Activation;

/// x [t, d], the experts of each token's slots; W [experts x 2f, d], [experts x d, f]; biases [experts, 2f], [experts, d].
pub(crate) fn expert_mlp(
    x: &Matrix,
    index: &[Vec<Option<usize>>],
    [up, down]: [&Matrix; 2],
    [up_bias, down_bias]: [&Matrix; 2],
) -> Matrix {
    let (wide, d) = (up_bias.cols, down_bias.cols);
    let u = experts(x, index, up, wide, Some(up_bias));
    let slots = u.cols / wide;
    let each = |slot: usize| gate(Activation::Silu, &u.columns(slot * wide..(slot + 1) * wide));
    let a = Matrix::join(&(0..slots).map(each).collect::<Vec<_>>());
    experts(&a, index, down, d, Some(down_bias))
}
