//! Quantization-aware training: steps compute with projections rounded to a four-bit format, and train their f32
//! masters.

use fathom_base::recipe::Loaded;
use fathom_model::RoundTo;

use crate::error::{Error, Result};
use crate::recipe::{AdapterName, Precision, QatName, QuantizationName, Recipe};
use crate::step::Trainer;
use crate::weights::rounded;

/// Refuses settings that leave no masters to round.
pub(crate) fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    let Recipe { precision, model, optimizer, adapter, .. } = &loaded.value;
    if precision.qat == QatName::None {
        return Ok(());
    }
    let qat = precision.qat;
    for (is, key, what) in [
        (
            model.precision == Precision::F32,
            "model.precision",
            "is f32, and weights in bf16 are rounded from masters in f32; give bf16",
        ),
        (
            !optimizer.master_weights,
            "optimizer.master_weights",
            "is false, and masters are what is rounded; give true",
        ),
        (
            adapter.method != AdapterName::None,
            "adapter.method",
            "leaves the model's weights as they are, and an adapter is not rounded; leave it out",
        ),
        (
            model.quantization != QuantizationName::None,
            "model.quantization",
            "is of weights that are not trained; leave it out",
        ),
        (
            !model.trained.is_empty(),
            "model.trained",
            "freezes weights, and all projections are rounded; leave it out",
        ),
    ] {
        if is {
            return Err(loaded.refuse(key, format!("{what} (precision.qat = \"{qat}\")")).into());
        }
    }
    Ok(())
}

impl Trainer {
    /// Sets the format to which projections are rounded from their masters, from the next [`Trainer::round`] on; `None`
    /// stops rounding.
    ///
    /// # Errors
    /// If the model or the mesh is not compatible with it, or weights have no masters.
    pub fn round_to(&mut self, how: Option<RoundTo>) -> Result<()> {
        if how.is_some() && !self.optimizer().moments().masters {
            let message = "rounds masters, and there are none; give optimizer.master_weights=true".into();
            return Err(Error::Recipe { key: "precision.qat".into(), message });
        }
        rounded(&self.device, &self.model, &mut self.params, how)
    }

    /// Rounds the projections: before the first step, and after masters were loaded. Steps do so themselves. All ranks
    /// call this together.
    pub fn round(&self) {
        self.optimizer().round(&self.device, &self.params);
    }
}
