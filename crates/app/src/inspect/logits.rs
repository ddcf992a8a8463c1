//! Logits of given ids: of the vocabulary at each, or those of a head of labels or scores.

use std::path::Path;

use fathom_grad::Head;
use fathom_model::{EncoderHead, FileWriter, TensorInfo, scored_at};
use fathom_tensor::DType;

use super::subject::Subject;
use crate::error::{Result, caught};

/// Logits of a document.
pub struct Logits {
    /// Index and value of the largest logit at each position; of a head that reads one position, there alone.
    pub best: Vec<(usize, f32)>,
    /// All logits of the last of these.
    pub last: Vec<f32>,
    /// True if the logits are those of tokens, not of labels or scores.
    pub of_tokens: bool,
}

/// Computes the logits of a subject's ids. If a file is given, all of them are written to it as `logits` [tokens,
/// vocab] f32; those of labels of tokens as [tokens, labels], and those of labels or scores of a text as [1, labels].
///
/// # Errors
/// A file that cannot be written; out of memory.
pub fn logits(subject: &Subject, out: Option<&Path>) -> Result<Logits> {
    caught(|| run(subject, out))
}

fn run(subject: &Subject, out: Option<&Path>) -> Result<Logits> {
    let spec = &subject.loaded.model.spec;
    let head = spec.encoder.as_ref().map_or(EncoderHead::None, |parts| parts.head);
    match spec.scores.max(head.labels()) {
        0 => of_vocabulary(subject, out),
        labels => of_labels(subject, (head, labels), out),
    }
}

fn of_labels(subject: &Subject, (head, labels): (EncoderHead, usize), out: Option<&Path>) -> Result<Logits> {
    let model = &subject.loaded.model;
    let all = subject.device.to_f32(&model.scores().values(&subject.scope(), &subject.hidden()));
    let rows = match head {
        EncoderHead::Tokens(_) => 0..subject.ids.len(),
        EncoderHead::Text(_) => 0..1,
        EncoderHead::None | EncoderHead::Masked => {
            let at = scored_at(model.spec.padding, subject.ids.iter().map(|id| i64::from(*id)));
            at..at + 1
        }
    };
    let found = all.get(rows.start * labels..rows.end * labels).unwrap_or_default();
    if let Some(path) = out {
        let info = TensorInfo { name: "logits".into(), dtype: DType::F32, shape: vec![rows.len(), labels] };
        let mut out = FileWriter::create(path, &[info])?;
        let bytes: Vec<u8> = found.iter().flat_map(|x| x.to_le_bytes()).collect();
        out.write(&bytes)?;
        out.finish()?;
    }
    let best = found.chunks_exact(labels).map(largest).collect();
    Ok(Logits { best, last: found[found.len().saturating_sub(labels)..].to_vec(), of_tokens: false })
}

fn of_vocabulary(subject: &Subject, out: Option<&Path>) -> Result<Logits> {
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
    Ok(Logits { best, last, of_tokens: true })
}

/// Returns the index and value of the largest logit; the first among equals.
pub fn largest(row: &[f32]) -> (usize, f32) {
    let larger =
        |best: (usize, f32), (id, logit): (usize, &f32)| if *logit > best.1 { (id, *logit) } else { best };
    row.iter().enumerate().fold((0, f32::NEG_INFINITY), larger)
}
