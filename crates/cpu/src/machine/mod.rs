//! The CPU as a [`Machine`]: tensors become raw operands for kernels.
//!
//! A tensor's address is a pointer into the pool's mapping. Tensors are made only by the pool, keep their piece of the
//! mapping charged while they live, and carry its extent, so every operand built here is readable and writable for its
//! tensor's shape; methods check that shapes fit before a kernel runs.
#![allow(unsafe_code)]

mod attending;
mod choose;
mod cpu;
mod experts;
mod fill;
mod losses;
mod narrow;
mod operands;
mod optimizer;
mod panels;
mod products;
mod scanning;
mod share;
mod sheet;
#[cfg(test)]
mod spill;

use std::sync::Arc;

use fathom_tensor::choice::{Choose, LeaveOut};
use fathom_tensor::spill::{Copies, HostMemory};
use fathom_tensor::{
    Activate, ActivateBackward, Activation, AdamW, Arena, Attention, AttentionBackward, BalanceBias,
    BlockFormat, Combine, CombineBackward, Conv, ConvBackward, CrossEntropy, DType, Delta, DeltaAdvance,
    DeltaBackward, DeltaBegins, DeltaEnds, Dispatch, Divergence, Dropout, Embed, GatedNorm,
    GatedNormBackward, GroupedMatMul, GroupedWeight, InFlight, LimitExperts, Machine, MatMul, NarrowMatMul,
    Norm, NormBackward, Pack, PackPages, PackedMatMul, Packing, ProductTerm, Profile, Rates, Reader, Rope,
    RopeTable, RoundWeights, Route, RouteBackward, RouterLosses, RowDistance, Share, SinksBackward, Ssd,
    SsdBackward, SsdBegins, SsdEnds, StepScale, Tensor, Unpack,
};

pub use cpu::Cpu;
use operands::{expect, f32s, f32s_mut, i32s, mat, mat_mut, scalar, set_scalar, words};
pub use panels::PackedPanels;
pub use sheet::profile;
use sheet::workspace;

use crate::arena::Mapping;
use crate::denormals::AsZeros;
use crate::elementwise::{self, Place};
use crate::isa::Isa;
use crate::mat::{Elem, Mat};
use crate::threads::Threads;
use crate::{attention, gemm, packed};

impl Cpu {
    /// Uses `threads` threads (0 for all cores) and the best instruction set up to `mask`.
    pub fn new(threads: usize, mask: Option<Isa>) -> Cpu {
        let all = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if threads == 0 { all } else { threads };
        let isa = Isa::select(mask);
        Cpu { profile: profile(threads, isa), threads: Threads::new(threads), isa }
    }

    /// The same machine, with rates for predicted times.
    pub fn with_rates(mut self, rates: Option<Rates>) -> Cpu {
        self.profile.rates = rates;
        self
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    fn place(&self) -> Place<'_> {
        Place { threads: &self.threads, isa: self.isa }
    }

    /// Looks up rows of a packed table.
    #[track_caller]
    fn embed_packed(&self, op: &Embed<'_>, packing: &Packing) {
        expect("embed", "out", op.out, [op.ids.cols(), packing.cols]);
        let call = packed::Embed {
            ids: i32s(op.ids),
            k: packing.cols,
            runs: &operands::runs(op.table, packing),
            scale: op.scale,
            out: mat_mut(op.out),
            accumulate: op.accumulate,
            first: op.first,
        };
        // SAFETY: see the module; the packing was checked against the bytes.
        unsafe { packed::embed(self.place(), &call) }
    }
}

impl Machine for Cpu {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn reserve(&self, bytes: u64) -> Box<dyn Arena> {
        Box::new(Mapping::reserve(bytes))
    }

    fn has_data(&self) -> bool {
        true
    }

    fn copies(&self) -> Option<Arc<dyn Copies>> {
        // SAFETY: see the module: a tensor's address is a pointer into the pool's mapping, which all threads share.
        Some(Arc::new(unsafe { HostMemory::new() }))
    }

    fn write(&self, dst: &Tensor, bytes: &[u8]) {
        operands::write(dst, bytes);
    }

    fn fill(&self, dst: &[Vec<Tensor>], fill: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync)) {
        fill::fill(self.threads.count(), dst, fill);
    }

    fn read(&self, src: &Tensor) -> InFlight {
        let bytes = operands::read(src);
        InFlight::new(src, move || bytes)
    }

    fn share(&self, src: &Tensor) -> (Share, Reader) {
        share::share(src)
    }

    fn zero(&self, dst: &Tensor) {
        if dst.dtype().bytes() == 1 {
            return operands::zero_bytes(dst);
        }
        let out = operands::words(dst);
        // SAFETY: see the module; the words cover the tensor's rows exactly.
        unsafe { elementwise::zero(self.place(), out.rows, out.cols, out.mat) }
    }

    fn copy(&self, src: &Tensor, dst: &Tensor) {
        expect("copy", "dst", dst, src.shape());
        if [src.dtype(), dst.dtype()] == [DType::U8; 2] {
            return operands::copy_bytes(src, dst);
        }
        if [src.dtype(), dst.dtype()] == [DType::I32; 2] {
            let (from, to) = (operands::i32_words(src), words(dst));
            // SAFETY: see the module; words are copied unchanged.
            return unsafe { elementwise::copy(self.place(), to.rows, to.cols, from, to.mat) };
        }
        // SAFETY: see the module.
        unsafe { elementwise::copy(self.place(), src.rows(), src.cols(), mat(src), mat_mut(dst)) }
    }

    fn add(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        expect("add", "b", b, a.shape());
        expect("add", "out", out, a.shape());
        // SAFETY: see the module; the kernel allows out to be an input.
        unsafe { elementwise::add(self.place(), a.rows(), a.cols(), mat(a), mat(b), mat_mut(out)) }
    }

    fn multiply(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        expect("multiply", "b", b, if b.rows() > 1 { a.shape() } else { [1, a.cols()] });
        expect("multiply", "out", out, a.shape());
        let row = b.rows() < a.rows();
        // SAFETY: see the module; the kernel allows out to be a.
        unsafe {
            elementwise::multiply(self.place(), a.rows(), a.cols(), mat(a), (mat(b), row), mat_mut(out))
        }
    }

    fn rsqrt(&self, x: &Tensor, out: &Tensor) {
        expect("rsqrt", "out", out, x.shape());
        // SAFETY: see the module; the kernel allows out to be x.
        unsafe { elementwise::rsqrt(self.place(), x.rows(), x.cols(), mat(x), mat_mut(out)) }
    }

    fn scale(&self, x: &Tensor, factor: f32, out: &Tensor) {
        expect("scale", "out", out, x.shape());
        // SAFETY: see the module; the kernel allows out to be x.
        unsafe { elementwise::scale(self.place(), x.rows(), x.cols(), mat(x), factor, mat_mut(out)) }
    }

    fn softcap(&self, x: &Tensor, cap: f32) {
        // SAFETY: see the module; the kernel allows out to be x.
        unsafe { elementwise::softcap(self.place(), x.rows(), x.cols(), mat(x), cap, mat_mut(x)) }
    }

    fn add_bias(&self, x: &Tensor, bias: &Tensor) {
        expect("add_bias", "bias", bias, [1, x.cols()]);
        // SAFETY: see the module.
        unsafe { elementwise::add_bias(self.place(), x.rows(), x.cols(), mat_mut(x), mat(bias)) }
    }

    fn bias_backward(&self, dy: &Tensor, dbias: &Tensor) {
        expect("bias_backward", "dbias", dbias, [1, dy.cols()]);
        // SAFETY: see the module.
        unsafe { elementwise::bias_backward(self.place(), dy.rows(), dy.cols(), mat(dy), mat_mut(dbias)) }
    }

    fn matmul(&self, op: &MatMul<'_>, ws: &Tensor) {
        let call = products::call(op);
        // SAFETY: see the module; `ws` has the bytes given by the profile for this shape.
        unsafe { gemm::gemm(&self.threads, self.isa, &call, operands::scratch(ws)) }
    }

    fn matmul_with(&self, op: &MatMul<'_>, terms: &[ProductTerm<'_>], ws: &Tensor) {
        if !products::with_terms(self, op, terms, ws) {
            self.matmul(op, ws);
            terms.iter().for_each(|term| term.added(op.c, |op| self.matmul(op, ws)));
        }
    }

    fn multiplies(&self, format: BlockFormat) -> bool {
        self.profile.multiplies(format)
    }

    fn packed_matmul(&self, op: &PackedMatMul<'_>, ws: &Tensor) {
        let packing = op.packing();
        let needed = workspace(&self.profile, &op.desc());
        assert!(ws.bytes() >= needed, "packed_matmul: scratch {ws:?} is too small for {op:?}");
        let runs = operands::runs(op.weight, packing);
        let [m, k] = op.a.shape();
        if packing.is_numbers() {
            let b = Mat { ptr: runs[0].bytes, elem: Elem::Bf16, stride: k };
            let n = packing.rows();
            let (a, b_layout, c) = (mat(op.a), gemm::Layout::Octets, mat_mut(op.c));
            let call = gemm::Gemm { m, n, k, a, a_trans: false, b, b_layout, c, accumulate: false };
            // SAFETY: as below.
            return unsafe { gemm::gemm(&self.threads, self.isa, &call, operands::scratch(ws)) };
        }
        let call = packed::Product { m, k, a: mat(op.a), runs: &runs, c: mat_mut(op.c) };
        // SAFETY: see the module; the packing was checked against the bytes, and the scratch has the bytes given by the
        // profile.
        unsafe { packed::product(self.place(), &call, operands::scratch(ws)) }
    }

    fn narrow_matmul(&self, op: &NarrowMatMul<'_>, ws: &Tensor) {
        narrow::matmul(self, op, ws);
    }

    fn largest(&self, x: &Tensor, out: &Tensor) {
        narrow::largest(self, x, out);
    }

    fn norm(&self, op: &Norm<'_>) {
        let (groups, width) = (op.x.cols() / op.weight.cols(), op.weight.cols());
        expect("norm", "out", op.out, op.x.shape());
        expect("norm", "stats", op.stats, [op.x.rows(), groups * if op.kind.centred { 2 } else { 1 }]);
        let call = elementwise::Norm {
            kind: op.kind,
            rows: op.x.rows(),
            groups,
            width,
            x: mat(op.x),
            weight: mat(op.weight),
            bias: op.bias.map(mat),
            out: mat_mut(op.out),
            stats: mat_mut(op.stats),
        };
        // SAFETY: see the module.
        unsafe { elementwise::norm(self.place(), &call) }
    }

    fn norm_backward_input(&self, op: &NormBackward<'_>, dx: &Tensor, accumulate: bool) {
        expect("norm_backward_input", "dx", dx, op.x.shape());
        // SAFETY: see the module.
        unsafe {
            elementwise::norm_backward_input(
                self.place(),
                &operands::norm_backward(op),
                mat_mut(dx),
                accumulate,
            )
        }
    }

    fn norm_backward_weight(&self, op: &NormBackward<'_>, dweight: &Tensor, dbias: Option<&Tensor>) {
        expect("norm_backward_weight", "dweight", dweight, op.weight.shape());
        let call = operands::norm_backward(op);
        // SAFETY: see the module.
        unsafe {
            elementwise::norm_backward_weight(self.place(), &call, mat_mut(dweight), dbias.map(mat_mut))
        }
    }

    fn activate(&self, op: &Activate<'_>) {
        let [rows, cols] = op.out.shape();
        if op.kind == Activation::ClampedSwiglu && op.gated {
            expect("activate", "x", op.x, [rows, 2 * cols]);
            // SAFETY: see the module.
            return unsafe { elementwise::clamped(self.place(), rows, cols, mat(op.x), mat_mut(op.out)) };
        }
        let (gate, up) = operands::halves("activate", op.x, op.gated, [rows, cols]);
        let call = elementwise::Activate { kind: op.kind, rows, cols, gate, up, out: mat_mut(op.out) };
        // SAFETY: see the module.
        unsafe { elementwise::activate(self.place(), &call) }
    }

    fn activate_backward(&self, op: &ActivateBackward<'_>) {
        let [rows, cols] = op.dy.shape();
        if op.kind == Activation::ClampedSwiglu && op.gated {
            expect("activate_backward", "x", op.x, [rows, 2 * cols]);
            expect("activate_backward", "dx", op.dx, [rows, 2 * cols]);
            let (inputs, dx) = ([mat(op.x), mat(op.dy)], mat_mut(op.dx));
            // SAFETY: see the module.
            return unsafe { elementwise::clamped_backward(self.place(), rows, cols, inputs, dx) };
        }
        let (gate, up) = operands::halves("activate_backward", op.x, op.gated, [rows, cols]);
        let (dgate, dup) = operands::halves_mut("activate_backward", op.dx, op.gated, [rows, cols]);
        let call =
            elementwise::ActivateBackward { kind: op.kind, rows, cols, gate, up, dy: mat(op.dy), dgate, dup };
        // SAFETY: see the module.
        unsafe { elementwise::activate_backward(self.place(), &call) }
    }

    fn rope_table(&self, op: &RopeTable<'_>) {
        expect("rope_table", "out", op.out, [op.positions.cols(), 2 * op.inv_freq.cols()]);
        let (positions, inv_freq) = (i32s(op.positions), f32s(op.inv_freq));
        let call = elementwise::RopeTable { positions, inv_freq, factor: op.factor, out: mat_mut(op.out) };
        // SAFETY: see the module.
        unsafe { elementwise::rope_table(self.place(), &call) }
    }

    fn rope(&self, op: &Rope<'_>) {
        expect("rope", "out", op.out, op.x.shape());
        assert!(op.table.rows() == op.x.rows() && op.table.cols() <= op.head_dim, "rope: {op:?}");
        let call = elementwise::Rope {
            rows: op.x.rows(),
            heads: op.x.cols() / op.head_dim,
            head_dim: op.head_dim,
            rot: op.table.cols(),
            x: mat(op.x),
            out: mat_mut(op.out),
            table: mat(op.table),
            interleaved: op.interleaved,
            inverse: op.inverse,
            accumulate: op.accumulate,
        };
        // SAFETY: see the module.
        unsafe { elementwise::rope(self.place(), &call) }
    }

    fn embed(&self, op: &Embed<'_>) {
        if let Some(packing) = op.table.packing() {
            return self.embed_packed(op, packing);
        }
        expect("embed", "out", op.out, [op.ids.cols(), op.table.cols()]);
        let call = elementwise::Embed {
            ids: i32s(op.ids),
            vocab: op.table.rows(),
            cols: op.table.cols(),
            table: mat(op.table),
            scale: op.scale,
            out: mat_mut(op.out),
            accumulate: op.accumulate,
            first: op.first,
        };
        // SAFETY: see the module; the kernel checks ids against the vocabulary.
        unsafe { elementwise::embed(self.place(), &call) }
    }

    fn embed_backward(&self, ids: &Tensor, dy: &Tensor, scale: f32, dtable: &Tensor, first: Option<usize>) {
        expect("embed_backward", "dy", dy, [ids.cols(), dtable.cols()]);
        let [vocab, cols] = dtable.shape();
        let (dy, dtable) = (mat(dy), mat_mut(dtable));
        // SAFETY: see the module; the kernel checks ids against the vocabulary.
        unsafe {
            let call = elementwise::EmbedBackward { ids: i32s(ids), vocab, cols, dy, scale, dtable, first };
            elementwise::embed_backward(self.place(), &call)
        }
    }

    fn route(&self, op: &Route<'_>) {
        experts::route(self, op);
    }

    fn route_backward(&self, op: &RouteBackward<'_>) {
        experts::route_backward(self, op);
    }

    fn router_losses(&self, op: &RouterLosses<'_>) {
        experts::router_losses(self, op);
    }

    fn count_experts(&self, index: &Tensor, load: &Tensor) {
        experts::count_experts(index, load);
    }

    fn limit_experts(&self, op: &LimitExperts<'_>) {
        experts::limit_experts(op);
    }

    fn balance_bias(&self, op: &BalanceBias<'_>) {
        experts::balance_bias(op);
    }

    fn dispatch(&self, op: &Dispatch<'_>) {
        experts::dispatch(op);
    }

    fn grouped_matmul(&self, op: &GroupedMatMul<'_>, ws: &Tensor) {
        experts::grouped_matmul(self, op, ws);
    }

    fn grouped_weight(&self, op: &GroupedWeight<'_>, ws: &Tensor) {
        experts::grouped_weight(self, op, ws);
    }

    fn combine(&self, op: &Combine<'_>) {
        experts::combine(self, op);
    }

    fn combine_backward(&self, op: &CombineBackward<'_>) {
        experts::combine_backward(self, op);
    }

    fn attention(&self, op: &Attention<'_>, ws: &Tensor) {
        attending::forward(self, op, ws);
    }

    fn reads_pages(&self) -> bool {
        true
    }

    fn pack_pages(&self, op: &PackPages<'_>) {
        let (heads, bytes) = (op.x.cols() / op.head_dim, op.format.head_bytes(op.head_dim, op.x.dtype()));
        expect("pack_pages", "out", op.out, [op.x.rows(), heads * bytes]);
        // SAFETY: see the module; the extents were checked.
        unsafe { attention::pages::pack(&self.threads, &operands::pages(op)) }
    }

    fn attention_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor) {
        attending::backward(self, op, ws);
    }

    fn sinks_backward(&self, op: &SinksBackward<'_>) {
        let [rows, heads] = op.lse.shape();
        expect("sinks_backward", "dout", op.dout, op.out.shape());
        let call = elementwise::SinksBackward {
            rows,
            heads,
            head_dim: op.out.cols() / heads,
            out: mat(op.out),
            dout: mat(op.dout),
            lse: mat(op.lse),
            sinks: f32s(op.sinks),
            dsinks: f32s_mut(op.dsinks),
        };
        // SAFETY: see the module.
        unsafe { elementwise::sinks_backward(self.place(), &call) }
    }

    fn conv(&self, op: &Conv<'_>) {
        scanning::conv(self, op);
    }

    fn conv_backward(&self, op: &ConvBackward<'_>) {
        scanning::conv_backward(self, op);
    }

    fn gated_norm(&self, op: &GatedNorm<'_>) {
        scanning::gated_norm(self, op);
    }

    fn gated_norm_backward(&self, op: &GatedNormBackward<'_>, ws: &Tensor) {
        scanning::gated_norm_backward(self, op, ws);
    }

    fn ssd(&self, op: &Ssd<'_>, ws: &Tensor) {
        scanning::ssd(self, op, ws);
    }

    fn ssd_backward(&self, op: &SsdBackward<'_>, ws: &Tensor) {
        scanning::ssd_backward(self, op, ws);
    }

    fn ssd_ends(&self, op: &SsdEnds<'_>, ws: &Tensor) {
        scanning::ssd_ends(self, op, ws);
    }

    fn ssd_begins(&self, op: &SsdBegins<'_>, ws: &Tensor) {
        scanning::ssd_begins(self, op, ws);
    }

    fn ssd_advance(&self, state: &Tensor, decays: &Tensor, added: &Tensor) {
        scanning::ssd_advance(self, state, decays, added);
    }

    fn delta_ends(&self, op: &DeltaEnds<'_>, ws: &Tensor) {
        scanning::delta_ends(self, op, ws);
    }

    fn delta_begins(&self, op: &DeltaBegins<'_>, ws: &Tensor) {
        scanning::delta_begins(self, op, ws);
    }

    fn delta_advance(&self, op: &DeltaAdvance<'_>) {
        scanning::delta_advance(self, op);
    }

    fn delta(&self, op: &Delta<'_>, ws: &Tensor) {
        scanning::delta(self, op, ws);
    }

    fn delta_backward(&self, op: &DeltaBackward<'_>, ws: &Tensor) {
        scanning::delta_backward(self, op, ws);
    }

    fn jitter(&self, x: &Tensor, keys: &Tensor, scales: &Tensor) {
        expect("jitter", "keys", keys, [1, x.rows()]);
        expect("jitter", "scales", scales, [1, x.rows()]);
        // SAFETY: see the module.
        unsafe { elementwise::jitter(self.place(), x.cols(), mat_mut(x), i32s(keys), f32s(scales)) }
    }

    fn dropout(&self, x: &Tensor, keys: &Tensor, how: Dropout) {
        expect("dropout", "keys", keys, [1, x.rows()]);
        // SAFETY: see the module.
        unsafe { elementwise::dropout(self.place(), x.cols(), mat_mut(x), i32s(keys), how) }
    }

    fn cross_entropy(&self, op: &CrossEntropy<'_>) {
        losses::cross_entropy(self, op);
    }

    fn divergence(&self, op: &Divergence<'_>) {
        losses::divergence(self, op);
    }
    fn choose(&self, op: &Choose<'_>) {
        choose::choose(self, op);
    }

    fn leave_out(&self, op: &LeaveOut<'_>) {
        choose::leave_out(self, op);
    }

    fn row_distance(&self, op: &RowDistance<'_>) {
        losses::row_distance(self, op);
    }

    fn sum(&self, x: &Tensor, out: &Tensor) {
        let _zeros = AsZeros::new();
        set_scalar(out, elementwise::sum(f32s(x), scalar(out)));
    }

    fn sum_squares(&self, x: &Tensor, out: &Tensor) {
        let _zeros = AsZeros::new();
        // SAFETY: see the module.
        let squares = unsafe { elementwise::sum_squares(self.place(), f32s(x)) };
        set_scalar(out, (f64::from(scalar(out)) + squares) as f32);
    }

    fn step_scale(&self, op: &StepScale<'_>) {
        let _zeros = AsZeros::new();
        let result =
            elementwise::step_scale(scalar(op.sum_squares), scalar(op.loss), scalar(op.count), op.max_norm);
        set_scalar(op.scale, result.scale);
        set_scalar(op.skip, result.skip);
        set_scalar(op.norm, result.norm);
        if result.skip == 0.0 {
            operands::set_count(op.updates, i32s(op.updates)[0] + 1);
        }
    }

    fn adamw(&self, op: &AdamW<'_>) {
        optimizer::adamw(self, op);
    }

    fn round_weights(&self, op: &RoundWeights<'_>) {
        narrow::round_weights(self, op);
    }

    fn pack(&self, op: &Pack<'_>) {
        narrow::pack(self, op);
    }

    fn unpack(&self, op: &Unpack<'_>) {
        narrow::unpack(self, op);
    }
}
