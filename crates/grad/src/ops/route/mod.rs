//! A router: the experts of each token, and their weights. The choice is data on the device.

use fathom_tensor::{DType, LimitExperts, Route as Call, RouteBackward, Routing, Tensor};

use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Route {
    names: [&'static str; 2],
    routing: Routing,
    /// The row of [`Exec::loads`] for its counts.
    layer: Option<usize>,
}

impl Ctx<'_> {
    /// Chooses `top_k` experts for each token from f32 logits [t, experts]: weights f32 [t, k] and their experts i32
    /// [t, k]. `bias` f32 [1, experts] affects only the choice and gets no gradient.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn route(
        &mut self,
        names: [&'static str; 2],
        logits: Val,
        routing: Routing,
        bias: Option<ParamId>,
    ) -> [Val; 2] {
        let params: Vec<ParamId> = bias.into_iter().collect();
        let outs = self.apply(Route { names, routing, layer: None }, &[logits], &params);
        [outs[0], outs[1]]
    }

    /// [`Ctx::route`] with counts of how often each expert is chosen, for the model's layer `layer`, if a step needs
    /// them.
    #[track_caller]
    pub fn route_counted(
        &mut self,
        names: [&'static str; 2],
        logits: Val,
        (routing, layer): (Routing, usize),
        bias: Option<ParamId>,
    ) -> [Val; 2] {
        let params: Vec<ParamId> = bias.into_iter().collect();
        let outs = self.apply(Route { names, routing, layer: Some(layer) }, &[logits], &params);
        [outs[0], outs[1]]
    }

    /// Empties the slots of each expert beyond `ceil(factor x tokens x k / experts)`, over this rank's tokens of the
    /// micro-batch (Megatron's `moe_expert_capacity_factor`): with `weights` the lightest ones, else the last. Needs
    /// all tokens at once: inside a rows region, wrap it in [`Ctx::whole`].
    #[track_caller]
    pub fn limit(
        &mut self,
        name: &'static str,
        index: Val,
        weights: Option<Val>,
        experts: usize,
        factor: f32,
    ) -> Val {
        let ins: Vec<Val> = [index].into_iter().chain(weights).collect();
        self.apply(Limit { name, experts, factor }, &ins, &[])[0]
    }
}

impl Op for Route {
    fn name(&self) -> &'static str {
        "route"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let (experts, top_k) = (ins[0].cols, self.routing.top_k);
        let fits = ins[0].dtype == DType::F32 && params.iter().all(|bias| *bias == [1, experts]);
        assert!(
            fits && (1..=experts).contains(&top_k),
            "route: {top_k} of {:?} logits [t, {experts}], bias {params:?}",
            ins[0].dtype
        );
        vec![Out::new(self.names[0], top_k, DType::F32), Out::index(self.names[1], top_k)]
    }

    fn saves(&self, want: Want) -> Saves {
        Saves { ins: if want.inputs { vec![0] } else { vec![] }, outs: vec![1] }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let routing = self.routing;
        let (weights, index) = (&outs[0], &outs[1]);
        x.device.machine.route(&Call { routing, logits: &ins[0], bias: params.first(), index, weights });
        if let (Some(loads), Some(layer)) = (&x.loads, self.layer) {
            let layer = layer.wrapping_add_signed(x.layers_on as isize);
            x.device.machine.count_experts(index, &loads.view_rows(layer..layer + 1));
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dweights), Some(dx)) = (&dy[0], &dx[0]) {
            x.device.machine.route_backward(&RouteBackward {
                routing: self.routing,
                logits: saved.input(0),
                index: saved.output(1),
                dweights,
                dlogits: &dx.tensor,
            });
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

struct Limit {
    name: &'static str,
    experts: usize,
    factor: f32,
}

impl Op for Limit {
    fn name(&self) -> &'static str {
        "limit experts"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        assert!(ins[0].dtype == DType::I32, "limit experts {}: index of {:?}", self.name, ins[0].dtype);
        vec![Out::index(self.name, ins[0].cols)]
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        assert_eq!(x.rows, 0..x.batch.tokens, "limit experts {}: runs over all tokens", self.name);
        let slots = ins[0].len() as f64;
        let capacity = (f64::from(self.factor) * slots / self.experts as f64).ceil() as usize;
        let (index, weights, out) = (&ins[0], ins.get(1), &outs[0]);
        x.device.machine.limit_experts(&LimitExperts {
            index,
            weights,
            experts: self.experts,
            capacity,
            out,
        });
    }

    fn backward_input(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: &[Option<Dx>]) {}

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
