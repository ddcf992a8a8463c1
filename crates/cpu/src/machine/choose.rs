//! The choice of tokens, for several rows in parallel.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use fathom_tensor::choice::{self, Choose, LeaveOut};
use half::bf16;

use super::cpu::Cpu;
use super::operands::{self, expect, mat, mat_mut};
use crate::mat::Elem;

pub fn choose(cpu: &Cpu, op: &Choose<'_>) {
    let [rows, vocab] = op.logits.shape();
    expect("choose", "ids", op.ids, [1, rows]);
    assert_eq!(op.draws.len(), rows, "choose: a draw, or none, for each row");
    let width = choice::kept_bytes(vocab);
    op.kept.iter().for_each(|kept| expect("choose", "kept", kept, [rows, width]));
    let bits: Vec<OnceLock<Vec<u8>>> = op.kept.map_or_else(Vec::new, |_| vec![OnceLock::new(); rows]);
    let (logits, found) = (mat(op.logits), (0..rows).map(|_| AtomicI32::new(-1)).collect::<Vec<_>>());
    cpu.threads.run(rows, &|row, _| {
        let draw = op.draws[row].as_ref();
        let choose = |logits: &[f32]| {
            found[row].store(choice::of_row(logits, draw), Ordering::Relaxed);
            if let Some(bits) = bits.get(row) {
                bits.get_or_init(|| {
                    let mut kept = vec![0; width];
                    choice::kept(logits, draw, &mut kept);
                    kept
                });
            }
        };
        // SAFETY: see the parent module; the row is one of the tensor's.
        unsafe {
            match logits.elem {
                Elem::F32 => choose(logits.row::<f32>(row, vocab)),
                Elem::Bf16 => {
                    let wide: Vec<f32> = logits.row::<bf16>(row, vocab).iter().map(|x| x.to_f32()).collect();
                    choose(&wide);
                }
            }
        }
    });
    let bytes: Vec<u8> = found.into_iter().flat_map(|id| id.into_inner().to_le_bytes()).collect();
    operands::write(op.ids, &bytes);
    if let Some(kept) = op.kept {
        operands::write(
            kept,
            &bits.into_iter().filter_map(OnceLock::into_inner).flatten().collect::<Vec<u8>>(),
        );
    }
}

pub fn leave_out(cpu: &Cpu, op: &LeaveOut<'_>) {
    let [rows, cols] = op.logits.shape();
    assert_eq!(op.kept.rows(), rows, "leave out: bits for each row");
    assert!(op.first + cols <= 8 * op.kept.cols(), "leave out: {cols} columns from {} on", op.first);
    let (logits, kept, width, first) =
        (mat_mut(op.logits), operands::byte_rows(op.kept), op.kept.cols(), op.first);
    assert_eq!(logits.elem, Elem::F32, "leave out: logits are f32");
    cpu.threads.run(rows, &|row, _| {
        // SAFETY: see the parent module; the row is one of the tensors', and only this thread uses it.
        let (logits, kept) = unsafe { (logits.row::<f32>(row, cols), kept.row::<u8>(row, width)) };
        choice::leave_out(logits, kept, first);
    });
}
