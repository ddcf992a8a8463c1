//! Gradient of the mean next-token loss, by Hugging Face name.

use std::collections::BTreeMap;
use std::path::Path;

use fathom_grad::{Grads, Labels, LossTerm, ParamId, Places, Tape};
use fathom_model::{SINGLE, SaveOptions, Spec, export_tensors};
use fathom_tensor::{Category, DType};

use super::subject::Subject;
use crate::error::{Context, Error, Result, caught, refuse};

/// Gradients of a mean loss.
pub struct Gradients {
    /// Mean loss.
    pub loss: f64,
    /// Number of targets that the loss is a mean over.
    pub targets: usize,
    grads: Grads,
}

/// Summary of a gradient.
pub struct Gradient {
    /// Name of the tensor.
    pub name: String,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Square root of the sum of squares.
    pub norm: f64,
    /// Largest absolute value of its elements.
    pub largest: f64,
}

/// Computes the gradients of the mean loss of a subject's ids, each the target of the one before.
///
/// # Errors
/// Fewer than two ids; out of memory.
pub fn gradients(subject: &Subject) -> Result<Gradients> {
    subject.one_stream()?;
    check_targets(&subject.ids)?;
    caught(|| Ok(run(subject)))
}

/// Refuses ids without a target.
///
/// # Errors
/// Fewer than two ids.
pub fn check_targets(ids: &[u32]) -> Result<()> {
    if ids.len() < 2 {
        refuse!("--ids: a loss needs at least two ids, each the target of the one before");
    }
    Ok(())
}

fn run(subject: &Subject) -> Gradients {
    let (device, model, ids) = (&subject.device, &subject.loaded.model, &subject.ids);
    let mut grads = Grads::zeros(device, &subject.loaded.params);
    let targets: Vec<i32> = targets(&model.spec, ids);
    let counted = targets.iter().filter(|target| **target >= 0).count();
    let labels = Labels::plain(device.from_i32(&targets, Category::Data));
    let losses = device.empty(1, ids.len(), DType::F32, Category::Data);
    let places = Places::linear();
    let mut tape = Tape::new(subject.scope(), &places);
    let hidden = model.forward(&mut tape);
    let dhidden =
        model.head(0.0).loss(tape.scope(), &hidden, &labels, &[LossTerm::cross_entropy(&losses)], &mut grads);
    drop(hidden);
    tape.backward(dhidden, &mut grads);
    let targets = counted;
    for (_, grad) in grads.iter() {
        device.machine.scale(grad, (1.0 / targets as f64) as f32, grad);
    }
    let sum: f64 = device.to_f32(&losses).iter().map(|loss| f64::from(*loss)).sum();
    Gradients { loss: sum / targets as f64, targets, grads }
}

/// Each id's target: the one after it; in an encoder the id itself.
fn targets(spec: &Spec, ids: &[u32]) -> Vec<i32> {
    let own = usize::from(spec.encoder.is_none());
    ids[own..].iter().map(|id| *id as i32).chain((0..own).map(|_| -100)).collect()
}

impl Gradients {
    /// Writes all gradients to a file, by way of a temporary folder next to it that the model writer fills.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, subject: &Subject, path: &Path) -> Result<()> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".parts");
        let parts = path.with_file_name(name);
        if parts.exists() {
            refuse!(
                "{} exists; it is needed for a moment, so remove it or name another file",
                parts.display()
            );
        }
        let options = SaveOptions { dtype: DType::F32, max_shard_bytes: u64::MAX };
        let written = export_tensors(
            &subject.device,
            &subject.loaded.model,
            |id| self.grads.get(id).cloned().map(Into::into),
            &parts,
            options,
        );
        let moved = written.map_err(Error::from).and_then(|()| {
            std::fs::rename(parts.join(SINGLE), path)
                .with_context(|| format!("cannot write {}", path.display()))
        });
        let _ = std::fs::remove_dir_all(&parts);
        moved
    }

    /// Returns summaries of all gradients, in the order of the model.
    pub fn shown(&self, subject: &Subject) -> Vec<Gradient> {
        let mut tensors: BTreeMap<String, (usize, Vec<usize>, f64, f64)> = BTreeMap::new();
        for (index, pieces) in subject.loaded.model.pieces().into_iter().enumerate() {
            let Some(grad) = self.grads.get(ParamId(index as u32)) else { continue };
            for piece in pieces {
                let values = subject.device.to_f32(&piece.view(grad, piece.rows.clone()));
                let at = tensors.len();
                let entry =
                    tensors.entry(piece.name.clone()).or_insert_with(|| (at, piece.shape.clone(), 0.0, 0.0));
                for value in values.iter().map(|value| f64::from(*value)) {
                    entry.2 += value * value;
                    entry.3 = entry.3.max(value.abs());
                }
            }
        }
        let mut all: Vec<_> = tensors.into_iter().collect();
        all.sort_by_key(|(_, (at, ..))| *at);
        let shown = |(name, (_, shape, squares, largest)): (String, (usize, Vec<usize>, f64, f64))| {
            Gradient { name, shape, norm: squares.sqrt(), largest }
        };
        all.into_iter().map(shown).collect()
    }
}
