//! Tasks give the results of lm-evaluation-harness 0.4.13 (`oracle/harness.py`).

use std::fs;
use std::path::{Path, PathBuf};

use fathom_app::tasks::{Ran, Request, compared, tasks};
use fathom_app::{Machine, Silent};
use fathom_tensor::DType;
use fathom_train::recipe::MachineKind;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The tasks of the golden files.
const TASKS: &str = "choices letters_group blanks last_word whole_texts sums translate answers";
/// Resamples of the golden files.
const RESAMPLES: usize = 1000;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_harness").canonicalize().unwrap()
}

/// Copies the task files with the folder of their data.
fn task_files(to: &Path) {
    for file in fs::read_dir(golden().join("tasks")).unwrap() {
        let file = file.unwrap().path();
        let text = fs::read_to_string(&file).unwrap();
        let data = golden().join("data").display().to_string();
        fs::write(to.join(file.file_name().unwrap()), text.replace("@DATA@", &data)).unwrap();
    }
}

fn request(model: &str, folder: &Path, names: &str) -> Request {
    Request {
        model: golden().join("models").join(model),
        tasks: names.split_whitespace().map(str::to_string).collect(),
        tasks_dir: Some(folder.to_path_buf()),
        dtype: Some(DType::F32),
        resamples: RESAMPLES,
        ..Request::default()
    }
}

fn ran(request: &Request) -> Result<Ran, String> {
    let machine = Machine::of_kind(MachineKind::Cpu, 2, &Silent);
    tasks(request, &machine, &Silent).map_err(|error| error.to_string())
}

/// Asserts that two values are equal, numbers within `tolerance`.
fn close(found: &Value, expected: &Value, tolerance: f64, at: &str) {
    match (found, expected) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{at}: {a} instead of {b}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{at}");
            a.iter().zip(b).enumerate().for_each(|(i, (a, b))| close(a, b, tolerance, &format!("{at}[{i}]")));
        }
        (Value::Object(a), Value::Object(b)) => {
            let names = |map: &Map<String, Value>| {
                let mut names: Vec<String> = map.keys().cloned().collect();
                names.sort();
                names
            };
            assert_eq!(names(a), names(b), "{at}");
            a.iter().for_each(|(name, value)| close(value, &b[name], tolerance, &format!("{at}.{name}")));
        }
        // Python's booleans are numbers.
        (Value::Number(a), Value::Bool(b)) => assert_eq!(a.as_f64(), Some(f64::from(u8::from(*b))), "{at}"),
        (a, b) => assert_eq!(a, b, "{at}"),
    }
}

/// `json.dumps` of what was asked about an item, hashed as the oracle does.
fn asked(sample: &Value) -> String {
    let all: Vec<Value> = sample["arguments"]
        .as_object()
        .unwrap()
        .values()
        .map(|it| it.as_object().unwrap().values().cloned().collect())
        .collect();
    let text = fathom_eval::python::printed::json(&all.into(), None);
    Sha256::digest(text.as_bytes())[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn agrees(model: &str) {
    agrees_on(model, TASKS);
}

fn agrees_on(model: &str, tasks: &str) {
    let folder = tempfile::tempdir().unwrap();
    task_files(folder.path());
    let found = ran(&request(model, folder.path(), tasks)).unwrap();
    let text = fs::read_to_string(golden().join(format!("expected/{model}.json"))).unwrap();
    let data = golden().join("data").display().to_string();
    let text = text
        .replace("@DATA@", &data)
        .replace("@TASKS@", &folder.path().canonicalize().unwrap().display().to_string());
    let mut expected: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let samples = expected.remove("samples").unwrap();
    for task in &found.results.tasks {
        let name = &task.config.name;
        let of_task = samples[name].as_array().unwrap();
        assert_eq!(task.samples.len(), of_task.len(), "{name}");
        for (own, golden) in task.samples.iter().zip(of_task) {
            let at = format!("{model} {name} {} {}", own["doc_id"], own["filter"]);
            assert_eq!(asked(own), golden["asked"].as_str().unwrap(), "{at}: {}", own["arguments"]);
            assert_eq!(own["target"], golden["target"], "{at}");
            assert_eq!(
                own["doc_hash"].as_str().unwrap()[..16],
                golden["doc_hash"].as_str().unwrap()[..],
                "{at}: {}",
                own["doc"]
            );
            let first: Vec<Value> =
                own["resps"].as_array().unwrap().iter().map(|all| json!([all[0]])).collect();
            close(&first.into(), &golden["resps"], 1e-4 / 30.0, &at);
            close(&own["filtered_resps"], &golden["filtered"], 1e-4 / 30.0, &at);
            for (metric, value) in golden["values"].as_object().unwrap() {
                close(&own[metric], value, 1e-5, &format!("{at} {metric}"));
            }
        }
    }
    for (key, value) in &expected {
        let tolerance = if key == "results" || key == "groups" { 2e-5 } else { 0.0 };
        let mut value = value.clone();
        if key == "configs" {
            // The harness adds the arguments of its own model.
            for task in value.as_object_mut().unwrap().values_mut() {
                task["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .retain(|key, _| key == "version" || key == "config_source");
            }
        }
        close(&found.json[key], &value, tolerance, &format!("{model} {key}"));
    }
}

#[test]
fn a_llama_has_the_results_of_the_harness() {
    agrees("llama");
}

#[test]
fn a_qwen_without_begin_of_text_has_the_results_of_the_harness() {
    agrees("qwen2");
}

#[test]
fn a_gpt2_with_learned_positions_has_the_results_of_the_harness() {
    agrees("gpt2");
}

#[test]
fn a_t5_that_reads_contexts_as_sources_has_the_results_of_the_harness() {
    agrees_on("t5", &TASKS.replace("whole_texts", ""));
    let folder = tempfile::tempdir().unwrap();
    task_files(folder.path());
    let whole = ran(&request("t5", folder.path(), "whole_texts")).unwrap_err();
    assert!(whole.contains("whole_texts") && whole.contains("loglikelihood_rolling"), "{whole}");
}

#[test]
fn limited_results_say_so_and_a_killed_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    task_files(folder.path());
    let out = folder.path().join("out/results.json");
    let limited = Request {
        limit: Some(3.0),
        out: Some(out.clone()),
        log_samples: true,
        ..request("qwen2", folder.path(), "yes_no")
    };
    let first = ran(&limited).unwrap();
    assert_eq!(
        (first.kept, &first.json["n-samples"]["yes_no"]),
        (0, &json!({"original": 14, "effective": 3}))
    );
    assert_eq!(
        (&first.json["fathom"]["limited"], &first.json["config"]["limit"]),
        (&json!(true), &json!(3.0))
    );
    // The last line of a killed run is torn.
    let answers = folder.path().join("out/results_answers.jsonl");
    let text = fs::read_to_string(&answers).unwrap();
    fs::write(&answers, &text[..text.len() - 5]).unwrap();
    let second = ran(&Request { limit: Some(0.5), ..limited }).unwrap();
    assert_eq!((second.kept, second.results.tasks[0].effective), (5, 7));
    let samples = fs::read_to_string(folder.path().join("out/results_samples_yes_no.jsonl")).unwrap();
    assert_eq!(samples.lines().count(), 7);
    let written: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(written["results"], second.json["results"]);
    assert!(second.results.table().contains("|yes_no|"), "{}", second.results.table());
}

#[test]
fn ruler_is_asked_at_lengths_within_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let from = golden().join("models/llama");
    for file in fs::read_dir(&from).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("\"max_position_embeddings\": 320"));
    fs::write(&config, text.replace("\"max_position_embeddings\": 320", "\"max_position_embeddings\": 1280"))
        .unwrap();
    let mut request = Request {
        model: folder.path().to_path_buf(),
        tasks: vec!["ruler_1024_niah_multikey_3".into(), "ruler_1280_fwe".into()],
        lengths: vec![1024, 1280],
        limit: Some(2.0),
        ..Request::default()
    };
    let found = ran(&request).unwrap();
    let lengths = found.json["ruler"]["lengths"].as_array().unwrap();
    assert_eq!((&lengths[0]["tokens"], &lengths[1]["tokens"]), (&json!(1024), &json!(1280)));
    assert_eq!(
        (&found.json["ruler"]["effective_length"], &found.json["ruler"]["all_tasks"]),
        (&json!(null), &json!(false))
    );
    // The prompt, its first token and the answer fit, so that nothing is cut.
    assert!(found.results.tasks.iter().all(|task| task.cut == 0 && task.effective == 2));
    request.lengths = vec![1024, 1280, 2048];
    request.tasks = vec!["ruler_2048_fwe".into()];
    let error = ran(&request).unwrap_err();
    assert!(error.contains("beyond the model's context of 1280"), "{error}");
    request.tasks = vec!["humaneval".into()];
    let error = ran(&request).unwrap_err();
    assert!(error.contains("--run-programs"), "{error}");
}

#[test]
fn results_and_the_page_have_figures_by_language() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("facebook/belebele/data");
    fs::create_dir_all(&data).unwrap();
    for language in ["eng_Latn", "fra_Latn"] {
        let row = json!({
            "flores_passage": "The river.", "question": "What?", "mc_answer1": "a", "mc_answer2": "b", "mc_answer3": "c",
            "mc_answer4": "d", "correct_answer_num": "2",
        });
        fs::write(data.join(format!("{language}.jsonl")), format!("{row}\n{row}\n")).unwrap();
    }
    let out = folder.path().join("one.json");
    let own = Request {
        tasks: vec!["belebele".into()],
        data_dir: Some(folder.path().to_path_buf()),
        out: Some(out.clone()),
        ..request("llama", folder.path(), "")
    };
    let found = ran(&own).unwrap();
    let languages = &found.json["languages"];
    assert_eq!(languages["fra_Latn"]["belebele"]["items"], 2);
    assert!(languages["eng_Latn"]["belebele"]["acc_stderr"].is_f64());
    let page = folder.path().join("page.html");
    compared(&[out.clone(), out], Some(&page)).unwrap();
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains("belebele <small>by language</small>") && page.contains("<tr><td>fra_Latn<td>"),
        "{page}"
    );
}
