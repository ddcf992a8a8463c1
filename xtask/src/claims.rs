//! Claims of the handbook, each tried on small models: arms that differ in a few keys of one recipe, trained on the same
//! text and measured on the same held-out text, over three seeds. A claim is a file in `xtask/claims`.

mod cloze;
mod text;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::trial::{Trial, over_seeds, rows};

/// The recipe of all runs.
const RECIPE: &str = include_str!("../claims/recipe.toml");
/// The curation that takes copies out and does nothing else.
const DEDUP: &str = include_str!("../claims/curation/dedup.toml");

/// A claim.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    /// Sentence above the table.
    about: String,
    /// Text that the arms train on.
    text: text::Kind,
    /// Keys of all arms.
    #[serde(default)]
    keys: Vec<String>,
    /// Sizes, each with its keys and a table of its own; one without keys if there are none.
    #[serde(default)]
    size: Vec<Variant>,
    /// Variants that are trained; the others are compared with the first.
    arm: Vec<Variant>,
    /// Tokens of the longest sequence that is measured.
    tokens: usize,
    /// Figures, as columns.
    figures: Vec<Figure>,
}

/// A size or an arm.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variant {
    name: String,
    #[serde(default)]
    keys: Vec<String>,
    /// Earlier arm that this one goes on from; it is trained by the shipped recipe `extend`.
    from: Option<String>,
}

/// A figure of a model on held-out text.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Figure {
    /// Bits per byte.
    Bits,
    /// Mean loss of a bucket of positions.
    Loss([u64; 2]),
    /// Per cent of needles that are found.
    Needle,
    /// Per cent of a cloze task that is right.
    Cloze(cloze::Task),
}

impl Figure {
    fn name(&self) -> String {
        match self {
            Figure::Bits => "bits per byte".into(),
            Figure::Loss([from, to]) => format!("loss at {from} to {to}"),
            Figure::Needle => "needles, %".into(),
            Figure::Cloze(task) => format!("{}, %", task.name().replace('_', " ")),
        }
    }

    /// The figure among the events of an evaluation and the results of tasks; `None` if it was not measured.
    fn read(&self, events: &[Value], tasks: &Value) -> Option<f64> {
        let event = |kind: &str| events.iter().find(|event| event["event"] == kind);
        match self {
            Figure::Bits => event("eval_bits")?["bits_per_byte"].as_f64(),
            Figure::Loss([from, to]) => {
                let buckets = event("eval_position")?["buckets"].as_array()?;
                buckets.iter().find(|bucket| bucket["from"] == *from && bucket["to"] == *to)?["loss"].as_f64()
            }
            Figure::Needle => {
                let cells =
                    event("needle")?["accuracy"].as_array()?.iter().filter_map(Value::as_array).flatten();
                let found: Vec<f64> = cells.filter_map(Value::as_f64).collect();
                Some(100.0 * mean(&found))
            }
            Figure::Cloze(task) => Some(100.0 * tasks["results"][task.name()]["acc,none"].as_f64()?),
        }
    }
}

/// Trains and measures a claim, and prints its tables.
pub fn run(name: &str, binary: &Path) -> Result<Vec<String>, String> {
    let path = Path::new("xtask/claims").join(name).with_extension("toml");
    let claim = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let claim: Claim = toml::from_str(&claim).map_err(|error| format!("{}: {error}", path.display()))?;
    let one = vec![Variant::default()];
    let sizes = if claim.size.is_empty() { &one } else { &claim.size };
    let found = over_seeds(&format!("claims-{name}"), binary, |trial| {
        text::write(claim.text, trial)?;
        cloze::write(trial)?;
        sizes.iter().map(|size| of_size(&claim, size, trial)).collect::<Result<Vec<_>, _>>()
    })?;
    println!("{}", claim.about);
    for (at, size) in sizes.iter().enumerate() {
        let seeds: Vec<&Figures> = found.iter().map(|sizes| &sizes[at]).collect();
        println!("\n{}", table(&claim, &size.name, &seeds));
    }
    Ok(Vec::new())
}

/// The figures of a seed: a row per arm, a column per figure.
type Figures = Vec<Vec<Option<f64>>>;

fn of_size(claim: &Claim, size: &Variant, trial: &Trial<'_>) -> Result<Figures, String> {
    let mut all = Vec::new();
    for arm in &claim.arm {
        let folder = |arm: &String| format!("runs/{} {arm}", size.name).replace([' ', ',', '.'], "-");
        let (out, from) = (folder(&arm.name), arm.from.as_ref().map(folder));
        train(claim, (size, arm), (&out, from), trial)?;
        let row = measured(claim, &out, trial)?;
        eprintln!("seed {}: {out}: {row:?}", trial.seed);
        all.push(row);
    }
    Ok(all)
}

fn train(
    claim: &Claim,
    (size, arm): (&Variant, &Variant),
    (out, from): (&str, Option<String>),
    trial: &Trial<'_>,
) -> Result<(), String> {
    for (name, text) in [("recipe.toml", RECIPE), ("dedup.toml", DEDUP)] {
        fs::write(trial.path(name), text).map_err(|error| error.to_string())?;
    }
    let mut keys = vec![format!("run.out={out}"), format!("run.seed={}", trial.seed)];
    let recipe = match from {
        Some(from) => {
            keys.extend([
                format!("model.from={from}"),
                "machine.threads=1".into(),
                "data.held_out_share=0.01".into(),
                "data.max_bytes=2097152".into(),
            ]);
            "extend"
        }
        None => {
            keys.extend(claim.keys.iter().chain(&size.keys).cloned());
            "recipe.toml"
        }
    };
    keys.extend(["data.paths=text".into(), "eval.enabled=false".into()]);
    keys.extend(arm.keys.iter().cloned());
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    trial.fathom(&[&["train", recipe, "--quiet"], &keys[..]].concat()).map(drop)
}

fn measured(claim: &Claim, out: &str, trial: &Trial<'_>) -> Result<Vec<Option<f64>>, String> {
    let needles = claim.figures.iter().any(|figure| matches!(figure, Figure::Needle));
    let tokens = claim.tokens.to_string();
    let words = ["eval", out, "--data", "held", "--tokens", &tokens, "--json"];
    let trials = ["--needle-trials", if needles { "10" } else { "0" }];
    let events = rows(&trial.fathom(&[&words[..], &trials].concat())?);
    let tasks: Vec<&str> = claim
        .figures
        .iter()
        .filter_map(|figure| if let Figure::Cloze(task) = figure { Some(task.name()) } else { None })
        .collect();
    let mut results = Value::Null;
    if !tasks.is_empty() {
        let tasks = tasks.join(",");
        let words = ["eval", out, "--tasks", &tasks, "--tasks-dir", "tasks", "--out", "results.json"];
        trial.fathom(&[&words[..], &["--bootstrap-iters", "0"]].concat())?;
        let text = fs::read_to_string(trial.path("results.json")).map_err(|error| error.to_string())?;
        results = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    }
    Ok(claim.figures.iter().map(|figure| figure.read(&events, &results)).collect())
}

/// The Markdown table of a size: each figure's mean over the seeds, and its difference from the first arm in the same seeds with
/// the standard error of that.
fn table(claim: &Claim, size: &str, seeds: &[&Figures]) -> String {
    let mut table = format!("| {size} |");
    for figure in &claim.figures {
        _ = write!(table, " {} | against {} |", figure.name(), claim.arm[0].name);
    }
    table += &format!("\n|---|{}\n", "---|".repeat(2 * claim.figures.len()));
    for (at, arm) in claim.arm.iter().enumerate() {
        _ = write!(table, "| {} |", arm.name);
        for column in 0..claim.figures.len() {
            let of = |row: usize| seeds.iter().map(|seed| seed[row][column]).collect::<Option<Vec<f64>>>();
            table += &match (of(at), of(0).filter(|_| at > 0)) {
                (Some(own), Some(first)) => {
                    let differences: Vec<f64> =
                        own.iter().zip(&first).map(|(own, first)| own - first).collect();
                    format!(
                        " {:.3} | {:+.3} ± {:.3} |",
                        mean(&own),
                        mean(&differences),
                        standard_error(&differences)
                    )
                }
                (Some(own), None) => format!(" {:.3} | |", mean(&own)),
                (None, _) => " - | |".into(),
            };
        }
        table.push('\n');
    }
    table
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn standard_error(values: &[f64]) -> f64 {
    let (count, mean) = (values.len() as f64, mean(values));
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0) / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_can_be_read_and_goes_on_from_arms_before() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("claims");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let claims: Vec<_> = files.filter(|path| path.is_file() && !path.ends_with("recipe.toml")).collect();
        assert!(claims.len() >= 6);
        for path in claims {
            let claim: Claim = toml::from_str(&fs::read_to_string(&path).unwrap())
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(claim.arm.len() > 1 && !claim.figures.is_empty());
            for (at, arm) in claim.arm.iter().enumerate() {
                let known = |from: &String| claim.arm[..at].iter().any(|other| other.name == *from);
                assert!(arm.from.as_ref().is_none_or(known), "{}: {}", path.display(), arm.name);
            }
        }
    }

    #[test]
    fn a_table_has_means_and_paired_differences_with_their_errors() {
        let claim: Claim = toml::from_str(
            "about = 'x'\ntext = 'code'\ntokens = 8\nfigures = ['bits', { loss = [0, 256] }, 'needle']\n\
             [[arm]]\nname = 'a'\n[[arm]]\nname = 'b'\n",
        )
        .unwrap();
        let seed = |a: f64, b: f64| vec![vec![Some(a), Some(1.0), None], vec![Some(b), Some(1.0), None]];
        let seeds = [seed(1.0, 2.0), seed(2.0, 4.0), seed(3.0, 6.0)];
        let shown = table(&claim, "", &Vec::from_iter(&seeds));
        assert!(shown.contains("| a | 2.000 | | 1.000 | | - | |"), "{shown}");
        assert!(shown.contains("| b | 4.000 | +2.000 ± 0.577 | 1.000 | +0.000 ± 0.000 | - | |"), "{shown}");
    }

    #[test]
    fn figures_are_read_from_events_and_results() {
        let events = rows(
            "{\"event\":\"eval_bits\",\"bits_per_byte\":1.5}\n\
             {\"event\":\"eval_position\",\"buckets\":[{\"from\":0,\"to\":256,\"loss\":2.0},{\"from\":256,\"to\":512,\"loss\":3.0}]}\n\
             {\"event\":\"needle\",\"accuracy\":[[1.0,0.5],[0.0,0.5]]}\n",
        );
        let tasks = serde_json::json!({"results": {"last_word": {"acc,none": 0.25}}});
        let read = |figure: Figure| figure.read(&events, &tasks);
        assert_eq!(read(Figure::Bits), Some(1.5));
        assert_eq!(read(Figure::Loss([256, 512])), Some(3.0));
        assert_eq!(read(Figure::Loss([512, 1024])), None);
        assert_eq!(read(Figure::Needle), Some(50.0));
        assert_eq!(read(Figure::Cloze(cloze::Task::LastWord)), Some(25.0));
        assert_eq!(read(Figure::Cloze(cloze::Task::Function)), None);
    }
}
