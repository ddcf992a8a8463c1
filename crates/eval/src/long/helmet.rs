//! HELMET's parts whose rows are plain files: recall, retrieved passages, rankings and examples with labels. Prompts,
//! samples and demonstrations are those of its code by its seed.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::examples::{Demonstrations, Pick};
use super::files::{Files, Row, filled, member};
use super::labels;
use crate::error::Result;

/// Name of its data path in task files.
pub const DATASET: &str = "helmet";
/// Where people get its files.
pub const SOURCE: &str = "https://huggingface.co/datasets/princeton-nlp/HELMET (data.tar.gz)";
/// Seed of its runs.
pub const SEED: u32 = 42;
/// Its configurations at each length (MIT licence): data set, files, tokens of an answer, demonstrations, rows.
const TASKS: &str = include_str!("../../tasks/helmet.jsonl");

/// Text before an answer, and how the answer is scored.
struct Kind {
    /// Beginning of the name of a data set.
    begins: &'static str,
    prompt: &'static str,
    prefix: &'static str,
    metric: fn() -> Value,
}

const MULTI: &str = "Some special magic {type_needle_v} are hidden within the following text. Make sure to memorize it. I will quiz \
                     you about the {type_needle_v} afterwards.\n{context}\nWhat are all the special magic {type_needle_v} for \
                     {query} mentioned in the provided text?";
const SINGLE: &str = "A special magic {type_needle_v} is hidden within the following text. Make sure to memorize it. I will quiz \
                      you about the {type_needle_v} afterwards.\n{context}\nWhat is the special magic {type_needle_v} for {query} \
                      mentioned in the provided text?";
const KINDS: [Kind; 6] = [
    Kind {
        begins: "ruler_niah_mv",
        prompt: MULTI,
        prefix: "The special magic {type_needle_v} for {query} mentioned in the provided text are",
        metric: || json!({"metric": "score", "rule": "contains_any_case", "mean": true}),
    },
    Kind {
        begins: "ruler_niah",
        prompt: SINGLE,
        prefix: "The special magic {type_needle_v} for {query} mentioned in the provided text is",
        metric: || json!({"metric": "score", "rule": "contains_any_case", "mean": true}),
    },
    Kind {
        begins: "json_kv",
        prompt: "{context}\n\nExtract the value corresponding to the specified key in the JSON object below.\n\n{demos}Key: \
                 {question}",
        prefix: "Corresponding value:",
        metric: || json!({"metric": "score", "rule": "substring_exact_match", "prefix": "corresponding value:"}),
    },
    Kind {
        begins: "kilt",
        prompt: "Use the given documents to write a concise and short answer to the question. Write your answer in the \
                 following format:\nAnswer: [answer]\n\n{demos}{context}\n\nQuestion: {question}",
        prefix: "Answer:",
        metric: || json!({"metric": "score", "rule": "substring_exact_match", "prefix": "Answer:"}),
    },
    Kind {
        begins: "msmarco",
        // The letters of "relelvant" are those of its prompt.
        prompt: "You are provided with a list of documents, each indicated by their ID. Rank each document based on their \
                 relevance to the question in descending order from most relelvant to least relevant texts. Include all \
                 documents in the rankings. Write your answer using the unique IDs, with the following format:\nRanking: ID3 > \
                 ID1 > ID2\n\n{demos}{context}\n\nQuery: {question}",
        prefix: "Ranking:",
        metric: || json!({"metric": "score", "rule": "ndcg"}),
    },
    Kind {
        begins: "icl",
        prompt: "Use the provided mapping from the text to label to assign a label to the text. Only output \"label: \
                 {{label}}\" and nothing else. \n\n{context}\n\n{question}",
        prefix: "label:",
        metric: || json!({"metric": "score", "rule": "exact_match", "prefix": "label:"}),
    },
];

fn kind(dataset: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| dataset.starts_with(kind.begins))
}

/// Task files: `helmet_LENGTH_DATASET`, groups `helmet_LENGTH_CATEGORY` and `helmet_LENGTH`.
pub fn task_files() -> Vec<Map<String, Value>> {
    let mean = json!([{"metric": "score", "weight_by_size": false}]);
    let mut files: Vec<Value> = Vec::new();
    let mut groups: Vec<(String, String, Vec<String>)> = Vec::new();
    for row in TASKS.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let (dataset, length) = (text("dataset"), &row["length"]);
        let Some(kind) = kind(dataset) else { continue };
        // `icl_nlu_510shot_balance` is the set `icl_nlu`.
        let alias =
            dataset.split_once("shot").and_then(|it| it.0.rsplit_once('_')).map_or(dataset, |it| it.0);
        let (outer, task) = (format!("helmet_{length}"), format!("helmet_{length}_{alias}"));
        let group = format!("{outer}_{}", text("group"));
        match groups.iter_mut().find(|known| known.1 == group) {
            Some((_, _, members)) => members.push(task.clone()),
            None => groups.push((outer, group, vec![task.clone()])),
        }
        let until = if row["line"] == true { json!(["\n"]) } else { json!([]) };
        files.push(json!({
            "task": task, "task_alias": alias, "dataset_path": DATASET, "test_split": "test",
            "dataset_kwargs": {
                "dataset": dataset, "file": row["file"], "demos": row["demos"], "shots": row["shots"], "samples": row["samples"],
            },
            "output_type": "generate_until", "num_fewshot": 0,
            "doc_to_text": "prompt", "doc_to_target": "answers", "target_delimiter": "",
            "generation_kwargs": {
                "until": until, "do_sample": false, "temperature": 0.0, "max_gen_toks": row["tokens"], "truncation": "middle",
            },
            "metric_list": [(kind.metric)()],
            "metadata": {"version": 1.0},
        }));
    }
    let mut outers: Vec<(String, Vec<String>)> = Vec::new();
    for (outer, group, members) in groups {
        match outers.iter_mut().find(|known| known.0 == outer) {
            Some((_, all)) => all.push(group.clone()),
            None => outers.push((outer, vec![group.clone()])),
        }
        files.push(json!({"group": group, "task": members, "aggregate_metric_list": mean}));
    }
    for (name, members) in outers {
        files.push(json!({"group": name, "task": members, "aggregate_metric_list": mean}));
    }
    files.into_iter().filter_map(|file| file.as_object().cloned()).collect()
}

/// The rows of a data set: those of its files with the columns `prompt` and `answers`.
pub fn rows(files: &Files<'_>, kwargs: &Row) -> Result<Vec<Row>> {
    let text = |key: &str| kwargs.get(key).and_then(Value::as_str).unwrap_or_default();
    let number = |key: &str| kwargs.get(key).and_then(Value::as_u64).unwrap_or_default() as usize;
    let (dataset, shots, samples) = (text("dataset"), number("shots"), number("samples").max(1));
    let kind =
        kind(dataset).ok_or_else(|| files.wrong(format!("HELMET's `{dataset}` is none of plain files")))?;
    let path =
        |file: &str| -> Result<PathBuf> { files.find(&["helmet/data", "helmet", "data", ""], file, SOURCE) };
    let pick = Pick { seed: SEED, samples, shots };
    let made = match kind.begins {
        "icl" => {
            let (name, count) = labels::name(dataset)
                .ok_or_else(|| files.wrong(format!("`{dataset}` names no set of labels")))?;
            let split =
                |split: &str| path(&format!("icl/{name}/{split}.jsonl")).and_then(|it| files.read(&it));
            labels::rows(&split("train")?, &split("test")?, count, pick)
                .map_err(|reason| files.wrong(reason))?
        }
        "msmarco" | "kilt" => {
            let (data, demos) = (files.read(&path(text("file"))?)?, files.read(&path(text("demos"))?)?);
            let made = Demonstrations { pick, demos };
            let made = if kind.begins == "kilt" { made.answered(data, dataset) } else { made.ranked(data) };
            made.map_err(|reason| files.wrong(format!("{}: {reason}", text("file"))))?
        }
        _ => pick
            .first(files.read(&path(text("file"))?)?)
            .into_iter()
            .map(|row| of_recall(row, shots))
            .collect(),
    };
    let finish = |mut row: Row| {
        let of = |name: &str| Some(member(&row, name).unwrap_or_default());
        let prompt = filled(&format!("{}\n{}", kind.prompt, kind.prefix), &of);
        row.insert("prompt".into(), prompt.into());
        // Texts that the prompt holds are not kept twice.
        ["context", "demos"].iter().for_each(|key| _ = row.shift_remove(*key));
        if let Some(documents) = row.get_mut("ctxs").and_then(Value::as_array_mut) {
            documents.iter_mut().filter_map(Value::as_object_mut).for_each(|it| _ = it.shift_remove("text"));
        }
        row
    };
    Ok(made.into_iter().map(finish).collect())
}

/// A row of needles or of keys and values.
fn of_recall(mut row: Row, shots: usize) -> Row {
    if let Some(pairs) = row.get("demos").and_then(Value::as_array) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let pair = |pair: &Value| format!("Key: {}\nCorresponding value: {}", text(&pair[0]), text(&pair[1]));
        let shown: Vec<String> = pairs.iter().take(shots).map(pair).collect();
        row.insert("demos".into(), (shown.join("\n\n") + if shots > 0 { "\n\n" } else { "" }).into());
    }
    let answers = row.get("answer").or(row.get("outputs")).cloned().unwrap_or_default();
    let answers = if answers.is_array() { answers } else { json!([answers]) };
    row.insert("answers".into(), answers);
    row
}
