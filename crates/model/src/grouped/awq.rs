//! AWQ (Lin et al., 2023): columns with large inputs are scaled up before rounding, and the inputs' producer is
//! scaled down accordingly, so that the model is unchanged and important columns lose less.

use rayon::prelude::*;

use super::{GroupedTensor, Zero};

/// Number of exponents tried: 0, 1/20, .. 19/20.
const TRIED: usize = 20;

/// Statistics of a projection's inputs, per column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputSizes {
    /// Sum of magnitudes over tokens.
    pub sizes: Vec<f64>,
    /// Sum of squares over tokens.
    pub squares: Vec<f64>,
    /// Number of tokens.
    pub tokens: u64,
}

impl InputSizes {
    /// Adds some tokens, row by row.
    pub fn add(&mut self, rows: &[f32], cols: usize) {
        self.sizes.resize(cols, 0.0);
        self.squares.resize(cols, 0.0);
        for row in rows.chunks_exact(cols) {
            for ((size, square), x) in self.sizes.iter_mut().zip(&mut self.squares).zip(row) {
                *size += f64::from(x.abs());
                *square += f64::from(*x).powi(2);
            }
            self.tokens += 1;
        }
    }
}

/// A weight that shares its column factors with others.
#[derive(Clone, Debug)]
pub struct ScaledColumns<'a> {
    /// Its values [rows, cols].
    pub values: Vec<f32>,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Statistics of its own inputs; an expert sees only some of the tokens.
    pub given: &'a InputSizes,
}

/// Column factors of weights that share their inputs. Candidates are powers of the mean magnitudes of all inputs,
/// `seen`; the best minimizes the output error for each weight's own inputs, treating columns as independent.
pub fn scales(weights: &[ScaledColumns<'_>], seen: &InputSizes, group: usize) -> Vec<f32> {
    let tokens = seen.tokens.max(1) as f64;
    let means: Vec<f64> = seen.sizes.iter().map(|size| size / tokens).collect();
    let mut best = (f64::INFINITY, vec![1.0; means.len()]);
    for step in 0..TRIED {
        let power = step as f64 / TRIED as f64;
        let raw: Vec<f64> = means.iter().map(|mean| mean.powf(power).max(1e-4)).collect();
        let (low, high) = raw.iter().fold((f64::MAX, 0f64), |(low, high), x| (low.min(*x), high.max(*x)));
        let middle = (low * high).sqrt();
        let factors: Vec<f32> = raw.iter().map(|x| (x / middle) as f32).collect();
        let errors: Vec<f64> = weights.par_iter().map(|weight| error(weight, &factors, group)).collect();
        let error = errors.iter().sum();
        if error < best.0 {
            best = (error, factors);
        }
    }
    best.1
}

fn error(ScaledColumns { values, shape, given }: &ScaledColumns<'_>, factors: &[f32], group: usize) -> f64 {
    let scaled: Vec<f32> =
        values.chunks_exact(shape[1]).flat_map(|row| row.iter().zip(factors).map(|(x, f)| x * f)).collect();
    let rounded = GroupedTensor::round(&scaled, *shape, group, Zero::Lowest).values();
    let rows = scaled.chunks_exact(shape[1]).zip(rounded.chunks_exact(shape[1]));
    let columns = || factors.iter().zip(&given.squares);
    rows.map(|(x, y)| {
        let each = x.iter().zip(y).zip(columns());
        each.map(|((x, y), (f, square))| square * (f64::from(x - y) / f64::from(*f)).powi(2)).sum::<f64>()
    })
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_matter_are_made_larger_and_less_is_lost() {
        let weight: Vec<f32> = (0..8 * 64).map(|i| ((i * i) as f32 * 0.61).sin() * 0.1).collect();
        let inputs: Vec<f32> = (0..100 * 64)
            .map(|i| ((i * 7) as f32 * 0.23).sin() * if i % 64 == 5 { 30.0 } else { 1.0 })
            .collect();
        let mut seen = InputSizes::default();
        seen.add(&inputs, 64);
        let weights = [ScaledColumns { values: weight, shape: [8, 64], given: &seen }];
        let found = scales(&weights, &seen, 32);
        assert!(found.iter().enumerate().all(|(at, x)| at == 5 || *x < found[5]));
        let [plain, better] = [vec![1.0; 64], found].map(|factors| error(&weights[0], &factors, 32));
        assert!(better < 0.5 * plain, "{better} {plain}");
        // A weight without inputs does not count.
        let nothing = InputSizes::default();
        let idle = ScaledColumns { values: vec![9.0; 64], shape: [1, 64], given: &nothing };
        assert_eq!(error(&idle, &[1.0; 64], 32), 0.0);
    }
}
