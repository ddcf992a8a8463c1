//! Which objectives go with which models.

use fathom_model::Spec;

use crate::error::{Error, Result};
use crate::recipe::{AdapterName, LossName, MethodName, Recipe};

/// Refuses an objective that the model cannot have, and settings that an encoder does not support.
///
/// # Errors
/// The key of the recipe, and what to do.
pub fn check_encoder(recipe: &Recipe, spec: &Spec) -> Result<()> {
    let refuse = |key: &str, message: String| Err(Error::Recipe { key: key.into(), message });
    let method = recipe.objective.method;
    if spec.retrieval.is_some() || method == MethodName::Retro {
        return check_retrieval(recipe, spec);
    }
    if spec.source > 0 || method.has_source() {
        return check_source(recipe, spec);
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
            // Labels and scores of whole texts are read at their last token.
            MethodName::Classify if recipe.objective.loss == LossName::Tokens => refuse(
                "objective.loss",
                format!(
                    "is \"tokens\", which reads a text to both sides, and model.from is a decoder ({}); give an encoder's folder, or label \
                     whole texts",
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
    of_decoders(recipe, "an encoder")?;
    check_dropout(recipe, spec)?;
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

/// Refuses dropout of an adapter whose products read other rows than those of the tokens: a source, distances.
fn check_dropout(recipe: &Recipe, spec: &Spec) -> Result<()> {
    let apart = spec.source > 0 || spec.encoder.as_ref().is_some_and(|parts| parts.relative.is_some());
    if recipe.adapter.dropout.is_some_and(|rate| rate > 0.0) && apart {
        let family = spec.family;
        let message = format!(
            "drops inputs by token, and some projections of the model ({family}) read a source or distances; leave it out"
        );
        return Err(Error::Recipe { key: "adapter.dropout".into(), message });
    }
    Ok(())
}

/// Refuses settings that only decoders support.
fn of_decoders(recipe: &Recipe, model: &str) -> Result<()> {
    if !recipe.eval.enabled {
        return Ok(());
    }
    let message =
        format!("is true: it measures how a model continues text, and {model} does not; give false");
    Err(Error::Recipe { key: "eval.enabled".into(), message })
}

/// Refuses an encoder-decoder without its objectives, and those without one.
fn check_source(recipe: &Recipe, spec: &Spec) -> Result<()> {
    let refuse = |key: &str, message: String| Err(Error::Recipe { key: key.into(), message });
    let (method, family) = (recipe.objective.method, spec.family);
    if spec.source == 0 {
        let message = format!(
            "is \"{method}\", which is of encoder-decoders, and the model is none ({family}); give the folder of a T5 (model.from), or \
             model.family=t5"
        );
        return refuse("objective.method", message);
    }
    if !method.has_source() || recipe.rl.is_on() {
        let message = format!(
            "is \"{method}\", and the model is an encoder-decoder ({family}), whose texts are pairs; take span_corruption or seq2seq \
             (`fathom train t5 ..`)"
        );
        return refuse("objective.method", message);
    }
    if recipe.data.is_lessons() != (method == MethodName::Seq2seq) {
        let message = if method == MethodName::Seq2seq {
            "is \"seq2seq\", which reads rows of prompts with answers, and the data are texts; give a file of rows (data.paths), or take \
             span_corruption"
        } else {
            "is \"span_corruption\", which reads texts, and the data are rows; take seq2seq"
        };
        return refuse("objective.method", message.into());
    }
    let joined = recipe.stage.iter().position(|stage| method == MethodName::Seq2seq && !stage.masked);
    if let Some(index) = joined {
        let message =
            "is false, which joins the rows of a sample to one, and each answers its own prompt; give true";
        return refuse(&format!("stage.{index}.masked"), message.into());
    }
    check_dropout(recipe, spec)?;
    of_decoders(recipe, "an encoder-decoder")
}

/// Refuses a decoder with neighbours without its objective, that objective without one, and settings that it does not
/// support.
fn check_retrieval(recipe: &Recipe, spec: &Spec) -> Result<()> {
    let refuse = |key: &str, message: String| Err(Error::Recipe { key: key.into(), message });
    let (method, family) = (recipe.objective.method, spec.family);
    let Some(sizes) = spec.retrieval else {
        let message = format!(
            "is \"retro\", which is of decoders that read neighbours of their text, and the model is none ({family}); give the folder \
             of a RETRO (model.from), or model.family=retro"
        );
        return refuse("objective.method", message);
    };
    if method != MethodName::Retro || recipe.rl.is_on() {
        let message = format!(
            "is \"{method}\", and the model reads neighbours of its text ({family}); take retro (`fathom train retro ..`)"
        );
        return refuse("objective.method", message);
    }
    if recipe.data.is_lessons() {
        let message = "is \"retro\", which reads texts, and the data are rows; give texts (data.paths)";
        return refuse("objective.method", message.into());
    }
    for (index, stage) in recipe.stage.iter().enumerate() {
        if !stage.blend(recipe).is_empty() {
            let message = "names sources, and neighbours are found for the run's own text; leave it out (data.blend too)";
            return refuse(&format!("stage.{index}.blend"), message.into());
        }
        if !stage.masked {
            let message = "is false, which joins the documents of a sample to one, and chunks are those of documents; give true";
            return refuse(&format!("stage.{index}.masked"), message.into());
        }
        if stage.seq_tokens < sizes.chunk {
            let message = format!("is {}, less than a chunk of {} tokens", stage.seq_tokens, sizes.chunk);
            return refuse(&format!("stage.{index}.seq_tokens"), message);
        }
    }
    if recipe.adapter.method != AdapterName::None {
        let message = "is not of decoders with neighbours, which are trained as a whole, or some of their weights (model.trained)";
        return refuse("adapter.method", message.into());
    }
    of_decoders(recipe, "a decoder with neighbours")
}
