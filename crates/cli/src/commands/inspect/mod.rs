//! `fathom inspect`: looks inside a model or a plan.

mod activations;
mod gradients;
mod logits;

use anyhow::{Result, bail};
use fathom_grad::{Batch, Counters, Scope};
use fathom_model::{Caps, Packed, Spec};
use fathom_tensor::Device;

use crate::args::{Inspect, InspectModel};
use crate::device::{self, Loaded};
use crate::output;

/// Runs the verb.
pub fn run(what: &Inspect) -> Result<()> {
    match what {
        Inspect::Logits(args) => logits::run(args),
        Inspect::Gradients(args) => gradients::run(args),
        Inspect::Activations(args) => activations::run(args),
    }
}

/// A model with one document on the device.
struct Subject {
    device: Device,
    loaded: Loaded,
    batch: Batch,
    counters: Counters,
}

impl Subject {
    fn new(args: &InspectModel) -> Result<Subject> {
        args.out.as_deref().map_or(Ok(()), output::regular)?;
        let folder = device::model_folder(&args.model)?;
        check_ids(&fathom_model::open_config(&folder)?.0, &args.ids)?;
        let device = device::open(&device::on(args.machine))?;
        let loaded = device::load(&device, &folder, Some(device::precision(args.precision)))?;
        let ids: Vec<i32> = args.ids.iter().map(|id| *id as i32).collect();
        let positions: Vec<i32> = (0..ids.len() as i32).collect();
        let whole = 0..ids.len();
        let packed = Packed { ids: &ids, positions: &positions, docs: std::slice::from_ref(&whole) };
        let batch = loaded.model.batch(&device, packed, Caps { docs: 1, seq_tokens: ids.len() });
        Ok(Subject { device, loaded, batch, counters: Counters::default() })
    }

    fn scope(&self) -> Scope<'_> {
        let params = &self.loaded.params;
        Scope { device: &self.device, params, batch: (&self.batch).into(), counters: &self.counters }
    }
}

/// # Errors
/// An id that the embedding has no row for, or more ids than a learned position table has.
fn check_ids(spec: &Spec, ids: &[u32]) -> Result<()> {
    if let Some(id) = ids.iter().find(|id| **id as usize >= spec.vocab) {
        bail!("--ids: {id} is outside the vocabulary; this model has the ids 0 to {}", spec.vocab - 1);
    }
    if let Some(rows) = spec.learned_positions.filter(|rows| *rows < ids.len()) {
        bail!("--ids: {} ids, but the model has learned positions for {rows}", ids.len());
    }
    Ok(())
}
