//! An environment that is a process: one JSON object a line each way.
//!
//! ```text
//! to it    {"prompt": "..", "messages": [{"role": "assistant", "content": ".."}], "answer": "..", "turn": 0, "row": {..},
//!           "tokens": 9, "ended": true}
//! from it  {"text": ".."}         the conversation goes on with this
//!          {"end": true}          the episode is over
//! ```
//!
//! Either may have a `reward`, a number. It is asked one question at a time, each with all that was said, so that it need not remember
//! anything: after a crash or a time-out another one is started for the next episode.

use fathom_train::policy::environment::{Environment, Reply, Turn};
use fathom_train::recipe::EnvironmentTable;
use serde_json::{Value, json};

use super::process::{Lines, Trouble};

/// The process.
pub struct Tool(Lines);

impl Tool {
    /// The process of a recipe.
    ///
    /// # Errors
    /// In words: processes are not allowed.
    pub fn new(table: &EnvironmentTable, allowed: bool) -> Result<Tool, String> {
        Lines::new(&table.command, table.timeout_s, ("the environment", allowed)).map(Tool)
    }
}

/// What a line says.
fn reply(line: &str) -> Result<Reply, String> {
    let wrong = |what: &str| Err(format!("answered {what}: {line}"));
    let Ok(Value::Object(said)) = serde_json::from_str(line) else { return wrong("what is no JSON object") };
    let reward = match said.get("reward") {
        None | Some(Value::Null) => None,
        Some(Value::Number(number)) => number.as_f64(),
        Some(_) => return wrong("with a `reward` that is no number"),
    };
    match (said.get("text"), said.get("end")) {
        (Some(Value::String(text)), None | Some(Value::Null | Value::Bool(false))) => {
            Ok(Reply { text: Some(text.clone()), reward })
        }
        (None | Some(Value::Null), Some(Value::Bool(true))) => Ok(Reply { text: None, reward }),
        _ => wrong("neither a `text` alone nor an `end` that is true"),
    }
}

impl Environment for Tool {
    fn reply(&self, turns: &[Turn<'_>]) -> Result<Vec<Result<Reply, String>>, String> {
        let one = |it: &Turn<'_>| {
            let Turn { row, prompt, messages, text, turn, tokens, ended } = *it;
            let question = json!({
                "prompt": prompt, "messages": messages, "answer": text, "turn": turn, "row": row, "tokens": tokens, "ended": ended,
            });
            match self.0.ask(&[format!("{question}\n")]) {
                Ok(lines) => Ok(lines.first().map_or(Err("said nothing".into()), |line| reply(line))),
                Err(Trouble::Lost(why)) => Ok(Err(why)),
                Err(Trouble::Start(why)) => Err(why),
            }
        };
        turns.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn tool(script: &str, timeout_s: f64) -> Tool {
        let command = ["sh", "-c", script].map(String::from).to_vec();
        Tool::new(&EnvironmentTable { command, timeout_s, ..EnvironmentTable::default() }, true).unwrap()
    }

    fn ask(tool: &Tool, texts: &[&str]) -> Vec<Result<Reply, String>> {
        let row = Map::new();
        let turn =
            |text| Turn { row: &row, prompt: "p", messages: &[], text, turn: 0, tokens: 1, ended: true };
        tool.reply(&texts.iter().map(|text| turn(*text)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_reply_is_a_text_or_an_end() {
        let text = |text: &str, reward| Reply { text: Some(text.into()), reward };
        for (line, want) in [
            ("{\"text\": \"7\"}", Some(text("7", None))),
            ("{\"text\": \"\", \"reward\": 0.5, \"end\": false}", Some(text("", Some(0.5)))),
            ("{\"end\": true, \"reward\": -1}", Some(Reply { text: None, reward: Some(-1.0) })),
            ("{}", None),
            ("{\"text\": \"7\", \"end\": true}", None),
            ("{\"end\": false}", None),
            ("{\"text\": 7}", None),
            ("{\"end\": true, \"reward\": \"good\"}", None),
            ("{\"end\": true, \"reward\": 1e999}", None),
            ("[1]", None),
            ("hello", None),
        ] {
            assert_eq!(reply(line).ok(), want, "{line}");
        }
    }

    /// What goes wrong with one episode ends it alone: the next is shown to another process.
    #[test]
    fn a_crash_a_time_out_and_nonsense_end_one_episode() {
        let script = "while read -r line; do case $line in *crash*) exit 3;; *slow*) sleep 60;; *odd*) echo odd;; \
                      *) echo '{\"text\": \"t\", \"reward\": 2}';; esac; done";
        let found = ask(&tool(script, 4.0), &["a", "crash", "b", "odd", "c", "slow", "d"]);
        let good = Ok(Reply { text: Some("t".into()), reward: Some(2.0) });
        for (at, found) in found.iter().enumerate() {
            match at {
                1 | 5 => assert!(found.as_ref().unwrap_err().contains("did not answer"), "{found:?}"),
                3 => assert!(found.as_ref().unwrap_err().contains("no JSON object"), "{found:?}"),
                _ => assert_eq!(*found, good),
            }
        }
    }

    #[test]
    fn it_is_refused_without_leave_and_where_it_cannot_be_started() {
        let table =
            EnvironmentTable { command: vec!["no-such-program".into()], ..EnvironmentTable::default() };
        let error = Tool::new(&table, false).err().unwrap();
        assert!(error.contains("--allow-processes") && error.contains("no-such-program"), "{error}");
        let row = Map::new();
        let turn = Turn { row: &row, prompt: "", messages: &[], text: "", turn: 0, tokens: 1, ended: true };
        let error = Tool::new(&table, true).unwrap().reply(&[turn]).unwrap_err();
        assert!(error.contains("cannot start no-such-program"), "{error}");
    }
}
