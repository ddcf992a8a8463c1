//! Properties of operations that start over with each document.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::{Category, DType, Device, DocumentRun, DocumentRuns, Tensor};

use super::{Matrix, Stream, assert_close, download, upload, weights};
use crate::op::LayerMemory;
use crate::{Batch, Counters, Ctx, Eval, Grads, ParamId, Places, Scope, Segments, Tape, Val};

/// A layer of one such operation.
pub(crate) struct Layer<'a> {
    pub cols: usize,
    pub params: Vec<Matrix>,
    pub states: &'a [(&'static str, [usize; 2])],
    pub record: &'a dyn Fn(&mut Ctx<'_>, Val, &[ParamId]) -> Val,
}

/// Output, gradient of the input, gradients of the weights.
type Results = (Vec<f64>, Vec<f64>, Vec<Vec<f64>>);

fn device(threads: usize) -> Device {
    Device::new(Arc::new(Cpu::new(threads, None)), 1 << 30)
}

/// A forward and a backward pass over documents of these lengths, with these rows of the input.
fn pass(layer: &Layer<'_>, threads: usize, documents: &[usize], x: &Matrix) -> Results {
    let device = &device(threads);
    let (params, ids) = weights(device, &layer.params, DType::F32);
    let batch = Stream::documents(documents, None, 1).upload(device);
    let (counters, places) = (Counters::default(), Places::none());
    let mut grads = Grads::zeros(device, &params);
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let mut tape = Tape::new(scope, &places).with_input_gradient();
    let input = upload(device, x, DType::F32, Category::Data, false);
    let y = tape.segment(0, Some(input), &|cx, x| (layer.record)(cx, x, &ids));
    let found = download(device, &y);
    // A gradient that is the same wherever a document lies.
    let dy = Matrix::new(found.rows, found.cols, |row, col| x[(row, col % x.cols)] - 0.5 * x[(row, 0)]);
    drop(y);
    let dy = upload(device, &dy, DType::F32, Category::Data, false);
    let dx = tape.backward(dy, &mut grads).map(|dx| download(device, &dx).data);
    grads.settle(device);
    let dw = grads.iter().map(|(_, grad)| download(device, grad).data).collect();
    (found.data, dx.unwrap_or_default(), dw)
}

fn some_rows(x: &Matrix, start: usize, count: usize) -> Matrix {
    Matrix { rows: count, cols: x.cols, data: x.data[start * x.cols..(start + count) * x.cols].to_vec() }
}

/// Documents packed together have, in each row, the bits of each document alone.
#[track_caller]
pub(crate) fn packed_equals_alone(layer: &Layer<'_>, documents: &[usize]) {
    let x = Matrix::random(documents.iter().sum(), layer.cols, 1);
    let packed = pass(layer, 2, documents, &x);
    let (mut y, mut dx, mut start) = (Vec::new(), Vec::new(), 0);
    for length in documents {
        let alone = pass(layer, 2, &[*length], &some_rows(&x, start, *length));
        y.extend(alone.0);
        dx.extend(alone.1);
        start += length;
    }
    assert!(packed.0 == y, "outputs differ");
    assert!(packed.1 == dx, "gradients differ");
}

/// Any number of threads gives the same bits.
#[track_caller]
pub(crate) fn threads_agree(layer: &Layer<'_>, documents: &[usize]) {
    let x = Matrix::random(documents.iter().sum(), layer.cols, 1);
    let one = pass(layer, 1, documents, &x);
    for threads in [2, 3] {
        assert!(pass(layer, threads, documents, &x) == one, "{threads} threads");
    }
}

/// States of sequences, by name.
struct States<'a> {
    of: &'a [(&'static str, [usize; 2])],
    /// One each for every sequence.
    all: Vec<Vec<Tensor>>,
}

impl LayerMemory for States<'_> {
    fn append(&mut self, _: &Device, _: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        (k.clone(), v.clone())
    }

    fn state(&mut self, _: &Device, _: usize, name: &str, sequence: usize) -> Tensor {
        let Some(index) = self.of.iter().position(|(of, _)| *of == name) else { panic!("state {name}") };
        self.all[sequence][index].clone()
    }
}

/// Sequences cut into parts, a part of each in every pass while there are any, have the output of whole ones, within the
/// tolerance; with none, the same bits.
#[track_caller]
pub(crate) fn goes_on(layer: &Layer<'_>, dtype: DType, parts: &[&[usize]], tolerance: f64) {
    let device = &device(2);
    let (params, ids) = weights(device, &layer.params, DType::F32);
    let counters = Counters::default();
    let run = |runs: Vec<DocumentRun>, x: &Matrix, states: Option<&mut States<'_>>| {
        let batch = Stream::documents(&[x.rows], None, 1).upload(device);
        let most = runs.len();
        let batch = Batch { documents: Some(DocumentRuns::new(device, runs, most)), ..batch };
        let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
        let input = upload(device, x, dtype, Category::Data, false);
        let memory = states.map(|states| states as &mut dyn LayerMemory);
        let mut eval = Eval::new(scope, None, memory);
        let y = eval.segment(0, Some(input), &|cx, x| (layer.record)(cx, x, &ids));
        download(device, &y)
    };
    let lengths: Vec<usize> = parts.iter().map(|parts| parts.iter().sum()).collect();
    let inputs: Vec<Matrix> = (0u64..)
        .zip(&lengths)
        .map(|(seed, rows)| Matrix::random(*rows, layer.cols, 10 + seed).rounded(dtype))
        .collect();
    let state = |(_, [rows, cols]): &(&str, [usize; 2])| device.zeros(*rows, *cols, DType::F32, Category::Kv);
    let all = parts.iter().map(|_| layer.states.iter().map(state).collect()).collect();
    let mut states = States { of: layer.states, all };
    let mut found = vec![Vec::new(); parts.len()];
    let mut done = vec![0; parts.len()];
    for step in 0..parts.iter().map(|parts| parts.len()).max().unwrap_or(0) {
        let (mut runs, mut x) = (Vec::new(), Matrix::zeros(0, layer.cols));
        for (document, parts) in parts.iter().enumerate() {
            let Some(count) = parts.get(step) else { continue };
            let rows = x.rows..x.rows + count;
            x.data.extend(some_rows(&inputs[document], done[document], *count).data);
            x.rows += count;
            runs.push(DocumentRun { rows, document, offset: done[document] });
            done[document] += count;
        }
        let y = run(runs.clone(), &x, Some(&mut states));
        for DocumentRun { rows, document, .. } in runs {
            found[document].extend(some_rows(&y, rows.start, rows.len()).data);
        }
    }
    for ((input, length), found) in inputs.iter().zip(lengths).zip(found) {
        let whole = run(vec![DocumentRun { rows: 0..length, document: 0, offset: 0 }], input, None);
        if tolerance == 0.0 {
            assert!(found == whole.data, "bits of {parts:?} differ");
        } else {
            assert_close("in parts", "output", &found, &whole.data, tolerance, 0.0);
        }
    }
}
