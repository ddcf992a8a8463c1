//! A machine whose operations are the GPU's kernels and whose memory is the host's.

use std::sync::Mutex;

use fathom_cpu::Cpu;
use fathom_cuda::kernels::{self, Launch, SCRATCH_BYTES, Scratch};
use fathom_tensor::{
    Activate, ActivateBackward, AdamW, Arena, Attention, AttentionBackward, BalanceBias, Combine,
    CombineBackward, Conv, ConvBackward, CrossEntropy, Delta, DeltaAdvance, DeltaBackward, DeltaBegins,
    DeltaEnds, Dispatch, Divergence, Dropout, Embed, GatedNorm, GatedNormBackward, GroupedMatMul,
    GroupedWeight, InFlight, LimitExperts, Machine, MatMul, NarrowMatMul, Norm, NormBackward, OpDesc, Pack,
    Profile, Reader, Rope, RopeTable, Route, RouteBackward, RouterLosses, RowDistance, Share, SinksBackward,
    Ssd, SsdBackward, SsdBegins, SsdEnds, StepScale, Tensor, Unpack, gpu,
};

use super::emulator;

/// The emulated machine.
pub struct EmulatedMachine {
    memory: Cpu,
    profile: Profile,
    scratch: Mutex<Vec<u64>>,
}

impl EmulatedMachine {
    pub fn new() -> EmulatedMachine {
        let memory = Cpu::new(1, None);
        let workspace = |_: &Profile, op: &OpDesc| match *op {
            OpDesc::Grouped { tokens, slots, weight, .. } => {
                kernels::grouped_scratch_bytes(tokens, slots, fathom_tensor::MOST_EXPERTS, weight)
            }
            OpDesc::Ssd { .. } | OpDesc::Delta { .. } => {
                gpu::ScanScratch::of(op).map_or(0, |scratch| scratch.bytes)
            }
            OpDesc::Narrow { .. } => gpu::NarrowScratch::of(op).map_or(0, |scratch| scratch.bytes()),
            _ => kernels::attention_scratch_bytes(op),
        };
        let profile = Profile { name: "emulated".into(), workspace, ..memory.profile().clone() };
        EmulatedMachine { memory, profile, scratch: Mutex::new(vec![0x5555; SCRATCH_BYTES as usize / 8]) }
    }

    fn scratch(&self) -> Scratch {
        Scratch(self.scratch.lock().unwrap().as_mut_ptr().expose_provenance() as u64)
    }
}

fn run(launches: impl AsRef<[Launch]>) {
    launches.as_ref().iter().for_each(emulator::run);
}

fn one(launch: Launch) {
    emulator::run(&launch);
}

impl Machine for EmulatedMachine {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn reserve(&self, bytes: u64) -> Box<dyn Arena> {
        self.memory.reserve(bytes)
    }

    fn has_data(&self) -> bool {
        true
    }

    fn write(&self, dst: &Tensor, bytes: &[u8]) {
        self.memory.write(dst, bytes);
    }

    fn fill(&self, dst: &[Vec<Tensor>], fill: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync)) {
        self.memory.fill(dst, fill);
    }

    fn read(&self, src: &Tensor) -> InFlight {
        self.memory.read(src)
    }

    fn share(&self, src: &Tensor) -> (Share, Reader) {
        self.memory.share(src)
    }

    fn zero(&self, dst: &Tensor) {
        one(kernels::zero(dst));
    }

    fn copy(&self, src: &Tensor, dst: &Tensor) {
        one(kernels::copy(src, dst));
    }

    fn add(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        one(kernels::add(a, b, out));
    }

    fn multiply(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        one(kernels::multiply(a, b, out));
    }

    fn rsqrt(&self, x: &Tensor, out: &Tensor) {
        one(kernels::rsqrt(x, out));
    }

    fn scale(&self, x: &Tensor, factor: f32, out: &Tensor) {
        one(kernels::scale(x, factor, out));
    }

    fn softcap(&self, x: &Tensor, cap: f32) {
        one(kernels::softcap(x, cap));
    }

    fn add_bias(&self, x: &Tensor, bias: &Tensor) {
        one(kernels::add_bias(x, bias));
    }

    fn bias_backward(&self, dy: &Tensor, dbias: &Tensor) {
        run(kernels::bias_backward(dy, dbias, self.scratch()));
    }

    fn matmul(&self, op: &MatMul<'_>, _ws: &Tensor) {
        one(kernels::matmul(op));
    }

    fn narrow_matmul(&self, op: &NarrowMatMul<'_>, ws: &Tensor) {
        run(kernels::narrow_matmul(op, ws, self.scratch()));
    }

    fn largest(&self, x: &Tensor, out: &Tensor) {
        run(kernels::largest(x, out, self.scratch()));
    }

    fn norm(&self, op: &Norm<'_>) {
        one(kernels::norm(op));
    }

    fn norm_backward_input(&self, op: &NormBackward<'_>, dx: &Tensor, accumulate: bool) {
        one(kernels::norm_backward_input(op, dx, accumulate));
    }

    fn norm_backward_weight(&self, op: &NormBackward<'_>, dweight: &Tensor, dbias: Option<&Tensor>) {
        run(kernels::norm_backward_weight(op, dweight, dbias, self.scratch()));
    }

    fn activate(&self, op: &Activate<'_>) {
        one(kernels::activate(op));
    }

    fn activate_backward(&self, op: &ActivateBackward<'_>) {
        one(kernels::activate_backward(op));
    }

    fn rope_table(&self, op: &RopeTable<'_>) {
        one(kernels::rope_table(op));
    }

    fn rope(&self, op: &Rope<'_>) {
        one(kernels::rope(op));
    }

    fn embed(&self, op: &Embed<'_>) {
        one(kernels::embed(op));
    }

    fn embed_backward(&self, ids: &Tensor, dy: &Tensor, scale: f32, dtable: &Tensor, first: Option<usize>) {
        run(kernels::embed_backward(ids, dy, scale, dtable, first));
    }

    fn route(&self, op: &Route<'_>) {
        one(kernels::route(op));
    }

    fn route_backward(&self, op: &RouteBackward<'_>) {
        one(kernels::route_backward(op));
    }

    fn router_losses(&self, op: &RouterLosses<'_>) {
        one(kernels::router_losses(op));
    }

    fn count_experts(&self, index: &Tensor, load: &Tensor) {
        run(kernels::count_experts(index, load, self.scratch()));
    }

    fn limit_experts(&self, op: &LimitExperts<'_>) {
        let sizes = [op.experts, op.capacity];
        run(kernels::limit_experts(op.index, op.weights, sizes, op.out, self.scratch()));
    }

    fn balance_bias(&self, op: &BalanceBias<'_>) {
        one(kernels::balance_bias(op.bias, op.load, op.rate, op.skip));
    }

    fn dispatch(&self, op: &Dispatch<'_>) {
        let filled = [op.slots, op.tokens, op.experts];
        run(kernels::dispatch(op.index, op.own, op.round, filled, op.places, self.scratch()));
    }

    fn grouped_matmul(&self, op: &GroupedMatMul<'_>, ws: &Tensor) {
        run(kernels::grouped_matmul(op, ws));
    }

    fn grouped_weight(&self, op: &GroupedWeight<'_>, ws: &Tensor) {
        run(kernels::grouped_weight(op, ws));
    }

    fn combine(&self, op: &Combine<'_>) {
        one(kernels::combine(op));
    }

    fn combine_backward(&self, op: &CombineBackward<'_>) {
        run(kernels::combine_backward(op));
    }

    fn attention(&self, op: &Attention<'_>, _ws: &Tensor) {
        one(kernels::attention(op));
    }

    fn attention_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor) {
        run(kernels::attention_backward(op, ws, self.scratch()));
    }

    fn sinks_backward(&self, op: &SinksBackward<'_>) {
        run(kernels::sinks_backward(op, self.scratch()));
    }

    fn conv(&self, op: &Conv<'_>) {
        run(kernels::conv(op));
    }

    fn conv_backward(&self, op: &ConvBackward<'_>) {
        run(kernels::conv_backward(op, self.scratch()));
    }

    fn gated_norm(&self, op: &GatedNorm<'_>) {
        one(kernels::gated_norm(op));
    }

    fn gated_norm_backward(&self, op: &GatedNormBackward<'_>, _ws: &Tensor) {
        run(kernels::gated_norm_backward(op, self.scratch()));
    }

    fn ssd(&self, op: &Ssd<'_>, _ws: &Tensor) {
        run(kernels::ssd(op));
    }

    fn ssd_backward(&self, op: &SsdBackward<'_>, ws: &Tensor) {
        run(kernels::ssd_backward(op, ws, self.scratch()));
    }

    fn ssd_ends(&self, op: &SsdEnds<'_>, _ws: &Tensor) {
        run(kernels::ssd_ends(op));
    }

    fn ssd_begins(&self, op: &SsdBegins<'_>, _ws: &Tensor) {
        run(kernels::ssd_begins(op));
    }

    fn ssd_advance(&self, state: &Tensor, decays: &Tensor, added: &Tensor) {
        one(kernels::ssd_advance(state, decays, added));
    }

    fn delta_ends(&self, op: &DeltaEnds<'_>, _ws: &Tensor) {
        run(kernels::delta_ends(op));
    }

    fn delta_begins(&self, op: &DeltaBegins<'_>, _ws: &Tensor) {
        run(kernels::delta_begins(op));
    }

    fn delta_advance(&self, op: &DeltaAdvance<'_>) {
        one(kernels::delta_advance(op));
    }

    fn delta(&self, op: &Delta<'_>, _ws: &Tensor) {
        run(kernels::delta(op));
    }

    fn delta_backward(&self, op: &DeltaBackward<'_>, ws: &Tensor) {
        run(kernels::delta_backward(op, ws, self.scratch()));
    }

    fn cross_entropy(&self, op: &CrossEntropy<'_>) {
        one(kernels::cross_entropy(op));
    }

    fn jitter(&self, x: &Tensor, keys: &Tensor, scales: &Tensor) {
        one(kernels::jitter(x, keys, scales));
    }

    fn dropout(&self, x: &Tensor, keys: &Tensor, how: Dropout) {
        one(kernels::dropout(x, keys, how));
    }

    fn divergence(&self, op: &Divergence<'_>) {
        one(kernels::divergence(op));
    }

    fn row_distance(&self, op: &RowDistance<'_>) {
        one(kernels::row_distance(op));
    }

    fn sum(&self, x: &Tensor, out: &Tensor) {
        one(kernels::sum(x, out));
    }

    fn sum_squares(&self, x: &Tensor, out: &Tensor) {
        one(kernels::sum_squares(x, out));
    }

    fn sum_squares_slots(&self, x: &Tensor, slot: usize, out: &Tensor) {
        one(kernels::sum_squares_slots(x, slot, out));
    }

    fn step_scale(&self, op: &StepScale<'_>) {
        one(kernels::step_scale(op));
    }

    fn adamw(&self, op: &AdamW<'_>) {
        one(kernels::adamw(op));
    }

    fn pack(&self, op: &Pack<'_>) {
        one(kernels::pack(op));
    }

    fn unpack(&self, op: &Unpack<'_>) {
        one(kernels::unpack(op));
    }
}
