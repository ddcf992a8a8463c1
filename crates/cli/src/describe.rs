//! What a run says of itself on the way, in words.

use fathom_base::human;
use fathom_curate::pipeline::Progress as Curating;
use fathom_curate::{Phase, Progress};
use fathom_train::recipe::Recipe;

use crate::measure::Figures;

/// How many stages are done when a model is measured before its extension: none where it is read, all but the last where it is
/// made. A run of one stage from nothing extends no model.
pub fn before(recipe: &Recipe) -> Option<usize> {
    let from = recipe.model.from.as_ref().map(|_| 0);
    from.or(recipe.stage.len().checked_sub(1).filter(|stages| *stages > 0))
}

/// When the last measurement is: a run of one stage from nothing extends no model.
pub fn after(recipe: &Recipe) -> &'static str {
    match before(recipe) {
        Some(_) => "after_extension",
        None => "after_training",
    }
}

/// What the corpus builder is doing, in words.
pub fn progress(progress: Progress) -> String {
    let doing = match progress.phase {
        Phase::Read => "reading text",
        Phase::Tokenizer => "training the tokenizer",
        Phase::Encode => "turning text into tokens",
    };
    format!("{doing}: {} of {}", human::bytes(progress.done_bytes), human::bytes(progress.total_bytes))
}

/// How far the curation of a run's text is, in words.
pub fn curating(progress: &Curating) -> String {
    let Curating { segment, parts_done, parts, text_bytes, .. } = progress;
    format!("curating, {segment}: {parts_done} of {parts} parts, {}", human::bytes(*text_bytes))
}

/// Figures in a line.
pub fn figures(figures: &Figures, short: usize) -> String {
    let mut parts = Vec::new();
    if let Some(bits) = &figures.bits {
        parts.push(format!("{:.3} bits per byte (gzip {:.3})", bits.bits_per_byte, bits.gzip_bits_per_byte));
    }
    if let Some(position) = &figures.position {
        let ends = position.buckets.iter().filter(|bucket| bucket.tokens > 0);
        let all: Vec<String> = ends.map(|bucket| format!("{:.2}", bucket.loss)).collect();
        parts.push(format!("loss by position {}", all.join(" ")));
    }
    if let Some(accuracy) = figures.needles.as_ref().and_then(|needles| needles.accuracy(short)) {
        parts.push(format!(
            "needle {} within {} tokens",
            human::percent(accuracy),
            human::grouped(short as u64)
        ));
    }
    if parts.is_empty() {
        return "no held-out document to measure on; give more text, or raise data.held_out_share".into();
    }
    parts.join("; ")
}
