//! Weighted blends: selection of the source of the next sample.

/// Index of the source whose share so far falls shortest of its weight, as in Megatron's `build_blending_indices`:
/// the largest `weight x max(drawn in all, 1) - drawn`, ties going to the first.
///
/// `weights` must sum to 1. With weights 1/2, 1/4, 1/4 the sources are 0, 1, 2, 0, 0, 1, 2, 0, ...
pub fn next_source(weights: &[f64], drawn: &[u64]) -> usize {
    let total = drawn.iter().sum::<u64>().max(1) as f64;
    let shortfall = |source: usize| weights[source] * total - drawn[source] as f64;
    (1..weights.len()).fold(0, |best, source| if shortfall(source) > shortfall(best) { source } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draw(weights: &[f64], count: usize) -> (Vec<usize>, Vec<u64>) {
        let mut drawn = vec![0; weights.len()];
        let order = (0..count)
            .map(|_| {
                let source = next_source(weights, &drawn);
                drawn[source] += 1;
                source
            })
            .collect();
        (order, drawn)
    }

    /// Example from Megatron's `datasets/readme.md`.
    #[test]
    fn megatrons_example() {
        assert_eq!(draw(&[0.5, 0.25, 0.25], 4).0, [0, 1, 2, 0]);
    }

    proptest! {
        #[test]
        fn shares_follow_the_weights(raw in prop::collection::vec(0.05f64..1.0, 1..6), count in 1usize..400) {
            let sum: f64 = raw.iter().sum();
            let weights: Vec<f64> = raw.iter().map(|w| w / sum).collect();
            let (_, drawn) = draw(&weights, count);
            for (weight, drawn) in weights.iter().zip(drawn) {
                prop_assert!((weight * count as f64 - drawn as f64).abs() < weights.len() as f64);
            }
        }
    }
}
