//! Calibration text, and the activations that a model's projections receive for it.

use std::path::Path;
use std::rc::Rc;

use fathom_engine::{Engine, Limits};
use fathom_grad::{Counters, Places, Scope, Tables, Tape};
use fathom_model::{Caps, ModelView, PackedTokens};
use fathom_tensor::Tensor;
use fathom_text::Tokenizer;
use fathom_text::chat::Template;
use fathom_text::lessons::{LessonConversion, Lessons, Supervise, is_lesson_file};

use crate::error::{Context, Result, refuse};

/// Returns samples of the text as token ids, each with at least two.
///
/// # Errors
/// No such file, or an empty one.
pub(crate) fn samples(
    (path, count, most): (&Path, usize, usize),
    (folder, tokenizer): (&Path, &Tokenizer),
) -> Result<Vec<Vec<u32>>> {
    let mut found: Vec<Vec<u32>> = Vec::new();
    if is_lesson_file(path, "text") {
        let template = Template::from_dir(folder, tokenizer)?;
        let teaching =
            LessonConversion { max_tokens: most, supervise: Supervise::All, ..LessonConversion::default() };
        let rows = Lessons::new(vec![path.to_path_buf()], (tokenizer, template.as_ref()), &teaching);
        for row in rows.take(count) {
            found.extend(row?.into_iter().map(|lesson| lesson.ids));
        }
    } else {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        // Bounds the text that is encoded: 16 bytes for each token wanted.
        let bytes = text.floor_char_boundary(count.saturating_mul(most).saturating_mul(16));
        let ids = tokenizer.encode(&text[..bytes])?;
        found.extend(ids.chunks(most).take(count).map(<[u32]>::to_vec));
    }
    found.retain(|sample| sample.len() > 1);
    if found.is_empty() {
        refuse!("{}: there is no text to judge by", path.display());
    }
    Ok(found)
}

/// Returns the mean loss per token of the samples.
///
/// # Errors
/// A model that cannot process them.
pub(crate) fn mean_loss(view: ModelView<'_>, tokenizer: &Tokenizer, samples: &[Vec<u32>]) -> Result<f64> {
    let limits = Limits { context_tokens: usize::MAX >> 1, chunk_tokens: 1024, ..Limits::default() };
    let engine = Engine::new(view, tokenizer, limits);
    let (mut sum, mut count) = (0.0, 0);
    for sample in samples {
        let losses = engine.losses_of(std::slice::from_ref(sample)).map_err(fathom_base::Error::from)?;
        sum += losses.concat().iter().map(|loss| f64::from(*loss)).sum::<f64>();
        count += sample.len() - 1;
    }
    Ok(sum / (count as f64).max(1.0))
}

/// Calls `see` for each value that a forward pass over a sample keeps for the backward pass, with its layer (negative
/// outside the blocks), name and tensor.
pub(crate) fn each_kept(
    ModelView { device, model, params }: ModelView<'_>,
    sample: &[u32],
    see: &mut dyn FnMut(i32, &str, &Tensor),
) {
    let ids: Vec<i32> = sample.iter().map(|id| *id as i32).collect();
    let positions: Vec<i32> = (0..ids.len() as i32).collect();
    let docs: Vec<_> = std::iter::once(0..ids.len()).collect();
    let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
    let batch = model.batch(device, packed, Caps { docs: 1, seq_tokens: ids.len() });
    let (counters, places) = (Counters::default(), Places::none());
    let scope = Scope { device, params, batch: Tables::Shared(Rc::new(batch)), counters: &counters };
    let mut tape = Tape::new(scope, &places);
    let _last = model.forward(&mut tape);
    tape.each_kept(see);
}
