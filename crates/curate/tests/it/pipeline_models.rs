//! Stages that use a model, with models whose answers are known: semantic deduplication, perplexity, and refused
//! settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fathom_base::recipe::{Layers, Loaded};
use fathom_base::{Classify, Embed, GenerateRequest, Generation, LanguageModel, Numbers};
use fathom_curate::Error;
use fathom_curate::pipeline::{
    ModelKind, ModelSettings, Models, Outcome, Pipeline, Rank, Recipe, RunOptions, WithClassify, WithEmbed,
    WithScore,
};
use fathom_text::tokenizer::Tokenizer;

use super::folder;
use super::pipeline::{bytes_of, options, run};
use super::pipeline_corpus::query;

/// A text's vector counts its letters; a token's loss is its id modulo 7.
#[derive(Default)]
struct LetterCounter {
    opened: AtomicUsize,
    embedded: AtomicUsize,
    kinds: Mutex<Vec<ModelKind>>,
    broken: bool,
}

struct Letters<'a>(&'a AtomicUsize);

impl Embed for Letters<'_> {
    fn embed(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
        self.0.fetch_add(texts.len(), Ordering::SeqCst);
        let vector = |text: &&str| {
            let mut counts = [0f32; 26];
            text.bytes().filter(u8::is_ascii_lowercase).for_each(|b| counts[usize::from(b - b'a')] += 1.0);
            let length = counts.iter().map(|count| count * count).sum::<f32>().sqrt();
            counts.iter().map(|count| count / length).collect()
        };
        Ok(texts.iter().map(vector).collect())
    }

    fn size(&self) -> usize {
        26
    }
}

struct Sevens;

impl LanguageModel for Sevens {
    fn max_tokens(&self) -> usize {
        16
    }

    fn generate_all(&self, _: Vec<GenerateRequest>) -> fathom_base::Result<Vec<Vec<Generation>>> {
        Err(fathom_base::Error::product("writes nothing"))
    }

    fn look(&self, texts: &[Vec<u32>], _: Numbers) -> fathom_base::Result<Vec<Vec<f32>>> {
        assert!(texts.iter().all(|ids| ids.len() <= 16), "the context that the recipe asks for");
        let token = |id: &u32| [-((id % 7) as f32), 0.0];
        Ok(texts.iter().map(|ids| ids[1..].iter().flat_map(token).collect()).collect())
    }
}

/// Classifies texts as short, medium or long, with fixed scores.
struct Lengths([String; 3]);

impl Classify for Lengths {
    fn classify(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
        let of = |text: &&str| match text.len() {
            0..20 => vec![0.9, 0.1, 0.0],
            20..80 => vec![0.1, 0.8, 0.1],
            _ => vec![0.0, 0.3, 0.7],
        };
        Ok(texts.iter().map(of).collect())
    }

    fn labels(&self) -> &[String] {
        &self.0
    }
}

impl Models for LetterCounter {
    fn check(&self, folder: &Path, kind: ModelKind) -> Result<(), Error> {
        self.kinds.lock().unwrap().push(kind);
        let detail = "its family is unknown".to_owned();
        if self.broken { Err(Error::Model { folder: folder.to_owned(), detail }) } else { Ok(()) }
    }

    fn with_embed(&self, settings: &ModelSettings, work: &mut WithEmbed<'_>) -> Result<(), Error> {
        assert_eq!(settings.context_tokens, 512);
        self.opened.fetch_add(1, Ordering::SeqCst);
        work(&mut Letters(&self.embedded))
    }

    fn with_score(&self, settings: &ModelSettings, work: &mut WithScore<'_>) -> Result<(), Error> {
        assert_eq!(settings.context_tokens, 40);
        self.opened.fetch_add(1, Ordering::SeqCst);
        work(&Sevens)
    }

    fn with_classify(&self, settings: &ModelSettings, work: &mut WithClassify<'_>) -> Result<(), Error> {
        assert_eq!(settings.context_tokens, 256);
        self.opened.fetch_add(1, Ordering::SeqCst);
        work(&mut Lengths(["Short", "Middling", "Long"].map(str::to_owned)))
    }
}

fn with(models: LetterCounter, threads: usize) -> (Arc<LetterCounter>, RunOptions) {
    let models = Arc::new(models);
    (models.clone(), RunOptions { models: Some(models), ..options(threads) })
}

const RECIPE: &str = r#"
[[stage]]
use = "perplexity"
model = "MODEL"
max = 30
min = 15
context_tokens = 40
max_tokens = 60

[[stage]]
use = "semantic"
model = "MODEL"
clusters = 5
"#;

fn text(n: u64) -> String {
    let word = |w: u64| {
        let letter = |l: u64| char::from(b'a' + ((n * 7 + w * n + l * (n % 5 + 1)) % 26) as u8);
        (0..3 + (n + w) % 5).map(letter).collect::<String>()
    };
    (0..4 + n % 30).map(word).collect::<Vec<_>>().join(" ")
}

/// Two files of texts and a folder that looks like a model. Every third text has the words of the previous one in
/// another order.
fn inputs() -> tempfile::TempDir {
    let line = |n: u64| {
        let reversed = || text(n - 1).split(' ').rev().collect::<Vec<_>>().join(" ");
        let text = if n % 3 == 2 { reversed() } else { text(n) };
        serde_json::json!({ "text": text }).to_string() + "\n"
    };
    let inputs = folder(&[
        ("data/a.jsonl", (0..1500).map(line).collect::<String>().as_bytes()),
        ("data/b.jsonl", (1500..2000).map(line).collect::<String>().as_bytes()),
        ("model/config.json", br#"{"model_type": "bert", "architectures": ["BertModel"]}"#),
    ]);
    let tokenizer = Tokenizer::train_bpe((0..400).map(text), 400, &["<|endoftext|>"]).unwrap();
    tokenizer.save_dir(inputs.path().join("model")).unwrap();
    inputs
}

fn load(recipe: &str, input: &Path, out: &Path) -> Result<Pipeline, Error> {
    let layers = Layers::new()
        .text("test", &recipe.replace("MODEL", &input.join("model").display().to_string()))
        .set(&format!("input.paths=[\"texts={}\"]", input.join("data").display()))
        .set("input.unit_bytes=1000")
        .set(&format!("out={}", out.display()));
    Pipeline::new(&Loaded::<Recipe>::load(layers)?)
}

#[test]
fn perplexity_is_the_models_and_decides() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let pipeline = load(RECIPE, input.path(), out.path()).unwrap();
    let (models, options) = with(LetterCounter::default(), 2);
    let stats = run(&pipeline, &options).unwrap();
    assert_eq!(models.opened.load(Ordering::SeqCst), 2);
    let tokenizer = Tokenizer::from_dir(input.path().join("model")).unwrap();
    let expected = |text: &str| {
        let mut ids = tokenizer.encode(text).unwrap();
        ids.truncate(60);
        let sum: u32 = ids[1..].iter().map(|id| id % 7).sum();
        (f64::from(sum) / (ids.len() - 1) as f64).exp()
    };
    let rows = query(&stats, out.path(), "select text, perplexity from perplexity");
    let tally = &stats.stages.iter().find(|stage| stage.name == "perplexity").unwrap().tally;
    assert_eq!(rows.len() as u64, tally.documents_out);
    for row in &rows {
        let wanted = expected(row["text"].as_str().unwrap());
        let found = row["perplexity"].as_f64().unwrap();
        assert!((found / wanted - 1.0).abs() < 1e-6 && (15.0..=30.0).contains(&wanted), "{row:?}: {wanted}");
    }
    let dropped: u64 = ["min", "max"].map(|reason| tally.dropped[reason].documents).iter().sum();
    assert!(dropped > 20 && tally.documents_in == tally.documents_out + dropped, "{:?}", tally.dropped);
    let score = &tally.scores["perplexity"];
    assert_eq!((score.histogram.total(), score.limits.as_slice()), (2000, &[15.0, 30.0][..]));
    assert_eq!((score.kept.len(), score.dropped.len()), (4, 4));
    let page = fathom_curate::pipeline::report_page(&stats);
    assert!(page.contains("<td>max</td>") && page.contains("same_meaning"));
    // Everything is complete: no model is loaded.
    run(&pipeline, &options).unwrap();
    assert_eq!(models.opened.load(Ordering::SeqCst), 2);
}

#[test]
fn classes_are_the_models_and_decide() {
    let input = inputs();
    let recipe = "[[stage]]\nuse = \"classify\"\nmodel = \"MODEL\"\nkeep = [\"Short\", \"Middling\"]\nmin = 0.85\n\
                  max_tokens = 256\nscores = true\n";
    let outs = [1, 3].map(|threads| {
        let out = tempfile::tempdir().unwrap();
        let (models, options) = with(LetterCounter::default(), threads);
        let stats = run(&load(recipe, input.path(), out.path()).unwrap(), &options).unwrap();
        assert_eq!(*models.kinds.lock().unwrap(), [ModelKind::Classes]);
        (out, stats)
    });
    assert!(bytes_of(outs[0].0.path()) == bytes_of(outs[1].0.path()), "threads");
    let (out, stats) = &outs[1];
    let tally = &stats.stages.iter().find(|stage| stage.name == "classify").unwrap().tally;
    let dropped = |reason: &str| tally.dropped[reason].documents;
    assert!(dropped("keep") > 100 && dropped("min") > 100, "{:?}", tally.dropped);
    assert_eq!(tally.documents_in, tally.documents_out + dropped("keep") + dropped("min"));
    let rows = query(stats, out.path(), "select text, class, class_score, class_scores from classify");
    assert_eq!(rows.len() as u64, tally.documents_out);
    for row in &rows {
        assert!(row["text"].as_str().unwrap().len() < 20 && row["class"] == "Short", "{row:?}");
        let near = |key: &str, wanted: f64| (row[key].as_f64().unwrap() - wanted).abs() < 1e-6;
        let all: BTreeMap<String, f64> = serde_json::from_str(row["class_scores"].as_str().unwrap()).unwrap();
        assert!(
            near("class_score", 0.9) && all.len() == 3 && (all["Middling"] - 0.1).abs() < 1e-6,
            "{row:?}"
        );
    }
}

#[test]
fn of_texts_with_the_same_vector_one_stays() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let recipe = "[[stage]]\nuse = \"semantic\"\nmodel = \"MODEL\"\neps = 1e-6\n";
    let stats =
        run(&load(recipe, input.path(), out.path()).unwrap(), &with(LetterCounter::default(), 3).1).unwrap();
    let vector = |text: &str| {
        let mut counts = BTreeMap::new();
        text.bytes().filter(u8::is_ascii_lowercase).for_each(|b| *counts.entry(b).or_insert(0u32) += 1);
        let common = counts.values().copied().reduce(gcd).unwrap();
        counts.values_mut().for_each(|count| *count /= common);
        counts
    };
    let texts = |table: &str| -> Vec<String> {
        let rows = query(&stats, out.path(), &format!("select text from {table}"));
        rows.iter().map(|row| row["text"].as_str().unwrap().to_owned()).collect()
    };
    let mut all: Vec<_> = texts("extract").iter().map(|text| vector(text)).collect();
    let mut left: Vec<_> = texts("semantic").iter().map(|text| vector(text)).collect();
    let count = left.len();
    [&mut all, &mut left].into_iter().for_each(|vectors| {
        vectors.sort();
        vectors.dedup();
    });
    assert_eq!((left.len(), count), (all.len(), all.len()), "each vector once");
    let tally = &stats.stages.last().unwrap().tally;
    assert_eq!(tally.dropped["same_meaning"].documents, 2000 - count as u64);
    assert!(count < 1400 && tally.clusters.len() > 3 && tally.scores.contains_key("cluster_size"));
}

#[test]
fn embeddings_outlive_a_kill() {
    let input = inputs();
    let recipe = "[[stage]]\nuse = \"semantic\"\nmodel = \"MODEL\"\neps = 1e-6\n";
    let out = tempfile::tempdir().unwrap();
    // Ends at the first point of this name; returns the number of model loads and of texts embedded.
    let ended_at = |name: &'static str| {
        let (models, options) = with(LetterCounter::default(), 2);
        let stop: fathom_curate::pipeline::Stop = Arc::new(move |point: &str| point == name);
        let options = RunOptions { stop: Some(stop), ..options };
        let ended = load(recipe, input.path(), out.path()).unwrap().run(&options);
        assert_eq!(matches!(ended, Err(Error::Interrupted { .. })), !name.is_empty(), "{ended:?}");
        (models.opened.load(Ordering::SeqCst), models.embedded.load(Ordering::SeqCst))
    };
    assert_eq!(ended_at("embedded"), (1, 1024));
    // Interrupted while the table without the duplicates is being written.
    assert_eq!(ended_at("written"), (1, 2000 - 1024));
    assert_eq!(ended_at(""), (0, 0));
    let undisturbed = tempfile::tempdir().unwrap();
    let pipeline = load(recipe, input.path(), undisturbed.path()).unwrap();
    run(&pipeline, &with(LetterCounter::default(), 1).1).unwrap();
    assert!(bytes_of(out.path()) == bytes_of(undisturbed.path()));
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn threads_ranks_and_stops_change_no_byte() {
    let input = inputs();
    let load = |out: &Path| load(RECIPE, input.path(), out).unwrap();
    let outs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let stop_at = |n: usize, asked: &Arc<AtomicUsize>| {
        let asked = asked.clone();
        let stop = move |_: &str| asked.fetch_add(1, Ordering::SeqCst) + 1 == n;
        RunOptions { stop: Some(Arc::new(stop)), ..with(LetterCounter::default(), 2).1 }
    };
    run(&load(outs[0].path()), &stop_at(usize::MAX, &asked)).unwrap();
    let wanted = bytes_of(outs[0].path());
    run(&load(outs[1].path()), &with(LetterCounter::default(), 1).1).unwrap();
    assert!(wanted == bytes_of(outs[1].path()), "one thread");
    let ended = [0, 1, 0, 1].map(|rank| {
        let options =
            RunOptions { rank: Rank { rank, world_size: 2 }, ..with(LetterCounter::default(), 1).1 };
        matches!(load(outs[2].path()).run(&options).unwrap(), Outcome::Done(_))
    });
    assert_eq!(ended, [false, false, true, true]);
    assert!(wanted == bytes_of(outs[2].path()), "two ranks");
    let points = asked.load(Ordering::SeqCst);
    for n in (1..=points).step_by(points / 8) {
        let out = tempfile::tempdir().unwrap();
        let stopped = load(out.path()).run(&stop_at(n, &Arc::new(AtomicUsize::new(0))));
        assert!(matches!(stopped, Err(Error::Interrupted { .. })), "point {n}: {stopped:?}");
        run(&load(out.path()), &with(LetterCounter::default(), 2).1).unwrap();
        assert!(wanted == bytes_of(out.path()), "stopped at point {n} of {points}");
    }
}

#[test]
fn what_cannot_be_is_reported_before_anything_is_read() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let refusal = |recipe: &str| load(recipe, input.path(), out.path()).err().unwrap().to_string();
    for kind in ["semantic", "perplexity", "classify"] {
        let said = refusal(&format!("[[stage]]\nuse = {kind:?}\n"));
        assert!(
            said.contains(&format!("stage.{kind}.model")) && said.contains("Hugging Face folder"),
            "{said}"
        );
        let said = refusal(&format!("[[stage]]\nuse = {kind:?}\nmodel = \"/nowhere\"\n"));
        assert!(said.contains("/nowhere") && said.contains("config.json"), "{said}");
    }
    let said = refusal("[[stage]]\nuse = \"classify\"\nmodel = \"MODEL\"\nmax_tokens = 2\n");
    assert!(said.contains("stage.classify.max_tokens") && said.contains("framed"), "{said}");
    let said = refusal("[[stage]]\nuse = \"classify\"\nmodel = \"MODEL\"\ncolumn = \"text\"\n");
    assert!(said.contains("stage.classify.column"), "{said}");
    let recipe = "[[stage]]\nuse = \"classify\"\nmodel = \"MODEL\"\nmax_tokens = 256\nkeep = [\"Longish\"]\n";
    let pipeline = load(recipe, input.path(), out.path()).unwrap();
    let said = run(&pipeline, &with(LetterCounter::default(), 1).1).unwrap_err().to_string();
    assert!(
        said.contains("`stage.classify.keep`: is `Longish`") && said.contains("Short, Middling, Long"),
        "{said}"
    );
    let said = refusal("[[stage]]\nuse = \"perplexity\"\nmodel = \"MODEL\"\nmax = 0.5\n");
    assert!(said.contains("stage.perplexity.max") && said.contains("below 1"), "{said}");
    let said = refusal("[[stage]]\nuse = \"semantic\"\nmodel = \"MODEL\"\neps = 3.0\n");
    assert!(said.contains("stage.semantic.eps"), "{said}");

    let pipeline = load(RECIPE, input.path(), out.path()).unwrap();
    let said = run(&pipeline, &options(1)).unwrap_err().to_string();
    assert!(said.contains("without models") && said.contains("model"), "{said}");
    let broken = LetterCounter { broken: true, ..LetterCounter::default() };
    let said = run(&pipeline, &with(broken, 1).1).unwrap_err().to_string();
    assert!(said.contains("its family is unknown"), "{said}");
    assert!(!out.path().join("00-perplexity").exists());
    let recipe = "memory = \"40MiB\"\n[input]\nmax_document_bytes = 1000000\n[[stage]]\nuse = \"semantic\"\nmodel = \"MODEL\"\nclusters = 1000000\n";
    let pipeline = load(recipe, input.path(), out.path()).unwrap();
    let said = run(&pipeline, &with(LetterCounter::default(), 1).1).unwrap_err().to_string();
    assert!(said.contains("`stage.semantic.sample`") && said.contains("40.0 MiB"), "{said}");
}
