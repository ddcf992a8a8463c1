//! Each kind of operation separately.

use half::bf16;

use super::bench::{Bench, Data, Mode, Operator, Place, close, memory, numbers, strides, values};

const SINGLE: Data = Data::CUDNN_DATA_FLOAT;
const INT: Data = Data::CUDNN_DATA_INT32;
const HALF: Data = Data::CUDNN_DATA_BFLOAT16;

fn halves(values: &[f32]) -> Vec<bf16> {
    values.iter().copied().map(bf16::from_f32).collect()
}

#[test]
fn a_product_serves_neighbouring_heads_and_rounds_what_it_writes() {
    let mut bench = Bench::new();
    let (heads, shared, m, n, k) = (4, 2, 3, 5, 7);
    let a = bench.real(HALF, &[2, heads, m, k]);
    // The columns of b are contiguous.
    let b = bench.tensor(Place::Device, HALF, &[2, shared, k, n], &[shared * k * n, k * n, 1, k], None);
    let c = bench.real(HALF, &[2, heads, m, n]);
    bench.matmul(&a, &b, &c, [None; 3]);
    let (x, y) = (numbers(1, (2 * heads * m * k) as usize), numbers(2, (2 * shared * k * n) as usize));
    let out = memory(&halves(&vec![9.0; (2 * heads * m * n) as usize]));
    bench.run(&[(&a, memory(&halves(&x))), (&b, memory(&halves(&y))), (&c, out)]);
    let mut wanted = Vec::new();
    for batch in 0..2 {
        for head in 0..heads {
            for row in 0..m {
                for column in 0..n {
                    let sum: f32 = (0..k)
                        .map(|term| {
                            let a = x[(((batch * heads + head) * m + row) * k + term) as usize];
                            let b = y[(((batch * shared + head / 2) * n + column) * k + term) as usize];
                            a * b
                        })
                        .sum();
                    wanted.push(bf16::from_f32(sum));
                }
            }
        }
    }
    assert_eq!(values::<bf16>(out, wanted.len()), wanted);
}

#[test]
fn modes_are_what_they_are_called() {
    use Mode as M;
    let x = [-2.0_f32, 0.5, 3.0, f32::NEG_INFINITY];
    let b = [4.0_f32, 0.5, -1.0, 2.0];
    let check = |mode: M, wanted: [f32; 4]| {
        let mut bench = Bench::new();
        let [first, second, output] = [0; 3].map(|_| bench.real(SINGLE, &[1, 1, 2, 2]));
        let both = super::super::modes::unary(mode).is_none();
        let inputs: &[&_] = if both { &[&first, &second] } else { &[&first] };
        bench.pointwise(mode, inputs, &output);
        let out = memory(&[9.0_f32; 4]);
        let all = [(&first, memory(&x)), (&second, memory(&b)), (&output, out)];
        let used: Vec<_> = all.into_iter().filter(|(t, _)| both || t.uid != second.uid).collect();
        bench.run(&used);
        close(&values::<f32>(out, 4), &wanted, 1e-6);
    };
    let inf = f32::INFINITY;
    check(M::CUDNN_POINTWISE_ADD, [2.0, 1.0, 2.0, -inf]);
    check(M::CUDNN_POINTWISE_SUB, [-6.0, 0.0, 4.0, -inf]);
    check(M::CUDNN_POINTWISE_MUL, [-8.0, 0.25, -3.0, -inf]);
    check(M::CUDNN_POINTWISE_DIV, [-0.5, 1.0, -3.0, -inf]);
    check(M::CUDNN_POINTWISE_MAX, [4.0, 0.5, 3.0, 2.0]);
    check(M::CUDNN_POINTWISE_MIN, [-2.0, 0.5, -1.0, -inf]);
    check(M::CUDNN_POINTWISE_EXP, [(-2.0_f32).exp(), 0.5_f32.exp(), 3.0_f32.exp(), 0.0]);
    check(M::CUDNN_POINTWISE_IDENTITY, x);
    check(M::CUDNN_POINTWISE_RECIPROCAL, [-0.5, 2.0, 1.0 / 3.0, 0.0]);
    check(M::CUDNN_POINTWISE_TANH_FWD, [(-2.0_f32).tanh(), 0.5_f32.tanh(), 3.0_f32.tanh(), -1.0]);
}

#[test]
fn comparisons_choose_and_indices_count() {
    let mut bench = Bench::new();
    let dims = [1, 2, 3, 4];
    let x = bench.real(SINGLE, &dims);
    let y = bench.real(SINGLE, &dims);
    let (rows, columns) = (bench.index(&x, 2), bench.index(&x, 3));
    let within = bench.then(Mode::CUDNN_POINTWISE_CMP_GE, &[&rows, &columns]);
    let other = bench.then(Mode::CUDNN_POINTWISE_CMP_EQ, &[&columns, &rows]);
    let off = bench.then(Mode::CUDNN_POINTWISE_LOGICAL_NOT, &[&other]);
    let below = bench.then(Mode::CUDNN_POINTWISE_LOGICAL_AND, &[&within, &off]);
    let rest = bench.scalar(-7.0);
    bench.pointwise(Mode::CUDNN_POINTWISE_BINARY_SELECT, &[&x, &rest, &below], &y);
    // The operation that computes a tensor may be listed after those that use it.
    bench.operations.reverse();
    let from = numbers(3, 24);
    let out = memory(&[0.0_f32; 24]);
    bench.run(&[(&x, memory(&from)), (&y, out)]);
    let wanted: Vec<f32> = (0..24).map(|at| if at % 4 < at / 4 % 3 { from[at] } else { -7.0 }).collect();
    assert_eq!(values::<f32>(out, 24), wanted);
}

#[test]
fn reductions_are_of_rows_or_of_neighbours() {
    let from = [1.0_f32, -2.0, 3.0, 4.0, 5.0, -6.0, 7.0, 8.0];
    let check = |operator: Operator, dims: [i64; 3], wanted: &[f32]| {
        let mut bench = Bench::new();
        let (x, y) = (bench.real(SINGLE, &[1, 4, 2]), bench.real(SINGLE, &dims));
        bench.reduction(operator, &x, &y);
        let out = memory(&vec![9.0_f32; wanted.len()]);
        bench.run(&[(&x, memory(&from)), (&y, out)]);
        close(&values::<f32>(out, wanted.len()), wanted, 1e-6);
    };
    check(Operator::CUDNN_REDUCE_TENSOR_ADD, [1, 4, 1], &[-1.0, 7.0, -1.0, 15.0]);
    check(Operator::CUDNN_REDUCE_TENSOR_ADD, [1, 2, 2], &[4.0, 2.0, 12.0, 2.0]);
    check(Operator::CUDNN_REDUCE_TENSOR_MAX, [1, 4, 1], &[1.0, 4.0, 5.0, 8.0]);
    check(Operator::CUDNN_REDUCE_TENSOR_MIN, [1, 1, 2], &[1.0, -6.0]);
    check(Operator::CUDNN_REDUCE_TENSOR_MUL, [1, 4, 1], &[-2.0, 12.0, -30.0, 56.0]);
    check(Operator::CUDNN_REDUCE_TENSOR_AVG, [1, 1, 1], &[2.5]);
    check(Operator::CUDNN_REDUCE_TENSOR_AMAX, [1, 1, 1], &[8.0]);
}

#[test]
fn a_reshape_is_a_view_of_memory() {
    let from = numbers(5, 24);
    let check = |dims: &[i64], of: &[i64], wanted: Vec<f32>| {
        let mut bench = Bench::new();
        let x = bench.real(SINGLE, &[2, 3, 4]);
        let view = bench.tensor(Place::Virtual, SINGLE, dims, of, None);
        let y = bench.real(SINGLE, dims);
        bench.reshape(&x, &view);
        bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&view], &y);
        let out = memory(&[9.0_f32; 24]);
        bench.run(&[(&x, memory(&from)), (&y, out)]);
        assert_eq!(values::<f32>(out, 24), wanted);
    };
    let turned = |at: usize| from[at / 12 * 12 + at % 3 * 4 + at / 3 % 4];
    check(&[2, 4, 3], &[12, 1, 4], (0..24).map(turned).collect());
    check(&[4, 6], &strides(&[4, 6]), from.clone());
    check(&[6, 4], &[1, 6], (0..24).map(|at| from[at % 4 * 6 + at / 4]).collect());
}

#[test]
fn virtual_tensors_round() {
    let mut bench = Bench::new();
    let (x, y) = (bench.real(SINGLE, &[1, 1, 1, 2]), bench.real(SINGLE, &[1, 1, 1, 2]));
    let scale = bench.scalar(3.0);
    let between = bench.between(HALF, &[1, 1, 1, 2]);
    bench.pointwise(Mode::CUDNN_POINTWISE_MUL, &[&x, &scale], &between);
    bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&between], &y);
    let out = memory(&[0.0_f32; 2]);
    bench.run(&[(&x, memory(&[1.001_f32, 2.0])), (&y, out)]);
    assert_eq!(values::<f32>(out, 2), [bf16::from_f32(3.003).to_f32(), 6.0]);
}

#[test]
fn beyond_lengths_there_is_padding_and_nothing_is_written() {
    let mut bench = Bench::new();
    let dims = [2, 1, 3, 4];
    let (a, b) = (bench.real(SINGLE, &[2, 1, 3, 2]), bench.real(SINGLE, &[2, 1, 2, 4]));
    let (rows, columns) = (bench.real(INT, &[2, 1, 1, 1]), bench.real(INT, &[2, 1, 1, 1]));
    let between = bench.between(SINGLE, &dims);
    bench.padding = Some(-7.0);
    bench.matmul(&a, &b, &between, [Some(&rows), Some(&columns), None]);
    let (copy, least) = (bench.real(SINGLE, &dims), bench.real(SINGLE, &[2, 1, 3, 1]));
    bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&between], &copy);
    bench.reduction(Operator::CUDNN_REDUCE_TENSOR_MIN, &between, &least);
    let [out, low] = [24, 6].map(|count| memory(&vec![9.0_f32; count]));
    bench.run(&[
        (&a, memory(&[1.0_f32; 12])),
        (&b, memory(&[1.0_f32; 16])),
        (&rows, memory(&[2_i32, 3])),
        (&columns, memory(&[3_i32, 4])),
        (&copy, out),
        (&least, low),
    ]);
    let row = |columns: usize| (0..4).map(move |column| if column < columns { 2.0 } else { 9.0 });
    let wanted: Vec<f32> = [3, 3, 0, 4, 4, 4].into_iter().flat_map(row).collect();
    assert_eq!(values::<f32>(out, 24), wanted);
    assert_eq!(values::<f32>(low, 6), [-7.0, -7.0, 9.0, 2.0, 2.0, 2.0]);
}
