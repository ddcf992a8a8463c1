//! Requests to a model are, to the byte, those of lm-evaluation-harness (`oracle/harness.py`).

use std::fs;
use std::path::Path;

use fathom_eval::python::printed;
use fathom_eval::tasks::{Index, Options, Sets, Subject, digest, prepare, run};
use serde_json::Value;

use crate::Rule;

/// The tasks of the golden files whose requests are scored; generated answers need a model.
const SCORED: [&str; 5] = ["choices", "letters_group", "blanks", "last_word", "whole_texts"];

#[test]
fn requests_are_those_of_the_harness_to_the_byte() {
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_harness").canonicalize().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = golden.join("data").display().to_string();
    for file in fs::read_dir(golden.join("tasks")).unwrap() {
        let file = file.unwrap().path();
        let text = fs::read_to_string(&file).unwrap().replace("@DATA@", &data);
        fs::write(folder.path().join(file.file_name().unwrap()), text).unwrap();
    }
    let expected: Value =
        serde_json::from_slice(&fs::read(golden.join("expected/llama.json")).unwrap()).unwrap();
    let nodes = Index::open(Some(folder.path())).unwrap().find(&SCORED.map(str::to_string)).unwrap();
    let options = Options::default();
    let prepared = prepare(&nodes, &Sets::default(), &options).unwrap();
    let (model, tokenizer) = (Rule::new(|_, _| 2.0, 321), crate::tokenizer());
    let mut subject = Subject::new(&model, &tokenizer, 320);
    let results = run(&nodes, &prepared, &mut subject, &options).unwrap();
    for task in &results.tasks {
        let name = &task.config.name;
        let of_task = expected["samples"][name].as_array().unwrap();
        assert_eq!(task.samples.len(), of_task.len(), "{name}");
        for (own, golden) in task.samples.iter().zip(of_task) {
            let asked = own["arguments"].as_object().unwrap().values();
            let asked: Vec<Value> =
                asked.map(|it| it.as_object().unwrap().values().cloned().collect()).collect();
            let asked = digest(&printed::json(&asked.into(), None));
            assert_eq!(asked[..16], golden["asked"].as_str().unwrap()[..], "{name}: {}", own["arguments"]);
            assert_eq!(own["target"], golden["target"], "{name}");
            assert_eq!(
                own["doc_hash"].as_str().unwrap()[..16],
                golden["doc_hash"].as_str().unwrap()[..],
                "{name}"
            );
        }
    }
    let json = results.json();
    for key in ["group_subtasks", "n-samples", "n-shot", "higher_is_better", "versions"] {
        for (name, value) in json[key].as_object().unwrap() {
            assert_eq!(*value, expected[key][name], "{key} of {name}");
        }
    }
}
