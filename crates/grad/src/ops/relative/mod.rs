//! Disentangled attention (He et al., arXiv 2006.03654, section 3.1): a score is the sum of content to content, content
//! to position and position to content, where positions are rows of a table of distances. Texts are short, so the
//! scores of one head are materialised; they are combined on the host, where their softmax is computed.
//!
//! Each document attends separately, under a mask of its own.

mod distances;

use std::ops::Range;

use fathom_tensor::{Category, DType, MatMul, Tensor};

pub use distances::Distances;

use super::attention::documents;
use super::only;
use crate::op::{Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RelativeUse {
    /// Index of the first document's mask.
    pub mask: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Multiplies the sum of the terms.
    pub scale: f32,
    /// The rows of distances.
    pub distances: Distances,
    /// True if content attends to the key's position: positions are the fourth input.
    pub c2p: bool,
    /// True if the key's content attends to the query's position: positions are the last input.
    pub p2c: bool,
}

struct Relative {
    how: RelativeUse,
}

impl Ctx<'_> {
    /// q, k and v [t, heads x head_dim] to `attn.out`, with keys and queries of distances [2 span, heads x head_dim].
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn relative_attention(
        &mut self,
        [q, k, v]: [Val; 3],
        position_keys: Option<Val>,
        position_queries: Option<Val>,
        how: RelativeUse,
    ) -> Val {
        let (c2p, p2c) = (position_keys.is_some(), position_queries.is_some());
        let ins: Vec<Val> = [q, k, v].into_iter().chain(position_keys).chain(position_queries).collect();
        only(self.apply(Relative { how: RelativeUse { c2p, p2c, ..how } }, &ins, &[]))
    }
}

/// One head of one document: rows of q, k, v, and the tables of distances.
struct Head<'a> {
    how: RelativeUse,
    rows: Range<usize>,
    cols: Range<usize>,
    ins: &'a [Tensor],
}

impl Head<'_> {
    fn part(&self, index: usize) -> Tensor {
        self.ins[index].view_rows(self.rows.clone()).view_cols(self.cols.clone())
    }

    /// Keys and queries of distances: [2 span, head_dim].
    fn tables(&self) -> [Option<usize>; 2] {
        [self.how.c2p.then_some(3), self.how.p2c.then_some(3 + usize::from(self.how.c2p))]
    }

    fn table(&self, index: usize) -> Tensor {
        self.ins[index].view_cols(self.cols.clone())
    }

    /// The probabilities, f32 [n, n].
    fn probabilities(&self, x: &Exec<'_>) -> Tensor {
        let (n, [q, k]) = (self.rows.len(), [self.part(0), self.part(1)]);
        let scores = product(x, [&q, &k], [false, true]);
        let terms = self.tables().map(|table| table.map(|table| self.table(table)));
        let of_keys = terms[0].as_ref().map(|table| product(x, [&q, table], [false, true]));
        let of_queries = terms[1].as_ref().map(|table| product(x, [&k, table], [false, true]));
        let out = x.device.empty(n, n, DType::F32, Category::Workspace);
        if x.device.machine.has_data() {
            let [scores, of_keys, of_queries] =
                [Some(&scores), of_keys.as_ref(), of_queries.as_ref()].map(|term| host(x, term));
            let (rows, span, scale) =
                (self.how.distances.rows(n), 2 * self.how.distances.span, self.how.scale);
            fill(x, &out, &|i, values| {
                for (j, value) in values.iter_mut().enumerate() {
                    // The distance of query i from key j, starting at -(n - 1).
                    let at = rows[i + n - 1 - j];
                    let c2p = of_keys.get(i * span + at).copied().unwrap_or(0.0);
                    let p2c = of_queries.get(j * span + at).copied().unwrap_or(0.0);
                    *value = (scores[i * n + j] + c2p + p2c) * scale;
                }
                softmax(values);
            });
        }
        out
    }

    /// Gradients of the scores, [n, n], from the probabilities and their gradients, f32 [n, n] both.
    fn scores(&self, x: &Exec<'_>, p: &Tensor, dp: &Tensor) -> Tensor {
        let (n, scale) = (self.rows.len(), self.how.scale);
        let ds = x.device.empty(n, n, DType::F32, Category::Workspace);
        if x.device.machine.has_data() {
            let [p, dp] = [p, dp].map(|tensor| host(x, Some(tensor)));
            fill(x, &ds, &|i, values| {
                let (p, dp) = (&p[i * n..(i + 1) * n], &dp[i * n..(i + 1) * n]);
                let mean: f32 = p.iter().zip(dp).map(|(p, dp)| p * dp).sum();
                values
                    .iter_mut()
                    .zip(p.iter().zip(dp))
                    .for_each(|(ds, (p, dp))| *ds = p * (dp - mean) * scale);
            });
        }
        ds
    }

    /// Gradients of one term of the scores, [n, 2 span]: queries with the distances of keys, or keys with those of
    /// queries.
    fn term(&self, x: &Exec<'_>, ds: &Tensor, queries: bool) -> Tensor {
        let (n, distances) = (self.rows.len(), self.how.distances);
        let out = x.device.empty(n, 2 * distances.span, DType::F32, Category::Workspace);
        if x.device.machine.has_data() {
            let (ds, rows) = (host(x, Some(ds)), distances.rows(n));
            fill(x, &out, &|own, values| {
                values.fill(0.0);
                for other in 0..n {
                    let (i, j) = if queries { (own, other) } else { (other, own) };
                    values[rows[i + n - 1 - j]] += ds[i * n + j];
                }
            });
        }
        out
    }
}

/// The elements on the host; empty without a tensor.
fn host(x: &Exec<'_>, tensor: Option<&Tensor>) -> Vec<f32> {
    tensor.map_or(Vec::new(), |tensor| x.device.to_f32(tensor))
}

/// Calls `row(index, values)` for each row of an f32 tensor, on any thread; the values are written to it.
fn fill(x: &Exec<'_>, out: &Tensor, row: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let rows: Vec<Vec<Tensor>> = (0..out.rows()).map(|at| vec![out.view_rows(at..at + 1)]).collect();
    let cols = out.cols();
    x.device.machine.fill(&rows, &|index, elements| {
        let mut values = vec![0.0; cols];
        row(index, &mut values);
        for bytes in elements.iter_mut() {
            bytes
                .chunks_exact_mut(4)
                .zip(&values)
                .for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
        }
    });
}

fn softmax(row: &mut [f32]) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - most).exp();
        sum += *value;
    }
    row.iter_mut().for_each(|value| *value /= sum);
}

/// `op(a) op(b)`, f32.
fn product(x: &Exec<'_>, [a, b]: [&Tensor; 2], [a_trans, b_trans]: [bool; 2]) -> Tensor {
    let rows = if a_trans { a.cols() } else { a.rows() };
    let cols = if b_trans { b.rows() } else { b.cols() };
    let c = x.device.empty(rows, cols, DType::F32, Category::Workspace);
    x.matmul(MatMul { a, a_trans, b, b_trans, c: &c, accumulate: false });
    c
}

/// Converts to the type of another tensor.
fn like(x: &Exec<'_>, tensor: Tensor, other: &Tensor) -> Tensor {
    if tensor.dtype() == other.dtype() {
        return tensor;
    }
    let narrow = x.device.empty(tensor.rows(), tensor.cols(), other.dtype(), Category::Workspace);
    x.device.machine.copy(&tensor, &narrow);
    narrow
}

impl Relative {
    /// Processes all heads of all documents.
    fn each(&self, x: &mut Exec<'_>, ins: &[Tensor], work: &mut dyn FnMut(&Exec<'_>, &Head<'_>)) {
        let (batch, how) = (x.batch, self.how);
        for (rows, _) in documents(batch, how.mask, 1) {
            for first in (0..ins[0].cols()).step_by(how.head_dim) {
                work(x, &Head { how, rows: rows.clone(), cols: first..first + how.head_dim, ins });
            }
        }
    }
}

impl Op for Relative {
    fn name(&self) -> &'static str {
        "relative attention"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let cols = ins[0].cols;
        assert!(
            ins.iter().all(|desc| desc.cols == cols) && cols.is_multiple_of(self.how.head_dim),
            "relative attention: {ins:?}, heads of {}",
            self.how.head_dim
        );
        vec![Out::new("attn.out", cols, ins[0].dtype)]
    }

    fn saves(&self, want: Want) -> Saves {
        let ins = 3 + usize::from(self.how.c2p) + usize::from(self.how.p2c);
        Saves { ins: if want.inputs { (0..ins).collect() } else { Vec::new() }, outs: Vec::new() }
    }

    fn flops(&self, rows: usize, ins: &[Desc], _: &[[usize; 2]], batch: &Batch) -> Flops {
        let pairs: u64 = batch.masks[self.how.mask..].iter().map(|mask| mask.pairs).sum();
        let terms = (ins.len() - 3) as u64;
        let tables = terms * 2 * rows as u64 * 2 * self.how.distances.span as u64 * ins[0].cols as u64;
        let product = 2 * pairs * ins[0].cols as u64;
        Flops {
            forward: 2 * product + tables,
            input: 4 * product + 2 * tables,
            weight: 0,
            extra: product + tables,
        }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        self.each(x, ins, &mut |x, head| {
            let (p, v) = (head.probabilities(x), head.part(2));
            let (p, c) = (like(x, p, &v), outs[0].view_rows(head.rows.clone()).view_cols(head.cols.clone()));
            x.matmul(MatMul { a: &p, a_trans: false, b: &v, b_trans: false, c: &c, accumulate: false });
        });
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let Some(dout) = &dy[0] else { return };
        let ins: Vec<Tensor> = (0..dx.len()).map(|index| saved.input(index).clone()).collect();
        // Every document adds to the tables' gradients.
        let wide =
            |tensor: &Tensor| x.device.zeros(tensor.rows(), tensor.cols(), DType::F32, Category::Workspace);
        let sums: Vec<Tensor> = ins[3..].iter().map(wide).collect();
        self.each(x, &ins, &mut |x, head| {
            let [q, k, v] = [0, 1, 2].map(|index| head.part(index));
            let dout = dout.view_rows(head.rows.clone()).view_cols(head.cols.clone());
            let p = head.probabilities(x);
            let dp = product(x, [&dout, &v], [false, true]);
            let ds = head.scores(x, &p, &dp);
            let (p, narrow) = (like(x, p, &v), like(x, ds.clone(), &v));
            let mut dq = product(x, [&narrow, &k], [false, false]);
            let mut dk = product(x, [&narrow, &q], [true, false]);
            let dv = product(x, [&p, &dout], [true, false]);
            for (own, table) in head.tables().into_iter().enumerate() {
                let Some(table) = table else { continue };
                let term = like(x, head.term(x, &ds, own == 0), &v);
                let (content, into) = if own == 0 { (&q, &mut dq) } else { (&k, &mut dk) };
                let rows = head.table(table);
                x.matmul(MatMul {
                    a: &term,
                    a_trans: false,
                    b: &rows,
                    b_trans: false,
                    c: into,
                    accumulate: true,
                });
                let sum = sums[table - 3].view_cols(head.cols.clone());
                let c = &sum;
                x.matmul(MatMul { a: &term, a_trans: true, b: content, b_trans: false, c, accumulate: true });
            }
            for (index, gradient) in [dq, dk, dv].into_iter().enumerate() {
                if let Some(dx) = &dx[index] {
                    let own = dx.tensor.view_rows(head.rows.clone()).view_cols(head.cols.clone());
                    x.device.machine.copy(&gradient, &own);
                }
            }
        });
        for (sum, dx) in sums.iter().zip(&dx[3..]) {
            if let Some(dx) = dx {
                x.device.machine.copy(sum, &dx.tensor);
            }
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
