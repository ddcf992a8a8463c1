//! Sets of RULER's tasks are those that NVIDIA's scripts write (`oracle/ruler.py`).

use std::fs;
use std::path::{Path, PathBuf};

use fathom_eval::Result;
use fathom_eval::ruler::{Request, rows};
use fathom_eval::tasks::{Index, Options, Sets, digest, prepare};
use fathom_text::Tokenizer;
use serde_json::{Map, Value};

/// The tasks that need no file.
const OFFLINE: [&str; 6] = ["niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe"];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_ruler")
}

fn drawn(task: &str, tokens: usize, rows_wanted: usize, seed: u64) -> Result<Vec<Map<String, Value>>> {
    let tokenizer = Tokenizer::from_dir(golden()).unwrap();
    let folder = golden();
    let request =
        Request { task, tokens, template_tokens: 0, rows: rows_wanted, seed, folder: Some(&folder) };
    rows(&request, &tokenizer)
}

/// `json.dumps(row)`, which writes ASCII alone.
fn dumped(row: Map<String, Value>) -> String {
    let text = fathom_eval::python::printed::json(&row.into(), None);
    let mut out = String::new();
    for c in text.chars() {
        let mut units = [0; 2];
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        c.encode_utf16(&mut units).iter().for_each(|unit| out += &format!("\\u{unit:04x}"));
    }
    out + "\n"
}

/// Compares all golden sets of tasks.
fn check(is_checked: impl Fn(&str) -> bool) {
    let sets: Vec<Value> = serde_json::from_slice(&fs::read(golden().join("sets.json")).unwrap()).unwrap();
    let mut count = 0;
    for set in sets.iter().filter(|set| is_checked(set["task"].as_str().unwrap())) {
        let number = |key: &str| set[key].as_u64().unwrap();
        let task = set["task"].as_str().unwrap();
        let (tokens, rows) = (number("tokens") as usize, number("rows") as usize);
        let found = drawn(task, tokens, rows, number("seed")).unwrap();
        let at = format!("{task} at {tokens} tokens by seed {}", number("seed"));
        if let Some(first) = set.get("first") {
            assert_eq!(Value::Object(found[0].clone()), *first, "{at}");
        }
        let text: String = found.into_iter().map(dumped).collect();
        assert_eq!(digest(&text), set["sha256"].as_str().unwrap(), "{at}");
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn six_tasks_need_no_file_and_have_the_bytes_of_nvidias_scripts() {
    check(|task| OFFLINE.contains(&task));
}

#[test]
fn the_other_tasks_have_the_bytes_of_nvidias_scripts_over_the_same_files() {
    check(|task| !OFFLINE.contains(&task));
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    for (task, tokens, part) in [
        ("niah_single_9", 4096, "is none of RULER's tasks: niah_single_1"),
        ("niah_single_1", 100, "too short"),
        ("niah_single_1", 200, "the shortest sample has"),
        ("fwe", 60, "too short"),
        ("qa_1", 300, "the shortest sample has"),
        ("vt", 600, "the shortest sample has"),
    ] {
        let error = drawn(task, tokens, 1, 42).unwrap_err().to_string();
        assert!(error.contains(part), "{task} {tokens}: {error}");
    }
    let tokenizer = Tokenizer::from_dir(golden()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let request = Request {
        task: "qa_2",
        tokens: 4096,
        template_tokens: 0,
        rows: 1,
        seed: 42,
        folder: Some(folder.path()),
    };
    let error = rows(&request, &tokenizer).unwrap_err().to_string();
    assert!(error.contains("hotpotqa.json") && error.contains("ruler_offline"), "{error}");
    fs::write(folder.path().join("hotpotqa.json"), "[]").unwrap();
    let error = rows(&request, &tokenizer).unwrap_err().to_string();
    assert!(error.contains("has no questions"), "{error}");
}

#[test]
fn lengths_are_groups_of_tasks_with_room_for_answers() {
    let tokenizer = Tokenizer::from_dir(golden()).unwrap();
    let mut index = Index::open(None).unwrap();
    index.draw(&[1024, 2048]);
    let nodes = index.find(&["ruler_offline".to_string()]).unwrap();
    assert_eq!(nodes[0].tasks().len(), 12);
    assert_eq!(index.find(&["ruler_2048".to_string()]).unwrap()[0].tasks().len(), 13);
    let nodes = index.find(&["ruler_1024_fwe".to_string()]).unwrap();
    let options = Options { limit: Some(0.004), ..Options::default() };
    let none = prepare(&nodes, &Sets::default(), &options).unwrap_err().to_string();
    assert!(none.contains("drawn by a tokenizer"), "{none}");
    let sets = Sets { tokenizer: Some(&tokenizer), template_tokens: 24, ..Sets::default() };
    let prepared = prepare(&nodes, &sets, &options).unwrap();
    let split = prepared[0].1.split("test");
    assert_eq!(split.rows.len(), 2);
    assert_eq!(split.rows[0]["length_w_model_temp"], split.rows[0]["length"].as_u64().unwrap() + 24);
    assert!(split.rows[0]["length"].as_u64().unwrap() <= 1000, "{}", split.rows[0]["length"]);
}
