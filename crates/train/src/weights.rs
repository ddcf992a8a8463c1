//! Checks and preparation of a model's weights: freezing, quantization, low precision, rounding.

use std::sync::Arc;

use fathom_grad::Params;
use fathom_model::RoundTo;
use fathom_model::{Model, NarrowLayers, Portion, Quantization, Spec, TrainableWeights};
use fathom_tensor::{DType, Device, Meta, Profile};

use crate::error::{Error, Result};
use crate::in_step::InStep;

/// Checks that low-precision GEMMs, quantization and rounding work with a model and its mesh, and that the trained
/// weights exist.
pub(crate) fn check_weights(profile: &Profile, spec: &Spec, how: &InStep) -> Result<()> {
    let quantized = how.goal.quantized.as_ref();
    let plain = how.narrow.is_none() && how.round_to.is_none();
    if plain && how.goal.trained.is_all() && quantized.is_none() {
        return Ok(());
    }
    let meta = Device::on_mesh(Arc::new(Meta::new(profile.clone())), u64::MAX, how.ranks.imagined());
    let portion = how.ranks.portion(spec, &meta.mesh);
    quantizes(quantized, spec, &portion)?;
    let (mut model, mut params) = Model::declare_part(&meta, spec, DType::Bf16, None, portion);
    frozen(&mut model, &mut params, &how.goal.trained)?;
    narrowed(&meta, &model, &mut params, how.narrow.as_ref())?;
    rounded(&meta, &model, &mut params, how.round_to)
}

/// Checks that the weights of a rank can be quantized.
///
/// # Errors
/// The weight that cannot.
pub fn quantizes(quantized: Option<&Quantization>, spec: &Spec, portion: &Portion) -> Result<()> {
    let refuse = |message| Error::Recipe { key: "model.quantization".into(), message };
    quantized.map_or(Ok(()), |quantized| quantized.check(spec, portion).map_err(refuse))
}

/// Freezes the weights of a rank's model that are not trained, before gradients and optimizer state are created.
///
/// # Errors
/// A pattern matches no weight, or only a part of weights that are stored as one here.
pub fn frozen(model: &mut Model, params: &mut Params, trained: &TrainableWeights) -> Result<()> {
    let refuse = |message| Error::Recipe { key: "model.trained".into(), message };
    model.freeze(params, trained).map_err(refuse)
}

/// [`Trainer::narrow`](crate::step::Trainer::narrow) for parameters without a trainer.
pub(crate) fn narrowed(
    device: &Device,
    model: &Model,
    params: &mut Params,
    how: Option<&NarrowLayers>,
) -> Result<()> {
    let refuse = |message| Error::Recipe { key: "precision.gemm".into(), message };
    model.narrow(device, params, how).map_err(refuse)
}

/// [`Trainer::round_to`](crate::step::Trainer::round_to) for parameters without a trainer.
pub(crate) fn rounded(
    device: &Device,
    model: &Model,
    params: &mut fathom_grad::Params,
    how: Option<RoundTo>,
) -> Result<()> {
    let refuse = |message| Error::Recipe { key: "precision.qat".into(), message };
    model.round(device, params, how).map_err(refuse)
}
