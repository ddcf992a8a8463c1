//! Losses of a tile of logits.
#![allow(unsafe_code)]

use fathom_tensor::{CLOSEST, CrossEntropy, DType, Divergence, RowDistance, TeacherLogits, Tensor};

use super::cpu::Cpu;
use super::operands::{expect, f32s, f32s_mut, i32s, mat, mat_mut};
use crate::elementwise::{self, Side};
use crate::mat::{Elem, MatMut};

/// Statistics of all ranks for a tile, and the number of ranks.
fn stats(name: &str, all: &Tensor, rows: usize, each: usize) -> (crate::mat::Mat, usize) {
    assert!(all.cols() == rows && all.dtype() == DType::F32, "{name}: statistics {all:?}");
    (mat(all), all.rows() / each)
}

pub fn cross_entropy(cpu: &Cpu, op: &CrossEntropy<'_>) {
    let rows = op.logits.rows();
    expect("cross_entropy", "labels", op.labels, [1, rows]);
    expect("cross_entropy", "loss", op.loss, [1, rows]);
    let each = if op.measures.is_some() { 4 } else { 2 };
    let call = elementwise::CrossEntropy {
        vocab: op.logits.cols(),
        logits: mat(op.logits),
        labels: i32s(op.labels),
        weights: op.weights.map(f32s),
        loss: mat_mut(op.loss),
        logp: None,
        dlogits: op.dlogits.map(mat_mut),
        scale: op.scale,
        softcap: op.softcap,
        z_loss: op.z_loss,
        spread: op.spread.map(|spread| {
            if let Some(stats) = spread.stats {
                expect("cross_entropy", "stats", stats, [each, rows]);
            }
            let all = spread.all.map(|all| stats("cross_entropy", all, rows, each));
            elementwise::VocabShard { first: spread.first, stats: spread.stats.map(mat_mut), all }
        }),
        measures: op.measures.map(|measures| {
            expect("cross_entropy", "measures", measures, [2, rows]);
            mat_mut(measures)
        }),
    };
    // SAFETY: see the parent module; the kernel allows dlogits to be logits.
    unsafe { elementwise::cross_entropy(cpu.place(), &call) }
}

pub fn divergence(cpu: &Cpu, op: &Divergence<'_>) {
    let [rows, vocab] = op.logits.shape();
    expect("divergence", "labels", op.labels, [1, rows]);
    expect("divergence", "parts", op.parts, [op.teacher.parts(), rows]);
    let side = |logits: &Tensor, all: &Tensor, scale, softcap| {
        expect("divergence", "logits", logits, [rows, vocab]);
        assert!(logits.dtype() == DType::F32, "divergence: {logits:?}");
        Side { logits: mat(logits), stats: stats("divergence", all, rows, 2), scale, softcap }
    };
    let teacher = match op.teacher {
        TeacherLogits::Whole { logits, stats, scale, softcap } => {
            elementwise::TeacherLogits::Whole(side(logits, stats, scale, softcap))
        }
        TeacherLogits::Best { ids, logps, rest } => {
            let k = ids.cols();
            expect("divergence", "ids", ids, [rows, k]);
            expect("divergence", "logps", logps, [rows, k]);
            elementwise::TeacherLogits::Best { ids: i32s(ids), logps: f32s(logps), k, rest, closest: CLOSEST }
        }
    };
    let call = elementwise::Divergence {
        vocab,
        student: side(op.logits, op.stats, op.scale, op.softcap),
        teacher,
        labels: i32s(op.labels),
        first: op.first,
        beta: op.beta,
        parts: MatMut { ptr: f32s_mut(op.parts).cast(), elem: Elem::F32, stride: op.parts.stride() },
        out: op.out.map(|out| {
            expect("divergence", "loss", out.loss, [1, rows]);
            expect("divergence", "dlogits", out.dlogits, [rows, vocab]);
            expect("divergence", "weights", out.weights, [1, rows]);
            let (loss, dlogits) = (mat_mut(out.loss), mat_mut(out.dlogits));
            assert!(dlogits.elem == Elem::F32, "divergence: {:?}", out.dlogits);
            elementwise::DivergenceOutput { loss, dlogits, weights: f32s(out.weights), factor: out.factor }
        }),
    };
    // SAFETY: see the parent module; the kernel allows dlogits to be the teacher's logits.
    unsafe { elementwise::divergence(cpu.place(), &call) }
}

pub fn row_distance(cpu: &Cpu, op: &RowDistance<'_>) {
    let [rows, cols] = op.x.shape();
    expect("row_distance", "target", op.target, [rows, cols]);
    expect("row_distance", "dx", op.dx, [rows, cols]);
    for (name, x) in [("labels", op.labels), ("weights", op.weights), ("loss", op.loss)] {
        expect("row_distance", name, x, [1, rows]);
    }
    let call = elementwise::RowDistance {
        distance: op.distance,
        cols,
        x: mat(op.x),
        target: mat(op.target),
        labels: i32s(op.labels),
        weights: f32s(op.weights),
        factor: op.factor,
        loss: MatMut { ptr: f32s_mut(op.loss).cast(), elem: Elem::F32, stride: op.loss.stride() },
        dx: mat_mut(op.dx),
    };
    // SAFETY: see the parent module; the kernel allows dx to be the target.
    unsafe { elementwise::row_distance(cpu.place(), &call) }
}
