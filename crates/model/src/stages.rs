//! Distribution of layers over pipeline stages.

use std::fmt;
use std::ops::Range;

use crate::spec::Spec;

/// Most pipeline stages with explicit layers.
const MOST: usize = 128;

/// Layers of each pipeline stage, in forward order (Megatron's `pipeline_model_parallel_layout`); empty if the stages
/// are to take equally long.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StageLayers {
    layers: [u8; MOST],
    stages: u8,
}

impl Default for StageLayers {
    fn default() -> StageLayers {
        StageLayers { layers: [0; MOST], stages: 0 }
    }
}

impl fmt::Debug for StageLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.given()).finish()
    }
}

impl StageLayers {
    /// Explicit numbers of layers; empty for balanced stages.
    ///
    /// # Errors
    /// If there are more than 128 stages, or more than 255 layers on one.
    pub fn new(layers: &[usize]) -> Result<StageLayers, String> {
        let mut all = StageLayers::default();
        if layers.len() > MOST {
            return Err(format!("{} stages are more than {MOST}", layers.len()));
        }
        for (to, layers) in all.layers.iter_mut().zip(layers) {
            *to = u8::try_from(*layers)
                .map_err(|_| format!("a stage of {layers} layers; at most 255 are on one"))?;
        }
        all.stages = layers.len() as u8;
        Ok(all)
    }

    fn given(&self) -> &[u8] {
        &self.layers[..self.stages as usize]
    }

    /// Checks the layout for a model of this many layers and stages.
    ///
    /// # Errors
    /// The mismatch.
    pub fn check(&self, layers: usize, stages: usize) -> Result<(), String> {
        let (given, sum) =
            (self.given(), self.given().iter().map(|layers| usize::from(*layers)).sum::<usize>());
        if given.is_empty() || (given.len() == stages && sum == layers) {
            return Ok(());
        }
        Err(format!(
            "{} stages with {sum} layers; the pipeline has {stages} stages and the model {layers} layers",
            given.len()
        ))
    }

    /// The layers of each stage.
    pub fn cut(&self, spec: &Spec, stages: usize) -> Vec<Range<usize>> {
        // Plans also split shorter models.
        let fits = !self.given().is_empty() && self.check(spec.layers.len(), stages).is_ok();
        let counts = if fits {
            self.given().iter().map(|layers| usize::from(*layers)).collect()
        } else {
            balanced(spec.layers.len(), stages, head_layers(spec))
        };
        let mut end = 0;
        counts
            .into_iter()
            .map(|count| {
                end += count;
                end - count..end
            })
            .collect()
    }
}

/// The head's products, in units of a layer's weights; the embedding multiplies nothing.
fn head_layers(spec: &Spec) -> f64 {
    let attention = spec.q_cols() + 2 * spec.kv_cols() + spec.attention_cols();
    let matrices = if spec.mlp.gated { 3 } else { 2 };
    spec.vocab as f64 / (attention + matrices * spec.ffn).max(1) as f64
}

/// Distributes layers when the last stage has `head` layers' extra work: minimizes the slowest stage, then the
/// differences. The remainder goes to the first stages.
fn balanced(layers: usize, stages: usize, head: f64) -> Vec<usize> {
    if stages == 1 {
        return vec![layers];
    }
    let deal = |last: usize| -> Vec<usize> {
        let (rest, others) = (layers - last, stages - 1);
        let share = |stage: usize| rest / others + usize::from(stage < rest % others);
        (0..others).map(share).chain([last]).collect()
    };
    let cost = |counts: &[usize]| -> (f64, f64) {
        let work = |stage: usize| counts[stage] as f64 + if stage + 1 == stages { head } else { 0.0 };
        let all = (0..stages).map(work);
        (all.clone().fold(0.0, f64::max), all.map(|work| work * work).sum())
    };
    let most = layers.saturating_sub(stages - 1).max(1).min(layers);
    let mut best = deal(most.min(1));
    for last in 2..=most {
        let counts = deal(last);
        let (new, old) = (cost(&counts), cost(&best));
        if new.0 < old.0 - 1e-9 || (new.0 <= old.0 + 1e-9 && new.1 < old.1 - 1e-9) {
            best = counts;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_takes_layers_from_the_last_stage() {
        assert_eq!(balanced(9, 4, 0.1), [3, 2, 2, 2]);
        assert_eq!(balanced(4, 4, 0.3), [1, 1, 1, 1]);
        assert_eq!(balanced(4, 2, 0.3), [2, 2]);
        // Llama 3 8B: a vocabulary of 128256 is worth 2.4 layers.
        assert_eq!(balanced(32, 2, 2.4), [17, 15]);
        assert_eq!(balanced(32, 4, 2.4), [9, 9, 8, 6]);
        assert_eq!(balanced(4, 2, 40.0), [3, 1]);
        assert_eq!(balanced(7, 1, 3.0), [7]);
    }

    #[test]
    fn a_layout_is_the_whole_model() {
        let layout = StageLayers::new(&[7, 9, 9, 7]).unwrap();
        assert_eq!(layout.check(32, 4), Ok(()));
        assert!(layout.check(30, 4).unwrap_err().contains("4 stages with 32 layers"));
        assert!(layout.check(32, 8).is_err());
        assert!(StageLayers::new(&[300]).is_err());
        assert_eq!(format!("{layout:?}"), "[7, 9, 9, 7]");
    }
}
