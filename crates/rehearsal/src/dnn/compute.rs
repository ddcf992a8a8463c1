//! Computation of operations, on contiguous single-precision values.

use cudarc::cudnn::sys::cudnnPointwiseMode_t as Mode;

use super::modes;
use super::operations::{Operation, Pointwise, Reduction, permutation};
use super::tensor::Tensor;

/// Elements of a tensor in the order of its dimensions.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// Its elements.
    pub data: &'a [f32],
}

/// Strides of contiguous values.
fn steps(dims: &[i64]) -> Vec<usize> {
    let mut steps = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        steps[dim - 1] = steps[dim] * dims[dim] as usize;
    }
    steps
}

/// Strides for a value that is broadcast to larger dimensions.
fn broadcast(value: &Tensor, dims: &[i64]) -> Vec<usize> {
    if value.count() == 1 {
        return vec![0; dims.len()];
    }
    let own = steps(&value.dims);
    value.dims.iter().zip(own).map(|(size, step)| if *size == 1 { 0 } else { step }).collect()
}

/// Visits rows of the last dimension, with the indices of the other dimensions.
fn rows(dims: &[i64], mut visit: impl FnMut(usize, &[usize])) {
    let last = dims.len() - 1;
    let mut index = vec![0; last];
    let count: i64 = dims[..last].iter().product();
    for row in 0..count as usize {
        visit(row, &index);
        for dim in (0..last).rev() {
            index[dim] += 1;
            if index[dim] < dims[dim] as usize {
                break;
            }
            index[dim] = 0;
        }
    }
}

fn at(index: &[usize], steps: &[usize]) -> usize {
    index.iter().zip(steps).map(|(index, step)| index * step).sum()
}

/// Computes a pointwise operation.
pub fn pointwise(what: &Pointwise, scales: [f32; 2], inputs: &[Value], output: &Tensor) -> Vec<f32> {
    let dims = &output.dims;
    let last = dims.len() - 1;
    let width = dims[last] as usize;
    let mut all = vec![0.0; output.count() as usize];
    if what.mode == Mode::CUDNN_POINTWISE_GEN_INDEX {
        let axis = what.axis.unwrap_or(0) as usize;
        rows(dims, |row, index| {
            for (column, value) in all[row * width..][..width].iter_mut().enumerate() {
                *value = index.get(axis).map_or(column as f32, |index| *index as f32);
            }
        });
        return all;
    }
    let from: Vec<Vec<usize>> = inputs.iter().map(|input| broadcast(input.tensor, dims)).collect();
    let [alpha, beta] = scales;
    // Start of an input's row, and the step within it.
    let row_of = |input: usize, index: &[usize]| (at(index, &from[input]), from[input][last]);
    if let Some(apply) = modes::unary(what.mode) {
        rows(dims, |row, index| {
            let (x, step) = row_of(0, index);
            for (column, value) in all[row * width..][..width].iter_mut().enumerate() {
                *value = apply(alpha * inputs[0].data[x + column * step]);
            }
        });
    } else if let Some(apply) = modes::binary(what.mode) {
        rows(dims, |row, index| {
            let ((x, x_step), (b, b_step)) = (row_of(0, index), row_of(1, index));
            for (column, value) in all[row * width..][..width].iter_mut().enumerate() {
                let (x, b) = (inputs[0].data[x + column * x_step], inputs[1].data[b + column * b_step]);
                *value = apply(alpha * x, beta * b);
            }
        });
    } else {
        rows(dims, |row, index| {
            let (x, b, t) = (row_of(0, index), row_of(1, index), row_of(2, index));
            for (column, value) in all[row * width..][..width].iter_mut().enumerate() {
                *value = if inputs[2].data[t.0 + column * t.1] != 0.0 {
                    alpha * inputs[0].data[x.0 + column * x.1]
                } else {
                    beta * inputs[1].data[b.0 + column * b.1]
                };
            }
        });
    }
    all
}

/// Reduces rows, or as many neighbours as the output is smaller.
pub fn reduction(what: &Reduction, x: Value, output: &Tensor) -> Vec<f32> {
    let (first, next) = modes::fold(what.operator);
    let mut all = vec![first; output.count() as usize];
    let dims = &x.tensor.dims;
    let last = dims.len() - 1;
    let width = dims[last] as usize;
    let group: Vec<usize> = dims.iter().zip(&output.dims).map(|(x, y)| (x / y) as usize).collect();
    let to = steps(&output.dims);
    rows(dims, |row, index| {
        let start: usize = (0..last).map(|dim| index[dim] / group[dim] * to[dim]).sum();
        for (column, value) in x.data[row * width..][..width].iter().enumerate() {
            let sum = &mut all[start + column / group[last]];
            *sum = next(*sum, *value);
        }
    });
    let count = group.iter().product();
    for value in &mut all {
        *value = modes::finish(what.operator, *value, count);
    }
    all
}

/// Computes a product for each batch, limited to the batch's numbers of rows, columns and terms. A factor with fewer
/// batches is shared by neighbours.
pub fn matmul(
    operation: &Operation,
    a: Value,
    b: Value,
    lengths: [Option<&[i64]>; 3],
    rest: f32,
) -> Vec<f32> {
    let output = &operation.output;
    let rank = output.dims.len();
    let (rows_c, columns) = (output.dims[rank - 2] as usize, output.dims[rank - 1] as usize);
    let terms = a.tensor.dims[rank - 1] as usize;
    let mut all = vec![rest; output.count() as usize];
    let share = |tensor: &Tensor| -> Vec<(usize, usize)> {
        let own = steps(&tensor.dims);
        (0..rank - 2).map(|dim| ((output.dims[dim] / tensor.dims[dim]) as usize, own[dim])).collect()
    };
    let (share_a, share_b) = (share(a.tensor), share(b.tensor));
    let start = |index: &[usize], share: &[(usize, usize)]| -> usize {
        index.iter().zip(share).map(|(index, (group, step))| index / group * step).sum()
    };
    let size = |part: usize, batch: usize, whole: usize| {
        lengths[part].map_or(whole, |lengths| (lengths[batch].max(0) as usize).min(whole))
    };
    // Visits matrices as rows.
    let mut batches = output.dims[..rank - 2].to_vec();
    batches.push(1);
    rows(&batches, |matrix, index| {
        let (a, b) = (&a.data[start(index, &share_a)..], &b.data[start(index, &share_b)..]);
        let c = &mut all[matrix * rows_c * columns..][..rows_c * columns];
        let batch = index[0];
        let (m, n, k) = (size(0, batch, rows_c), size(1, batch, columns), size(2, batch, terms));
        for row in 0..m {
            let c = &mut c[row * columns..][..n];
            c.fill(0.0);
            for term in 0..k {
                let factor = a[row * terms + term];
                for (sum, value) in c.iter_mut().zip(&b[term * columns..][..n]) {
                    *sum += factor * value;
                }
            }
        }
    });
    all
}

/// Views the same memory with other sizes and strides.
pub fn reshape(x: Value, output: &Tensor) -> Vec<f32> {
    let mut all = vec![0.0; output.count() as usize];
    let last = output.dims.len() - 1;
    let width = output.dims[last] as usize;
    let mut memory = Vec::new();
    let (from, data) = match permutation(x.tensor, output) {
        Some(order) => {
            let own = steps(&x.tensor.dims);
            (order.into_iter().map(|dim| own[dim]).collect(), x.data)
        }
        None => {
            memory.resize(x.data.len(), 0.0);
            lay_out(x, &mut memory);
            (output.strides.iter().map(|stride| *stride as usize).collect::<Vec<_>>(), &memory[..])
        }
    };
    rows(&output.dims, |row, index| {
        let start = at(index, &from);
        for (column, value) in all[row * width..][..width].iter_mut().enumerate() {
            *value = data[start + column * from[last]];
        }
    });
    all
}

/// Stores a packed tensor according to its strides.
fn lay_out(x: Value, memory: &mut [f32]) {
    let dims = &x.tensor.dims;
    let strides: Vec<usize> = x.tensor.strides.iter().map(|stride| *stride as usize).collect();
    let last = dims.len() - 1;
    let width = dims[last] as usize;
    rows(dims, |row, index| {
        let start = at(index, &strides);
        for (column, value) in x.data[row * width..][..width].iter().enumerate() {
            memory[start + column * strides[last]] = *value;
        }
    });
}
