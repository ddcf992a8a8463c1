//! Evaluation sets from files, found in documents and cut out of them.

use std::path::PathBuf;

use fathom_curate::decontaminate::{
    CleaningOutcome, DecontaminateOptions, Decontaminator, EvaluationSet, Matches, Removable,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::folder;

/// A sentence of ten words, two texts of more than thirteen, and one too short.
const QUESTIONS: [&str; 4] = [
    "Which river flows through the old harbour town of Brindle?",
    "Seven ships left port. Nine ships came home again at dusk. So, how many captains told the truth about it?",
    "Foxes are (mostly) brown. Owls might (rarely) sing at noon. Hares will often sleep under hedges.",
    "Too short a question.",
];

fn options() -> DecontaminateOptions {
    DecontaminateOptions { min_chars: 1, remove_chars: 1, ..DecontaminateOptions::default() }
}

fn with_questions(options: &DecontaminateOptions) -> Decontaminator {
    let mut decontaminator = Decontaminator::empty(options).unwrap();
    QUESTIONS.iter().for_each(|question| decontaminator.add("quiz", question));
    decontaminator
}

/// Runs both passes over the documents.
fn both(decontaminator: &Decontaminator, documents: &[&str]) -> (Matches, Removable) {
    let mut matches = Matches::default();
    documents.iter().for_each(|text| matches.add(&decontaminator.find(text)));
    let removable = decontaminator.removable(&matches);
    (matches, removable)
}

fn cleaned<'t>(options: &DecontaminateOptions, document: &'t str) -> CleaningOutcome<'t> {
    let decontaminator = with_questions(options);
    let (_, removable) = both(&decontaminator, &[document]);
    decontaminator.clean(document, &removable)
}

#[test]
fn texts_become_grams_of_thirteen_words() {
    let decontaminator = with_questions(&options());
    // One n-gram of ten words, and in each longer text one per word that twelve others follow.
    let lengths = QUESTIONS.map(|question| question.split_whitespace().count());
    let wanted = 1 + (lengths[1] - 12) + (lengths[2] - 12);
    assert_eq!(decontaminator.num_grams(), wanted);
    let report = decontaminator.report(&Matches::default(), 10);
    let quiz = &report.tasks[0];
    assert_eq!((quiz.texts, quiz.too_short_texts, quiz.grams), (4, 1, wanted as u64));
}

#[test]
fn a_match_is_cut_to_the_ends_of_sentences() {
    let text = "Before the leak. which RIVER flows, through the old harbour town of brindle. After the leak.";
    assert_eq!(
        cleaned(&options(), text),
        CleaningOutcome::Pieces(vec!["Before the leak.", " After the leak."])
    );
    // The n-gram ends inside a sentence, whose rest is removed too.
    let text = "A fine day. Seven ships left port. Nine ships came home again at dusk. So, how it ended nobody knows.";
    assert_eq!(cleaned(&options(), text), CleaningOutcome::Pieces(vec!["A fine day."]));
    let text = "A fine day. Bears are (mostly) brown. Owls might (rarely) sing at noon. Hares will often snore. Yes.";
    assert_eq!(cleaned(&options(), text), CleaningOutcome::Whole, "twelve words are not thirteen");
    let text = "Fine. Cats are mostly brown.\nOwls might rarely sing\tat noon. Hares will often sleep under hedges. Yes.";
    assert_eq!(cleaned(&options(), text), CleaningOutcome::Pieces(vec!["Fine.", " Yes."]));
    assert_eq!(cleaned(&options(), "Nothing of the kind."), CleaningOutcome::Whole);
    assert_eq!(cleaned(&options(), ""), CleaningOutcome::Whole);
    assert_eq!(cleaned(&options(), QUESTIONS[0]), CleaningOutcome::Dropped("contaminated"));
}

#[test]
fn two_hundred_characters_go_on_each_side_and_short_rests_with_them() {
    let sentence = "Ein früher Satz mit Umlauten füllt die Seite. ";
    let side = sentence.repeat(20);
    let text = format!("{side}{} {side}", QUESTIONS[0]);
    let CleaningOutcome::Pieces(pieces) = cleaned(&DecontaminateOptions::default(), &text) else { panic!() };
    assert_eq!(pieces.len(), 2);
    let length = sentence.chars().count();
    for piece in &pieces {
        let lost = side.chars().count() - piece.chars().count();
        assert!((197..=202 + length).contains(&lost), "{lost} characters of a side are gone");
        assert!(piece.ends_with("Seite.") || piece.ends_with("Seite. "), "{piece:?}");
    }
    // 300 characters before: at most 100 remain, and pieces of up to 200 are dropped.
    let text = format!("{}{} {side}", sentence.repeat(6), QUESTIONS[0]);
    let CleaningOutcome::Pieces(pieces) = cleaned(&DecontaminateOptions::default(), &text) else { panic!() };
    assert_eq!(pieces.len(), 1);
}

#[test]
fn common_grams_stay_and_repeated_ones_are_counted() {
    let options = options();
    let decontaminator = with_questions(&options);
    let text = format!("Start. {} End.", QUESTIONS[0]);
    for (documents, stays) in [(10, false), (11, true)] {
        let (matches, removable) = both(&decontaminator, &vec![text.as_str(); documents]);
        assert_eq!(matches.documents, documents as u64);
        assert_eq!(decontaminator.clean(&text, &removable) == CleaningOutcome::Whole, stays, "{documents}");
        let report = decontaminator.report(&matches, 1);
        assert_eq!(
            (report.tasks[0].common_grams, report.tasks[0].removed_grams),
            (stays.into(), (!stays).into())
        );
        assert_eq!(report.grams[0].gram, "which river flows through the old harbour town of brindle");
        assert_eq!((report.grams[0].matches, report.grams[0].removed), (documents as u64, !stays));
    }
}

#[test]
fn documents_in_too_many_pieces_are_dropped() {
    let part = format!("A clean sentence stands here. {} ", QUESTIONS[0]);
    for (leaks, wanted) in [(9, 10), (10, 0)] {
        let text = format!("{}And an end.", part.repeat(leaks) + "It is fine. ");
        match cleaned(&options(), &text) {
            CleaningOutcome::Pieces(pieces) => assert_eq!(pieces.len(), wanted),
            other => assert_eq!((other, wanted), (CleaningOutcome::Dropped("contaminated_too_often"), 0)),
        }
    }
}

#[test]
fn counts_of_parts_add_up() {
    let decontaminator = with_questions(&options());
    let (whole, _) = both(&decontaminator, &[QUESTIONS[0], QUESTIONS[1], QUESTIONS[2]]);
    let (mut first, _) = both(&decontaminator, &[QUESTIONS[0]]);
    let (rest, _) = both(&decontaminator, &[QUESTIONS[1], QUESTIONS[2]]);
    first.merge(&rest);
    assert_eq!(first, whole);
    assert_eq!(whole.counts.iter().sum::<u64>(), 3, "matches do not overlap");
}

#[test]
fn sets_are_read_from_files_of_every_kind() {
    let words = |name: &str| format!("{name} one two three four five six seven eight");
    let quac = format!(r#"{{"questions": ["{}", "{}"]}}"#, words("a"), words("b"));
    let coqa =
        format!(r#"{{"data": [{{"story": "{}", "turns": [{{"text": "{}"}}]}}]}}"#, words("c"), words("d"));
    let dir = folder(&[
        ("quac.jsonl", format!("{quac}\n\n{{\"other\": 1}}\n").as_bytes()),
        ("coqa.json", coqa.as_bytes()),
        ("texts/one.txt", words("e").as_bytes()),
        ("texts/two.md", words("f").as_bytes()),
        ("broken.jsonl", b"{}\n{\"a\": \n"),
    ]);
    let set = |name: &str, path: &str, fields: &[&str]| EvaluationSet {
        name: name.into(),
        path: dir.path().join(path),
        fields: fields.iter().map(|&field| field.into()).collect(),
    };
    let sets = vec![
        set("quac", "quac.jsonl", &["questions"]),
        set("coqa", "coqa.json", &["data.story", "data.turns.text"]),
        set("texts", "texts", &["text"]),
    ];
    let decontaminator = Decontaminator::new(&DecontaminateOptions { sets, ..options() }).unwrap();
    assert_eq!(decontaminator.num_grams(), 6);
    for name in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(decontaminator.find(&format!("x {} y", words(name))).len(), 1, "{name}");
    }
    let tasks: Vec<_> =
        decontaminator.report(&Matches::default(), 0).tasks.into_iter().map(|task| task.task).collect();
    assert_eq!(tasks, ["quac", "coqa", "texts"]);
    for (set, says) in [
        (set("quac", "quac.jsonl", &["question"]), "the field `question` of `quac` holds no text"),
        (set("quac", "quac.jsonl", &[]), "name the fields"),
        (set("broken", "broken.jsonl", &["a"]), "line 2"),
        (set("none", "none.jsonl", &["a"]), "cannot read"),
    ] {
        let error = Decontaminator::new(&DecontaminateOptions { sets: vec![set], ..options() }).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let none = DecontaminateOptions { min_ngram_words: 14, ..options() };
    assert!(Decontaminator::empty(&none).unwrap_err().to_string().contains("max_ngram_words"));
}

#[test]
fn sets_that_find_nothing_are_reported() {
    let dir = folder(&[
        (
            "quiz.jsonl",
            b"{\"question\": \"Who was it?\", \"choices\": {\"text\": [\"a\", \"b\"]}, \"n\": 1}\n",
        ),
        ("long.jsonl", b"{\"text\": \"one two three four five six seven eight nine\"}\n"),
    ]);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let refused = |sets: Value| {
        let options: DecontaminateOptions = serde_json::from_value(json!({ "sets": sets })).unwrap();
        Decontaminator::new(&options).unwrap_err().to_string()
    };
    let error = refused(json!([]));
    assert!(error.contains("sets") && error.contains("quiz.jsonl"), "{error}");
    let error = refused(json!([at("quiz.jsonl")]));
    assert!(error.contains("the field `text` of `quiz` holds no text"), "{error}");
    assert!(error.contains("text is in choices.text, question;"), "{error}");
    let quiz = json!({ "path": at("quiz.jsonl"), "fields": ["question"] });
    let error = refused(json!([quiz]));
    assert!(error.contains("min_ngram_words") && error.contains("quiz"), "{error}");
    let error = refused(json!([at("long.jsonl"), format!("long={}", at("quiz.jsonl"))]));
    assert!(error.contains("two sets called `long`"), "{error}");
    // With another set that can be found, a set with only short texts is reported instead of refused.
    let options: DecontaminateOptions =
        serde_json::from_value(json!({ "sets": [quiz, at("long.jsonl")] })).unwrap();
    let decontaminator = Decontaminator::new(&options).unwrap();
    let tasks = decontaminator.report(&Matches::default(), 0).tasks;
    assert_eq!((tasks[0].task.as_str(), tasks[0].too_short_texts, tasks[0].grams), ("quiz", 1, 0));
    assert_eq!((tasks[1].task.as_str(), tasks[1].too_short_texts, tasks[1].grams), ("long", 0, 1));
    let found = decontaminator.find("0 one two three four five six seven eight nine 10");
    assert_eq!(decontaminator.sets_of(&found), ["long"]);
    assert_eq!(decontaminator.files(), [dir.path().join("quiz.jsonl"), dir.path().join("long.jsonl")]);
}

#[test]
fn a_line_of_a_set_that_is_too_long_is_refused_by_its_number() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.jsonl.gz");
    let file = std::fs::File::create(&path).unwrap();
    let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    gz.write_all(b"{\"text\": \"a\"}\n").unwrap();
    for _ in 0..70 {
        gz.write_all(&[b' '; 1 << 20]).unwrap();
    }
    gz.finish().unwrap();
    let sets = vec![EvaluationSet { name: "set".into(), path, fields: vec!["text".into()] }];
    let refused = Decontaminator::new(&DecontaminateOptions { sets, ..Default::default() }).unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("set.jsonl.gz") && said.contains("line 2 is longer than 67108864 bytes"), "{said}");
}

#[test]
fn a_set_that_is_one_huge_value_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.json");
    std::fs::File::create(&path).unwrap().set_len((256 << 20) + 1).unwrap();
    let sets = vec![EvaluationSet { name: "set".into(), path, fields: vec!["text".into()] }];
    let refused = Decontaminator::new(&DecontaminateOptions { sets, ..Default::default() }).unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("more than 268435456 bytes; write it as JSON lines"), "{said}");
}

#[test]
fn a_set_may_be_just_its_path() {
    let read = |set: Value| {
        let options: Result<DecontaminateOptions, _> = serde_json::from_value(json!({ "sets": [set] }));
        options.map(|options| options.sets[0].clone())
    };
    let set = |name: &str, path: &str| EvaluationSet {
        name: name.into(),
        path: path.into(),
        fields: vec!["text".into()],
    };
    assert_eq!(read(json!("data/eval/x.test.jsonl.gz")).unwrap(), set("x", "data/eval/x.test.jsonl.gz"));
    assert_eq!(read(json!("race=data/eval/")).unwrap(), set("race", "data/eval/"));
    assert_eq!(read(json!({ "path": "data/eval/" })).unwrap(), set("eval", "data/eval/"));
    let error = read(json!(5)).unwrap_err().to_string();
    assert!(error.contains("expected a path, or { name"), "{error}");
    let error = read(json!({ "path": "a", "feilds": [] })).unwrap_err().to_string();
    assert!(error.contains("`feilds`") && error.contains("`fields`"), "{error}");
}

#[test]
fn options_read_as_they_are_written() {
    let json =
        r#"{"sets": [{"name": "race", "path": "race.jsonl", "fields": ["question"]}], "max_matches": 5}"#;
    let options: DecontaminateOptions = serde_json::from_str(json).unwrap();
    assert_eq!((options.max_ngram_words, options.max_matches, options.max_splits), (13, 5, 10));
    assert_eq!(options.sets[0].path, PathBuf::from("race.jsonl"));
    assert!(serde_json::from_str::<DecontaminateOptions>(r#"{"max_match": 5}"#).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// After cleaning, no removable n-gram is left in any piece, whatever the text.
    #[test]
    fn nothing_removable_is_left(
        words in prop::collection::vec("[abc]|[abc][.!]|ä|\u{1F642}\\.", 0..120),
        remove_chars in 0usize..20,
    ) {
        let options = DecontaminateOptions {
            max_ngram_words: 4, min_ngram_words: 2, min_chars: 0, remove_chars, max_splits: 1000, max_matches: 1000,
            ..DecontaminateOptions::default()
        };
        let mut decontaminator = Decontaminator::empty(&options).unwrap();
        for text in ["a b c a b", "c c", "ä a ä"] {
            decontaminator.add("abc", text);
        }
        let text = words.join(" ");
        let (_, removable) = both(&decontaminator, &[&text]);
        if let CleaningOutcome::Pieces(pieces) = decontaminator.clean(&text, &removable) {
            prop_assert!(!decontaminator.find(&text).is_empty());
            for piece in pieces {
                prop_assert!(text.contains(piece));
                prop_assert_eq!(decontaminator.clean(piece, &removable), CleaningOutcome::Whole, "{:?} of {:?}", piece, text);
            }
        }
    }
}
