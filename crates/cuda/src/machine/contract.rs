//! The contract's methods, each a launch or a call of a library.
#![allow(unsafe_code)]

use std::sync::Arc;

use fathom_tensor::choice::{self, Choose, LeaveOut};
use fathom_tensor::spill::Copies;
use fathom_tensor::{
    Activate, ActivateBackward, AdamW, Arena, Attention, AttentionBackward, BalanceBias, Combine,
    CombineBackward, Conv, ConvBackward, CrossEntropy, Delta, DeltaAdvance, DeltaBackward, DeltaBegins,
    DeltaEnds, Dispatch, Divergence, Dropout, Embed, GatedNorm, GatedNormBackward, GroupedMatMul,
    GroupedWeight, InFlight, LimitExperts, Machine, MatMul, NarrowMatMul, Norm, NormBackward, Pack, Profile,
    Reader, Rope, RopeTable, Route, RouteBackward, RouterLosses, RowDistance, Share, SinksBackward, Ssd,
    SsdBackward, SsdBegins, SsdEnds, StepScale, Tensor, Unpack,
};

use super::Cuda;
use crate::driver::Rows;
use crate::kernels;
use crate::memory::{self, DeviceCopies, GrowingRange, Work};
use crate::operand::output;

impl Machine for Cuda {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn reserve(&self, bytes: u64) -> Box<dyn Arena> {
        Box::new(self.must("reserve", GrowingRange::new(self.streams.clone(), bytes)))
    }

    fn has_data(&self) -> bool {
        true
    }

    fn copies(&self) -> Option<Arc<dyn Copies>> {
        Some(Arc::new(DeviceCopies::new(self.streams.clone())))
    }

    fn write(&self, dst: &Tensor, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, dst.bytes(), "write to {dst:?}");
        let to = Rows::of(dst, output(dst));
        self.must("write", self.writes.write("the host writes", bytes, to));
    }

    fn fill(&self, dst: &[Vec<Tensor>], fill: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync)) {
        self.must("fill", memory::fill(&self.streams, dst, fill));
    }

    fn read(&self, src: &Tensor) -> InFlight {
        self.must("read", memory::read(&self.reads, src))
    }

    fn share(&self, src: &Tensor) -> (Share, Reader) {
        self.must("share", memory::share(&self.streams, src))
    }

    fn fence(&self) -> u64 {
        self.must("fence", self.streams.fence())
    }

    fn take(&self, from: &Reader, dst: &Tensor, fence: u64) -> bool {
        self.must("take", memory::take(&self.streams, from, dst, fence))
    }

    fn enter_block(&self) {
        self.streams.enter_block();
    }

    fn leave_block(&self) {
        self.must("block", self.streams.leave_block());
    }

    fn stamp(&self) -> Option<u64> {
        Some(self.must("stamp", self.stamps.mark(&self.streams)))
    }

    fn stamps(&self) -> Vec<f64> {
        self.must("stamps", self.stamps.take(&self.streams))
    }

    fn zero(&self, dst: &Tensor) {
        let rows = Rows::of(dst, output(dst));
        // SAFETY: the rows are the tensor's.
        self.must("zero", unsafe { self.streams.issue(Work::Clear(rows)) });
    }

    fn copy(&self, src: &Tensor, dst: &Tensor) {
        self.run(&kernels::copy(src, dst));
    }

    fn add(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        self.run(&kernels::add(a, b, out));
    }

    fn multiply(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        self.run(&kernels::multiply(a, b, out));
    }

    fn rsqrt(&self, x: &Tensor, out: &Tensor) {
        self.run(&kernels::rsqrt(x, out));
    }

    fn scale(&self, x: &Tensor, factor: f32, out: &Tensor) {
        self.run(&kernels::scale(x, factor, out));
    }

    fn softcap(&self, x: &Tensor, cap: f32) {
        self.run(&kernels::softcap(x, cap));
    }

    fn add_bias(&self, x: &Tensor, bias: &Tensor) {
        self.run(&kernels::add_bias(x, bias));
    }

    fn bias_backward(&self, dy: &Tensor, dbias: &Tensor) {
        self.run_all(&kernels::bias_backward(dy, dbias, self.scratch()));
    }

    fn matmul(&self, op: &MatMul<'_>, ws: &Tensor) {
        let taken = self.product(op, ws);
        self.counters.product(taken);
        if !taken {
            self.run(&kernels::matmul(op));
        }
    }

    fn narrow_matmul(&self, op: &NarrowMatMul<'_>, ws: &Tensor) {
        self.narrow_product(op, ws);
    }

    fn largest(&self, x: &Tensor, out: &Tensor) {
        self.run_all(&kernels::largest(x, out, self.scratch()));
    }

    fn norm(&self, op: &Norm<'_>) {
        self.run(&kernels::norm(op));
    }

    fn norm_backward_input(&self, op: &NormBackward<'_>, dx: &Tensor, accumulate: bool) {
        self.run(&kernels::norm_backward_input(op, dx, accumulate));
    }

    fn norm_backward_weight(&self, op: &NormBackward<'_>, dweight: &Tensor, dbias: Option<&Tensor>) {
        self.run_all(&kernels::norm_backward_weight(op, dweight, dbias, self.scratch()));
    }

    fn activate(&self, op: &Activate<'_>) {
        self.run(&kernels::activate(op));
    }

    fn activate_backward(&self, op: &ActivateBackward<'_>) {
        self.run(&kernels::activate_backward(op));
    }

    fn rope_table(&self, op: &RopeTable<'_>) {
        self.run(&kernels::rope_table(op));
    }

    fn rope(&self, op: &Rope<'_>) {
        self.run(&kernels::rope(op));
    }

    fn embed(&self, op: &Embed<'_>) {
        self.run(&kernels::embed(op));
    }

    fn embed_backward(&self, ids: &Tensor, dy: &Tensor, scale: f32, dtable: &Tensor, first: Option<usize>) {
        self.run_all(&kernels::embed_backward(ids, dy, scale, dtable, first));
    }

    fn route(&self, op: &Route<'_>) {
        self.run(&kernels::route(op));
    }

    fn route_backward(&self, op: &RouteBackward<'_>) {
        self.run(&kernels::route_backward(op));
    }

    fn router_losses(&self, op: &RouterLosses<'_>) {
        self.run(&kernels::router_losses(op));
    }

    fn count_experts(&self, index: &Tensor, load: &Tensor) {
        self.run_all(&kernels::count_experts(index, load, self.scratch()));
    }

    fn limit_experts(&self, op: &LimitExperts<'_>) {
        let sizes = [op.experts, op.capacity];
        self.run_all(&kernels::limit_experts(op.index, op.weights, sizes, op.out, self.scratch()));
    }

    fn balance_bias(&self, op: &BalanceBias<'_>) {
        self.run(&kernels::balance_bias(op.bias, op.load, op.rate, op.skip));
    }

    fn dispatch(&self, op: &Dispatch<'_>) {
        let filled = [op.slots, op.tokens, op.experts];
        self.run_all(&kernels::dispatch(op.index, op.own, op.round, filled, op.places, self.scratch()));
    }

    fn grouped_matmul(&self, op: &GroupedMatMul<'_>, ws: &Tensor) {
        self.grouped_product(op, ws);
    }

    fn grouped_weight(&self, op: &GroupedWeight<'_>, ws: &Tensor) {
        self.grouped_gradient(op, ws);
    }

    fn combine(&self, op: &Combine<'_>) {
        self.run(&kernels::combine(op));
    }

    fn combine_backward(&self, op: &CombineBackward<'_>) {
        self.run_all(&kernels::combine_backward(op));
    }

    fn attention(&self, op: &Attention<'_>, ws: &Tensor) {
        let taken = op.bias.is_none() && self.attended(op, ws);
        self.counters.attention(taken);
        if !taken {
            self.run(&kernels::attention(op));
        }
    }

    fn attention_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor) {
        let taken = op.forward.bias.is_none() && self.attended_backward(op, ws);
        self.counters.attention(taken);
        if !taken {
            self.run_all(&kernels::attention_backward(op, ws, self.scratch()));
        }
    }

    fn sinks_backward(&self, op: &SinksBackward<'_>) {
        self.run_all(&kernels::sinks_backward(op, self.scratch()));
    }

    fn conv(&self, op: &Conv<'_>) {
        self.run_all(&kernels::conv(op));
    }

    fn conv_backward(&self, op: &ConvBackward<'_>) {
        self.run_all(&kernels::conv_backward(op, self.scratch()));
    }

    fn gated_norm(&self, op: &GatedNorm<'_>) {
        self.run(&kernels::gated_norm(op));
    }

    fn gated_norm_backward(&self, op: &GatedNormBackward<'_>, _ws: &Tensor) {
        self.run_all(&kernels::gated_norm_backward(op, self.scratch()));
    }

    fn ssd(&self, op: &Ssd<'_>, _ws: &Tensor) {
        self.run_all(&kernels::ssd(op));
    }

    fn ssd_backward(&self, op: &SsdBackward<'_>, ws: &Tensor) {
        self.run_all(&kernels::ssd_backward(op, ws, self.scratch()));
    }

    fn ssd_ends(&self, op: &SsdEnds<'_>, _ws: &Tensor) {
        self.run_all(&kernels::ssd_ends(op));
    }

    fn ssd_begins(&self, op: &SsdBegins<'_>, _ws: &Tensor) {
        self.run_all(&kernels::ssd_begins(op));
    }

    fn ssd_advance(&self, state: &Tensor, decays: &Tensor, added: &Tensor) {
        self.run(&kernels::ssd_advance(state, decays, added));
    }

    fn delta_ends(&self, op: &DeltaEnds<'_>, _ws: &Tensor) {
        self.run_all(&kernels::delta_ends(op));
    }

    fn delta_begins(&self, op: &DeltaBegins<'_>, _ws: &Tensor) {
        self.run_all(&kernels::delta_begins(op));
    }

    fn delta_advance(&self, op: &DeltaAdvance<'_>) {
        self.run(&kernels::delta_advance(op));
    }

    fn delta(&self, op: &Delta<'_>, _ws: &Tensor) {
        self.run_all(&kernels::delta(op));
    }

    fn delta_backward(&self, op: &DeltaBackward<'_>, ws: &Tensor) {
        self.run_all(&kernels::delta_backward(op, ws, self.scratch()));
    }

    fn cross_entropy(&self, op: &CrossEntropy<'_>) {
        self.run(&kernels::cross_entropy(op));
    }

    fn jitter(&self, x: &Tensor, keys: &Tensor, scales: &Tensor) {
        self.run(&kernels::jitter(x, keys, scales));
    }

    fn dropout(&self, x: &Tensor, keys: &Tensor, how: Dropout) {
        self.run(&kernels::dropout(x, keys, how));
    }

    fn divergence(&self, op: &Divergence<'_>) {
        self.run(&kernels::divergence(op));
    }

    fn row_distance(&self, op: &RowDistance<'_>) {
        self.run(&kernels::row_distance(op));
    }

    fn choose(&self, op: &Choose<'_>) {
        assert_eq!(op.draws.len(), op.logits.rows(), "choose: a draw, or none, for each row");
        for (rows, draw) in choice::runs(op.draws) {
            let (logits, ids) = (op.logits.view_rows(rows.clone()), op.ids.view_cols(rows.clone()));
            let kept = op.kept.map(|kept| kept.view_rows(rows));
            self.run(&kernels::choose(&logits, &ids, draw, kept.as_ref()));
        }
    }

    fn leave_out(&self, op: &LeaveOut<'_>) {
        self.run(&kernels::leave_out(op));
    }

    fn sum(&self, x: &Tensor, out: &Tensor) {
        self.run(&kernels::sum(x, out));
    }

    fn sum_squares(&self, x: &Tensor, out: &Tensor) {
        self.run(&kernels::sum_squares(x, out));
    }

    fn sum_squares_slots(&self, x: &Tensor, slot: usize, out: &Tensor) {
        self.run(&kernels::sum_squares_slots(x, slot, out));
    }

    fn step_scale(&self, op: &StepScale<'_>) {
        self.run(&kernels::step_scale(op));
    }

    fn adamw(&self, op: &AdamW<'_>) {
        self.run(&kernels::adamw(op));
    }

    fn pack(&self, op: &Pack<'_>) {
        self.run(&kernels::pack(op));
    }

    fn unpack(&self, op: &Unpack<'_>) {
        self.run(&kernels::unpack(op));
    }
}
