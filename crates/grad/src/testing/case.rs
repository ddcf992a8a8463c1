//! Graphs of one operation on every instruction set compared with its reference. Gradients are compared with central
//! differences of the reference, so references need no backward pass.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_tensor::{Category, DType, Device, Machine, Meta, PoolUsage, Tensor};

use super::{Matrix, Stream, assert_close, download, levels, uniform, upload, weights};
use crate::op::{Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Counters, Ctx, Desc, Grads, ParamId, Places, Scope, Segments, Tape, Val};

/// Concatenates the columns of its inputs, so that one output carries the gradient of several.
struct Join;

impl Op for Join {
    fn name(&self) -> &'static str {
        "join"
    }

    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        vec![Out::new("join", ins.iter().map(|desc| desc.cols).sum(), ins[0].dtype)]
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        let mut start = 0;
        for part in ins {
            x.device.machine.copy(part, &outs[0].view_cols(start..start + part.cols()));
            start += part.cols();
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let mut start = 0;
        for part in dx.iter().flatten() {
            let end = start + part.tensor.cols();
            if let Some(dy) = &dy[0] {
                x.device.machine.copy(&dy.view_cols(start..end), &part.tensor);
            }
            start = end;
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

/// The values side by side.
pub(crate) fn join(cx: &mut Ctx<'_>, parts: &[Val]) -> Val {
    cx.apply(Join, parts, &[])[0]
}

/// A small graph with its expected results.
pub(crate) struct Case<'a> {
    pub what: String,
    /// The input's columns; 0 for none.
    pub cols: usize,
    pub params: Vec<Matrix>,
    /// Weights stay f32 in a bf16 graph.
    pub wide_params: bool,
    pub stream: Stream,
    pub record: &'a dyn Fn(&mut Ctx<'_>, Val, &[ParamId]) -> Val,
    pub reference: &'a dyn Fn(&Matrix, &[Matrix]) -> Matrix,
    /// A loss of the operations' own, which gradients include.
    pub penalty: Option<Penalty<'a>>,
}

/// Checks an operation of two inputs, one of which it has twice: `[a (a b) | c]` with the operation between the letters.
#[track_caller]
pub(crate) fn check_pair(
    name: &str,
    [tokens, width]: [usize; 2],
    record: &dyn Fn(&mut Ctx<'_>, &'static str, [Val; 2]) -> Val,
    reference: &dyn Fn(&Matrix, &Matrix) -> Matrix,
) {
    check(&Case {
        what: format!("{name} [{tokens}, {width}]"),
        cols: 3 * width,
        params: vec![],
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, _| {
            let [a, b, c] = cx.split(["a", "b", "c"], x, [width; 3], None);
            // One gradient reaches a by two ways, b by one, and c unchanged.
            let ab = record(cx, "ab", [a, b]);
            let aab = record(cx, "aab", [a, ab]);
            join(cx, &[aab, c])
        },
        reference: &|x, _| {
            let [a, b, c] = [0, 1, 2].map(|part| x.columns(part * width..(part + 1) * width));
            Matrix::join(&[reference(&a, &reference(&a, &b)), c])
        },
        penalty: None,
    });
}

/// A loss as a function of the input and the weights.
pub(crate) type Penalty<'a> = &'a dyn Fn(&Matrix, &[Matrix]) -> f64;

/// Output, gradient of the input, gradients of the weights.
#[derive(Clone, Debug)]
struct Results {
    y: Matrix,
    dx: Option<Matrix>,
    dw: Vec<Matrix>,
}

impl Results {
    /// The bits of all numbers, with denormals replaced by zeros.
    fn flushed(self) -> Vec<u64> {
        let flush = |x: f64| if x.abs() < f64::from(f32::MIN_POSITIVE) { 0f64.copysign(x) } else { x };
        let all = std::iter::once(self.y).chain(self.dx).chain(self.dw);
        all.flat_map(|matrix| matrix.data).map(|x| flush(x).to_bits()).collect()
    }
}

/// A case's numbers, rounded to the type under test.
struct Numbers {
    dtype: DType,
    x: Matrix,
    params: Vec<Matrix>,
    dy: Matrix,
}

/// Gradients are checked at this many elements of each tensor.
const SAMPLES: usize = 48;

/// Runs the case on every instruction set, in f32 and bf16, with contiguous and strided input and gradient, and
/// compares output and gradients with the reference and its central differences. The plan must use the same memory. Denormal
/// operands must give what zeros give, bit for bit.
#[track_caller]
pub(crate) fn check(case: &Case<'_>) {
    check_within(case, 2e-2);
}

/// [`check`] with a tolerance for bf16: roundings add up along a chain of operations.
#[track_caller]
pub(crate) fn check_within(case: &Case<'_>, bf16: f64) {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::Bf16, bf16)] {
        let wide = if case.wide_params { DType::F32 } else { dtype };
        let x = Matrix::random(case.stream.tokens(), case.cols, 1).rounded(dtype);
        let params: Vec<Matrix> = case.params.iter().map(|param| param.rounded(wide)).collect();
        let y = (case.reference)(&x, &params);
        let dy = Matrix::random(y.rows, y.cols, 2).rounded(dtype);
        let numbers = Numbers { dtype, x, params, dy };
        let samples = sample(&numbers);
        let expected = differences(case, &numbers, &samples);
        for (isa, strided) in levels().flat_map(|isa| [(isa, false), (isa, true)]) {
            // One thread waits for no other while tests run in parallel; two show that tasks are independent.
            let machine = Arc::new(Cpu::new(1 + usize::from(strided), Some(isa)));
            let plan = Arc::new(Meta::new(machine.profile().clone()));
            let (found, usage) = run(case, &numbers, machine, strided);
            let at = format!("{}, {dtype:?}, {}, strided {strided}", case.what, isa.name());
            assert_close(&at, "output", &found.y.data, &y.data, tolerance, 0.0);
            compare(&at, &found, &expected, &samples, tolerance);
            assert_eq!(usage, run(case, &numbers, plan, strided).1, "{at}: memory differs from the plan's");
            if !strided {
                check_denormals(case, &numbers, isa);
            }
        }
    }
}

/// Every seventh number becomes a denormal, or a zero of its sign: results must be the same.
#[track_caller]
fn check_denormals(case: &Case<'_>, numbers: &Numbers, isa: Isa) {
    let results = [1e-39, 0.0].map(|small: f64| {
        let with = |matrix: &Matrix| {
            let mut matrix = matrix.clone();
            matrix.data.iter_mut().step_by(7).for_each(|x| *x = small.copysign(*x));
            matrix
        };
        let params = numbers.params.iter().map(with).collect();
        let numbers = Numbers { dtype: numbers.dtype, x: with(&numbers.x), params, dy: with(&numbers.dy) };
        run(case, &numbers, Arc::new(Cpu::new(1, Some(isa))), false).0.flushed()
    });
    let [denormals, zeros] = results;
    let at = format!("{}, {:?}, {}", case.what, numbers.dtype, isa.name());
    assert!(denormals == zeros, "{at}: denormals and zeros differ: {denormals:?} {zeros:?}");
}

/// Elements whose gradients are compared: of the input, then of each weight.
fn sample(numbers: &Numbers) -> Vec<Vec<usize>> {
    let pick = |(tensor, matrix): (usize, &Matrix)| -> Vec<usize> {
        let len = matrix.data.len();
        let draw = |at: usize| (uniform(1000 + tensor as u64, at as u64) * len as f64) as usize;
        if len <= SAMPLES { (0..len).collect() } else { (0..SAMPLES).map(draw).collect() }
    };
    std::iter::once(&numbers.x).chain(&numbers.params).enumerate().map(pick).collect()
}

/// d sum(dy y) / d element by central differences of the reference, at the sampled elements.
fn differences(case: &Case<'_>, numbers: &Numbers, samples: &[Vec<usize>]) -> Vec<Vec<f64>> {
    let mut tensors: Vec<Matrix> = std::iter::once(&numbers.x).chain(&numbers.params).cloned().collect();
    let mut all = Vec::new();
    for (tensor, elements) in samples.iter().enumerate() {
        let mut gradients = Vec::new();
        for &element in elements {
            let middle = tensors[tensor].data[element];
            let step = 1e-5 * middle.abs().max(0.1);
            let mut at = |x: f64| {
                tensors[tensor].data[element] = x;
                let penalty = case.penalty.map_or(0.0, |penalty| penalty(&tensors[0], &tensors[1..]));
                ((case.reference)(&tensors[0], &tensors[1..]), penalty)
            };
            let ((up, more), (down, less)) = (at(middle + step), at(middle - step));
            at(middle);
            // Subtracting before summing excludes terms independent of the element from the rounding error.
            let change = up.data.iter().zip(&down.data).zip(&numbers.dy.data);
            let change = change.map(|((up, down), dy)| (up - down) * dy).sum::<f64>() + more - less;
            gradients.push(change / (2.0 * step));
        }
        all.push(gradients);
    }
    all
}

#[track_caller]
fn compare(at: &str, found: &Results, expected: &[Vec<f64>], samples: &[Vec<usize>], tolerance: f64) {
    let floor = 1e-3 * expected.iter().flatten().fold(0.0, |most: f64, x| x.abs().max(most));
    let pick = |matrix: &Matrix, elements: &[usize]| -> Vec<f64> {
        elements.iter().map(|at| matrix.data[*at]).collect()
    };
    if let Some(dx) = &found.dx {
        assert_close(at, "gradient of the input", &pick(dx, &samples[0]), &expected[0], tolerance, floor);
    }
    for (index, dw) in found.dw.iter().enumerate() {
        let what = format!("gradient of weight {index}");
        assert_close(at, &what, &pick(dw, &samples[index + 1]), &expected[index + 1], tolerance, floor);
    }
}

fn run(case: &Case<'_>, numbers: &Numbers, machine: Arc<dyn Machine>, strided: bool) -> (Results, PoolUsage) {
    let device = &Device::new(machine, 1 << 30);
    let dtype = numbers.dtype;
    let wide = if case.wide_params { DType::F32 } else { dtype };
    let (params, ids) = weights(device, &numbers.params, wide);
    let batch = case.stream.upload(device);
    let mut grads = Grads::zeros(device, &params);
    // Gradients are meaningless when a step begins.
    for (_, grad) in grads.iter() {
        device.machine.write(grad, &vec![0xff; grad.bytes() as usize]);
    }
    grads.clear(device);
    let counters = Counters::default();
    let places = Places::none();
    let x = (case.cols > 0).then(|| upload(device, &numbers.x, dtype, Category::Data, strided));
    let dy = upload(device, &numbers.dy, dtype, Category::Data, strided);
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let mut tape = Tape::new(scope, &places).with_input_gradient();
    let y = tape.segment(0, x, &|cx, x| (case.record)(cx, x, &ids));
    let found = download(device, &y);
    drop(y);
    let dx = tape.backward(dy, &mut grads).map(|dx| download(device, &dx));
    grads.settle(device);
    let dw = grads.iter().map(|(_, grad)| download(device, grad)).collect();
    let usage = device.pool.usage();
    assert_eq!(usage.by_category[Category::Activations], 0, "{}: activations are left", case.what);
    assert_eq!(usage.by_category[Category::Workspace], 0, "{}: workspace is left", case.what);
    (Results { y: found, dx, dw }, usage)
}
