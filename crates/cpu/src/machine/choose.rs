//! The choice of tokens, of several rows at a time.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, Ordering};

use fathom_tensor::choice::{self, Choose};
use half::bf16;

use super::operands::{self, mat};
use super::{Cpu, expect};
use crate::mat::Elem;

pub fn choose(cpu: &Cpu, op: &Choose<'_>) {
    let [rows, vocab] = op.logits.shape();
    expect("choose", "ids", op.ids, [1, rows]);
    assert_eq!(op.draws.len(), rows, "choose: a draw, or none, for each row");
    let (logits, found) = (mat(op.logits), (0..rows).map(|_| AtomicI32::new(-1)).collect::<Vec<_>>());
    cpu.threads.run(rows, &|row, _| {
        let draw = op.draws[row].as_ref();
        // SAFETY: see the module above; the row is one of the tensor's.
        let id = unsafe {
            match logits.elem {
                Elem::F32 => choice::of_row(logits.row::<f32>(row, vocab), draw),
                Elem::Bf16 => {
                    let wide: Vec<f32> = logits.row::<bf16>(row, vocab).iter().map(|x| x.to_f32()).collect();
                    choice::of_row(&wide, draw)
                }
            }
        };
        found[row].store(id, Ordering::Relaxed);
    });
    let bytes: Vec<u8> = found.into_iter().flat_map(|id| id.into_inner().to_le_bytes()).collect();
    operands::write(op.ids, &bytes);
}
