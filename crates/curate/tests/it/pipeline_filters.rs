//! Filters as stages of a recipe: the texts they drop, the reasons, and the settings they refuse.

use std::path::Path;

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::pipeline::{Pipeline, Recipe, Stats};
use fathom_curate::{Error, QualityExamples, QualityTraining, train_quality};
use fathom_text::Tokenizer;

use super::folder;
use super::pipeline::{column, options, run};

/// A run of one stage (`use = ..` and its options) on a folder, in `out` of it.
struct Ran {
    folder: tempfile::TempDir,
    stats: Stats,
    name: String,
}

fn load(folder: &Path, recipe: &str, settings: &[&str]) -> Result<Pipeline, Error> {
    let layers = Layers::new()
        .text("test", recipe)
        .set(&format!("input.paths=[\"in={}\"]", folder.join("in").display()))
        .set(&format!("out={}", folder.join("out").display()))
        .sets(settings);
    Pipeline::new(&Loaded::<Recipe>::load(layers)?)
}

fn stage(files: &[(&str, &str)], written: &str, settings: &[&str]) -> Ran {
    let files: Vec<(String, &[u8])> =
        files.iter().map(|(name, text)| (format!("in/{name}"), text.as_bytes())).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    let folder = folder(&files);
    let written = written.replace("FOLDER", &folder.path().display().to_string());
    let recipe = format!("[[stage]]\n{written}\n");
    let stats = run(&load(folder.path(), &recipe, settings).unwrap(), &options(2)).unwrap();
    let name = stats.tables[0].folder.file_name().unwrap().to_string_lossy().into_owned();
    Ran { folder, stats, name }
}

impl Ran {
    fn column(&self, name: &str) -> Vec<String> {
        column(&self.folder.path().join("out").join(&self.name).join("part-00000.parquet"), name)
    }

    fn dropped(&self, reason: &str) -> u64 {
        let tally = &self.stats.stages.last().unwrap().tally;
        tally.dropped.get(reason).map_or(0, |dropped| dropped.documents)
    }
}

/// Error message for a stage with these options.
fn refused(written: &str) -> String {
    let folder = folder(&[("in/a.txt", b"A text.")]);
    load(folder.path(), &format!("[[stage]]\n{written}\n"), &[]).err().expect(written).to_string()
}

#[test]
fn comments_are_those_of_the_language_of_each_file() {
    let files = [
        ("a.py", "# Says how much it is.\ndef much():\n    return 42\n"),
        ("b.py", "def much():\n    return 42\n"),
        ("c.rs", "// Says how much it is.\nfn much() -> u32 {\n    42\n}\n"),
        ("d.rs", "fn much() -> u32 {\n    42\n}\n"),
        ("notes.md", "How much\n\nIt is about numbers, and those who count them.\n"),
    ];
    let ran = stage(&files, "use = \"code\"\nnum_lines = [2, 100]", &[]);
    assert_eq!(ran.column("id"), ["in/a.py", "in/c.rs", "in/notes.md"]);
    assert_eq!(ran.dropped("comment_ratio"), 2);
    let score = &ran.stats.stages.last().unwrap().tally.scores["comment_ratio"];
    assert_eq!((score.histogram.total(), score.limits.as_slice()), (4, [0.01, 0.85].as_slice()));
    // Records of one file give their file names in a column.
    let lines = "{\"text\":\"# One\\nx = 1\",\"path\":\"a.py\"}\n{\"text\":\"# One\\nlet x = 1;\",\"path\":\"a.rs\"}\n\
                 {\"text\":\"let x = 1;\"}\n";
    let written = "use = \"code\"\nnum_lines = [1, 100]\nfile_column = \"path\"";
    let ran = stage(&[("a.jsonl", lines)], written, &["input.columns=[\"path\"]"]);
    assert_eq!(ran.column("id"), ["in/a.jsonl#1", "in/a.jsonl#3"]);
}

#[test]
fn a_table_of_extensions_decides() {
    let table = "language,extension,Include,Long_line_threshold,Alphanum_threshold,Alpha filter\n\
                 python,py,1,60,,\nrust,rs,0,,,\n";
    let long = format!("x = \"{}\"\n", "long ".repeat(30));
    let files =
        [("a.py", "x = one + two\n"), ("b.py", &long), ("c.rs", "fn f() {}\n"), ("d.txt", "Some words.\n")];
    let files: Vec<(&str, &str)> = files.into_iter().chain([("../rules.csv", table)]).collect();
    let written =
        "use = \"code\"\nnum_lines = [1, 100]\ncomments = \"none\"\nextensions = \"FOLDER/rules.csv\"";
    let ran = stage(&files, written, &[]);
    assert_eq!(ran.column("id"), ["in/a.py"]);
    for reason in ["extensions.line_length", "extensions.excluded", "extensions.unknown"] {
        assert_eq!(ran.dropped(reason), 1, "{reason}");
    }
}

#[test]
fn pages_are_cleaned_as_c4() {
    let page = "Menu\nThe first sentence stays here. So does the second one.\nPlease enable javascript for this.\n\
                The third line stays[1] too.";
    let files = [
        ("a.txt", page),
        ("b.txt", "Menu\nHome"),
        ("c.txt", "A line with a { stands here."),
        ("../bad.txt", "Awful\n"),
    ];
    let files: Vec<(&str, &str)> =
        files.into_iter().chain([("d.txt", "What an awful thing to say.")]).collect();
    let ran = stage(&files, "use = \"c4\"\nmin_sentences = 1\nbad_words_file = \"FOLDER/bad.txt\"", &[]);
    let kept = "The first sentence stays here. So does the second one.\nThe third line stays too.";
    assert_eq!(ran.column("text"), [kept]);
    for reason in ["min_sentences", "curly_bracket", "bad_words"] {
        assert_eq!(ran.dropped(reason), 1, "{reason}");
    }
    assert_eq!(ran.stats.stages.last().unwrap().tally.groups["changed"]["documents changed"].documents, 1);
}

#[test]
fn characters_and_tokens_are_counted() {
    let files = [("a.txt", "abba cab"), ("b.txt", "xyz abba"), ("../usual.txt", "a\nb\nc\n \n]\nx\n")];
    let ran = stage(&files, "use = \"histogram\"\nfile = \"FOLDER/usual.txt\"", &[]);
    assert_eq!((ran.column("id"), ran.dropped("threshold")), (vec!["in/a.txt".to_owned()], 1));

    let tokenizer = tempfile::tempdir().unwrap();
    Tokenizer::train_bpe(["aaaa ".repeat(50)].into_iter(), 259, &["<|endoftext|>"])
        .unwrap()
        .save_dir(tokenizer.path())
        .unwrap();
    let files = [("a.txt", "aaaaaaaaaaaaaaaa"), ("b.txt", "qwertyuiopasdfgh"), ("c.txt", "aa")];
    let written = format!(
        "use = \"tokens\"\ntokenizer = \"{}\"\ntoken_count = [2, 100]\nfertility = 1.5",
        tokenizer.path().display()
    );
    let ran = stage(&files, &written, &[]);
    assert_eq!(ran.column("id"), ["in/a.txt"]);
    assert_eq!((ran.dropped("token_count"), ran.dropped("fertility")), (1, 1));
    assert_eq!(ran.stats.stages.last().unwrap().tally.scores["token_count"].histogram.total(), 3);
}

#[test]
fn pages_are_extracted_in_their_language() {
    let german = "Der Ausschuss traf sich an einem regnerischen Abend und sprach lange über die Straßen, die aus der \
                  Stadt in die Dörfer führen und die im Winter nicht zu befahren sind, weil Schnee auf ihnen liegt.";
    let english = "The committee met on a rainy evening and spoke for a long time about the roads that lead out of the \
                   city and into the villages, which cannot be used in the winter because of the snow that lies on them.";
    let page = |text: &str| {
        format!("<html><body><article><p>{text}</p><p>{text} It is so.</p></article></body></html>")
    };
    let (german, english) = (page(german), page(english));
    let files = [("a.html", german.as_str()), ("b.html", english.as_str()), ("c.txt", "No page.")];
    let ran = stage(&files, "use = \"extract\"\nhtml = { method = \"justext\" }", &[]);
    assert!(ran.column("text")[0].contains("regnerischen"), "{:?}", ran.column("text"));
    let groups = &ran.stats.stages[1].tally.groups["page_language"];
    assert_eq!((groups["de_Latn"].documents, groups["en_Latn"].documents, groups.len()), (1, 1, 2));
    let sql = "select language from extract order by id";
    let mut tables = fathom_curate::tables::Tables::new(&fathom_curate::tables::TableOptions {
        memory_bytes: 64 << 20,
        spill: ran.folder.path().join("spill"),
    })
    .unwrap();
    tables.register("extract", &ran.stats.tables[0].folder).unwrap();
    assert_eq!(
        tables.query(sql).unwrap().rows,
        [["de_Latn".into()], ["en_Latn".into()], [serde_json::Value::Null]]
    );
}

#[test]
fn settings_that_let_nothing_pass_are_refused_with_their_key() {
    for (written, parts) in [
        ("use = \"heuristics\"\nword_count = [100, 2]", ["`stage.heuristics.word_count`", "[100, 2]"]),
        (
            "use = \"heuristics\"\ngopher = { word_count = [9, 2] }",
            ["`stage.heuristics.gopher.word_count`", "[9, 2]"],
        ),
        (
            "use = \"heuristics\"\nword_count = \"many\"",
            ["`stage.heuristics.word_count`", "expected [a number, a number]"],
        ),
        (
            "use = \"heuristics\"\npunctuation = \"many\"",
            ["`stage.heuristics.punctuation`", "expected a number of 0 or more"],
        ),
        ("use = \"code\"\ncomment_ratio = [0.9, 0.1]", ["`stage.code.comment_ratio`", "[0.9, 0.1]"]),
        ("use = \"code\"\ncomments = \"cobol\"", ["`stage.code.comments`", "python"]),
        (
            "use = \"language\"\nlanguages = [\"english\"]",
            ["`stage.language.languages`", "write `en` for it"],
        ),
        ("use = \"language\"\nlanguages = [\"xx\"]", ["`stage.language.languages`", "finds af, ak"]),
        ("use = \"length\"\nmin_chars = 9\nmax_chars = 3", ["`stage.length.min_chars`", "`max_chars`"]),
        (
            "use = \"extract\"\nhtml = { min_stop_words = 32.0 }",
            ["`stage.extract.html.min_stop_words`", "32"],
        ),
        ("use = \"histogram\"", ["`stage.histogram.file`", "not set"]),
        ("use = \"tokens\"", ["`stage.tokens.tokenizer`", "not set"]),
    ] {
        let said = refused(written);
        assert!(parts.iter().all(|part| said.contains(part)), "{written}: {said}");
    }
}

#[test]
fn a_few_documents_are_all_in_the_distributions() {
    let lines: String = (0..8)
        .map(|n| format!("{{\"text\":\"{} {n}\"}}\n", "the lamps burnt all night and ".repeat(3 * n)))
        .collect();
    let ran = stage(&[("a.jsonl", &lines)], "use = \"heuristics\"", &[]);
    let scores = &ran.stats.stages.last().unwrap().tally.scores;
    assert_eq!(scores["word_count"].histogram.total(), 8);
    assert!(!scores["word_count"].dropped.is_empty() && !scores["word_count"].kept.is_empty());
}

#[test]
fn a_model_of_quality_is_trained_on_files_and_its_lowest_score_holds() {
    let good = [
        "the theorem follows from the lemma",
        "we measure the effect in two samples",
        "a proof is given here",
    ];
    let other = ["click here to win a prize", "cheap pills buy now", "subscribe and share this now"];
    let lines = |texts: [&str; 3]| -> String {
        (0..300).map(|i| format!("{{\"body\":\"{} {}\"}}\n", texts[i % 3], texts[i / 3 % 3])).collect()
    };
    let data = folder(&[("good.jsonl", lines(good).as_bytes()), ("other.jsonl", lines(other).as_bytes())]);
    let mut examples = QualityExamples {
        good: vec![data.path().join("good.jsonl")],
        other: vec![data.path().join("other.jsonl")],
        ..Default::default()
    };
    examples.read.field = "body".to_owned();
    let options =
        QualityTraining { buckets: 1000, dim: 8, learning_rate: 0.5, hold_out: 7, ..Default::default() };
    let path = data.path().join("models/quality.bin");
    let (report, counters) = train_quality(&examples, &options, &path).unwrap();
    assert!(report.accuracy > 0.95 && report.examples == 514 && counters.dropped.is_empty(), "{report:?}");
    let left = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "nothing but the model stays");

    let settings = ["input.field=body"];
    let kept = |rest: &str| {
        let written = format!("use = \"quality\"\nmodel = \"{}\"\n{rest}", path.display());
        let files = [("good.jsonl", lines(good)), ("other.jsonl", lines(other))];
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let ran = stage(&files, &written, &settings);
        let (by_score, by_chance) = (ran.dropped("min_score"), ran.dropped("pareto"));
        let others = ran.column("id").iter().filter(|id| id.starts_with("in/other")).count();
        (others, by_score, by_chance)
    };
    let (others, by_score, by_chance) = kept("");
    assert!(others > 10 && by_score == 0 && by_chance > 100, "{others} {by_score} {by_chance}");
    let (others, by_score, by_chance) = kept("min_score = 0.6");
    assert!(others == 0 && by_score == 300 && by_chance > 0, "{others} {by_score} {by_chance}");
    assert_eq!(kept("pareto = \"none\""), (0, 300, 0));

    let same = QualityExamples { other_label: examples.label.clone(), ..examples.clone() };
    assert!(train_quality(&same, &options, &path).unwrap_err().to_string().contains("`other_label`"));
    examples.read.field = "text".to_owned();
    assert!(matches!(train_quality(&examples, &options, &path), Err(Error::EmptyCorpus { .. })));
}
