//! Logits of given ids.

use std::path::Path;

use fathom_grad::Head;
use fathom_model::{FileWriter, TensorInfo};
use fathom_tensor::DType;

use super::subject::Subject;
use crate::error::{Result, caught};

/// Logits of a document.
pub struct Logits {
    /// Id and value of the largest logit at each position.
    pub best: Vec<(usize, f32)>,
    /// All logits of the last position.
    pub last: Vec<f32>,
}

/// Computes the logits of a subject's ids. If a file is given, all of them are written to it as `logits` [tokens,
/// vocab] f32.
///
/// # Errors
/// A file that cannot be written; out of memory.
pub fn logits(subject: &Subject, out: Option<&Path>) -> Result<Logits> {
    caught(|| run(subject, out))
}

fn run(subject: &Subject, out: Option<&Path>) -> Result<Logits> {
    let (model, device) = (&subject.loaded.model, &subject.device);
    let (tokens, vocab) = (subject.ids.len(), model.spec.vocab);
    let hidden = subject.hidden();
    let info = TensorInfo { name: "logits".into(), dtype: DType::F32, shape: vec![tokens, vocab] };
    let mut out = out.map(|path| FileWriter::create(path, &[info])).transpose()?;
    let (mut best, mut last) = (Vec::new(), Vec::new());
    // In tiles, since the logits of a long sequence would not fit in memory.
    let tile = Head::tile_rows(device.machine.as_ref(), vocab);
    for start in (0..tokens).step_by(tile) {
        let rows = hidden.view_rows(start..tokens.min(start + tile));
        let logits = device.to_f32(&model.head(0.0).logits(&subject.scope(), &rows));
        if let Some(out) = &mut out {
            let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.write(&bytes)?;
        }
        best.extend(logits.chunks_exact(vocab).map(largest));
        last = logits[logits.len() - vocab..].to_vec();
    }
    if let Some(out) = out {
        out.finish()?;
    }
    Ok(Logits { best, last })
}

/// Returns the index and value of the largest logit; the first among equals.
pub fn largest(row: &[f32]) -> (usize, f32) {
    let larger =
        |best: (usize, f32), (id, logit): (usize, &f32)| if *logit > best.1 { (id, *logit) } else { best };
    row.iter().enumerate().fold((0, f32::NEG_INFINITY), larger)
}
