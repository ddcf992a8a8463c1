//! A router's own losses: load balancing (Fedus et al., 2021, eq. 4) and the z-loss (Zoph et al., 2022, eq. 5). They
//! change no result: their gradients are added to the logits' in the backward pass, when the load of the whole
//! micro-batch is known.
//!
//! Gradients are of sums over tokens: `T x aux x experts x sum over e of f_e P_e` with the share `f_e` of all slots and
//! the mean probability `P_e`, and `z x sum over t of logsumexp(logits_t)^2`. The load counts as a constant. The T
//! tokens are those of one micro-batch, on all ranks that have some of them (Megatron's `aux_loss`); data parallel
//! ranks balance separately.

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, RouterLosses, RouterScores, Tensor};

use super::only;
use crate::op::{Backward, Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Weights of a router's own losses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouterCosts {
    /// Weight of the load-balancing loss.
    pub aux: f32,
    /// Weight of the z-loss.
    pub z: f32,
}

/// Counts the slots of each expert, over all tiles.
struct Load {
    name: &'static str,
    experts: usize,
}

struct Balance {
    name: &'static str,
    scores: RouterScores,
    costs: RouterCosts,
}

impl Ctx<'_> {
    /// `weights` unchanged, with the gradients of the router's losses added to its logits'. `names` are the result's and
    /// the load's.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn balance(
        &mut self,
        names: [&'static str; 2],
        [weights, index, logits]: [Val; 3],
        scores: RouterScores,
        costs: RouterCosts,
    ) -> Val {
        let experts = self.desc(logits).cols;
        let load = only(self.apply(Load { name: names[1], experts }, &[index], &[]));
        only(self.apply(Balance { name: names[0], scores, costs }, &[weights, logits, load], &[]))
    }
}

/// The load of the whole micro-batch, over the tensor and context parallel ranks that each have some of its tokens.
fn total(x: &Exec<'_>, load: &Tensor) -> Tensor {
    let ranks = x.device.mesh.group(&[Axis::Tp, Axis::Cp]);
    if ranks.size() == 1 {
        return load.clone();
    }
    let sum = x.device.empty(1, load.cols(), DType::F32, Category::Comm);
    x.device.machine.copy(load, &sum);
    ranks.all_reduce(x.device, &sum);
    sum
}

impl Op for Load {
    fn name(&self) -> &'static str {
        "count experts"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        assert!(ins[0].dtype == DType::I32, "count experts {}: index of {:?}", self.name, ins[0].dtype);
        vec![Out::total(self.name, self.experts)]
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        x.device.machine.count_experts(&ins[0], &outs[0]);
    }

    fn backward_input(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: &[Option<Dx>]) {}

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

impl Op for Balance {
    fn name(&self) -> &'static str {
        "balance"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let fits = ins.iter().all(|desc| desc.dtype == DType::F32) && ins[1].cols == ins[2].cols;
        assert!(fits, "balance {}: {ins:?}", self.name);
        vec![Out::new(self.name, ins[0].cols, DType::F32)]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![1, 2], outs: vec![] }
    }

    fn backward(&self) -> Backward {
        Backward { passes: &[0], ..Backward::PLAIN }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        x.device.machine.copy(&ins[0], &outs[0]);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dweights), Some(dx)) = (&dy[0], &dx[1]) {
            let (logits, load) = (saved.input(1), &total(x, saved.input(2)));
            let slots = (x.batch.tokens * x.device.mesh.size(Axis::Cp) * dweights.cols()) as f32;
            x.device.machine.router_losses(&RouterLosses {
                scores: self.scores,
                logits,
                load,
                aux: self.costs.aux * load.cols() as f32 / slots,
                z: self.costs.z,
                dlogits: &dx.tensor,
            });
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
