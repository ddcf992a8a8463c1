//! Which objectives go with which models.

use fathom_model::Spec;

use crate::error::{Error, Result};
use crate::recipe::{MethodName, Recipe};

/// Refuses an objective that the model cannot have, and settings that an encoder does not support.
///
/// # Errors
/// The key of the recipe, and what to do.
pub fn check_encoder(recipe: &Recipe, spec: &Spec) -> Result<()> {
    let refuse = |key: &str, message: String| Err(Error::Recipe { key: key.into(), message });
    let method = recipe.objective.method;
    if spec.source > 0 {
        let message = format!(
            "has an encoder-decoder ({}), whose rows are pairs of texts: no recipe trains one; give a decoder or an encoder",
            spec.family
        );
        return refuse("model.from", message);
    }
    if spec.encoder.is_none() {
        return match method {
            MethodName::Mlm | MethodName::Embed => refuse(
                "objective.method",
                format!(
                    "is \"{method}\", which is of encoders, and model.from is a decoder ({}); give an encoder's folder",
                    spec.family
                ),
            ),
            _ => Ok(()),
        };
    }
    if !method.encodes() {
        let message = format!(
            "is \"{method}\", which teaches a model to continue a text, and model.from is an encoder ({}); take mlm, embed, rerank or \
             classify (`fathom train mlm ..`)",
            spec.family
        );
        return refuse("objective.method", message);
    }
    for (is, key, message) in [
        (
            recipe.eval.enabled,
            "eval.enabled",
            "is true: it measures how a model continues text, and an encoder does not; give false",
        ),
        (
            recipe.mesh.cp > 1,
            "mesh.cp",
            "cuts documents over ranks, and an encoder's tokens attend to all of theirs; give 1",
        ),
        (
            recipe.adapter.method != crate::recipe::AdapterName::None,
            "adapter.method",
            "is of decoders; an encoder is trained as a whole, or some of its weights (model.trained)",
        ),
    ] {
        if is {
            return refuse(key, message.into());
        }
    }
    let Some(room) = spec.position_room() else { return Ok(()) };
    let most = recipe.data.max_text_tokens;
    if method.judges() && most > room {
        let message = format!(
            "is {most}, and the model has learned positions for {room} tokens of a text; give {room}"
        );
        return refuse("data.max_text_tokens", message);
    }
    if method == MethodName::Mlm {
        for (index, stage) in recipe.stage.iter().enumerate() {
            if stage.seq_tokens > room {
                let message = format!(
                    "is {}, and the model has learned positions for {room}; give {room}, and more samples of a micro batch \
                     (samples_per_micro_batch)",
                    stage.seq_tokens
                );
                return refuse(&format!("stage.{index}.seq_tokens"), message);
            }
        }
    }
    Ok(())
}
