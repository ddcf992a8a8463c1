//! What a model's files say of generation.

use fathom_base::PartialSampling;
use serde_json::{Map, Value};

use crate::rope::{RopeScaling, RopeSpec};
use crate::spec::Spec;

/// What a model's files say of generation: `generation_config.json`, where it is silent `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationConfig {
    /// Begins a sequence.
    pub bos: Option<u32>,
    /// Each of these ends one.
    pub eos: Vec<u32>,
    /// Padding; Fathom has none, but files name it.
    pub pad: Option<u32>,
    /// What else `generation_config.json` says, such as defaults of sampling: exported as it was read.
    pub others: Map<String, Value>,
    /// Longest sequence of the model that this was read with; none for a new one. Where a model is exported with a longer one, it
    /// was extended, and what else names the old length is raised.
    pub positions: Option<usize>,
}

impl GenerationConfig {
    /// How tokens are chosen where a request is silent, as `generation_config.json` has it. What no sampler takes is left out.
    pub fn sampling(&self) -> PartialSampling {
        let number = |key: &str, least: f64, most: f64| {
            self.others.get(key)?.as_f64().filter(|value| (least..=most).contains(value))
        };
        let draws = self.others.get("do_sample").and_then(Value::as_bool);
        // Transformers draws with a temperature of 1 where the file does not name one.
        let temperature = number("temperature", 0.0, f64::MAX).or((draws == Some(true)).then_some(1.0));
        PartialSampling {
            temperature: if draws == Some(false) { None } else { temperature },
            top_k: self.others.get("top_k").and_then(Value::as_u64).and_then(|k| usize::try_from(k).ok()),
            top_p: number("top_p", f64::MIN_POSITIVE, 1.0),
            min_p: number("min_p", 0.0, 1.0),
            repetition_penalty: number("repetition_penalty", 0.001, 1000.0),
        }
    }

    /// With what another says of special tokens where this one is silent.
    pub(super) fn or(self, other: GenerationConfig) -> GenerationConfig {
        GenerationConfig {
            bos: self.bos.or(other.bos),
            eos: if self.eos.is_empty() { other.eos } else { self.eos },
            pad: self.pad.or(other.pad),
            others: self.others,
            positions: self.positions.or(other.positions),
        }
    }
}

/// The longest sequence that a model is for. `dynamic` measures against the first length, and stretches it.
pub(super) fn context(spec: &Spec) -> usize {
    let stretch = |rope: &RopeSpec| match rope.scaling {
        RopeScaling::Dynamic { factor } => factor.max(1.0),
        _ => 1.0,
    };
    let stretch = spec.ropes.iter().map(stretch).fold(1.0, f64::max);
    (spec.max_positions as f64 * stretch) as usize
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(file: &Value, expected: PartialSampling) {
        let others = file.as_object().cloned().unwrap_or_default();
        assert_eq!(GenerationConfig { others, ..GenerationConfig::default() }.sampling(), expected, "{file}");
    }

    #[test]
    fn sampling_is_what_a_file_says_and_a_sampler_takes() {
        let nothing = PartialSampling::default;
        let of = |temperature| PartialSampling { temperature, ..nothing() };
        check(
            &json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "repetition_penalty": 1.05}),
            PartialSampling {
                temperature: Some(0.6),
                top_k: Some(20),
                top_p: Some(0.95),
                min_p: Some(0.0),
                repetition_penalty: Some(1.05),
            },
        );
        check(&json!({"do_sample": true}), of(Some(1.0)));
        check(&json!({"temperature": 0.7}), of(Some(0.7)));
        check(&json!({"do_sample": false, "temperature": 0.7}), of(None));
        check(
            &json!({"temperature": null, "top_k": -1, "top_p": 0, "min_p": 2, "repetition_penalty": 0}),
            nothing(),
        );
        check(&json!({"temperature": "x", "max_length": 20}), nothing());
    }
}
