//! A model with one document on a device.

use std::path::Path;

use fathom_grad::{Batch, Counters, Scope};
use fathom_model::{Caps, PackedTokens, Spec, open_any_config};
use fathom_tensor::{DType, Device};

use crate::error::{Result, caught, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{check_writes, load_with, model_folder};
use fathom_model::LoadedModel;

/// A model with one document on a device.
pub struct Subject {
    pub(super) device: Device,
    pub(super) loaded: LoadedModel,
    pub(super) ids: Vec<u32>,
    batch: Batch,
    counters: Counters,
}

impl Subject {
    /// Loads a model as `dtype`, and a document of ids.
    ///
    /// # Errors
    /// No model there; ids outside its vocabulary; out of memory.
    pub fn new(
        (model, adapter): (&Path, Option<&Path>),
        ids: &[u32],
        dtype: DType,
        machine: &Machine,
        events: &dyn Events,
    ) -> Result<Subject> {
        let folder = model_folder(model)?;
        check_ids(&open_any_config(&folder)?.0, ids)?;
        caught(|| {
            let device = machine.open()?;
            let loaded = load_with(&device, &folder, adapter, Some(dtype), events)?;
            check_writes(adapter.unwrap_or(&folder), &loaded.model.spec)?;
            if loaded.model.spec.virtual_tokens() > 0 {
                refuse!("virtual tokens of an adapter are not among --ids: look at the model without them");
            }
            let document: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
            let positions: Vec<i32> = (0..ids.len() as i32).collect();
            let whole = 0..ids.len();
            let packed =
                PackedTokens { ids: &document, positions: &positions, docs: std::slice::from_ref(&whole) };
            let batch = loaded.model.batch(&device, packed, Caps { docs: 1, seq_tokens: ids.len() });
            Ok(Subject { device, loaded, ids: ids.to_vec(), batch, counters: Counters::default() })
        })
    }

    pub(super) fn scope(&self) -> Scope<'_> {
        let params = &self.loaded.params;
        Scope { device: &self.device, params, batch: (&self.batch).into(), counters: &self.counters }
    }
}

/// Checks that ids fit the model.
///
/// # Errors
/// An id outside the vocabulary, or more ids than learned positions.
fn check_ids(spec: &Spec, ids: &[u32]) -> Result<()> {
    if let Some(id) = ids.iter().find(|id| **id as usize >= spec.vocab) {
        refuse!("--ids: {id} is outside the vocabulary; this model has the ids 0 to {}", spec.vocab - 1);
    }
    if let Some(rows) = spec.position_room().filter(|rows| *rows < ids.len()) {
        refuse!("--ids: {} ids, but the model has learned positions for {rows}", ids.len());
    }
    Ok(())
}
