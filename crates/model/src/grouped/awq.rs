//! AWQ (Lin and others, 2023): columns whose inputs are large are made larger before rounding, and what gives the inputs is made smaller
//! by as much, so that the model stays the same and the columns that matter lose less.

use rayon::prelude::*;

use super::{Grouped, Zero};

/// Exponents that are tried: 0, 1/20, .. 19/20.
const TRIED: usize = 20;

/// What the inputs of a projection were, for each column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputSizes {
    /// Sum over tokens of the size.
    pub sizes: Vec<f64>,
    /// Sum of the square.
    pub squares: Vec<f64>,
    /// Tokens.
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

/// A weight that shares the factors of its columns with others.
#[derive(Clone, Debug)]
pub struct Scaled<'a> {
    /// Its values [rows, cols].
    pub values: Vec<f32>,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// What it is given: of an expert some of the tokens that the others see.
    pub given: &'a InputSizes,
}

/// Factors of the columns of weights that share their inputs: of those tried, which are powers of the mean size of the inputs `seen` by
/// all, those with the least error of the outputs for what each weight is given, columns taken as independent.
pub fn scales(weights: &[Scaled<'_>], seen: &InputSizes, group: usize) -> Vec<f32> {
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

fn error(Scaled { values, shape, given }: &Scaled<'_>, factors: &[f32], group: usize) -> f64 {
    let scaled: Vec<f32> =
        values.chunks_exact(shape[1]).flat_map(|row| row.iter().zip(factors).map(|(x, f)| x * f)).collect();
    let rounded = Grouped::round(&scaled, *shape, group, Zero::Lowest).values();
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
        let weights = [Scaled { values: weight, shape: [8, 64], given: &seen }];
        let found = scales(&weights, &seen, 32);
        assert!(found.iter().enumerate().all(|(at, x)| at == 5 || *x < found[5]));
        let [plain, better] = [vec![1.0; 64], found].map(|factors| error(&weights[0], &factors, 32));
        assert!(better < 0.5 * plain, "{better} {plain}");
        // A weight that is given nothing has no say.
        let nothing = InputSizes::default();
        let idle = Scaled { values: vec![9.0; 64], shape: [1, 64], given: &nothing };
        assert_eq!(error(&idle, &[1.0; 64], 32), 0.0);
    }
}
