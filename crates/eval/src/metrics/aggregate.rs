//! Figures over all items, and their standard errors: analytic for means, by the bootstrap for other figures, over the
//! resamples of lm-evaluation-harness.

use super::bleu::BleuCounts;
use super::chrf::ChrfCounts;
use super::classes;
use super::ter::TerCounts;
use crate::python::random::Random;

/// Resamples per seed of the bootstrap.
const CHUNK: usize = 1000;
/// Resamples of figures of texts, at most.
const MOST_OF_TEXTS: usize = 100;

/// The value of one item for one metric.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemValue {
    /// A number.
    Number(f64),
    /// A log-likelihood, and the words or bytes that it is of.
    Weighted(f64, f64),
    /// The right class and the predicted one.
    Classes(i64, i64),
    /// The right class and the probabilities of all.
    Probabilities(i64, Vec<f64>),
    /// The references and the answer.
    Texts(Vec<String>, String),
}

/// How the values of a metric become one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// Mean.
    Mean,
    /// Mean of the numbers that are not NaN.
    NanMean,
    /// Upper median.
    Median,
    /// `exp(-mean)` of log-likelihoods.
    Perplexity,
    /// `exp` of the negative log-likelihood per word or byte.
    WeightedPerplexity,
    /// Bits per byte.
    BitsPerByte,
    /// F1 of class 1.
    F1,
    /// Matthews' correlation.
    Mcc,
    /// Brier score.
    Brier,
    /// BLEU of the corpus.
    Bleu,
    /// chrF of the corpus.
    Chrf,
    /// chrF++ of the corpus.
    ChrfPlusPlus,
    /// Translation edit rate of the corpus.
    Ter,
    /// 999, for items that are only logged.
    Bypass,
}

impl Aggregation {
    /// The aggregation by its name in task files.
    pub fn named(name: &str) -> Option<Aggregation> {
        Some(match name {
            "mean" => Aggregation::Mean,
            "nanmean" => Aggregation::NanMean,
            "median" => Aggregation::Median,
            "perplexity" => Aggregation::Perplexity,
            "weighted_perplexity" => Aggregation::WeightedPerplexity,
            "bits_per_byte" => Aggregation::BitsPerByte,
            "f1" => Aggregation::F1,
            "matthews_corrcoef" => Aggregation::Mcc,
            "brier_score" => Aggregation::Brier,
            "bleu" => Aggregation::Bleu,
            "chrf" => Aggregation::Chrf,
            "chrf++" => Aggregation::ChrfPlusPlus,
            "ter" => Aggregation::Ter,
            "bypass" => Aggregation::Bypass,
            _ => return None,
        })
    }

    /// The figure of all items, and its standard error over `resamples` of the bootstrap; `None` where there is none.
    pub fn figure(self, items: &[ItemValue], resamples: usize) -> (f64, Option<f64>) {
        let numbers = || numbers(items);
        let classes = || -> Vec<(i64, i64)> { items.iter().filter_map(ItemValue::classes).collect() };
        let all = items.len();
        match self {
            Aggregation::Mean => {
                let numbers = numbers();
                let error = (all > 1 && resamples > 0).then(|| deviation(&numbers) / (all as f64).sqrt());
                (mean(&numbers), error)
            }
            Aggregation::NanMean => of(&numbers(), nanmean, resamples),
            Aggregation::Median => of(&numbers(), median, resamples),
            Aggregation::Perplexity => of(&numbers(), |values| (-mean(values)).exp(), resamples),
            Aggregation::WeightedPerplexity => ((-weighted(items)).exp(), None),
            Aggregation::BitsPerByte => (-weighted(items) / std::f64::consts::LN_2, None),
            Aggregation::F1 => of(&classes(), classes::f1, resamples),
            Aggregation::Mcc => of(&classes(), classes::mcc, resamples),
            Aggregation::Brier => {
                let pairs = items.iter().filter_map(|item| match item {
                    ItemValue::Probabilities(gold, of) => Some((*gold, of.clone())),
                    _ => None,
                });
                (classes::brier(&pairs.collect::<Vec<_>>()), None)
            }
            Aggregation::Bleu => {
                let counts = of_texts(items, BleuCounts::of);
                let score = |counts: &[BleuCounts]| summed(counts, BleuCounts::add).score();
                of(&counts, score, resamples.min(MOST_OF_TEXTS))
            }
            Aggregation::Chrf | Aggregation::ChrfPlusPlus => {
                let words = if self == Aggregation::Chrf { 0 } else { 2 };
                let counts = of_texts(items, |answer, references| ChrfCounts::of(answer, references, words));
                let score = |counts: &[ChrfCounts]| summed(counts, ChrfCounts::add).score();
                of(&counts, score, resamples.min(MOST_OF_TEXTS))
            }
            Aggregation::Ter => {
                let counts = of_texts(items, TerCounts::of);
                let score = |counts: &[TerCounts]| summed(counts, TerCounts::add).score();
                of(&counts, score, resamples.min(MOST_OF_TEXTS))
            }
            Aggregation::Bypass => (999.0, None),
        }
    }
}

impl ItemValue {
    fn classes(&self) -> Option<(i64, i64)> {
        match self {
            ItemValue::Classes(gold, found) => Some((*gold, *found)),
            _ => None,
        }
    }
}

/// A figure and the standard deviation of it over resamples.
fn of<T: Clone + Sync>(
    items: &[T],
    figure: impl Fn(&[T]) -> f64 + Sync,
    resamples: usize,
) -> (f64, Option<f64>) {
    let error = (items.len() > 1 && resamples > 0).then(|| bootstrap(items, &figure, resamples));
    (figure(items), error)
}

/// Chunks of up to a thousand resamples; chunk `i` is drawn by Python's generator with the seed `i`.
fn bootstrap<T: Clone + Sync>(items: &[T], figure: &(impl Fn(&[T]) -> f64 + Sync), resamples: usize) -> f64 {
    let chunk = resamples.min(CHUNK);
    let chunks = resamples / chunk;
    let one = |seed: usize| -> Vec<f64> {
        let mut random = Random::new(seed as u64);
        let mut drawn = Vec::with_capacity(items.len());
        let mut draw = || {
            drawn.clear();
            drawn.extend((0..items.len()).map(|_| items[random.choice_index(items.len())].clone()));
            figure(&drawn)
        };
        (0..chunk).map(|_| draw()).collect()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chunks);
    let mut found: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let work = |first: usize| {
            move || (first..chunks).step_by(threads).map(|seed| (seed, one(seed))).collect::<Vec<_>>()
        };
        let open: Vec<_> = (0..threads).map(|first| scope.spawn(work(first))).collect();
        let mut all: Vec<(usize, Vec<f64>)> =
            open.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        all.sort_by_key(|(seed, _)| *seed);
        all.into_iter().map(|(_, figures)| figures).collect()
    });
    if found.is_empty() {
        found = (0..chunks).map(one).collect();
    }
    deviation(&found.concat())
}

fn of_texts<T>(items: &[ItemValue], count: impl Fn(&str, &[String]) -> T) -> Vec<T> {
    let texts = items.iter().filter_map(|item| match item {
        ItemValue::Texts(references, answer) => Some(count(answer, references)),
        _ => None,
    });
    texts.collect()
}

fn summed<T: Clone + Default>(counts: &[T], add: impl Fn(&mut T, &T)) -> T {
    let mut sum = T::default();
    counts.iter().for_each(|one| add(&mut sum, one));
    sum
}

fn numbers(items: &[ItemValue]) -> Vec<f64> {
    let number = |item: &ItemValue| if let ItemValue::Number(number) = item { Some(*number) } else { None };
    items.iter().filter_map(number).collect()
}

/// Sum of log-likelihoods over the sum of what they are of.
fn weighted(items: &[ItemValue]) -> f64 {
    let pair = |item: &ItemValue| if let ItemValue::Weighted(a, b) = item { Some((*a, *b)) } else { None };
    let (a, b) = items.iter().filter_map(pair).fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    a / b
}

/// Mean of numbers.
pub fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

fn nanmean(numbers: &[f64]) -> f64 {
    mean(&numbers.iter().copied().filter(|x| !x.is_nan()).collect::<Vec<_>>())
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Standard deviation of a sample.
pub fn deviation(numbers: &[f64]) -> f64 {
    let middle = mean(numbers);
    let squares = numbers.iter().map(|x| (x - middle).powi(2)).sum::<f64>();
    (squares / (numbers.len() as f64 - 1.0)).sqrt()
}

/// Standard error over tasks of a mean that is weighted by their sizes (pooled variance).
pub fn pooled_error(errors: &[f64], sizes: &[usize]) -> f64 {
    let of = |(error, size): (&f64, &usize)| (*size as f64 - 1.0) * error * error * *size as f64;
    let sum: usize = sizes.iter().sum();
    let variance = errors.iter().zip(sizes).map(of).sum::<f64>() / (sum as f64 - sizes.len() as f64);
    (variance / sum as f64).sqrt()
}

/// Standard error over tasks of their plain mean.
pub fn unweighted_error(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error * error).sum::<f64>().sqrt() / errors.len() as f64
}
