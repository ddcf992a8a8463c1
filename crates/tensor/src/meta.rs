//! The machine without data: it accepts every call and computes nothing, so running a program on it gives the program's
//! plan.

use crate::attend::{Attention, AttentionBackward, SinksBackward};
use crate::blocks::BlockFormat;
use crate::choice::{Choose, LeaveOut};
use crate::clock::{Clock, Work};
use crate::distance::RowDistance;
use crate::divergence::{Divergence, TeacherLogits};
use crate::dropout::Dropout;
use crate::experts::*;
use crate::four_bits::RoundWeights;
use crate::in_flight::InFlight;
use crate::machine::*;
use crate::narrow_matmul::NarrowMatMul;
use crate::pack::{Pack, Unpack};
use crate::scan::{
    Conv, ConvBackward, Delta, DeltaAdvance, DeltaBackward, DeltaBegins, DeltaEnds, GatedNorm,
    GatedNormBackward, Ssd, SsdBackward, SsdBegins, SsdEnds,
};
use crate::share::{Reader, Share};
use crate::{Arena, DType, Hardware, MatMul, PackedMatMul, Profile, Tensor};

/// Shapes without data, with another machine's profile. A profile with rates gives it a clock.
pub struct Meta {
    profile: Profile,
    clock: Option<Clock>,
}

impl Meta {
    /// Stands in for the machine with this profile.
    pub fn new(profile: Profile) -> Meta {
        let clock = profile.rates.map(Clock::new);
        Meta { profile, clock }
    }

    fn run(&self, work: Work, bytes: u64) {
        if let Some(clock) = &self.clock {
            clock.run(work, bytes);
        }
    }

    /// A call that reads or writes each of these once without computing.
    fn moves(&self, tensors: &[&Tensor]) {
        self.run(Work::Memory, bytes(tensors));
    }

    /// A call that also computes.
    fn maps(&self, tensors: &[&Tensor]) {
        self.run(Work::Elementwise, bytes(tensors));
    }
}

fn bytes(tensors: &[&Tensor]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes()).sum()
}

/// Memory traffic of a result that is written or, if `accumulate`, added to.
fn into(out: &Tensor, accumulate: bool) -> u64 {
    out.bytes() * (1 + u64::from(accumulate))
}

/// `per_pair` FLOPs for each pair of the mask and column of each query head.
fn attend(op: &Attention<'_>, per_pair: f64, backward: bool) -> Work {
    let pairs = op.mask.pairs as f64;
    let heads = (op.q.cols() / op.head_dim) as f64;
    Work::Attention { flops: per_pair * pairs * op.q.cols() as f64, pairs: pairs * heads, backward }
}

struct Nowhere;

impl Arena for Nowhere {
    fn base(&self) -> u64 {
        0
    }
}

impl Machine for Meta {
    fn profile(&self) -> &Profile {
        &self.profile
    }
    fn reserve(&self, _: u64) -> Box<dyn Arena> {
        Box::new(Nowhere)
    }
    fn pack_pages(&self, op: &crate::PackPages<'_>) {
        self.moves(&[op.x, op.out]);
    }

    fn reads_pages(&self) -> bool {
        matches!(self.profile().hardware, Hardware::Processor)
    }

    fn has_data(&self) -> bool {
        false
    }
    fn read(&self, src: &Tensor) -> InFlight {
        InFlight::new(src, Vec::new)
    }
    fn share(&self, src: &Tensor) -> (Share, Reader) {
        let (share, pass) = Share::begin(src);
        (share, Reader::new(src, pass, |_, _, _| {}))
    }
    fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }
    fn matmul(&self, op: &MatMul<'_>, _: &Tensor) {
        let (m, n, k) = op.sizes();
        let flops = 2.0 * m as f64 * n as f64 * k as f64;
        self.run(Work::MatMul(flops, op.a.dtype()), bytes(&[op.a, op.b]) + into(op.c, op.accumulate));
    }
    fn multiplies(&self, format: BlockFormat) -> bool {
        self.profile().multiplies(format)
    }
    fn packed_matmul(&self, op: &PackedMatMul<'_>, _: &Tensor) {
        let packing = op.packing();
        let flops = 2.0 * op.a.rows() as f64 * packing.rows() as f64 * packing.cols as f64;
        self.run(Work::MatMul(flops, op.a.dtype()), bytes(&[op.a, op.weight, op.c]));
    }
    fn narrow_matmul(&self, op: &NarrowMatMul<'_>, ws: &Tensor) {
        // Operands are read and written narrowed; the product is as fast as without narrowing.
        self.maps(&[op.product.a, op.product.b, op.product.a, op.product.b]);
        self.matmul(&op.product, ws);
    }
    fn largest(&self, x: &Tensor, _: &Tensor) {
        self.maps(&[x]);
    }
    fn write(&self, dst: &Tensor, _: &[u8]) {
        self.moves(&[dst]);
    }
    fn fill(&self, _: &[Vec<Tensor>], _: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync)) {}
    fn zero(&self, dst: &Tensor) {
        self.moves(&[dst]);
    }
    fn copy(&self, src: &Tensor, dst: &Tensor) {
        self.moves(&[src, dst]);
    }
    fn add(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        self.moves(&[a, b, out]);
    }
    fn multiply(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        self.moves(&[a, b, out]);
    }
    fn rsqrt(&self, x: &Tensor, out: &Tensor) {
        self.maps(&[x, out]);
    }
    fn scale(&self, x: &Tensor, _: f32, out: &Tensor) {
        self.moves(&[x, out]);
    }
    fn softcap(&self, x: &Tensor, _: f32) {
        self.maps(&[x, x]);
    }
    fn add_bias(&self, x: &Tensor, _: &Tensor) {
        self.moves(&[x, x]);
    }
    fn bias_backward(&self, dy: &Tensor, _: &Tensor) {
        self.maps(&[dy]);
    }
    fn norm(&self, op: &Norm<'_>) {
        self.maps(&[op.x, op.out]);
    }
    fn norm_backward_input(&self, op: &NormBackward<'_>, dx: &Tensor, accumulate: bool) {
        self.run(Work::Elementwise, bytes(&[op.x, op.dy]) + into(dx, accumulate));
    }
    fn norm_backward_weight(&self, op: &NormBackward<'_>, _: &Tensor, _: Option<&Tensor>) {
        self.maps(&[op.x, op.dy]);
    }
    fn activate(&self, op: &Activate<'_>) {
        self.maps(&[op.x, op.out]);
    }
    fn activate_backward(&self, op: &ActivateBackward<'_>) {
        self.maps(&[op.x, op.dy, op.dx]);
    }
    fn rope_table(&self, op: &RopeTable<'_>) {
        self.maps(&[op.positions, op.out]);
    }
    fn rope(&self, op: &Rope<'_>) {
        self.run(Work::Elementwise, bytes(&[op.x, op.table]) + into(op.out, op.accumulate));
    }
    fn embed(&self, op: &Embed<'_>) {
        self.run(Work::Memory, bytes(&[op.ids, op.out]) + into(op.out, op.accumulate));
    }
    fn embed_backward(&self, ids: &Tensor, dy: &Tensor, _: f32, _: &Tensor, _: Option<usize>) {
        // Each row of dy is added to an f32 row of the table, which is read and written.
        self.run(Work::Memory, bytes(&[ids, dy]) + 8 * dy.len() as u64);
    }
    fn route(&self, op: &Route<'_>) {
        self.maps(&[op.logits, op.index, op.weights]);
    }
    fn route_backward(&self, op: &RouteBackward<'_>) {
        self.maps(&[op.logits, op.index, op.dweights, op.dlogits]);
    }
    fn router_losses(&self, op: &RouterLosses<'_>) {
        self.maps(&[op.logits, op.dlogits]);
    }
    fn count_experts(&self, index: &Tensor, _: &Tensor) {
        self.moves(&[index]);
    }
    fn limit_experts(&self, op: &LimitExperts<'_>) {
        self.moves(&[op.index, op.out]);
    }
    fn balance_bias(&self, op: &BalanceBias<'_>) {
        self.moves(&[op.load, op.bias, op.bias]);
    }
    fn dispatch(&self, op: &Dispatch<'_>) {
        self.moves(&[op.index, op.slots, op.tokens, op.experts, op.places]);
    }
    fn grouped_matmul(&self, op: &GroupedMatMul<'_>, _: &Tensor) {
        let (t, k, inner, out) = op.sizes();
        let flops = 2.0 * (t * k) as f64 * inner as f64 * out as f64;
        // Experts without tokens are not read.
        let share = (t * k).min(op.experts) as u64;
        let weights = op.weights.bytes() / op.experts as u64 * share;
        let rows = (t * k * inner * op.a.dtype().bytes()) as u64;
        self.run(Work::MatMul(flops, op.a.dtype()), rows + weights + bytes(&[op.c]));
    }
    fn grouped_weight(&self, op: &GroupedWeight<'_>, _: &Tensor) {
        let (t, k, m, n) = op.sizes();
        let flops = 2.0 * (t * k) as f64 * m as f64 * n as f64;
        let share = (t * k).min(op.experts) as u64;
        let weights = 2 * op.c.bytes() / op.experts as u64 * share;
        let rows = (t * k * (m + n) * op.a.dtype().bytes()) as u64;
        self.run(Work::MatMul(flops, op.a.dtype()), rows + weights);
    }
    fn combine(&self, op: &Combine<'_>) {
        self.maps(&[op.y, op.out]);
    }
    fn combine_backward(&self, op: &CombineBackward<'_>) {
        let out = op.dy.map_or(0, Tensor::bytes);
        self.run(Work::Elementwise, bytes(&[op.y, op.dout]) + out);
    }
    fn attention(&self, op: &Attention<'_>, _: &Tensor) {
        let results = into(op.out, op.resume) + into(op.lse, op.resume);
        self.run(attend(op, 4.0, false), bytes(&[op.q, op.k, op.v]) + results);
    }
    fn attention_backward(&self, op: &AttentionBackward<'_>, _: &Tensor) {
        let forward = &op.forward;
        let read = bytes(&[forward.q, forward.k, forward.v, forward.out, forward.lse, op.dout]);
        self.run(attend(forward, 10.0, true), read + into(op.dq, op.accumulate) + bytes(&[op.dk, op.dv]));
    }
    fn sinks_backward(&self, op: &SinksBackward<'_>) {
        self.maps(&[op.out, op.dout, op.lse]);
    }
    fn conv(&self, op: &Conv<'_>) {
        self.maps(&[op.of.u, op.out]);
    }
    fn conv_backward(&self, op: &ConvBackward<'_>) {
        self.run(Work::Elementwise, bytes(&[op.of.u, op.dy]) + op.du.map_or(0, Tensor::bytes));
    }
    fn gated_norm(&self, op: &GatedNorm<'_>) {
        self.maps(&[op.of.y, op.of.z, op.out]);
    }
    fn gated_norm_backward(&self, op: &GatedNormBackward<'_>, _: &Tensor) {
        let written = [op.dy, op.dz].into_iter().flatten().map(Tensor::bytes).sum::<u64>();
        self.run(Work::Elementwise, bytes(&[op.of.y, op.of.z, op.dout]) + written);
    }
    fn ssd(&self, op: &Ssd<'_>, _: &Tensor) {
        let moved = bytes(&[op.of.u, op.of.dt, op.y, op.kept]);
        self.run(Work::MatMul(op.of.flops(false) as f64, DType::F32), moved);
    }
    fn ssd_backward(&self, op: &SsdBackward<'_>, _: &Tensor) {
        let written = [op.du, op.ddt].into_iter().flatten().map(Tensor::bytes).sum::<u64>();
        let moved = bytes(&[op.of.u, op.of.dt, op.dy, op.kept]) + written;
        self.run(Work::MatMul(op.of.flops(true) as f64, DType::F32), moved);
    }
    fn ssd_ends(&self, op: &SsdEnds<'_>, _: &Tensor) {
        let moved = bytes(&[op.of.u, op.of.dt, op.ends.states, op.decays]);
        self.run(Work::MatMul(op.of.state_flops() as f64, DType::F32), moved);
    }
    fn ssd_begins(&self, op: &SsdBegins<'_>, _: &Tensor) {
        let moved = bytes(&[op.of.u, op.of.dt, op.dy, op.begins.states]);
        self.run(Work::MatMul(op.of.state_flops() as f64, DType::F32), moved);
    }
    fn ssd_advance(&self, state: &Tensor, _: &Tensor, added: &Tensor) {
        self.maps(&[state, added, state]);
    }
    fn delta_ends(&self, op: &DeltaEnds<'_>, _: &Tensor) {
        let moved = bytes(&[op.of.u, op.of.a, op.of.b, op.ends.states, op.matrices]);
        self.run(Work::MatMul(op.of.border_flops(false) as f64, DType::F32), moved);
    }
    fn delta_begins(&self, op: &DeltaBegins<'_>, _: &Tensor) {
        let moved = bytes(&[op.of.u, op.of.a, op.of.b, op.dout, op.begins.states]);
        self.run(Work::MatMul(op.of.border_flops(true) as f64, DType::F32), moved);
    }
    fn delta_advance(&self, op: &DeltaAdvance<'_>) {
        let key = op.matrices.cols().isqrt();
        let flops = 2 * key * op.before.len();
        self.run(
            Work::MatMul(flops as f64, DType::F32),
            bytes(&[op.matrices, op.before, op.added, op.after]),
        );
    }
    fn delta(&self, op: &Delta<'_>, _: &Tensor) {
        let moved = bytes(&[op.of.u, op.of.a, op.of.b, op.out, op.kept]);
        self.run(Work::MatMul(op.of.flops(false) as f64, DType::F32), moved);
    }
    fn delta_backward(&self, op: &DeltaBackward<'_>, _: &Tensor) {
        let written = [op.du, op.da, op.db].into_iter().flatten().map(Tensor::bytes).sum::<u64>();
        let moved = bytes(&[op.of.u, op.of.a, op.of.b, op.dout, op.kept]) + written;
        self.run(Work::MatMul(op.of.flops(true) as f64, DType::F32), moved);
    }
    fn jitter(&self, x: &Tensor, keys: &Tensor, scales: &Tensor) {
        self.maps(&[x, keys, scales]);
    }
    fn dropout(&self, x: &Tensor, keys: &Tensor, _: Dropout) {
        self.maps(&[x, keys, x]);
    }
    fn cross_entropy(&self, op: &CrossEntropy<'_>) {
        let stats = op.spread.into_iter().flat_map(|spread| [spread.stats, spread.all]).flatten();
        let written = stats.chain(op.dlogits).chain(op.measures).map(Tensor::bytes).sum::<u64>();
        self.run(Work::Elementwise, bytes(&[op.logits, op.labels, op.loss]) + written);
    }
    fn divergence(&self, op: &Divergence<'_>) {
        let known = match op.teacher {
            TeacherLogits::Whole { logits, stats, .. } => [logits, stats],
            TeacherLogits::Best { ids, logps, .. } => [ids, logps],
        };
        let out = op.out.map_or(0, |out| bytes(&[out.loss, out.dlogits, out.weights]));
        // Without a gradient only the best tokens are read.
        let logits = match op.teacher {
            TeacherLogits::Best { ids, .. } if op.out.is_none() => ids.bytes(),
            _ => op.logits.bytes(),
        };
        self.run(Work::Elementwise, logits + bytes(&known) + bytes(&[op.stats, op.labels, op.parts]) + out);
    }
    fn row_distance(&self, op: &RowDistance<'_>) {
        // Both operands are read twice.
        self.run(
            Work::Elementwise,
            2 * bytes(&[op.x, op.target]) + bytes(&[op.labels, op.weights, op.loss, op.dx]),
        );
    }
    fn choose(&self, op: &Choose<'_>) {
        self.moves(&[op.logits, op.ids]);
        op.kept.iter().for_each(|kept| self.moves(&[kept]));
    }
    fn leave_out(&self, op: &LeaveOut<'_>) {
        self.maps(&[op.logits, op.kept]);
    }
    fn sum(&self, x: &Tensor, _: &Tensor) {
        self.moves(&[x]);
    }
    fn sum_squares(&self, x: &Tensor, _: &Tensor) {
        self.maps(&[x]);
    }
    fn sum_squares_slots(&self, x: &Tensor, slot: usize, _: &Tensor) {
        let part = if self.profile.portions.squares_at_once { x.cols().max(1) } else { slot };
        let bytes = |cols: usize| (x.rows() * cols * x.dtype().bytes()) as u64;
        let (whole, rest) = (x.cols() / part, x.cols() % part);
        if let Some(clock) = &self.clock {
            clock.run_times(Work::Elementwise, bytes(part), whole);
            clock.run_times(Work::Elementwise, bytes(rest), usize::from(rest > 0));
        }
    }
    fn step_scale(&self, _: &StepScale<'_>) {}
    fn adamw(&self, op: &AdamW<'_>) {
        let scales = op.scales.map(|scales| [Some(scales.m), scales.v]).into_iter().flatten();
        let read_and_written = [Some(op.param), op.master, Some(op.m), op.v].into_iter().chain(scales);
        let twice: u64 = read_and_written.flatten().map(|tensor| 2 * tensor.bytes()).sum();
        self.run(Work::Memory, twice + op.grad.bytes());
    }
    fn round_weights(&self, op: &RoundWeights<'_>) {
        op.check();
        self.moves(&[op.x, op.out]);
    }
    fn pack(&self, op: &Pack<'_>) {
        self.maps(&[op.x, op.out]);
    }
    fn unpack(&self, op: &Unpack<'_>) {
        self.maps(&[op.packed, op.out]);
    }
}
