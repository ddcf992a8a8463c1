//! Attention around a ring of circles: keys and values of one circle after the other come by, each transfer behind the
//! attention with what came before. Inside a circle every rank has all tokens of some heads; a circle of one is the plain
//! ring, one circle of all ranks is Ulysses.
//!
//! Results go on from circle to circle in f32, own keys first, then those of the circles before, in a fixed order. In the
//! backward pass keys go round again; their gradients go straight to whom they belong, who adds them in f32, its own
//! first, then those of the circles after it, as they are computed.

use fathom_tensor::mesh::Flying;
use fathom_tensor::{Category, DType, Tensor};

use super::circle::{Columns, Return, assemble, deliver};
use super::kernel::{Gradients, Heads};
use crate::context::Ring;
use crate::op::Exec;

/// Two tensors under way, and where they will be.
struct Coming {
    tensors: [Tensor; 2],
    flying: Flying,
}

impl Coming {
    fn arrive(self) -> [Tensor; 2] {
        self.flying.wait();
        self.tensors
    }
}

/// Begins to send two tensors to the circle `ahead` of this one, and to receive such from the one as far behind.
fn shift(x: &Exec<'_>, ring: &Ring, ahead: usize, collective: &'static str, give: [&Tensor; 2]) -> Coming {
    let (size, index) = (ring.outer.size(), ring.outer.index());
    let like = |tensor: &Tensor| x.device.empty(tensor.rows(), tensor.cols(), tensor.dtype(), Category::Comm);
    let tensors = give.map(like);
    let (to, from) = ((index + ahead) % size, (index + size - ahead) % size);
    let sends = give.map(|tensor| (to, tensor));
    let receives = [(from, &tensors[0]), (from, &tensors[1])];
    let flying = ring.outer.exchange(x.device, collective, &sends, &receives);
    Coming { tensors, flying }
}

/// `like` itself where it can be added to, or room for it in f32.
fn wide(x: &Exec<'_>, like: &Tensor, steps: usize) -> Tensor {
    match steps == 1 || like.dtype() == DType::F32 {
        true => like.clone(),
        false => x.device.empty(like.rows(), like.cols(), DType::F32, Category::Workspace),
    }
}

/// What was added up, in the type of the result.
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
    let qkv = [&parts[0], &parts[1], &parts[2]];
    around(x, ring, &Heads { qkv, results: [&part_out, &part_lse], sinks: sinks.as_ref(), ..*heads });
    drop(parts);
    let back = |part, columns, target| Return { part, columns, target };
    let returns = [back(&part_out, width, out), back(&part_lse, Columns::Heads(1), lse)];
    deliver(x, &ring.inner, "all_to_all", &returns);
}

/// This rank's columns of one for each head.
fn share(ring: &Ring, each: &Tensor) -> Tensor {
    let (members, me) = (ring.inner.group.size(), ring.inner.group.index());
    each.view_cols(Columns::Heads(1).of(each.cols(), members, me))
}

fn around(x: &Exec<'_>, ring: &Ring, heads: &Heads<'_>) {
    let masks = &ring.masks[heads.how.mask];
    let [q, k, v] = heads.qkv;
    let [out, lse] = heads.results;
    let sum = wide(x, out, masks.len());
    let mut here = [k.clone(), v.clone()];
    for (step, mask) in masks.iter().enumerate() {
        let last = step + 1 == masks.len();
        let coming = (!last).then(|| shift(x, ring, step + 1, "ring", [k, v]));
        let sinks = heads.sinks.filter(|_| last);
        let qkv = [q, &here[0], &here[1]];
        Heads { qkv, results: [&sum, lse], sinks, ..*heads }.attend(x, mask, step > 0);
        if let Some(coming) = coming {
            here = coming.arrive();
        }
    }
    narrow(x, &sum, out);
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
    let part = Heads { qkv: [q, k, v], results: [out, lse], sinks: None, ..*heads };
    backward_around(x, ring, &part, &Gradients { dout, dqkv: [&dq, &dk, &dv], dsinks: None });
    drop(parts);
    let targets = [&dq, &dk, &dv].into_iter().zip(gradients.dqkv);
    let returns: Vec<Return<'_>> =
        targets.map(|(part, target)| Return { part, columns: width, target }).collect();
    deliver(x, &ring.inner, "all_to_all", &returns);
}

fn backward_around(x: &Exec<'_>, ring: &Ring, heads: &Heads<'_>, gradients: &Gradients<'_>) {
    let masks = &ring.masks[heads.how.mask];
    let [q, k, v] = heads.qkv;
    let sums = gradients.dqkv.map(|gradient| wide(x, gradient, masks.len()));
    let [dq, dk, dv] = &sums;
    let mut here = [k.clone(), v.clone()];
    let mut returning: Option<(Coming, [Tensor; 2])> = None;
    for (step, mask) in masks.iter().enumerate() {
        let last = step + 1 == masks.len();
        let coming = (!last).then(|| shift(x, ring, step + 1, "ring", [k, v]));
        let part = match step {
            0 => [dk.clone(), dv.clone()],
            _ => [k, v].map(|like| x.device.empty(like.rows(), like.cols(), like.dtype(), Category::Comm)),
        };
        let now = Gradients { dqkv: [dq, &part[0], &part[1]], dsinks: None, ..*gradients };
        Heads { qkv: [q, &here[0], &here[1]], ..*heads }.backward(x, mask, &now, step > 0);
        settle(x, &mut returning, [dk, dv]);
        if let Some(coming) = coming {
            here = coming.arrive();
        }
        if step > 0 {
            // From the circle whose keys these are, seen from there: as far ahead as it is behind.
            let back = ring.outer.size() - step;
            returning = Some((shift(x, ring, back, "ring gradient", [&part[0], &part[1]]), part));
        }
    }
    settle(x, &mut returning, [dk, dv]);
    for (sum, gradient) in sums.iter().zip(gradients.dqkv) {
        narrow(x, sum, gradient);
    }
}

/// What another circle computed of this one's gradients joins them.
fn settle(x: &Exec<'_>, returning: &mut Option<(Coming, [Tensor; 2])>, sums: [&Tensor; 2]) {
    let Some((coming, sent)) = returning.take() else { return };
    let arrived = coming.arrive();
    drop(sent);
    for (sum, part) in sums.into_iter().zip(&arrived) {
        x.device.machine.add(sum, part, sum);
    }
}
