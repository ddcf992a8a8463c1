//! The context that a model claims (`max_position_embeddings`). Longer samples alone are no reason to raise it: with
//! masked documents, positions restart at 0 in each.

use fathom_model::{RopeScaling, Spec};

use crate::recipe::{RopeType, Stage};

/// True if a stage extends the context.
pub fn extends(stage: &Stage) -> bool {
    stage.rope_type != RopeType::Keep || stage.rope_theta.is_some()
}

/// Raises the claimed context to at least `tokens` positions, unless rotations depend on the claim: `dynamic` compares
/// with the configuration's longest sequence, and `longrope` scales by it.
pub fn claim(spec: &mut Spec, tokens: usize) {
    let measured =
        |scaling: &RopeScaling| matches!(scaling, RopeScaling::Dynamic { .. } | RopeScaling::Longrope { .. });
    if spec.learned_positions.is_none() && !spec.ropes.iter().any(|rope| measured(&rope.scaling)) {
        spec.max_positions = spec.max_positions.max(tokens);
        spec.ropes.iter_mut().for_each(|rope| rope.max_positions = spec.max_positions);
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::LlamaSizes;

    use super::*;
    use crate::stage::extend;

    #[test]
    fn a_model_claims_no_length_that_only_its_samples_have() {
        let small = Spec::llama(LlamaSizes {
            hidden: 32,
            heads: 2,
            kv_heads: 1,
            ffn: 64,
            vocab: 64,
            ..LlamaSizes::TINY
        });
        let masked = Stage { masked: true, seq_tokens: 2048, ..Stage::default() };
        let claims = |stage: &Stage| extend(&small, stage, 0).unwrap().max_positions;
        assert_eq!(claims(&masked), 256);
        // A sample without masks is one document for positions.
        assert_eq!(claims(&Stage { masked: false, ..masked.clone() }), 2048);
        assert_eq!(claims(&Stage { rope_theta: Some(1e6), ..masked.clone() }), 2048);
        assert_eq!(claims(&Stage { rope_type: RopeType::Yarn, ..masked }), 2048);
        let mut spec = small.clone();
        claim(&mut spec, 300);
        assert_eq!((spec.max_positions, spec.ropes[0].max_positions), (300, 300));
    }
}
