//! Tied models whose files have a separate head anyway.

use super::source::Source;
use super::values::read_f32;
use crate::error::{Error, Result};
use crate::model::Model;

/// Elements compared at a time.
const CHUNK: usize = 1 << 22;

/// Refuses a separate head if the configuration ties it to the embedding: Transformers 4 uses the embedding then,
/// Transformers 5 the head.
pub(super) fn check_tied(model: &Model, source: &dyn Source) -> Result<()> {
    // A model with a score head does not use this one.
    if model.spec.scores > 0 {
        return Ok(());
    }
    let names = &model.spec.family.names;
    // An encoder that is tied has the masked-language head.
    let head = model.spec.encoder.as_ref().and(names.encoder).map_or(names.head, |names| names.own_head);
    let head = format!("{head}.weight");
    let Some(shape) = source.shape(&head).filter(|_| model.spec.tied && model.embed.is_some()) else {
        return Ok(());
    };
    let plain = format!("{}.weight", names.embed);
    let embedding =
        [format!("{}{plain}", names.base), plain].into_iter().find(|name| source.shape(name).is_some());
    let same = |embedding: &str| -> Result<bool> {
        if source.shape(embedding) != Some(shape) {
            return Ok(false);
        }
        let [rows, cols] = [model.spec.vocab, model.spec.embed_cols()];
        for start in (0..rows).step_by((CHUNK / cols).max(1)) {
            let part = start..rows.min(start + (CHUNK / cols).max(1));
            if read_f32(source, &head, part.clone())? != read_f32(source, embedding, part)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match embedding.map(|name| same(&name)).transpose()? {
        Some(false) => {
            let what = "differs from the embedding, but `tie_word_embeddings` says that it is the same; set that key to false \
                        in config.json to use both, or remove this tensor";
            Err(Error::tensor(source.place(&head), &head, what))
        }
        _ => Ok(()),
    }
}
