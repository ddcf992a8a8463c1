//! Quality classification with a fastText model: scores, training, and stochastic selection.

use super::model::Model;
use crate::Error;
use crate::filter::Refusal;
use fasttext::FastText;
use fasttext::args::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

/// How text is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QualityOptions {
    /// File of a fastText model (`.bin`, `.ftz`).
    pub model: PathBuf,
    /// The label of good text, one of the model's. A text's score, 0 to 1, is that label's probability where it is the
    /// likeliest, else 1 less that of the likeliest.
    pub label: String,
    /// Keeps texts by chance, the better ones more often: those for which a draw from a Pareto distribution is above 1 -
    /// score, as for GPT-3 (Brown et al. 2020, appendix A). With none `min_score` alone decides.
    pub pareto: Option<ParetoKeep>,
    /// Texts with a lower score are dropped, with `pareto` and without. Unset it is 0.5 without `pareto`, and no limit with
    /// it.
    #[schemars(range(min = 0, max = 1))]
    pub min_score: Option<f32>,
}

impl QualityOptions {
    /// Effective threshold.
    pub fn threshold(&self) -> Option<f32> {
        const WITHOUT_RULE: f32 = 0.5;
        self.min_score.or(if self.pareto.is_none() { Some(WITHOUT_RULE) } else { None })
    }
}

impl Default for QualityOptions {
    fn default() -> Self {
        QualityOptions {
            model: PathBuf::new(),
            label: "__label__hq".to_string(),
            pareto: Some(ParetoKeep::default()),
            min_score: None,
        }
    }
}

/// Keeps a document when a draw from a Pareto distribution exceeds 1 - score (Brown et al. 2020, appendix A): good
/// documents nearly always, others now and then. The draw is a function of the seed and the document's id, so it does
/// not depend on order, batches or threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ParetoKeep {
    /// Shape of the distribution: the larger, the fewer bad texts stay (GPT-3: 9; NeMo Curator: 3).
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub alpha: f64,
    /// Seed of the draws, which depend on it and the document's id alone; not the recipe's.
    pub seed: u64,
}

impl Default for ParetoKeep {
    fn default() -> Self {
        ParetoKeep { alpha: 3.0, seed: 42 }
    }
}

impl ParetoKeep {
    /// Draw for the document `id`: (1-u)^(-1/alpha) - 1 with u uniform, like numpy's `random.pareto`.
    pub fn draw(&self, id: &str) -> f64 {
        let bits = XxHash3_64::oneshot_with_seed(self.seed, id.as_bytes());
        let u = (bits >> 11) as f64 / (1u64 << 53) as f64;
        (1.0 - u).powf(-1.0 / self.alpha) - 1.0
    }

    /// Returns true if the document `id` with this `score` is kept.
    pub fn keep(&self, id: &str, score: f64) -> bool {
        self.draw(id) > 1.0 - score
    }
}

/// A quality classifier; shared by threads.
pub struct QualityModel {
    options: QualityOptions,
    model: Model,
}

impl QualityModel {
    /// Loads the model.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::BadFile`] for the model, [`Error::Option`] if it lacks the label, and for invalid
    /// numbers.
    pub fn new(options: &QualityOptions) -> Result<QualityModel, Error> {
        let refused = |key: &str, found: String, advice: &str| {
            Err(Error::Option { piece: "quality", key: key.to_string(), found, advice: advice.to_string() })
        };
        if let Some(score) = options.min_score.filter(|score| !(0.0..=1.0).contains(score)) {
            return refused("min_score", score.to_string(), "give a number from 0 to 1");
        }
        if let Some(rule) = options.pareto.filter(|rule| rule.alpha.is_nan() || rule.alpha <= 0.0) {
            return refused("pareto.alpha", rule.alpha.to_string(), "give a number above 0");
        }
        let model = Model::open(&options.model)?;
        let labels = model.labels();
        if !labels.contains(&options.label) {
            return Err(Error::Option {
                piece: "quality",
                key: "label".to_string(),
                found: options.label.clone(),
                advice: format!("the labels of {} are {}", options.model.display(), labels.join(", ")),
            });
        }
        Ok(QualityModel { options: options.clone(), model })
    }

    /// Quality of `text`, 0 to 1: the probability of the best label if that is the label of good text, otherwise one
    /// minus it (like NeMo Curator). Text without known words is classified by its end-of-line token, as in the
    /// library; 0 if the model does not know that either.
    pub fn score(&self, text: &str) -> f32 {
        match self.model.best(&one_line(text)) {
            Some(best) if best.label == self.options.label => best.prob,
            Some(best) => 1.0 - best.prob,
            None => 0.0,
        }
    }

    /// Returns the score of the document `id`, or its refusal: `quality` below the threshold, `quality_pareto` by the
    /// stochastic rule.
    ///
    /// # Errors
    /// The [`Refusal`] with the score.
    pub fn check(&self, id: &str, text: &str) -> Result<f32, Refusal> {
        let score = self.score(text);
        let value = f64::from(score);
        if self.options.threshold().is_some_and(|least| score < least) {
            return Err(Refusal { reason: "quality", value });
        }
        match &self.options.pareto {
            Some(rule) if !rule.keep(id, value) => Err(Refusal { reason: "quality_pareto", value }),
            _ => Ok(score),
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ").replace("__label__", " ")
}

/// Training options of a classifier. The defaults are fastText's for classification, with word bigrams and a small
/// table for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QualityTraining {
    /// Dimensions of a word vector.
    pub dim: u32,
    /// Number of epochs.
    pub epochs: u32,
    /// Learning rate.
    pub learning_rate: f64,
    /// Maximum length of word n-grams.
    pub word_ngrams: u32,
    /// Rows of the n-gram table; a row takes 4 x `dim` bytes.
    pub buckets: u32,
    /// Minimum number of occurrences of a word.
    pub min_count: u32,
    /// Interval of held-out examples, for measuring the model; 0 for none.
    pub hold_out: u32,
    /// Seed of the training.
    pub seed: u32,
}

impl Default for QualityTraining {
    fn default() -> Self {
        QualityTraining {
            dim: 64,
            epochs: 5,
            learning_rate: 0.1,
            word_ngrams: 2,
            buckets: 200_000,
            min_count: 1,
            hold_out: 20,
            seed: 42,
        }
    }
}

/// Result of a training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QualityReport {
    /// Number of training examples.
    pub examples: u64,
    /// Number of held-out examples.
    pub held_out: u64,
    /// Share of the held-out examples that are classified correctly; 0 if there are none.
    pub accuracy: f64,
}

/// Trains a classifier on labelled texts (`("__label__hq", text)`) and writes it to `out` (`.bin`). Training uses one
/// thread and an order of examples determined by their number and the seed, so the same examples give the same model.
/// They are stored in a temporary file next to `out`; memory holds the held-out ones and a few bytes per example.
///
/// # Errors
/// The first failure among the examples, [`Error::Write`] for the files, [`Error::BadFile`] if the examples do not
/// allow training.
pub fn train_quality<L: AsRef<str>, T: AsRef<str>, E: From<Error>>(
    options: &QualityTraining,
    examples: impl IntoIterator<Item = Result<(L, T), E>>,
    out: &Path,
) -> Result<QualityReport, E> {
    let lines = [out.with_extension("arrived.tmp"), out.with_extension("examples.tmp")];
    let result = write_examples(options, examples, &lines[0]).and_then(|written| {
        mix(options.seed, &written.places, [&lines[0], &lines[1]])?;
        Ok(learn(options, &lines[1], out, &written)?)
    });
    for path in &lines {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound && result.is_ok() => {
                return Err(Error::write("remove", path, e).into());
            }
            _ => {}
        }
    }
    result
}

/// Examples written for training.
struct TrainingFile {
    /// Offset and length of each training example.
    places: Vec<(u64, u64)>,
    /// Held-out examples, with their labels.
    held_out: Vec<(String, String)>,
}

fn write_examples<L: AsRef<str>, T: AsRef<str>, E: From<Error>>(
    options: &QualityTraining,
    examples: impl IntoIterator<Item = Result<(L, T), E>>,
    path: &Path,
) -> Result<TrainingFile, E> {
    let file = std::fs::File::create(path).map_err(|e| Error::write("create", path, e))?;
    let mut file = std::io::BufWriter::new(file);
    let mut written = TrainingFile { places: Vec::new(), held_out: Vec::new() };
    let mut end = 0;
    for (i, example) in examples.into_iter().enumerate() {
        let (label, text) = example?;
        let (label, text) = (label.as_ref(), one_line(text.as_ref()));
        if options.hold_out > 0 && (i as u64).is_multiple_of(u64::from(options.hold_out)) {
            written.held_out.push((label.to_string(), text));
            continue;
        }
        writeln!(file, "{label} {text}").map_err(|e| Error::write("write", path, e))?;
        let bytes = (label.len() + text.len() + 2) as u64;
        written.places.push((end, bytes));
        end += bytes;
    }
    file.flush().map_err(|e| Error::write("write", path, e))?;
    Ok(written)
}

/// Copies the lines at `places` in random order, since a model that sees one label after the other forgets the first.
fn mix(seed: u32, places: &[(u64, u64)], [from, to]: [&Path; 2]) -> Result<(), Error> {
    let mut input = std::fs::File::open(from).map_err(|e| Error::read(from, e))?;
    let output = std::fs::File::create(to).map_err(|e| Error::write("create", to, e))?;
    let mut output = std::io::BufWriter::new(output);
    let key =
        |place: &(u64, u64)| (XxHash3_64::oneshot_with_seed(seed.into(), &place.0.to_le_bytes()), place.0);
    let mut order = places.to_vec();
    order.sort_by_cached_key(key);
    let mut line = Vec::new();
    for (first, bytes) in order {
        line.clear();
        input.seek(SeekFrom::Start(first)).map_err(|e| Error::read(from, e))?;
        (&mut input).take(bytes).read_to_end(&mut line).map_err(|e| Error::read(from, e))?;
        output.write_all(&line).map_err(|e| Error::write("write", to, e))?;
    }
    output.flush().map_err(|e| Error::write("write", to, e))
}

fn learn(
    options: &QualityTraining,
    lines: &Path,
    out: &Path,
    written: &TrainingFile,
) -> Result<QualityReport, Error> {
    let mut args = Args { word_ngrams: options.word_ngrams as i32, ..Args::default() };
    args.apply_supervised_defaults();
    args.input = lines.to_path_buf();
    args.dim = options.dim as i32;
    args.epoch = options.epochs as i32;
    args.lr = options.learning_rate;
    args.bucket = if options.word_ngrams > 1 { options.buckets as i32 } else { 0 };
    args.min_count = options.min_count as i32;
    args.seed = options.seed as i32;
    args.thread = 1;
    args.verbose = 0;
    let bad = |detail: String| Error::BadFile { path: lines.to_path_buf(), kind: "list of examples", detail };
    let model = FastText::train(args).map_err(|e| bad(e.to_string()))?;
    let partial = out.with_extension("bin.tmp");
    model.save_model(&partial).map_err(|e| Error::write("write", &partial, std::io::Error::other(e)))?;
    std::fs::rename(&partial, out).map_err(|e| Error::write("rename", out, e))?;
    let model = Model::from(model);
    let right = written
        .held_out
        .iter()
        .filter(|(label, text)| model.best(text).is_some_and(|best| best.label == *label))
        .count();
    let held = written.held_out.len() as u64;
    let examples = written.places.len() as u64;
    Ok(QualityReport { examples, held_out: held, accuracy: right as f64 / held.max(1) as f64 })
}
