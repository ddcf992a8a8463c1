//! Operations of mixture-of-experts layers with raw operands.
#![allow(unsafe_code)]

use fathom_tensor::{
    BalanceBias, Combine, CombineBackward, DType, Dispatch, GroupedMatMul, GroupedWeight, LimitExperts,
    Route, RouteBackward, RouterLosses, Tensor,
};

use super::cpu::Cpu;
use super::operands::{elem, expect, f32s, f32s_mut, i32s, mat, mat_mut, runs, scalar, scratch, start_mut};
use crate::denormals::AsZeros;
use crate::{elementwise, grouped, packed};

/// Scratch bytes of a grouped product.
pub fn workspace(isa: crate::isa::Isa, threads: usize, op: &fathom_tensor::OpDesc) -> usize {
    let fathom_tensor::OpDesc::Grouped { tokens, slots, inner, out, input, output, weight } = *op else {
        return 0;
    };
    let shape = grouped::Shape {
        rows: tokens * slots,
        cols: [inner, out],
        elems: [elem(input), elem(output)],
        weight,
    };
    grouped::workspace_bytes(isa, threads, &shape)
}

/// Address of a contiguous i32 tensor, to write.
#[track_caller]
fn i32s_mut(op: &str, tensor: &Tensor) -> *mut i32 {
    assert!(tensor.dtype() == DType::I32 && tensor.is_contiguous(), "{op}: {tensor:?} is not plain i32");
    start_mut(tensor).cast()
}

pub fn route(cpu: &Cpu, op: &Route<'_>) {
    let ([rows, experts], top_k) = (op.logits.shape(), op.routing.top_k);
    expect("route", "index", op.index, [rows, top_k]);
    expect("route", "weights", op.weights, [rows, top_k]);
    let call = elementwise::Route {
        routing: op.routing,
        rows,
        experts,
        logits: mat(op.logits),
        bias: op.bias.map(f32s),
        index: i32s_mut("route", op.index),
        weights: mat_mut(op.weights),
    };
    // SAFETY: see the machine's module; the index has `rows x top_k` elements.
    unsafe { elementwise::route(cpu.place(), &call) }
}

pub fn route_backward(cpu: &Cpu, op: &RouteBackward<'_>) {
    let ([rows, experts], top_k) = (op.logits.shape(), op.routing.top_k);
    expect("route_backward", "index", op.index, [rows, top_k]);
    expect("route_backward", "dweights", op.dweights, [rows, top_k]);
    expect("route_backward", "dlogits", op.dlogits, [rows, experts]);
    let call = elementwise::RouteBackward {
        routing: op.routing,
        experts,
        logits: mat(op.logits),
        index: i32s(op.index),
        dweights: mat(op.dweights),
        dlogits: mat_mut(op.dlogits),
    };
    // SAFETY: see the machine's module; the kernel checks the index.
    unsafe { elementwise::route_backward(cpu.place(), &call) }
}

pub fn router_losses(cpu: &Cpu, op: &RouterLosses<'_>) {
    let [rows, experts] = op.logits.shape();
    expect("router_losses", "load", op.load, [1, experts]);
    expect("router_losses", "dlogits", op.dlogits, [rows, experts]);
    let call = elementwise::RouterLosses {
        scores: op.scores,
        rows,
        logits: mat(op.logits),
        load: f32s(op.load),
        aux: op.aux,
        z: op.z,
        dlogits: mat_mut(op.dlogits),
    };
    // SAFETY: see the machine's module.
    unsafe { elementwise::router_losses(cpu.place(), &call) }
}

pub fn count_experts(index: &Tensor, load: &Tensor) {
    // SAFETY: the tensor holds `len` f32s, and nothing else uses them: work is issued from one thread.
    let counts = unsafe { std::slice::from_raw_parts_mut(f32s_mut(load), load.len()) };
    elementwise::count_experts(i32s(index), counts);
}

/// The elements of an i32 tensor, to write.
#[track_caller]
fn i32_list(op: &str, tensor: &Tensor) -> *mut [i32] {
    std::ptr::slice_from_raw_parts_mut(i32s_mut(op, tensor), tensor.len())
}

pub fn limit_experts(op: &LimitExperts<'_>) {
    let shape = op.index.shape();
    expect("limit_experts", "out", op.out, shape);
    op.weights.iter().for_each(|weights| expect("limit_experts", "weights", weights, shape));
    // SAFETY: as in `count_experts`; the result is a separate tensor.
    let (weights, out) = (op.weights.map(f32s), unsafe { &mut *i32_list("limit_experts", op.out) });
    elementwise::limit_experts(i32s(op.index), weights, (op.experts, op.capacity), out);
}

pub fn balance_bias(op: &BalanceBias<'_>) {
    let experts = op.bias.len();
    expect("balance_bias", "load", op.load, [1, experts]);
    if scalar(op.skip) != 0.0 {
        return;
    }
    let _zeros = AsZeros::new();
    // SAFETY: as in `count_experts`.
    let bias = unsafe { std::slice::from_raw_parts_mut(f32s_mut(op.bias), experts) };
    elementwise::balance_bias(bias, f32s(op.load), op.rate);
}

pub fn dispatch(op: &Dispatch<'_>) {
    let [owners, cap] = op.slots.shape();
    expect("dispatch", "tokens", op.tokens, [owners, cap]);
    expect("dispatch", "experts", op.experts, [owners, cap]);
    expect("dispatch", "places", op.places, op.index.shape());
    let lists = [op.slots, op.tokens, op.experts, op.places].map(|list| i32_list("dispatch", list));
    // SAFETY: as in `count_experts`; the lists are separate tensors.
    let [slots, tokens, experts, places] = lists.map(|list| unsafe { &mut *list });
    elementwise::dispatch(elementwise::Dispatch {
        index: i32s(op.index),
        top_k: op.index.cols(),
        own: op.own,
        first: op.round * cap,
        cap,
        slots,
        tokens,
        experts,
        places,
    });
}

pub fn grouped_matmul(cpu: &Cpu, op: &GroupedMatMul<'_>, ws: &Tensor) {
    let (_, slots, inner, out) = op.sizes();
    if let Some(packing) = op.weights.packing() {
        let needed = cpu.profile.workspace(&op.desc());
        assert!(ws.bytes() >= needed, "grouped_matmul: scratch {ws:?} is too small for {op:?}");
        let runs = &runs(op.weights, packing);
        let (index, a, c) = (i32s(op.index), mat(op.a), mat_mut(op.c));
        let (experts, shared) = (op.experts, op.a.cols() == inner);
        let call = packed::Experts { index, slots, experts, k: inner, out, a, shared, runs, c };
        // SAFETY: see the machine's module; the packing was checked against the bytes, and `ws` has the bytes given by
        // the profile.
        return unsafe { packed::experts(cpu.place(), &call, scratch(ws)) };
    }
    let call = grouped::Product {
        index: i32s(op.index),
        slots,
        experts: op.experts,
        inner,
        out,
        a: mat(op.a),
        shared: op.a.cols() == inner,
        weights: mat(op.weights),
        trans: op.trans,
        c: mat_mut(op.c),
    };
    // SAFETY: see the machine's module; `ws` has the bytes given by the profile for this shape.
    unsafe { grouped::product(cpu.place(), &call, scratch(ws)) }
}

pub fn grouped_weight(cpu: &Cpu, op: &GroupedWeight<'_>, ws: &Tensor) {
    let (_, slots, m, n) = op.sizes();
    let call = grouped::Weight {
        index: i32s(op.index),
        slots,
        experts: op.experts,
        m,
        n,
        a: mat(op.a),
        a_shared: op.a.cols() == m,
        b: mat(op.b),
        b_shared: op.b.cols() == n,
        c: mat_mut(op.c),
    };
    // SAFETY: as in `grouped_matmul`.
    unsafe { grouped::weight(cpu.place(), &call, scratch(ws)) }
}

/// Slots per token, from the columns of all slots and of one.
#[track_caller]
fn slots(op: &str, y: &Tensor, out: &Tensor) -> usize {
    let fits = y.rows() == out.rows() && y.cols().is_multiple_of(out.cols().max(1));
    assert!(fits, "{op}: y {y:?}, out {out:?}");
    y.cols() / out.cols().max(1)
}

pub fn combine(cpu: &Cpu, op: &Combine<'_>) {
    let ([rows, cols], slots) = (op.out.shape(), slots("combine", op.y, op.out));
    if let Some(weights) = op.weights {
        expect("combine", "weights", weights, [rows, slots]);
    }
    let (y, weights, out) = (mat(op.y), op.weights.map(mat), mat_mut(op.out));
    // SAFETY: see the machine's module.
    unsafe { elementwise::combine(cpu.place(), &elementwise::Combine { rows, slots, cols, y, weights, out }) }
}

pub fn combine_backward(cpu: &Cpu, op: &CombineBackward<'_>) {
    let ([rows, cols], slots) = (op.dout.shape(), slots("combine_backward", op.y, op.dout));
    expect("combine_backward", "weights", op.weights, [rows, slots]);
    if let Some(dy) = op.dy {
        expect("combine_backward", "dy", dy, op.y.shape());
    }
    if let Some(dweights) = op.dweights {
        expect("combine_backward", "dweights", dweights, [rows, slots]);
    }
    let call = elementwise::CombineBackward {
        rows,
        slots,
        cols,
        y: mat(op.y),
        weights: mat(op.weights),
        dout: mat(op.dout),
        dy: op.dy.map(mat_mut),
        dweights: op.dweights.map(mat_mut),
    };
    // SAFETY: see the machine's module.
    unsafe { elementwise::combine_backward(cpu.place(), &call) }
}
