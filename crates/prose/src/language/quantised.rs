//! Scoring with quantized fastText models. The crate reads their matrices and words; its scores are correct for
//! softmax and one-vs-all, but not for hierarchical softmax (`lid.176.ftz`) and negative sampling, so the part after
//! the dictionary is implemented here, following the library (`quantmatrix.cc`, `productquantizer.cc`, `loss.cc`).

use fasttext::args::LossName;
use fasttext::{FastText, Prediction};

/// Output layer for scoring labels.
pub(super) struct Head {
    dim: usize,
    /// Matrix of labels by `dim`; for hierarchical softmax one row per inner node of the tree.
    output: Vec<f32>,
    loss: LossName,
    /// Children of each inner node; the last node is the root. Indices below the number of labels are labels, others
    /// inner nodes.
    tree: Vec<[usize; 2]>,
}

impl Head {
    /// Output layer of a quantized model with a validated layout; `None` for any other model.
    pub(super) fn of(model: &FastText) -> Option<Head> {
        model.quant_input()?;
        let dim = usize::try_from(model.args().dim).ok()?;
        let (labels, counts) = model.get_labels();
        let mut output = vec![0.0; labels.len() * dim];
        for (row, numbers) in output.chunks_exact_mut(dim).enumerate() {
            match model.quant_output() {
                Some(_) => add_row(numbers, model, Side::Output, row),
                None => numbers.copy_from_slice(model.output_matrix().row(row as i64)),
            }
        }
        let loss = model.args().loss;
        let tree = if loss == LossName::HierarchicalSoftmax { huffman(&counts) } else { Vec::new() };
        Some(Head { dim, output, loss, tree })
    }

    /// At most `count` labels for a text of `words`, most likely first.
    pub(super) fn predict(&self, model: &FastText, words: &[i32], count: usize) -> Vec<Prediction> {
        if words.is_empty() {
            return Vec::new();
        }
        let mut hidden = vec![0.0; self.dim];
        for word in words {
            add_row(&mut hidden, model, Side::Input, *word as usize);
        }
        hidden.iter_mut().for_each(|x| *x /= words.len() as f32);
        let products: Vec<f32> = self
            .output
            .chunks_exact(self.dim)
            .map(|row| row.iter().zip(&hidden).map(|(a, b)| a * b).sum())
            .collect();
        let scores = match self.loss {
            LossName::HierarchicalSoftmax => self.leaves(&products),
            LossName::Softmax => softmax(&products),
            LossName::NegativeSampling | LossName::OneVsAll => {
                products.into_iter().map(|x| log(sigmoid(x))).collect()
            }
        };
        let mut order: Vec<usize> = (0..scores.len()).filter(|at| scores[*at] >= log(0.0)).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(count);
        let label = |at: usize| model.dict().get_label(at as i32).unwrap_or_default().to_string();
        order.into_iter().map(|at| Prediction { prob: scores[at].exp(), label: label(at) }).collect()
    }

    /// Log-probabilities of the labels: sums over the branches from the root down.
    fn leaves(&self, products: &[f32]) -> Vec<f32> {
        let labels = products.len();
        let mut scores = vec![0.0; labels + self.tree.len()];
        for (node, [left, right]) in self.tree.iter().enumerate().rev() {
            let right_share = 1.0 / (1.0 + (-products[node]).exp());
            scores[*left] = scores[labels + node] + log(1.0 - right_share);
            scores[*right] = scores[labels + node] + log(right_share);
        }
        scores.truncate(labels);
        scores
    }
}

/// Matrix of a model.
#[derive(Clone, Copy)]
enum Side {
    Input,
    Output,
}

/// Adds row `row` of a quantised matrix to `sum`.
fn add_row(sum: &mut [f32], model: &FastText, side: Side, row: usize) {
    let matrix = match side {
        Side::Input => model.quant_input(),
        Side::Output => model.quant_output(),
    };
    let Some(matrix) = matrix else { return };
    let norm = match (&matrix.norm_codes, &matrix.npq) {
        (Some(codes), Some(quantiser)) => quantiser.get_centroids(0, codes[row])[0],
        _ => 1.0,
    };
    let parts = matrix.pq.nsubq as usize;
    let codes = &matrix.codes[row * parts..][..parts];
    for (part, (code, sums)) in codes.iter().zip(sum.chunks_mut(matrix.pq.dsub as usize)).enumerate() {
        for (sum, number) in sums.iter_mut().zip(matrix.pq.get_centroids(part, *code)) {
            *sum += norm * number;
        }
    }
}

/// Logarithm of a probability, as computed by the library.
fn log(x: f32) -> f32 {
    (x + 1e-5).ln()
}

/// Sigmoid from the library's table of 512 steps from -8 to 8.
fn sigmoid(x: f32) -> f32 {
    if x < -8.0 {
        return 0.0;
    }
    if x > 8.0 {
        return 1.0;
    }
    let step = ((x + 8.0) * 512.0 / 16.0).floor();
    1.0 / (1.0 + (8.0 - step * 16.0 / 512.0).exp())
}

fn softmax(products: &[f32]) -> Vec<f32> {
    let most = products.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shares: Vec<f32> = products.iter().map(|x| (x - most).exp()).collect();
    let sum: f32 = shares.iter().sum();
    shares.into_iter().map(|share| log(share / sum)).collect()
}

/// The library's Huffman tree for labels with these counts, in descending order.
fn huffman(counts: &[i64]) -> Vec<[usize; 2]> {
    let labels = counts.len();
    let mut weights = counts.to_vec();
    let mut tree = Vec::with_capacity(labels.saturating_sub(1));
    let (mut leaf, mut node) = (labels, labels);
    for _ in 1..labels {
        let mut least = || {
            // Ties prefer the inner node, as in the library's comparison.
            if leaf > 0 && weights.get(node).is_none_or(|inner| weights[leaf - 1] < *inner) {
                leaf -= 1;
                leaf
            } else {
                node += 1;
                node - 1
            }
        };
        let children = [least(), least()];
        weights.push(children.iter().fold(0i64, |sum, child| sum.saturating_add(weights[*child])));
        tree.push(children);
    }
    tree
}
