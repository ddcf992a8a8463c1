//! Samples of a stage: the shape of its micro-batches, and the loader's settings.

use fathom_text::lessons::Truncation;
use fathom_text::loader::{Shuffle, Split};
use fathom_text::pack::Boundaries;
use fathom_text::{loader, pack};

use crate::recipe::{LengthWeight, MethodName, Packing, Recipe};
use crate::source::Shape;

/// Shape of a stage's micro-batches.
pub(crate) fn shape(recipe: &Recipe, index: usize) -> Shape {
    let (stage, mesh) = (&recipe.stage[index], &recipe.mesh);
    let samples = stage.samples_per_micro_batch.max(1);
    // Ranks that share a micro-batch's tokens, or exchange rows, rely on known lengths.
    let one_length = mesh.tp * mesh.cp * mesh.ep * mesh.etp > 1;
    let fills = recipe.objective.seq2seq().is_some() || recipe.objective.method == MethodName::Retro;
    let docs = stage.max_docs * samples + usize::from(fills);
    let alone = !one_length && mesh.dp * mesh.pp == 1;
    Shape {
        stage: index,
        samples,
        seq_tokens: stage.seq_tokens,
        docs,
        one_length,
        alone,
        lead: recipe.leads(),
        fills,
    }
}

/// The loader's settings for a stage, with the documents `held_out` excluded.
pub fn loader_spec(recipe: &Recipe, index: usize, held_out: impl Into<loader::HeldOut>) -> loader::Spec {
    let stage = &recipe.stage[index];
    let packing = match stage.packing {
        Packing::Cut => pack::Packing::Concatenate,
        Packing::BestFit => pack::Packing::BestFit,
        Packing::Single => pack::Packing::Single,
    };
    let whole = recipe.objective.method.judges().then_some(Truncation::Error);
    let kept = whole.unwrap_or(recipe.teaching().truncation);
    loader::Spec {
        packing,
        boundaries: if stage.masked { Boundaries::Masked } else { Boundaries::Unmasked },
        shuffle: if recipe.data.shuffle { Shuffle::Documents } else { Shuffle::None },
        seed: recipe.run.seed.wrapping_add(index as u64),
        split: Split::Train { held_out: held_out.into() },
        min_doc_tokens: stage.min_doc_tokens as u64,
        length_weights: stage.length_weights.iter().map(length_weight).collect(),
        ahead: recipe.data.ahead,
        lead: recipe.leads() as u32,
        kept: recipe.data.is_lessons().then_some(kept),
        ..loader::Spec::new(stage.seq_tokens as u32)
    }
}

fn length_weight(of: &LengthWeight) -> loader::LengthWeight {
    loader::LengthWeight { min_tokens: of.min_tokens as u64, weight: of.weight }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Stage;

    #[test]
    fn documents_are_drawn_by_the_weights_of_their_stage() {
        let length_weights = vec![LengthWeight { min_tokens: 64, weight: 2.5 }];
        let recipe =
            Recipe { stage: vec![Stage { length_weights, ..Stage::default() }], ..Recipe::default() };
        let drawn = loader_spec(&recipe, 0, 0.0).length_weights;
        assert_eq!(drawn, [loader::LengthWeight { min_tokens: 64, weight: 2.5 }]);
    }
}
