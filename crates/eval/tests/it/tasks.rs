//! Task files and sets that cannot be used are refused with their name and what to do.

use std::fs;
use std::path::Path;

use fathom_eval::tasks::{Index, Options, Results, Sets, Subject, prepare, run};
use fathom_eval::{Error, Result};
use serde_json::Value;

use crate::{Rule, tokenizer};

/// A task of four choices over rows in the folder.
const CHOICES: &str = "task: choices\ndataset_path: some/set\ntest_split: test\noutput_type: multiple_choice\n\
                       doc_to_text: '{{q}}'\ndoc_to_target: label\ndoc_to_choice: ['a', 'b']\n";

/// Runs tasks of a folder over a model that finds every token equally likely.
fn ran(folder: &Path, names: &[&str], max_length: usize, options: &Options<'_>) -> Result<Results> {
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let nodes = Index::open(Some(folder))?.find(&names)?;
    let prepared = prepare(&nodes, &Sets { folder: Some(folder), ..Sets::default() }, options)?;
    let (model, tokenizer) = (Rule::new(|_, _| 2.0, max_length + 1), tokenizer());
    let mut subject = Subject::new(&model, &tokenizer, max_length);
    run(&nodes, &prepared, &mut subject, options)
}

/// The message with which a task file over these rows is refused.
fn refused(text: &str, rows: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("task.yaml"), text).unwrap();
    fs::create_dir(folder.path().join("choices")).unwrap();
    fs::write(folder.path().join("choices/test.jsonl"), rows).unwrap();
    ran(folder.path(), &["choices"], 64, &Options::default()).unwrap_err().to_string()
}

/// A task of programs over two rows, of which a fake runner passes those that ask for 1.
const PROGRAMS: &str = "task: programs\ndataset_path: x\ntest_split: test\noutput_type: generate_until\n\
                        doc_to_text: '{{q}}'\ndoc_to_target: ''\nrepeats: 3\n\
                        generation_kwargs: {do_sample: true, temperature: 1.0, max_gen_toks: 2}\n\
                        metric_list: [{metric: pass_at_k, k: [1, 2], program: '{{answer}}|assert {{q}}'}]\n\
                        filter_list: [{name: all, filter: [{function: take_first_k, k: 3}]}]\n";

#[test]
fn programs_of_answers_run_only_if_allowed_and_give_pass_at_k() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("programs.yaml"), PROGRAMS).unwrap();
    fs::create_dir(folder.path().join("programs")).unwrap();
    fs::write(folder.path().join("programs/test.jsonl"), "{\"q\": \"1\"}\n{\"q\": \"0\"}\n").unwrap();
    let error = ran(folder.path(), &["programs"], 64, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("--run-programs"), "{error}");
    let runner = |all: &[String]| Ok(all.iter().map(|program| program.ends_with("|assert 1")).collect());
    let options = Options { run_programs: Some(&runner), ..Options::default() };
    let results = ran(folder.path(), &["programs"], 64, &options).unwrap().json();
    let found = &results["results"]["programs"];
    assert_eq!((&found["pass@1,all"], &found["pass@2,all"]), (&0.5.into(), &0.5.into()), "{found}");
    for (change, part) in [
        (("k: [1, 2]", "k: [4]"), "pass@4 needs as many answers, and `repeats` is 3"),
        (("k: [1, 2]", "k: 0"), "no number from 1 on"),
        (("program: ", "programme: "), "needs a `program`"),
        (("{{q}}'}]", "{{r}}'}]"), "undefined"),
    ] {
        fs::write(folder.path().join("programs.yaml"), PROGRAMS.replace(change.0, change.1)).unwrap();
        let error = ran(folder.path(), &["programs"], 64, &options).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    let row = "{\"q\": \"x\", \"label\": 1}\n";
    let with = |line: &str| format!("{CHOICES}{line}\n");
    for (text, rows, parts) in [
        (with("include: task.yaml"), row, vec!["task.yaml", "includes itself"]),
        (
            with("process_docs: !function utils.clean"),
            row,
            vec!["choices", "`process_docs: !function utils.clean`", "lm_eval run", "fathom serve"],
        ),
        (with("metric_list: [{metric: !function utils.f1}]"), row, vec!["`utils.f1`", "Python"]),
        (with("metric_list: [{metric: accuracy}]"), row, vec!["no metric `accuracy`"]),
        (with("filter_list: [{name: x, filter: [{function: guess}]}]"), row, vec!["no filter `guess`"]),
        (with("doc_to_txt: q"), row, vec!["`doc_to_txt` is no key"]),
        (with("unsafe_code: true"), row, vec!["generated programs"]),
        (
            CHOICES.replace("{{q}}", "{{question}}"),
            row,
            vec!["`doc_to_text`", "undefined", "columns q, label"],
        ),
        (
            CHOICES.replace(
                "{{q}}",
                "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            ),
            row,
            vec!["does not end"],
        ),
        (CHOICES.replace("{{q}}", "{{q"), row, vec!["`doc_to_text`"]),
        (CHOICES.to_string(), "{\"q\": \"x\", \"label\": 7}\n", vec!["label 7 is none of the 2 choices"]),
        (CHOICES.to_string(), "{\"q\": \"x\", \"label\": -1}\n", vec!["label -1 is none of the 2 choices"]),
        (CHOICES.to_string(), "", vec!["split `test` has no rows"]),
        (CHOICES.to_string(), "{\"q\": \n", vec!["test.jsonl"]),
        (CHOICES.replace("some/set", "json"), row, vec![]),
        (CHOICES.replace("['a', 'b']", "label"), row, vec!["makes no list of texts"]),
        (CHOICES.replace("multiple_choice", "choice"), row, vec!["output_type"]),
        (with("num_fewshot: 3"), row, vec!["3 examples are wanted"]),
    ] {
        if parts.is_empty() {
            continue;
        }
        let message = refused(&text, rows);
        for part in parts {
            assert!(message.contains(part), "{message} has no `{part}`");
        }
    }
}

#[test]
fn a_missing_set_is_named_with_where_people_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let message = ran(folder.path(), &["arc_easy"], 64, &Options::default()).unwrap_err().to_string();
    for part in [
        "arc_easy",
        "ARC-Easy",
        "https://huggingface.co/datasets/allenai/ai2_arc",
        "allenai__ai2_arc/ARC-Easy/test.jsonl",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let unknown = ran(folder.path(), &["arcs"], 64, &Options::default()).unwrap_err().to_string();
    assert!(
        unknown.contains("`arcs`") && unknown.contains("arc_easy") && unknown.contains("--tasks-dir"),
        "{unknown}"
    );
}

#[test]
fn long_items_are_cut_from_the_left_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("task.yaml"), CHOICES).unwrap();
    fs::create_dir(folder.path().join("choices")).unwrap();
    let rows =
        format!("{{\"q\": \"{}\", \"label\": 0}}\n{{\"q\": \"x\", \"label\": 1}}\n", "far away. ".repeat(40));
    fs::write(folder.path().join("choices/test.jsonl"), rows).unwrap();
    let results = ran(folder.path(), &["choices"], 16, &Options::default()).unwrap();
    let task = &results.tasks[0];
    assert_eq!((task.cut, task.requests, task.effective), (2, 4, 2));
    assert_eq!(results.json()["results"]["choices"]["acc,none"], 0.5);
    fs::write(
        folder.path().join("task.yaml"),
        CHOICES.replace("'b'", &format!("'{}'", "far away ".repeat(40))),
    )
    .unwrap();
    let message = ran(folder.path(), &["choices"], 16, &Options::default()).unwrap_err().to_string();
    assert!(message.contains("choices") && message.contains("the model's context 16"), "{message}");
}

#[test]
fn the_built_in_tasks_read_sets_in_their_published_columns() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, row: Value| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{row}\n{row}\n")).unwrap();
    };
    let row = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    write(
        "ehovy__race/high/test.jsonl",
        row(r#"{"article": "A.", "question": "Q?", "options": ["a", "b", "c", "d"], "answer": "B"}"#),
    );
    write("piqa/validation.jsonl", row(r#"{"goal": "G", "sol1": "a", "sol2": "b", "label": 0}"#));
    write(
        "allenai/winogrande/winogrande_xl/validation.jsonl",
        row(r#"{"sentence": "The _ was big.", "option1": "cup", "option2": "jar", "answer": "2"}"#),
    );
    write(
        "hellaswag/validation.jsonl",
        row(
            r#"{"activity_label": "Cooking", "ctx_a": "A man [x] cooks.", "ctx_b": "he THEN", "endings": ["eats [title] So", "b", "c", "d"], "label": "3"}"#,
        ),
    );
    let results =
        ran(folder.path(), &["nemo-reasoning"], 64, &Options { limit: Some(1.0), ..Options::default() })
            .unwrap();
    let asked = |task: usize, request: usize| {
        let arguments = &results.tasks[task].samples[0]["arguments"][format!("gen_args_{request}")];
        (arguments["arg_0"].as_str().unwrap().to_string(), arguments["arg_1"].as_str().unwrap().to_string())
    };
    assert_eq!(asked(0, 1), ("Article: A.\n\nQuestion: Q?\nAnswer:".to_string(), " b".to_string()));
    assert_eq!(asked(1, 1), ("Question: G\nAnswer:".to_string(), " b".to_string()));
    assert_eq!(asked(2, 1), ("The jar".to_string(), " was big.".to_string()));
    assert_eq!(asked(3, 0), ("Cooking: A man cooks. He then".to_string(), " eats. So".to_string()));
    let json = results.json();
    assert_eq!(
        json["group_subtasks"]["nemo-reasoning"],
        serde_json::json!(["race", "piqa", "winogrande", "hellaswag"])
    );
    assert!(json["results"]["nemo-reasoning"]["acc,none"].is_f64());
    assert_eq!(json["n-samples"]["race"]["effective"], 1);
    assert!(results.table().contains("| - race"), "{}", results.table());
}

#[test]
fn every_built_in_task_has_a_valid_configuration() {
    let index = Index::open(None).unwrap();
    let names =
        ["mmlu", "nemo-reasoning", "ai2_arc", "boolq", "openbookqa", "sciq", "lambada_openai", "gsm8k"];
    let nodes = index.find(&names.map(str::to_string)).unwrap();
    let tasks: Vec<_> = nodes.iter().flat_map(|node| node.tasks()).collect();
    assert_eq!(tasks.len(), 57 + 4 + 2 + 5);
    for task in tasks {
        fathom_eval::tasks::TaskConfig::new(task, None).unwrap();
    }
    let twice = index.find(&["arc_easy", "ai2_arc"].map(str::to_string));
    assert!(matches!(twice, Err(Error::Task { .. })));
}

#[test]
fn files_that_a_task_names_are_read_with_their_settings() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "[{\"q\": \"x\", \"label\": 0}, {\"q\": \"y\", \"label\": 1}]";
    for (name, text) in [
        ("whole.json", format!("{{\"version\": 2, \"data\": {rows}}}")),
        ("columns.json", "{\"data\": {\"q\": [\"x\", \"y\"], \"label\": [0, 1]}}".into()),
        ("rows.csv", "q;label\nx;0\ny;1\n".into()),
        ("te-1.jsonl", "{\"q\": \"x\", \"label\": 0}\n".into()),
        ("te-2.jsonl", "{\"q\": \"y\", \"label\": 1}\n".into()),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let of = |path: &str, kwargs: &str| {
        let set = format!("dataset_path: {path}\ndataset_kwargs: {{{kwargs}}}");
        fs::write(folder.path().join("task.yaml"), CHOICES.replace("dataset_path: some/set", &set)).unwrap();
        ran(folder.path(), &["choices"], 64, &Options::default()).map_err(|error| error.to_string())
    };
    for (path, kwargs) in [
        ("json", "data_files: {test: whole.json}, field: data"),
        ("json", "data_files: {test: columns.json}, field: data, trust_remote_code: true"),
        ("csv", "data_files: {test: rows.csv}, sep: ';'"),
        ("json", "data_files: {test: 'te*.jsonl'}, data_dir: ."),
    ] {
        let found = of(path, kwargs).unwrap().json();
        assert_eq!(found["n-samples"]["choices"]["original"], 2, "{kwargs}");
    }
    for (path, kwargs, part) in [
        ("json", "data_files: {test: whole.json}, field: rows", "has no list `rows`"),
        ("json", "data_files: {test: whole.json}, chunksize: 3", "`dataset_kwargs.chunksize` is not read"),
        ("csv", "data_files: {test: rows.csv}, sep: '||'", "has to be one ASCII character"),
        ("json", "data_files: {test: 'no*.json'}", "does not exist"),
    ] {
        let error = of(path, kwargs).map(|_| ()).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}
