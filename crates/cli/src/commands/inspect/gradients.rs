//! The gradient of the mean loss over next tokens, by Hugging Face name.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fathom_grad::{Grads, Labels, ParamId, Places, Tape};
use fathom_model::{SINGLE, SaveOptions, export_tensors};
use fathom_tensor::{Category, DType};

use super::Subject;
use crate::args::InspectModel;

/// Runs the verb.
pub fn run(args: &InspectModel) -> Result<()> {
    if args.ids.len() < 2 {
        bail!("--ids: a loss needs at least two ids, each the target of the one before");
    }
    let subject = Subject::new(args)?;
    let (grads, loss) = gradients(&subject, &args.ids);
    match &args.out {
        Some(path) => write(&subject, &grads, path),
        None => {
            println!("mean loss {loss:.6} over {} targets", args.ids.len() - 1);
            print(&subject, &grads);
            Ok(())
        }
    }
}

/// Gradients of the mean loss, and that loss.
fn gradients(subject: &Subject, ids: &[u32]) -> (Grads, f64) {
    let (device, model) = (&subject.device, &subject.loaded.model);
    let mut grads = Grads::zeros(device, &subject.loaded.params);
    let targets: Vec<i32> = ids[1..].iter().map(|id| *id as i32).chain([-100]).collect();
    let labels = Labels { ids: device.from_i32(&targets, Category::Data), weights: None };
    let losses = device.empty(1, ids.len(), DType::F32, Category::Data);
    let places = Places::linear();
    let mut tape = Tape::new(subject.scope(), &places);
    let hidden = model.forward(&mut tape);
    let dhidden = model.head(0.0).loss(tape.scope(), &hidden, &labels, &losses, &mut grads);
    drop(hidden);
    tape.backward(dhidden, &mut grads);
    let count = (ids.len() - 1) as f64;
    for (_, grad) in grads.iter() {
        device.machine.scale(grad, (1.0 / count) as f32, grad);
    }
    let sum: f64 = device.to_f32(&losses).iter().map(|loss| f64::from(*loss)).sum();
    (grads, sum / count)
}

/// One file; the writer of folders does the work in a folder beside it.
fn write(subject: &Subject, grads: &Grads, path: &Path) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".parts");
    let parts = path.with_file_name(name);
    if parts.exists() {
        bail!("{} exists; it is needed for a moment, so remove it or name another file", parts.display());
    }
    let options = SaveOptions { dtype: DType::F32, max_shard_bytes: u64::MAX };
    let written = export_tensors(
        &subject.device,
        &subject.loaded.model,
        |id| grads.get(id).cloned().map(Into::into),
        &parts,
        options,
    );
    let moved = written.map_err(anyhow::Error::from).and_then(|()| {
        std::fs::rename(parts.join(SINGLE), path).with_context(|| format!("cannot write {}", path.display()))
    });
    let _ = std::fs::remove_dir_all(&parts);
    moved
}

fn print(subject: &Subject, grads: &Grads) {
    let mut tensors: BTreeMap<String, (Vec<usize>, f64, f64)> = BTreeMap::new();
    let mut order = Vec::new();
    for (index, pieces) in subject.loaded.model.pieces().into_iter().enumerate() {
        let Some(grad) = grads.get(ParamId(index as u32)) else { continue };
        for piece in pieces {
            let values = subject.device.to_f32(&piece.view(grad, piece.rows.clone()));
            let entry = tensors.entry(piece.name.clone()).or_insert_with(|| {
                order.push(piece.name.clone());
                (piece.shape.clone(), 0.0, 0.0)
            });
            for value in values.iter().map(|value| f64::from(*value)) {
                entry.1 += value * value;
                entry.2 = entry.2.max(value.abs());
            }
        }
    }
    println!("{:<56} {:>16} {:>12} {:>12}", "tensor", "shape", "norm", "largest");
    for name in order {
        let (shape, squares, largest) = &tensors[&name];
        println!("{name:<56} {:>16} {:>12.4e} {largest:>12.4e}", format!("{shape:?}"), squares.sqrt());
    }
}
