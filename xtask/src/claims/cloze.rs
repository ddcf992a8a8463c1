//! Cloze tasks of held-out text: the last word of a piece, the line that follows a piece among four, and the function that a
//! documentation describes among four.

use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::random::Random;
use crate::trial::Trial;

/// Items of a task, at most.
const ITEMS: usize = 200;
/// Words before the last one; lines before the one that follows.
const WORDS: usize = 40;
const LINES: usize = 6;
/// Choices of an item.
const CHOICES: usize = 4;

/// A task.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// The last word, which has to be the most likely continuation.
    LastWord,
    /// The next line among four.
    NextLine,
    /// The function of a documentation among four.
    Function,
}

impl Task {
    const ALL: [Task; 3] = [Task::LastWord, Task::NextLine, Task::Function];

    pub fn name(self) -> &'static str {
        match self {
            Task::LastWord => "last_word",
            Task::NextLine => "next_line",
            Task::Function => "function",
        }
    }

    fn items(self, texts: &[String]) -> Vec<Value> {
        match self {
            Task::LastWord => texts.iter().flat_map(|text| last_words(text)).take(ITEMS).collect(),
            Task::NextLine => choices(&texts.iter().flat_map(|text| next_lines(text)).collect::<Vec<_>>()),
            Task::Function => choices(&texts.iter().flat_map(|text| functions(text)).collect::<Vec<_>>()),
        }
    }
}

/// Writes the tasks and their sets from the folder `held`.
pub fn write(trial: &Trial<'_>) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut folders: Vec<_> = fs::read_dir(trial.path("held")).map_err(failed)?.flatten().collect();
    folders.sort_by_key(fs::DirEntry::path);
    let read = |folder: &fs::DirEntry| fs::read_to_string(folder.path().join("text.txt")).map_err(failed);
    let texts: Vec<String> = folders.iter().map(read).collect::<Result<_, _>>()?;
    fs::create_dir_all(trial.path("tasks")).map_err(failed)?;
    for task in Task::ALL {
        let (name, items) = (task.name(), task.items(&texts));
        trial.write(&format!("{name}.jsonl"), items.into_iter())?;
        let output = if task == Task::LastWord { "loglikelihood" } else { "multiple_choice" };
        let file = json!({
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": trial.path(&format!("{name}.jsonl"))}},
            "test_split": "test",
            "output_type": output,
            "doc_to_text": "{{context}}",
            "doc_to_target": if task == Task::LastWord { "{{target}}" } else { "target" },
            "doc_to_choice": if task == Task::LastWord { Value::Null } else { json!("choices") },
            "target_delimiter": "",
            "metric_list": [{"metric": "acc"}],
        });
        // JSON is YAML.
        let file: serde_json::Map<String, Value> = file
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        fs::write(trial.path(&format!("tasks/{name}.yaml")), Value::Object(file).to_string())
            .map_err(failed)?;
    }
    Ok(())
}

/// Pieces of a text, each without its last word, and the word.
fn last_words(text: &str) -> Vec<Value> {
    let words: Vec<&str> =
        text.split_inclusive(char::is_whitespace).filter(|word| !word.trim().is_empty()).collect();
    let pieces = words.chunks_exact(WORDS + 1).step_by(4);
    let piece = |words: &[&str]| {
        let context = words[..WORDS].concat();
        json!({"context": context.trim_end(), "target": format!(" {}", words[WORDS].trim())})
    };
    // A word of letters alone, at the length of a word.
    let asked = |words: &&[&str]| {
        let word = words[WORDS].trim();
        word.len() > 2 && word.chars().all(|c| c.is_ascii_alphabetic())
    };
    pieces.filter(asked).map(piece).take(8).collect()
}

/// Lines of a text that tell something, with the lines before them.
fn next_lines(text: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let pieces = lines.chunks_exact(LINES + 1).step_by(3);
    let asked = |lines: &&[&str]| lines[LINES].trim().len() > 16;
    let piece = |lines: &[&str]| (lines[..LINES].join("\n") + "\n", lines[LINES].to_string());
    pieces.filter(asked).map(piece).take(8).collect()
}

/// Documented functions: the comment, and the line that declares the function.
fn functions(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("///") {
            comment += &format!("{trimmed}\n");
        } else if trimmed.contains("fn ") && trimmed.contains('(') && comment.len() > 40 {
            found.push((std::mem::take(&mut comment), trimmed.to_string()));
        } else if !trimmed.starts_with("#[") {
            comment.clear();
        }
    }
    found.into_iter().take(8).collect()
}

/// Items whose wrong choices are the right ones of other items.
fn choices(pairs: &[(String, String)]) -> Vec<Value> {
    let mut random = Random(7);
    let mut items = Vec::new();
    for (context, right) in pairs {
        let mut choices: Vec<&String> = Vec::new();
        for _ in 0..100 {
            let other = &pairs[random.below(pairs.len() as u64) as usize].1;
            if choices.len() < CHOICES - 1 && other != right && !choices.contains(&other) {
                choices.push(other);
            }
        }
        if choices.len() == CHOICES - 1 {
            let at = random.below(CHOICES as u64) as usize;
            choices.insert(at, right);
            items.push(json!({"context": context, "choices": choices, "target": at}));
        }
    }
    // Items of all texts alike.
    let step = items.len().div_ceil(ITEMS).max(1);
    items.into_iter().step_by(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_have_the_right_choice_at_their_label_and_no_choice_twice() {
        let text: String = (0..80)
            .map(|n| format!("/// Returns the number {n} of the things that are counted here.\n#[must_use]\npub fn number_{n}() -> u32 {{\n    {n} + {n} * {n} // the sum of it\n}}\n"))
            .collect();
        for task in Task::ALL {
            let items = task.items(std::slice::from_ref(&text));
            assert!(!items.is_empty() && items.len() <= ITEMS, "{task:?}");
            for item in items.iter().filter(|_| task != Task::LastWord) {
                let choices = item["choices"].as_array().unwrap();
                assert_eq!(choices.len(), CHOICES);
                let right = choices[item["target"].as_u64().unwrap() as usize].as_str().unwrap();
                assert_eq!(choices.iter().filter(|choice| *choice == right).count(), 1);
                if task == Task::Function {
                    let number: String = right.chars().filter(char::is_ascii_digit).collect();
                    assert!(
                        item["context"]
                            .as_str()
                            .unwrap()
                            .contains(&format!("number {} of", &number[..number.len() - 2]))
                    );
                }
            }
        }
    }
}
