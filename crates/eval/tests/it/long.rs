//! Sets of NoLiMa and HELMET are those of their own code (`oracle/long_sets.py`); LongBench's prompts and cuts.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use fathom_base::{GenerateRequest, Generation, LanguageModel, Numbers, Prompt};
use fathom_eval::Result;
use fathom_eval::tasks::{Data, Index, Options, Sets, Subject, TaskConfig, digest, prepare, run};
use fathom_text::Tokenizer;
use serde_json::{Map, Value, json};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_eval")
}

/// The rows of a set by its task file.
fn rows(path: &str, kwargs: Value, folder: &Path) -> Result<Vec<Map<String, Value>>> {
    let file = json!({
        "task": "set", "dataset_path": path, "dataset_kwargs": kwargs, "test_split": "test", "doc_to_text": "prompt",
        "doc_to_target": "answers", "output_type": "generate_until",
    });
    let config = TaskConfig::new(file.as_object().unwrap(), None)?;
    let tokenizer = Tokenizer::from_dir(golden().join("../golden_ruler")).unwrap();
    let sets = Sets { folder: Some(folder), tokenizer: Some(&tokenizer), template_tokens: 0 };
    Ok(Data::open(&config, &sets, &|rows| rows)?.split("test").rows.clone())
}

fn check(expected: &Value, found: &[Map<String, Value>], at: &str) {
    assert_eq!(found[0]["prompt"], expected["first"], "{at}");
    let prompts: Vec<String> =
        found.iter().map(|row| digest(row["prompt"].as_str().unwrap())[..16].to_string()).collect();
    assert_eq!(json!(prompts), expected["prompts"], "{at}");
    let answers: Vec<&Value> = found.iter().map(|row| &row["answers"]).collect();
    assert_eq!(json!(answers), expected["answers"], "{at}");
}

fn read(name: &str) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(golden().join(name)).unwrap()).unwrap()
}

#[test]
fn needles_of_nolima_stand_where_its_code_puts_them() {
    for (tokens, expected) in read("nolima.json") {
        let kwargs = json!({"set": "needle_set", "tokens": tokens.parse::<u64>().unwrap()});
        check(&expected, &rows("nolima", kwargs, &golden()).unwrap(), &tokens);
    }
    let refused = |tokens: u64, folder: &Path| {
        rows("nolima", json!({"tokens": tokens}), folder).unwrap_err().to_string()
    };
    assert!(refused(40_000, &golden()).contains("the book is too short"));
    let other = tempfile::tempdir().unwrap();
    fs::create_dir_all(other.path().join("needlesets")).unwrap();
    let needle = json!([{"id": "0001", "needle": "{1}", "questions": {"q": "?"}, "tests": {"t": {"input_args": ["a"]}}}]);
    fs::write(other.path().join("needlesets/needle_set.json"), needle.to_string()).unwrap();
    let message = refused(300, other.path());
    assert!(message.contains("task_template.txt") && message.contains("run_tests.py"), "{message}");
    let empty = tempfile::tempdir().unwrap();
    let message = refused(300, empty.path());
    assert!(
        message.contains("needle_set.json") && message.contains("huggingface.co/datasets/amodaresi/NoLiMa"),
        "{message}"
    );
}

#[test]
fn rows_of_helmet_are_those_of_its_code() {
    for (name, expected) in read("helmet.json") {
        let (dataset, file, demos, samples) = match name.as_str() {
            "kilt_nq" | "kilt_popqa_3" => (name.as_str(), "kilt/test.jsonl", "kilt/demos.jsonl", 5),
            "msmarco_few" => ("msmarco_rerank_psg", "msmarco/test.jsonl", "msmarco/few.jsonl", 6),
            "msmarco_many" => ("msmarco_rerank_psg", "msmarco/test.jsonl", "msmarco/many.jsonl", 6),
            "json_kv" => ("json_kv", "json_kv/test.jsonl", "", 8),
            "icl_trec_coarse_50shot_balance" => (name.as_str(), "", "", 500),
            name if name.starts_with("icl") => (name, "", "", 10),
            name => (name, "ruler/test.jsonl", "", 5),
        };
        let kwargs =
            json!({"dataset": dataset, "file": file, "demos": demos, "shots": 2, "samples": samples});
        check(&expected, &rows("helmet", kwargs, &golden()).unwrap(), &name);
    }
    let missing = rows("helmet", json!({"dataset": "json_kv", "file": "json_kv/none.jsonl"}), &golden())
        .unwrap_err()
        .to_string();
    assert!(missing.contains("json_kv/none.jsonl") && missing.contains("princeton-nlp/HELMET"), "{missing}");
    let judged = rows("helmet", json!({"dataset": "narrativeqa_130772"}), &golden()).unwrap_err().to_string();
    assert!(judged.contains("narrativeqa_130772"), "{judged}");
}

#[test]
fn tasks_of_longbench_nolima_and_helmet_have_valid_configurations() {
    let mut index = Index::open(None).unwrap();
    index.draw(&[1000]);
    let count = |name: &str| {
        let nodes = index.find(&[name.to_string()]).unwrap();
        let tasks: Vec<_> = nodes.iter().flat_map(|node| node.tasks()).collect();
        tasks.iter().for_each(|task| _ = TaskConfig::new(task, None).unwrap());
        tasks.len()
    };
    let counts = ["longbench", "longbench_code", "nolima", "nolima_hard", "helmet_131072", "helmet_8192_rag"]
        .map(count);
    assert_eq!(counts, [21, 2, 1, 1, 14, 4]);
}

/// A model that keeps the prompts it gets, and answers nothing.
#[derive(Default)]
struct Listener(RefCell<Vec<Vec<u32>>>);

impl LanguageModel for Listener {
    fn max_tokens(&self) -> usize {
        1 << 20
    }

    fn generate_all(&self, requests: Vec<GenerateRequest>) -> fathom_base::Result<Vec<Vec<Generation>>> {
        let ids = |request: &GenerateRequest| match &request.prompt {
            Prompt::Ids(ids) => ids.clone(),
            other => unreachable!("a prompt of ids, not {other:?}"),
        };
        self.0.borrow_mut().extend(requests.iter().map(ids));
        Ok(vec![Vec::new(); requests.len()])
    }

    fn look(&self, _: &[Vec<u32>], _: Numbers) -> fathom_base::Result<Vec<Vec<f32>>> {
        unreachable!("nothing is scored")
    }
}

#[test]
fn prompts_of_longbench_that_are_too_long_lose_their_middle() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..400).map(|i| format!("line {i}\n")).collect();
    let row = |context: &str| json!({"context": context, "input": "", "answers": ["x"], "all_classes": null, "length": 1});
    fs::write(folder.path().join("lcc.jsonl"), format!("{}\n{}\n", row(&lines), row("int y;\n"))).unwrap();
    let tokenizer = Tokenizer::from_dir(golden().join("../golden_ruler")).unwrap();
    let nodes = Index::open(None).unwrap().find(&["longbench_lcc".to_string()]).unwrap();
    // Code is no question: a chat template would wrap it.
    let wrap = |_: &[Value], _: bool| unreachable!("no template is asked");
    let options = Options { chat: Some(&wrap), ..Options::default() };
    let prepared =
        prepare(&nodes, &Sets { folder: Some(folder.path()), ..Sets::default() }, &options).unwrap();
    let model = Listener::default();
    let (max_length, answer) = (264, 64);
    let mut subject = Subject::new(&model, &tokenizer, max_length);
    let results = run(&nodes, &prepared, &mut subject, &options).unwrap();
    assert_eq!((results.tasks[0].cut, results.tasks[0].effective), (1, 2));
    let prompts: Vec<String> = model.0.borrow().iter().map(|ids| tokenizer.decode_text(ids)).collect();
    assert_eq!(prompts[1], "Please complete the code given below. \nint y;\nNext line of code:\n");
    let whole = format!("Please complete the code given below. \n{lines}Next line of code:\n");
    let ids = tokenizer.encode_prompt(&whole).unwrap();
    let half = (max_length - answer) / 2;
    let ends = [&ids[..half], &ids[ids.len() - half..]].map(|part| tokenizer.decode_text(part));
    assert_eq!(prompts[0], ends.concat());
}
