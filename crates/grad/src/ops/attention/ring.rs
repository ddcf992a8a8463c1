//! Attention around a ring of circles: the keys and values of one circle after the other arrive, each transfer
//! overlapped with attention over the previous ones. Inside a circle every rank has all tokens of some heads; circles
//! of one rank are the plain ring, a single circle of all ranks is Ulysses.
//!
//! Results are continued from circle to circle in f32, own keys first, then those of the preceding circles, in a fixed
//! order. In the backward pass keys are sent around again; their gradients are sent directly to their owner, which adds
//! them in f32, its own first, then those of the following circles, as they are computed. If keys that no rank attends
//! to are not sent, transfers have fewer rows, or none, in buffers of the same size.

use std::ops::Range;

use fathom_tensor::mesh::Transfers;
use fathom_tensor::{Category, DType, DistanceBias, Tensor};

use super::super::circle::{Columns, Return, assemble, deliver};
use super::kernel::{Gradients, Heads};
use crate::context::{Ring, Step};
use crate::op::Exec;

/// Two tensors in flight, and their destinations.
struct PairFlight {
    tensors: [Tensor; 2],
    flying: Transfers,
}

impl PairFlight {
    fn arrive(self) -> [Tensor; 2] {
        self.flying.wait();
        self.tensors
    }
}

/// Starts to send some rows of two tensors to the circle `ahead` of this one, and to receive from the circle equally
/// far behind, into the first rows of buffers of the same shape.
fn shift(
    x: &Exec<'_>,
    ring: &Ring,
    (ahead, collective): (usize, &'static str),
    give: [&Tensor; 2],
    [out, into]: [&[Range<usize>]; 2],
) -> PairFlight {
    let (size, index) = (ring.outer.size(), ring.outer.index());
    let like = |tensor: &Tensor| x.device.empty(tensor.rows(), tensor.cols(), tensor.dtype(), Category::Comm);
    let tensors = give.map(like);
    let (to, from) = ((index + ahead) % size, (index + size - ahead) % size);
    let runs = |tensor: &Tensor, runs: &[Range<usize>]| -> Vec<Tensor> {
        runs.iter().map(|rows| tensor.view_rows(rows.clone())).collect()
    };
    let sent: Vec<Tensor> = give.into_iter().flat_map(|tensor| runs(tensor, out)).collect();
    let received: Vec<Tensor> = tensors.iter().flat_map(|tensor| runs(tensor, into)).collect();
    let sends: Vec<(usize, &Tensor)> = sent.iter().map(|tensor| (to, tensor)).collect();
    let receives: Vec<(usize, &Tensor)> = received.iter().map(|tensor| (from, tensor)).collect();
    let flying = ring.outer.exchange(x.device, collective, &sends, &receives);
    PairFlight { tensors, flying }
}

/// `like` itself if it can be accumulated into, else an f32 buffer.
fn wide(x: &Exec<'_>, like: &Tensor, steps: usize) -> Tensor {
    if steps == 1 || like.dtype() == DType::F32 {
        like.clone()
    } else {
        x.device.empty(like.rows(), like.cols(), DType::F32, Category::Workspace)
    }
}

/// Converts the accumulated values to the type of the result.
fn narrow(x: &Exec<'_>, wide: &Tensor, into: &Tensor) {
    if wide.dtype() != into.dtype() {
        x.device.machine.copy(wide, into);
    }
}

pub(super) fn forward(x: &Exec<'_>, ring: &Ring, heads: &Heads<'_>) {
    if ring.inner.group.size() == 1 {
        return around(x, ring, heads);
    }
    let [q, k, v] = heads.qkv;
    let [out, lse] = heads.results;
    let width = Columns::Heads(heads.how.head_dim);
    let parts = assemble(x, &ring.inner, "all_to_all", &[(q, width), (k, width), (v, width)]);
    let (tokens, cols) = (ring.inner.tokens, parts[0].cols());
    let part_out = x.device.empty(tokens, cols, out.dtype(), Category::Comm);
    let part_lse = x.device.empty(tokens, cols / heads.how.head_dim, lse.dtype(), Category::Comm);
    let sinks = heads.sinks.map(|sinks| share(ring, sinks));
    let tables = shared_tables(ring, heads);
    let (sinks, bias) = (sinks.as_ref(), bias_of(heads, &tables));
    let qkv = [&parts[0], &parts[1], &parts[2]];
    around(x, ring, &Heads { qkv, results: [&part_out, &part_lse], sinks, bias, ..*heads });
    drop(parts);
    let back = |part, columns, target| Return { part, columns, target };
    let returns = [back(&part_out, width, out), back(&part_lse, Columns::Heads(1), lse)];
    deliver(x, &ring.inner, "all_to_all", &returns);
}

/// This rank's columns of the table of biases, and of its gradient.
fn shared_tables(ring: &Ring, heads: &Heads<'_>) -> [Option<Tensor>; 2] {
    let tables = heads.bias.map_or([None; 2], |bias| [Some(bias.table), bias.gradient]);
    tables.map(|table| table.map(|table| share(ring, table)))
}

/// The biases of some heads, from these columns.
fn bias_of<'a>(heads: &Heads<'_>, [table, gradient]: &'a [Option<Tensor>; 2]) -> Option<DistanceBias<'a>> {
    let terms = heads.bias?.terms;
    Some(DistanceBias { table: table.as_ref()?, terms, gradient: gradient.as_ref() })
}

/// This rank's columns, with one column per head.
fn share(ring: &Ring, each: &Tensor) -> Tensor {
    let (members, me) = (ring.inner.group.size(), ring.inner.group.index());
    each.view_cols(Columns::Heads(1).of(each.cols(), members, me))
}

fn around(x: &Exec<'_>, ring: &Ring, heads: &Heads<'_>) {
    let steps = &ring.steps[heads.how.mask];
    let [q, k, v] = heads.qkv;
    let [out, lse] = heads.results;
    let sum = wide(x, out, steps.len());
    let last = steps.iter().rposition(|step| step.rows() > 0).unwrap_or(0);
    let mut here = [k.clone(), v.clone()];
    for (at, step) in steps.iter().enumerate() {
        let coming = steps.get(at + 1).map(|next| keys(x, ring, at + 1, next, [k, v]));
        let sinks = heads.sinks.filter(|_| at == last);
        let [k_now, v_now] = rows(&here, step.rows());
        let qkv = [q, &k_now, &v_now];
        let now = Heads { qkv, results: [&sum, lse], sinks, least_keys: k.rows(), ..*heads };
        match step.rows() {
            0 => now.leave_out(x, &step.mask, false),
            _ => now.attend(x, &step.mask, at > 0),
        }
        if let Some(coming) = coming {
            here = coming.arrive();
        }
    }
    narrow(x, &sum, out);
}

/// Starts to send keys and values around, and to receive some.
fn keys(x: &Exec<'_>, ring: &Ring, ahead: usize, step: &Step, own: [&Tensor; 2]) -> PairFlight {
    shift(x, ring, (ahead, "ring"), own, [&step.give, &step.take])
}

/// The first rows of both.
fn rows(tensors: &[Tensor; 2], rows: usize) -> [Tensor; 2] {
    tensors.each_ref().map(|tensor| tensor.view_rows(0..rows))
}

pub(super) fn backward(x: &Exec<'_>, ring: &Ring, heads: &Heads<'_>, gradients: &Gradients<'_>) {
    if ring.inner.group.size() == 1 {
        return backward_around(x, ring, heads, gradients);
    }
    let width = Columns::Heads(heads.how.head_dim);
    let ([q, k, v], [out, lse]) = (heads.qkv, heads.results);
    let tensors =
        [(q, width), (k, width), (v, width), (out, width), (lse, Columns::Heads(1)), (gradients.dout, width)];
    let parts = assemble(x, &ring.inner, "all_to_all", &tensors);
    let [q, k, v, out, lse, dout] = [0, 1, 2, 3, 4, 5].map(|index: usize| &parts[index]);
    let like = |tensor: &Tensor| x.device.empty(tensor.rows(), tensor.cols(), tensor.dtype(), Category::Comm);
    let [dq, dk, dv] = [q, k, v].map(like);
    let tables = shared_tables(ring, heads);
    let part = Heads { qkv: [q, k, v], results: [out, lse], bias: bias_of(heads, &tables), ..*heads };
    backward_around(x, ring, &part, &Gradients { dout, dqkv: [&dq, &dk, &dv] });
    drop(parts);
    let targets = [&dq, &dk, &dv].into_iter().zip(gradients.dqkv);
    let returns: Vec<Return<'_>> =
        targets.map(|(part, target)| Return { part, columns: width, target }).collect();
    deliver(x, &ring.inner, "all_to_all", &returns);
}

fn backward_around(x: &Exec<'_>, ring: &Ring, heads: &Heads<'_>, gradients: &Gradients<'_>) {
    let steps = &ring.steps[heads.how.mask];
    let [q, k, v] = heads.qkv;
    let sums = gradients.dqkv.map(|gradient| wide(x, gradient, steps.len()));
    let [dq, dk, dv] = &sums;
    let mut here = [k.clone(), v.clone()];
    let mut returning: Option<GradReturn<'_>> = None;
    for (at, step) in steps.iter().enumerate() {
        let coming = steps.get(at + 1).map(|next| keys(x, ring, at + 1, next, [k, v]));
        let sent = match at {
            0 => [dk.clone(), dv.clone()],
            _ => [k, v].map(|like| x.device.empty(like.rows(), like.cols(), like.dtype(), Category::Comm)),
        };
        let ([k_now, v_now], [dk_now, dv_now]) = (rows(&here, step.rows()), rows(&sent, step.rows()));
        let now = Gradients { dqkv: [dq, &dk_now, &dv_now], ..*gradients };
        let qkv = [q, &k_now, &v_now];
        let part = Heads { qkv, least_keys: k.rows(), ..*heads };
        match step.rows() {
            0 => part.leave_out(x, &step.mask, true),
            _ => part.backward(x, &step.mask, &now, at > 0),
        }
        settle(x, &mut returning, [dk, dv]);
        if let Some(coming) = coming {
            here = coming.arrive();
        }
        if at > 0 {
            // Gradients return to the circle that the keys came from, which is `at` behind.
            let back = (ring.outer.size() - at, "ring gradient");
            let (out, into) = (0..step.rows(), 0..step.given());
            let runs = [std::slice::from_ref(&out), std::slice::from_ref(&into)];
            let coming = shift(x, ring, back, [&sent[0], &sent[1]], runs);
            returning = Some(GradReturn { coming, sent, step });
        }
    }
    settle(x, &mut returning, [dk, dv]);
    for (sum, gradient) in sums.iter().zip(gradients.dqkv) {
        narrow(x, sum, gradient);
    }
}

/// Gradients on the way to their owners.
struct GradReturn<'a> {
    coming: PairFlight,
    sent: [Tensor; 2],
    /// The step, with the own rows that others attended to.
    step: &'a Step,
}

/// Adds the gradients computed by another circle.
fn settle(x: &Exec<'_>, returning: &mut Option<GradReturn<'_>>, sums: [&Tensor; 2]) {
    let Some(GradReturn { coming, sent, step }) = returning.take() else { return };
    let arrived = coming.arrive();
    drop(sent);
    for (sum, part) in sums.into_iter().zip(&arrived) {
        let mut first = 0;
        for run in &step.give {
            let (sum, part) = (sum.view_rows(run.clone()), part.view_rows(first..first + run.len()));
            x.device.machine.add(&sum, &part, &sum);
            first += run.len();
        }
    }
}
