//! The CPU as a [`Machine`]: tensors become raw operands, kernels do the work.
//!
//! An address of a tensor is a pointer into the pool's mapping. Tensors are made by the pool alone, keep their piece of
//! the mapping charged while they live, and carry its extent, so every operand built here is readable and writable for
//! the shape that its tensor has; methods check that shapes fit before a kernel runs.
#![allow(unsafe_code)]

mod experts;
mod fill;
mod narrow;
mod operands;
mod packed;
mod share;
#[cfg(test)]
mod spill;

use std::sync::Arc;

use fathom_tensor::moments;
use fathom_tensor::spill::{Copies, HostMemory};
use fathom_tensor::{
    Activate, ActivateBackward, Activation, AdamW, Arena, Attention, AttentionBackward, BalanceBias, Combine,
    CombineBackward, CrossEntropy, DType, Dispatch, Embed, GroupedMatMul, GroupedWeight, Hardware, InFlight,
    LimitExperts, Machine, MatMul, NarrowMatMul, Norm, NormBackward, OpDesc, Portions, Profile, Rates,
    Reader, Rope, RopeTable, Route, RouteBackward, RouterLosses, Share, SinksBackward, StepScale, Tensor,
};

use crate::arena::Mapping;
use crate::denormals::AsZeros;
use crate::elementwise::{self, Place};
use crate::isa::Isa;
use crate::mat::Elem;
use crate::threads::Threads;
use crate::{attention, gemm};
use operands::{elem, f32s, f32s_mut, i32s, mat, mat_mut, scalar, set_scalar, words};
pub use packed::Packed;

/// Processor cores with one thread pool.
pub struct Cpu {
    profile: Profile,
    threads: Threads,
    isa: Isa,
}

/// Charges are multiples of a page.
const GRANULE: u64 = 4096;

/// The data sheet of a CPU with these threads and this instruction set; needs no such processor.
pub fn profile(threads: usize, isa: Isa) -> Profile {
    let (name, isa) = ("cpu".to_string(), isa.name().to_string());
    Profile {
        name,
        hardware: Hardware::Processor,
        granule: GRANULE,
        threads,
        isa,
        memory_bytes: None,
        host_bytes: None,
        beside_bytes: None,
        rates: None,
        fabric: None,
        portions: Portions::CPU,
        workspace,
    }
}

/// Scratch bytes of an operation, from the same functions that the kernels use.
fn workspace(profile: &Profile, op: &OpDesc) -> u64 {
    let isa = Isa::from_name(&profile.isa).unwrap_or(Isa::Portable);
    let bytes = match *op {
        OpDesc::MatMul { m, n, k, input, output, .. } => {
            let (a, c) = (elem(input), elem(output));
            gemm::workspace_bytes(isa, profile.threads, &gemm::Shape { m, n, k, a, b: a, b_packed: false }, c)
        }
        OpDesc::Narrow { .. } => narrow::workspace(isa, profile.threads, op),
        OpDesc::Grouped { .. } => experts::workspace(isa, profile.threads, op),
        OpDesc::Attention {
            q_tokens, k_tokens, heads, kv_heads, head_dim, dtype, slices, backward, ..
        } => {
            let shape = attention::Shape { q_tokens, k_tokens, heads, kv_heads, head_dim };
            let dtype = elem(dtype);
            if backward {
                attention::workspace_bytes_backward(isa, profile.threads, &shape, dtype, slices)
            } else {
                attention::workspace_bytes_forward(isa, profile.threads, &shape, dtype, slices)
            }
        }
    };
    bytes as u64
}

impl Cpu {
    /// `threads` threads (0 for all cores) and the best instruction set up to `mask`.
    pub fn new(threads: usize, mask: Option<Isa>) -> Cpu {
        let all = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if threads == 0 { all } else { threads };
        let isa = Isa::select(mask);
        Cpu { profile: profile(threads, isa), threads: Threads::new(threads), isa }
    }

    /// The same cores, with rates for predicted times.
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

    fn attention_shape(&self, op: &Attention<'_>) -> attention::Shape {
        attention::Shape {
            q_tokens: op.q.rows(),
            k_tokens: op.k.rows(),
            heads: op.q.cols() / op.head_dim,
            kv_heads: op.k.cols() / op.head_dim,
            head_dim: op.head_dim,
        }
    }
}

/// # Panics
/// If a tensor is not `shape`.
#[track_caller]
fn expect(op: &str, what: &str, tensor: &Tensor, shape: [usize; 2]) {
    assert!(tensor.shape() == shape, "{op}: {what} is {tensor:?}, expected {shape:?}");
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
        if [src.dtype(), dst.dtype()] == [DType::I32; 2] {
            let (from, to) = (operands::i32_words(src), words(dst));
            // SAFETY: see the module; words are copied as they are.
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
        let (m, n, k) = op.sizes();
        let call = gemm::Gemm {
            m,
            n,
            k,
            a: mat(op.a),
            a_trans: op.a_trans,
            b: mat(op.b),
            b_trans: op.b_trans,
            b_packed: false,
            c: mat_mut(op.c),
            accumulate: op.accumulate,
        };
        // SAFETY: see the module; `ws` has the bytes that the profile named for this shape.
        unsafe { gemm::gemm(&self.threads, self.isa, &call, operands::scratch(ws)) }
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
        expect("attention", "out", op.out, op.q.shape());
        let shape = self.attention_shape(op);
        expect("attention", "lse", op.lse, [shape.q_tokens, shape.heads]);
        let call = attention::Forward {
            shape,
            elem: elem(op.q.dtype()),
            options: attention::Options { scale: op.scale, softcap: op.softcap },
            mask: operands::masking(op.mask),
            q: operands::rows(op.q),
            k: operands::rows(op.k),
            v: operands::rows(op.v),
            sinks: op.sinks.map(f32s),
            out: operands::rows_mut(op.out),
            lse: f32s_mut(op.lse),
            resume: op.resume,
        };
        // SAFETY: see the module; `ws` has the bytes that the profile named for this shape.
        unsafe { attention::forward(&self.threads, self.isa, &call, operands::scratch(ws)) }
    }

    fn attention_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor) {
        let forward = &op.forward;
        for (what, tensor, like) in
            [("dq", op.dq, forward.q), ("dk", op.dk, forward.k), ("dv", op.dv, forward.v)]
        {
            expect("attention_backward", what, tensor, like.shape());
        }
        let call = attention::Backward {
            shape: self.attention_shape(forward),
            elem: elem(forward.q.dtype()),
            options: attention::Options { scale: forward.scale, softcap: forward.softcap },
            mask: operands::masking(forward.mask),
            q: operands::rows(forward.q),
            k: operands::rows(forward.k),
            v: operands::rows(forward.v),
            out: operands::rows(forward.out),
            lse: f32s_mut(forward.lse),
            dout: operands::rows(op.dout),
            dq: operands::rows_mut(op.dq),
            dk: operands::rows_mut(op.dk),
            dv: operands::rows_mut(op.dv),
            accumulate: op.accumulate,
        };
        // SAFETY: see the module; `ws` has the bytes that the profile named for this shape.
        unsafe { attention::backward(&self.threads, self.isa, &call, operands::scratch(ws)) }
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

    fn cross_entropy(&self, op: &CrossEntropy<'_>) {
        let rows = op.logits.rows();
        expect("cross_entropy", "labels", op.labels, [1, rows]);
        expect("cross_entropy", "loss", op.loss, [1, rows]);
        let call = elementwise::CrossEntropy {
            vocab: op.logits.cols(),
            logits: mat(op.logits),
            labels: i32s(op.labels),
            weights: op.weights.map(f32s),
            loss: mat_mut(op.loss),
            logp: None,
            dlogits: op.dlogits.map(mat_mut),
            scale: op.scale,
            softcap: op.softcap,
            z_loss: op.z_loss,
            spread: op.spread.map(|spread| {
                let all = spread.all.map(|all| {
                    assert!(
                        all.cols() == rows && all.dtype() == DType::F32,
                        "cross_entropy: statistics {all:?}"
                    );
                    (mat(all), all.rows() / 2)
                });
                if let Some(stats) = spread.stats {
                    expect("cross_entropy", "stats", stats, [2, rows]);
                }
                elementwise::Spread { first: spread.first, stats: spread.stats.map(mat_mut), all }
            }),
        };
        // SAFETY: see the module; the kernel allows dlogits to be logits.
        unsafe { elementwise::cross_entropy(self.place(), &call) }
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
        for (what, tensor) in [("m", op.m), ("v", op.v.unwrap_or(op.m)), ("grad", op.grad)] {
            expect("adamw", what, tensor, op.param.shape());
        }
        assert!(op.v.is_none_or(|v| v.dtype() == op.m.dtype()), "adamw: m {:?}, v {:?}", op.m, op.v);
        let updates = i32s(op.updates)[0];
        let coded = operands::codes(op);
        let correction = |beta: f32| (1.0 - f64::from(beta).powi(updates)) as f32;
        let call = elementwise::AdamW {
            count: op.param.len(),
            elem: elem(op.param.dtype()),
            param: operands::start_mut(op.param),
            master: op.master.map_or(std::ptr::null_mut(), f32s_mut),
            moments: coded.map_or_else(|| elem(op.m.dtype()), |_| Elem::F32),
            coded,
            keys: [false, true].map(|second| moments::key(op.key, updates, second)),
            weight_key: moments::weight_key(op.key, updates),
            first: op.first,
            m: operands::start_mut(op.m),
            v: op.v.map_or(std::ptr::null_mut(), operands::start_mut),
            grad: f32s_mut(op.grad),
            scale: f32s_mut(op.scale),
            skip: f32s_mut(op.skip),
            lr: op.lr,
            beta1: op.beta1,
            beta2: op.beta2,
            eps: op.eps,
            weight_decay: op.weight_decay,
            correction1: correction(op.beta1),
            correction2: correction(op.beta2),
        };
        // SAFETY: see the module.
        unsafe { elementwise::adamw(self.place(), &call) }
    }
}
