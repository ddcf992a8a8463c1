//! Rotary settings and positions of a stage.

use fathom_model::{RopeScaling, Spec};

use crate::claim::{claim, extends};
use crate::error::{Error, Result};
use crate::recipe::{RopeType, Stage};

/// An error about a key of a stage.
pub(super) fn refuse(index: usize, key: &str, message: impl Into<String>) -> Error {
    Error::Recipe { key: format!("stage.{index}.{key}"), message: message.into() }
}

/// The specification during a stage, with its rotary settings and the claimed positions ([`crate::claim`]).
///
/// # Errors
/// A scaling that the stage does not describe fully.
pub fn extend(spec: &Spec, stage: &Stage, index: usize) -> Result<Spec> {
    let mut spec = spec.clone();
    let old = spec.max_positions;
    if spec.encoder.is_none() && spec.learned_positions.is_some_and(|rows| rows < stage.seq_tokens) {
        return Err(refuse(
            index,
            "seq_tokens",
            "the model has a learned position table, which cannot be extended",
        ));
    }
    let stretched = stretched(&spec);
    for (rope, _) in spec.ropes.iter_mut().zip(stretched).filter(|(_, stretched)| *stretched) {
        if let Some(theta) = stage.rope_theta {
            rope.theta = theta;
        }
        // A stage after a scaled one scales the model's original length.
        let original = match rope.scaling {
            RopeScaling::Linear { factor } => (old as f64 / factor) as usize,
            _ => rope.scaling.original_positions().unwrap_or(old),
        };
        let factor = stage.rope_factor.unwrap_or(stage.seq_tokens as f64 / original as f64).max(1.0);
        if let Some(scaling) = scaling(stage.rope_type, factor, original, index)? {
            rope.scaling = scaling;
        }
        rope.scaling.name_original(original);
    }
    if extends(stage) || !stage.masked {
        claim(&mut spec, stage.seq_tokens);
    }
    Ok(spec)
}

/// The rotary settings that a stage changes: those of layers with full attention, or the first if all layers have
/// windows. A separate one for layers with windows (Gemma 3, Cohere 2) stays, as distances stay within the window.
fn stretched(spec: &Spec) -> Vec<bool> {
    let sees_all = |table: usize| {
        spec.layers.iter().any(|layer| layer.rope() == Some(table) && layer.window().is_none())
    };
    let some = spec.layers.iter().any(|layer| layer.window().is_none());
    (0..spec.ropes.len()).map(|table| sees_all(table) || (table == 0 && !some)).collect()
}

pub(super) fn scaling(
    kind: RopeType,
    factor: f64,
    original: usize,
    index: usize,
) -> Result<Option<RopeScaling>> {
    let scaling = match kind {
        RopeType::Keep => return Ok(None),
        RopeType::Default => RopeScaling::Default,
        RopeType::Linear => RopeScaling::Linear { factor },
        RopeType::Dynamic => RopeScaling::Dynamic { factor },
        RopeType::Yarn => RopeScaling::yarn(factor, Some(original)),
        RopeType::Llama3 => {
            RopeScaling::Llama3 { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original }
        }
        RopeType::Longrope => {
            let message = "longrope has searched factors per frequency; start from a model that has them and use rope_type=\"keep\"";
            return Err(refuse(index, "rope_type", message));
        }
    };
    Ok(Some(scaling))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use fathom_model::{Family, LayerSpec, LlamaSizes};

    fn small() -> Spec {
        Spec::llama(LlamaSizes { hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 64, ..LlamaSizes::TINY })
    }

    fn stage(rope_type: RopeType, seq_tokens: usize) -> Stage {
        Stage { seq_tokens, rope_type, ..Stage::default() }
    }

    #[test]
    fn stages_stretch_the_first_length() {
        for kind in [RopeType::Yarn, RopeType::Linear, RopeType::Llama3, RopeType::Dynamic] {
            let once = extend(&small(), &stage(kind, 512), 0).unwrap();
            let twice = extend(&once, &stage(kind, 2048), 1).unwrap();
            let at_once = extend(&small(), &stage(kind, 2048), 0).unwrap();
            assert_eq!(twice, at_once, "{kind:?}");
            assert_eq!(twice.max_positions, if kind == RopeType::Dynamic { 256 } else { 2048 });
        }
    }

    #[test]
    fn dynamic_measures_against_the_first_length() {
        let extended = extend(&small(), &stage(RopeType::Dynamic, 1024), 0).unwrap();
        let kept = extend(&extended, &stage(RopeType::Keep, 1024), 1).unwrap();
        for spec in [extended, kept] {
            // Transformers' base at 1024 tokens: theta (factor s / first - (factor - 1))^(d / (d - 2)), d = 16.
            let base = 1e4 * (4.0f64 * 4.0 - 3.0).powf(16.0 / 14.0);
            let expected = base.powf(-2.0 / 16.0) as f32;
            assert_eq!(spec.ropes[0].frequencies(1024).inv_freq[1], expected);
            // The length with which Transformers compares.
            let config = Family::write(Path::new("config.json"), &spec).unwrap();
            assert_eq!(config["max_position_embeddings"], 256);
        }
    }

    #[test]
    fn rotations_of_windows_alone_are_left() {
        let mut spec = small();
        spec.ropes.push(spec.ropes[0].clone());
        spec.layers[1] = LayerSpec::decoder(Some(64), Some(1));
        let extended = extend(&spec, &stage(RopeType::Yarn, 1024), 0).unwrap();
        assert_eq!(extended.ropes[1].scaling, RopeScaling::Default);
        assert_ne!(extended.ropes[0].scaling, spec.ropes[0].scaling);
        // The same if layers with full attention do not rotate.
        spec.layers[0].set_rope(None);
        let kept = extend(&spec, &stage(RopeType::Yarn, 1024), 0).unwrap();
        assert!(kept.ropes.iter().all(|rope| rope.scaling == RopeScaling::Default));
        spec.layers[0].set_rope(Some(0));
        // If all layers have windows, the first setting is scaled, and a separate one for windows is not.
        spec.layers[0].set_window(Some(64));
        let extended = extend(&spec, &stage(RopeType::Yarn, 1024), 0).unwrap();
        assert_ne!(extended.ropes[0].scaling, spec.ropes[0].scaling);
        assert_eq!(extended.ropes[1].scaling, RopeScaling::Default);
        // Like Gemma 3 with sliding layers only, none of which uses the first setting.
        spec.layers[0].set_rope(Some(1));
        let extended = extend(&spec, &stage(RopeType::Yarn, 1024), 0).unwrap();
        assert_eq!(extended.ropes[1].scaling, RopeScaling::Default);
    }
}
