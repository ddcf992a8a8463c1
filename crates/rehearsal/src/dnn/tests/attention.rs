//! Attention as written by NVIDIA's frontend, operation by operation, compared with formulas.

use half::bf16;

use super::bench::{Bench, Data, Mode, Operator, Place, Tensor, close, memory, numbers, values};

const SINGLE: Data = Data::CUDNN_DATA_FLOAT;

/// Sizes; for sequences, those of the longest.
#[derive(Clone, Copy)]
pub struct Shape {
    pub batch: i64,
    pub heads: i64,
    pub shared: i64,
    pub queries: i64,
    pub keys: i64,
    pub width: i64,
    pub data: Data,
}

/// Starts of sequences in queries, keys and statistics; and their lengths.
pub struct PackedOffsets {
    pub queries: Tensor,
    pub keys: Tensor,
    pub stats: Tensor,
    pub query_lengths: Tensor,
    pub key_lengths: Tensor,
}

impl PackedOffsets {
    pub fn new(bench: &Bench, batch: i64) -> PackedOffsets {
        let offsets = || bench.real(Data::CUDNN_DATA_INT64, &[batch + 1, 1, 1, 1]);
        let lengths = || bench.real(Data::CUDNN_DATA_INT32, &[batch, 1, 1, 1]);
        let [queries, keys, stats] = [offsets(), offsets(), offsets()];
        PackedOffsets { queries, keys, stats, query_lengths: lengths(), key_lengths: lengths() }
    }
}

impl Shape {
    /// Tokens of a number of heads; with `turned`, viewed with the sequence last.
    fn tokens(
        &self,
        bench: &Bench,
        heads: i64,
        length: i64,
        turned: bool,
        ragged: Option<&Tensor>,
    ) -> Tensor {
        let (d, row) = (self.width, heads * self.width);
        let (mut dims, mut strides) = ([self.batch, heads, length, d], [length * row, d, row, 1]);
        if turned {
            dims.swap(2, 3);
            strides.swap(2, 3);
        }
        bench.tensor(Place::Device, self.data, &dims, &strides, ragged)
    }

    pub fn queries(&self, bench: &Bench, packed: Option<&PackedOffsets>) -> Tensor {
        self.tokens(bench, self.heads, self.queries, false, packed.map(|packed| &packed.queries))
    }

    pub fn keys(&self, bench: &Bench, turned: bool, packed: Option<&PackedOffsets>) -> Tensor {
        self.tokens(bench, self.shared, self.keys, turned, packed.map(|packed| &packed.keys))
    }

    pub fn stats(&self, bench: &Bench, packed: Option<&PackedOffsets>) -> Tensor {
        let dims = [self.batch, self.heads, self.queries, 1];
        let strides = [self.heads * self.queries, 1, self.heads, 1];
        bench.tensor(Place::Device, SINGLE, &dims, &strides, packed.map(|packed| &packed.stats))
    }

    fn scores(&self) -> [i64; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    fn row(&self) -> [i64; 4] {
        [self.batch, self.heads, self.queries, 1]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }
}

/// Masks scores beyond the lengths, or above the diagonal.
fn masked(bench: &mut Bench, scores: &Tensor, packed: Option<&PackedOffsets>, causal: bool) -> Tensor {
    let mut last = scores.clone();
    let nothing = bench.scalar(f32::NEG_INFINITY);
    if let Some(packed) = packed {
        let (rows, columns) = (bench.index(&last, 2), bench.index(&last, 3));
        let rows = bench.then(Mode::CUDNN_POINTWISE_CMP_LT, &[&rows, &packed.query_lengths]);
        let columns = bench.then(Mode::CUDNN_POINTWISE_CMP_LT, &[&columns, &packed.key_lengths]);
        let both = bench.then(Mode::CUDNN_POINTWISE_LOGICAL_AND, &[&rows, &columns]);
        last = bench.then(Mode::CUDNN_POINTWISE_BINARY_SELECT, &[&last, &nothing, &both]);
    }
    if causal {
        let (rows, columns) = (bench.index(&last, 2), bench.index(&last, 3));
        let within = bench.then(Mode::CUDNN_POINTWISE_CMP_GE, &[&rows, &columns]);
        last = bench.then(Mode::CUDNN_POINTWISE_BINARY_SELECT, &[&last, &nothing, &within]);
    }
    last
}

/// Queries, keys, values, output and statistics of a forward pass.
pub fn forward(bench: &mut Bench, shape: Shape, packed: Option<&PackedOffsets>) -> [Tensor; 5] {
    let q = shape.queries(bench, packed);
    let kt = shape.keys(bench, true, packed);
    let v = shape.keys(bench, false, packed);
    let (o, stats) = (shape.queries(bench, packed), shape.stats(bench, packed));
    let lengths = packed.map(|packed| (&packed.query_lengths, &packed.key_lengths));
    let (rows, columns) = (lengths.map(|both| both.0), lengths.map(|both| both.1));
    let scores = bench.between(SINGLE, &shape.scores());
    bench.matmul(&q, &kt, &scores, [rows, columns, None]);
    let scale = bench.scalar(shape.scale());
    let scaled = bench.then(Mode::CUDNN_POINTWISE_MUL, &[&scores, &scale]);
    let last = masked(bench, &scaled, packed, true);
    let [most, sum] = [(); 2].map(|()| bench.between(SINGLE, &shape.row()));
    bench.reduction(Operator::CUDNN_REDUCE_TENSOR_MAX, &last, &most);
    let less = bench.then(Mode::CUDNN_POINTWISE_SUB, &[&last, &most]);
    let exp = bench.then(Mode::CUDNN_POINTWISE_EXP, &[&less]);
    bench.reduction(Operator::CUDNN_REDUCE_TENSOR_ADD, &exp, &sum);
    let log = bench.then(Mode::CUDNN_POINTWISE_LOG, &[&sum]);
    bench.pointwise(Mode::CUDNN_POINTWISE_ADD, &[&most, &log], &stats);
    let weights = bench.between(shape.data, &shape.scores());
    bench.pointwise(Mode::CUDNN_POINTWISE_DIV, &[&exp, &sum], &weights);
    bench.matmul(&weights, &v, &o, [rows, None, columns]);
    [q, kt, v, o, stats]
}

/// The forward tensors, the output's gradient, gradients of queries, keys and values, and tensors in memory between
/// operations.
pub fn backward(bench: &mut Bench, shape: Shape, packed: Option<&PackedOffsets>) -> Vec<Tensor> {
    let q = shape.queries(bench, packed);
    let [kt, vt] = [(); 2].map(|()| shape.keys(bench, true, packed));
    let [o, d_o, dq] = [(); 3].map(|()| shape.queries(bench, packed));
    let [dk, dv] = [(); 2].map(|()| shape.keys(bench, false, packed));
    let stats = shape.stats(bench, packed);
    let lengths = packed.map(|packed| (&packed.query_lengths, &packed.key_lengths));
    let (rows, columns) = (lengths.map(|both| both.0), lengths.map(|both| both.1));
    let both = bench.between(SINGLE, &q.dims);
    bench.pointwise(Mode::CUDNN_POINTWISE_MUL, &[&d_o, &o], &both);
    let total = bench.between(SINGLE, &shape.row());
    bench.reduction(Operator::CUDNN_REDUCE_TENSOR_ADD, &both, &total);
    let (one, sum) = (bench.scalar(1.0), shape.stats(bench, packed));
    bench.pointwise(Mode::CUDNN_POINTWISE_MUL, &[&total, &one], &sum);
    let scores = bench.between(SINGLE, &shape.scores());
    bench.matmul(&q, &kt, &scores, [rows, columns, None]);
    let scale = bench.scalar(shape.scale());
    let mut last = bench.then(Mode::CUDNN_POINTWISE_MUL, &[&scores, &scale]);
    if packed.is_some() {
        last = masked(bench, &last, packed, false);
    }
    let less = bench.then(Mode::CUDNN_POINTWISE_SUB, &[&last, &stats]);
    let last = masked(bench, &less, None, true);
    let weights = bench.then(Mode::CUDNN_POINTWISE_EXP, &[&last]);
    let dv_full = turned_product(bench, shape, [&weights, &d_o, &dv], packed);
    let d_weights = bench.between(SINGLE, &shape.scores());
    bench.matmul(&d_o, &vt, &d_weights, [rows, columns, None]);
    let less = bench.then(Mode::CUDNN_POINTWISE_SUB, &[&d_weights, &sum]);
    let times = bench.then(Mode::CUDNN_POINTWISE_MUL, &[&less, &weights]);
    let d_scores = bench.then(Mode::CUDNN_POINTWISE_MUL, &[&times, &scale]);
    let dk_full = turned_product(bench, shape, [&d_scores, &q, &dk], packed);
    let dims = [shape.batch, shape.shared, shape.keys, shape.width];
    let (d, row) = (shape.width, shape.shared * shape.width);
    let ragged = packed.map(|packed| &packed.keys);
    let k = bench.tensor(Place::Virtual, shape.data, &dims, &[shape.keys * row, d, row, 1], ragged);
    bench.reshape(&kt, &k);
    let single = Shape { data: SINGLE, ..shape };
    let wide = single.queries(bench, packed);
    bench.matmul(&d_scores, &k, &wide, [rows, None, columns]);
    bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&wide], &dq);
    let mut all = vec![q, kt, vt, o, stats, d_o, dq, dk, dv, sum, wide];
    all.extend([dk_full, dv_full].into_iter().flatten());
    all
}

/// The product with transposed scores, summed over heads that share keys. For packed sequences the summands are in
/// memory.
fn turned_product(
    bench: &mut Bench,
    shape: Shape,
    [scores, by, to]: [&Tensor; 3],
    packed: Option<&PackedOffsets>,
) -> Option<Tensor> {
    let (h, q, k, d) = (shape.heads, shape.queries, shape.keys, shape.width);
    let lengths =
        [packed.map(|packed| &packed.key_lengths), None, packed.map(|packed| &packed.query_lengths)];
    let (dims, strides) = ([shape.batch, h, k, q], [h * q * k, q * k, 1, k]);
    let turned = bench.tensor(Place::Virtual, shape.data, &dims, &strides, None);
    bench.reshape(scores, &turned);
    if shape.heads == shape.shared {
        bench.matmul(&turned, by, to, lengths);
        return None;
    }
    let dims = [shape.batch, h, k, d];
    let whole = match packed {
        Some(packed) => {
            let strides = [k * h * d, d, h * d, 1];
            bench.tensor(Place::Device, shape.data, &dims, &strides, Some(&packed.keys))
        }
        None => bench.between(shape.data, &dims),
    };
    bench.matmul(&turned, by, &whole, lengths);
    bench.reduction(Operator::CUDNN_REDUCE_TENSOR_ADD, &whole, to);
    packed.map(|_| whole)
}

/// Expected values of a sequence by formulas: tokens of heads, output, statistics, and gradients of queries, keys and
/// values.
pub struct ExpectedSequence {
    pub o: Vec<f32>,
    pub stats: Vec<f32>,
    pub grads: [Vec<f32>; 3],
}

pub fn wanted(shape: Shape, [q, k, v, d_o]: [&[f32]; 4], queries: usize, keys: usize) -> ExpectedSequence {
    let (heads, shared, d) = (shape.heads as usize, shape.shared as usize, shape.width as usize);
    let scale = f64::from(shape.scale());
    let dot =
        |x: &[f32], y: &[f32]| -> f64 { x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum() };
    let query = |head: usize, at: usize| (at * heads + head) * d..(at * heads + head + 1) * d;
    let key = |head: usize, at: usize| {
        let start = (at * shared + head / (heads / shared)) * d;
        start..start + d
    };
    let mut o = vec![0.0; queries * heads * d];
    let mut stats = vec![0.0; queries * heads];
    let mut grads = [vec![0.0; o.len()], vec![0.0; keys * shared * d], vec![0.0; keys * shared * d]];
    for head in 0..heads {
        for row in 0..queries {
            let seen = keys.min(row + 1);
            let mine = query(head, row);
            let scores: Vec<f64> =
                (0..seen).map(|at| scale * dot(&q[mine.clone()], &k[key(head, at)])).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
            stats[row * heads + head] = (most + total.ln()) as f32;
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp() / total).collect();
            let of: Vec<f64> = (0..seen).map(|at| dot(&d_o[mine.clone()], &v[key(head, at)])).collect();
            let mean: f64 = weights.iter().zip(&of).map(|(weight, of)| weight * of).sum();
            for at in 0..seen {
                let d_score = scale * weights[at] * (of[at] - mean);
                for (one, other) in mine.clone().zip(key(head, at)) {
                    o[one] += weights[at] * f64::from(v[other]);
                    grads[0][one] += d_score * f64::from(k[other]);
                    grads[1][other] += d_score * f64::from(q[one]);
                    grads[2][other] += weights[at] * f64::from(d_o[one]);
                }
            }
        }
    }
    let single = |all: Vec<f64>| all.into_iter().map(|value| value as f32).collect();
    ExpectedSequence { o: single(o), stats, grads: grads.map(single) }
}

#[test]
fn causal_attention_and_its_gradients_are_the_formulas() {
    for (heads, shared) in [(2, 2), (4, 2), (3, 1)] {
        let shape = Shape { batch: 1, heads, shared, queries: 9, keys: 9, width: 8, data: SINGLE };
        let (many, few) = ((9 * 8 * heads) as usize, (9 * 8 * shared) as usize);
        let [q, d_o] = [1, 2].map(|seed| numbers(seed, many));
        let [k, v] = [3, 4].map(|seed| numbers(seed, few));
        let wanted = wanted(shape, [&q, &k, &v, &d_o], 9, 9);
        let [at_q, at_k, at_v, at_d_o] = [&q, &k, &v, &d_o].map(|all| memory(all));
        let (at_o, at_stats) = (memory(&vec![9.0_f32; many]), memory(&vec![9.0_f32; wanted.stats.len()]));
        let mut bench = Bench::new();
        let [q, k, v, o, stats] = forward(&mut bench, shape, None);
        bench.run(&[(&q, at_q), (&k, at_k), (&v, at_v), (&o, at_o), (&stats, at_stats)]);
        close(&values::<f32>(at_o, many), &wanted.o, 1e-5);
        close(&values::<f32>(at_stats, wanted.stats.len()), &wanted.stats, 1e-5);
        let mut bench = Bench::new();
        let tensors = backward(&mut bench, shape, None);
        let grads = [many, few, few].map(|count| memory(&vec![9.0_f32; count]));
        let [sums, wide] = [wanted.stats.len(), many].map(|count| memory(&vec![9.0_f32; count]));
        let places = [at_q, at_k, at_v, at_o, at_stats, at_d_o, grads[0], grads[1], grads[2], sums, wide];
        bench.run(&tensors.iter().zip(places).collect::<Vec<_>>());
        for (place, wanted) in grads.into_iter().zip(&wanted.grads) {
            close(&values::<f32>(place, wanted.len()), wanted, 1e-4);
        }
    }
}

#[test]
fn half_a_thousand_tokens_of_eight_heads_take_little_time() {
    let data = Data::CUDNN_DATA_BFLOAT16;
    let shape = Shape { batch: 1, heads: 8, shared: 2, queries: 512, keys: 512, width: 64, data };
    let halves = |count: i64, seed| {
        memory(&numbers(seed, count as usize).into_iter().map(bf16::from_f32).collect::<Vec<_>>())
    };
    let [many, few] = [8, 2].map(|heads| 512 * 64 * heads);
    let mut bench = Bench::new();
    let tensors = backward(&mut bench, shape, None);
    let stats = memory(&[7.0_f32; 8 * 512]);
    let sizes = [many, few, few, many, 0, many, many, few, few];
    let mut places: Vec<u64> = sizes
        .iter()
        .zip(1..)
        .map(|(size, seed)| if *size == 0 { stats } else { halves(*size, seed) })
        .collect();
    places.extend([memory(&[0.0_f32; 8 * 512]), memory(&vec![0.0_f32; many as usize])]);
    let start = std::time::Instant::now();
    bench.run(&tensors.iter().zip(places).collect::<Vec<_>>());
    eprintln!("backward: {:?}", start.elapsed());
    assert!(start.elapsed().as_secs() < 5);
}
