//! Conversion of attention's tensors to operands of its kernels.
#![allow(unsafe_code)]

use fathom_tensor::{Attention, AttentionBackward, DType, DistanceBias, Tensor};

use super::cpu::Cpu;
use super::operands::{self, elem, expect, f32s, f32s_mut};
use crate::attention;

/// Attention; see [`fathom_tensor::Machine::attention`].
pub fn forward(cpu: &Cpu, op: &Attention<'_>, ws: &Tensor) {
    expect("attention", "out", op.out, op.q.shape());
    let shape = shape(op);
    operands::check_pages(op);
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
        bias: bias(op),
        out: operands::rows_mut(op.out),
        lse: f32s_mut(op.lse),
        resume: op.resume,
    };
    // SAFETY: see the module; `ws` has the bytes given by the profile for this shape.
    unsafe { attention::forward(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

/// Attention's gradients; see [`fathom_tensor::Machine::attention_backward`].
pub fn backward(cpu: &Cpu, op: &AttentionBackward<'_>, ws: &Tensor) {
    let forward = &op.forward;
    assert!(forward.mask.pages.is_none(), "attention_backward: keys in pages");
    for (what, tensor, like) in [("dq", op.dq, forward.q), ("dk", op.dk, forward.k), ("dv", op.dv, forward.v)]
    {
        expect("attention_backward", what, tensor, like.shape());
    }
    let call = attention::Backward {
        shape: shape(forward),
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
        bias: bias(forward),
    };
    // SAFETY: see the module; `ws` has the bytes given by the profile for this shape.
    unsafe { attention::backward(&cpu.threads, cpu.isa, &call, operands::scratch(ws)) }
}

fn shape(op: &Attention<'_>) -> attention::Shape {
    attention::Shape {
        q_tokens: op.q.rows(),
        k_tokens: if op.mask.pages.is_some() { op.mask.keys() } else { op.k.rows() },
        heads: op.q.cols() / op.head_dim,
        kv_heads: op.kv_heads(),
        head_dim: op.head_dim,
        span: op.bias.map_or(0, |bias| bias.terms.span()),
    }
}

fn bias(op: &Attention<'_>) -> Option<attention::Bias> {
    let DistanceBias { table, terms, gradient } = op.bias?;
    for tensor in [Some(table), gradient].into_iter().flatten() {
        expect("attention", "bias", tensor, [terms.rows(), op.q.cols() / op.head_dim]);
        assert_eq!(tensor.dtype(), DType::F32, "attention: type of biases");
    }
    let strides = [table.stride(), gradient.map_or(0, Tensor::stride)];
    let gradient = gradient.map_or(std::ptr::null_mut(), |tensor| operands::start_mut(tensor).cast());
    Some(attention::Bias { table: operands::start(table).cast(), gradient, strides, terms })
}
