//! Conversion of the tensors of an optimizer's step to operands of its kernel.
#![allow(unsafe_code)]

use fathom_tensor::{AdamW, moments};

use super::cpu::Cpu;
use super::operands::{codes, elem, expect, f32s_mut, i32s, start_mut};
use crate::elementwise;
use crate::mat::Elem;

/// See [`fathom_tensor::Machine::adamw`].
#[track_caller]
pub fn adamw(cpu: &Cpu, op: &AdamW<'_>) {
    for (what, tensor) in [("m", op.m), ("v", op.v.unwrap_or(op.m)), ("grad", op.grad)] {
        expect("adamw", what, tensor, op.param.shape());
    }
    assert!(op.v.is_none_or(|v| v.dtype() == op.m.dtype()), "adamw: m {:?}, v {:?}", op.m, op.v);
    let updates = i32s(op.updates)[0];
    let scales = codes(op);
    let correction = |beta: f32| (1.0 - f64::from(beta).powi(updates)) as f32;
    let call = elementwise::AdamW {
        count: op.param.len(),
        elem: elem(op.param.dtype()),
        param: start_mut(op.param),
        master: op.master.map_or(std::ptr::null_mut(), f32s_mut),
        moments: scales.map_or_else(|| elem(op.m.dtype()), |_| Elem::F32),
        scales,
        keys: [false, true].map(|second| moments::key(op.key, updates, second)),
        weight_key: moments::weight_key(op.key, updates),
        first: op.first,
        m: start_mut(op.m),
        v: op.v.map_or(std::ptr::null_mut(), start_mut),
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
    // SAFETY: see the module of the machine.
    unsafe { elementwise::adamw(cpu.place(), &call) }
}
