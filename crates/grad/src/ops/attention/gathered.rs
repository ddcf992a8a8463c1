//! Attention with the keys of all ranks: they are gathered before it, in stream order, and their gradients are
//! returned.

use fathom_tensor::{Category, Mask, Tensor};

use super::super::circle::{Columns, Return, assemble, deliver};
use super::call::Keys;
use super::kernel::{Gradients, Heads};
use crate::context::GatheredKeys;
use crate::op::Exec;

fn mask<'a>(all: &'a GatheredKeys, heads: &Heads<'_>) -> &'a Mask {
    match heads.how.keys {
        Keys::Own => &all.masks[heads.how.mask],
        Keys::Memory => &all.masks[0],
    }
}

pub(super) fn forward(x: &Exec<'_>, all: &GatheredKeys, heads: &Heads<'_>) {
    let [q, k, v] = heads.qkv;
    let keys = assemble(x, &all.circle, "all_gather", &[(k, Columns::All), (v, Columns::All)]);
    Heads { qkv: [q, &keys[0], &keys[1]], ..*heads }.attend(x, mask(all, heads), false);
}

pub(super) fn backward(x: &Exec<'_>, all: &GatheredKeys, heads: &Heads<'_>, gradients: &Gradients<'_>) {
    let [q, k, v] = heads.qkv;
    let keys = assemble(x, &all.circle, "all_gather", &[(k, Columns::All), (v, Columns::All)]);
    let like = |tensor: &Tensor| x.device.empty(tensor.rows(), tensor.cols(), tensor.dtype(), Category::Comm);
    let parts: Vec<Tensor> = keys.iter().map(like).collect();
    let [dq, dk, dv] = gradients.dqkv;
    let now = Gradients { dqkv: [dq, &parts[0], &parts[1]], ..*gradients };
    Heads { qkv: [q, &keys[0], &keys[1]], ..*heads }.backward(x, mask(all, heads), &now, false);
    drop(keys);
    let columns = Columns::All;
    let returns = [(0, dk), (1, dv)].map(|(part, target)| Return { part: &parts[part], columns, target });
    deliver(x, &all.circle, "reduce_scatter", &returns);
}
