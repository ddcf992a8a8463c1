//! A linear layer for each slot with the weight of its expert, as in a mixture of experts (Shazeer et al., 2017).

use crate::testing::Matrix;

/// x [t, in] or [t, k x in], weights [experts x out, in], biases [experts, out], experts of each token's slots (none for
/// an empty slot) to [t, k x out].
pub(crate) fn experts(
    x: &Matrix,
    index: &[Vec<Option<usize>>],
    weights: &Matrix,
    out: usize,
    bias: Option<&Matrix>,
) -> Matrix {
    let (slots, inner) = (index[0].len(), weights.cols);
    Matrix::new(x.rows, slots * out, |t, col| {
        let (slot, o) = (col / out, col % out);
        let Some(expert) = index[t][slot] else { return 0.0 };
        let from = if x.cols == inner { 0 } else { slot * inner };
        let product: f64 = (0..inner).map(|i| x[(t, from + i)] * weights[(expert * out + o, i)]).sum();
        product + bias.map_or(0.0, |bias| bias[(expert, o)])
    })
}
