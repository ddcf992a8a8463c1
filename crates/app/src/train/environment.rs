//! An environment run by processes that exchange one JSON object per line.
//!
//! ```text
//! to it    {"prompt": "..", "messages": [{"role": "assistant", "content": ".."}], "answer": "..", "turn": 0, "row": {..},
//!           "tokens": 9, "ended": true, "question": 4}
//! from it  {"text": ".."}         the conversation goes on with this
//!          {"end": true}          the episode is over
//! ```
//!
//! Both kinds of reply can have a `reward`, which is a number, and the number of their `question`. A process gets one
//! question at a time, each with the whole conversation, so that it needs no state: after a crash or timeout, a new
//! process is started for the next episode. Several processes work concurrently; all turns of an episode go to the same
//! process, chosen by the episode's number, which does not affect the replies.

use std::sync::{Mutex, PoisonError};

use fathom_train::policy::environment::{Environment, Reply, Turn};
use fathom_train::recipe::EnvironmentTable;
use serde_json::{Value, json};

use super::process::{Lines, Trouble};

/// The processes of an environment.
pub struct Tool(Vec<Mutex<Lines>>);

/// Reply to an episode: the inner error ends this episode, the outer one all of them.
type ReplyResult = Result<Result<Reply, String>, String>;

impl Tool {
    /// Prepares the processes of a recipe.
    ///
    /// # Errors
    /// A message: processes are not allowed.
    pub fn new(table: &EnvironmentTable, allowed: bool) -> Result<Tool, String> {
        let one =
            |_| Lines::new(&table.command, table.timeout_s, ("the environment", allowed)).map(Mutex::new);
        (0..table.processes.max(1)).map(one).collect::<Result<_, _>>().map(Tool)
    }
}

/// Parses the reply in a line.
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

/// Asks a process for the reply to an answer.
fn ask(lines: &Lines, it: &Turn<'_>) -> ReplyResult {
    let Turn { row, prompt, messages, text, turn, tokens, ended, .. } = *it;
    let question = json!({
        "prompt": prompt, "messages": messages, "answer": text, "turn": turn, "row": row, "tokens": tokens, "ended": ended,
    });
    match lines.ask(vec![question]) {
        Ok(lines) => Ok(lines.first().map_or(Err("said nothing".into()), |line| reply(line))),
        Err(Trouble::Lost(why)) => Ok(Err(why)),
        Err(Trouble::Start(why)) => Err(why),
    }
}

impl Environment for Tool {
    fn reply(&self, turns: &[Turn<'_>]) -> Result<Vec<Result<Reply, String>>, String> {
        let processes = self.0.len();
        // Asks one process about its episodes, in order.
        let own = |process: usize| -> Vec<(usize, ReplyResult)> {
            let lines = self.0[process].lock().unwrap_or_else(PoisonError::into_inner);
            let its = turns.iter().enumerate().filter(|(_, turn)| turn.episode % processes == process);
            its.map(|(at, turn)| (at, ask(&lines, turn))).collect()
        };
        let mut said: Vec<(usize, ReplyResult)> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..processes).map(|process| scope.spawn(move || own(process))).collect();
            let lost = |_| vec![(0, Err("the thread that asks a process panicked".to_string()))];
            let others = others.into_iter().map(|other| other.join().unwrap_or_else(lost));
            own(0).into_iter().chain(others.flatten()).collect()
        });
        said.sort_by_key(|(at, _)| *at);
        said.into_iter().map(|(_, said)| said).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn tool(script: &str, timeout_s: f64, processes: usize) -> Tool {
        let command = ["sh", "-c", script].map(String::from).to_vec();
        let table = EnvironmentTable { command, timeout_s, processes, ..EnvironmentTable::default() };
        Tool::new(&table, true).unwrap()
    }

    fn first(row: &Map<String, Value>) -> Turn<'_> {
        Turn { row, prompt: "p", messages: &[], text: "", turn: 0, episode: 0, tokens: 1, ended: true }
    }

    fn ask(tool: &Tool, texts: &[&'static str]) -> Vec<Result<Reply, String>> {
        let row = Map::new();
        let turn = |(episode, text): (usize, &&'static str)| Turn { text, episode, ..first(&row) };
        tool.reply(&texts.iter().enumerate().map(turn).collect::<Vec<_>>()).unwrap()
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

    /// A failure in one episode ends only that one; the next goes to a new process.
    #[test]
    fn a_crash_a_time_out_and_nonsense_end_one_episode() {
        let script = "while read -r line; do case $line in *crash*) exit 3;; *slow*) sleep 60;; *odd*) echo odd;; \
                      *) echo '{\"text\": \"t\", \"reward\": 2}';; esac; done";
        for processes in [1, 3, 9] {
            let found = ask(&tool(script, 4.0, processes), &["a", "crash", "b", "odd", "c", "slow", "d"]);
            let good = Ok(Reply { text: Some("t".into()), reward: Some(2.0) });
            for (at, found) in found.iter().enumerate() {
                match at {
                    1 | 5 => assert!(found.as_ref().unwrap_err().contains("did not answer"), "{found:?}"),
                    3 => assert!(found.as_ref().unwrap_err().contains("no JSON object"), "{found:?}"),
                    _ => assert_eq!(*found, good),
                }
            }
        }
    }

    /// Each process waits until another one has a question, so that sequential questions would never be answered. An
    /// episode stays with its process.
    #[test]
    fn several_are_asked_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "cd '{}' || exit; while read -r line; do touch $$; while [ $(ls | wc -l) -lt 2 ]; do sleep 0.02; done; \
             echo \"{{\\\"text\\\": \\\"$$\\\"}}\"; done",
            folder.path().display()
        );
        let tool = tool(&script, 60.0, 2);
        let [found, again] = [(); 2].map(|()| ask(&tool, &["a", "b", "c", "d"]));
        assert!(found[0] == found[2] && found[1] == found[3] && found[0] != found[1], "{found:?}");
        assert!(found == again && found.iter().all(Result::is_ok), "{again:?}");
    }

    #[test]
    fn it_is_refused_without_leave_and_where_it_cannot_be_started() {
        let table =
            EnvironmentTable { command: vec!["no-such-program".into()], ..EnvironmentTable::default() };
        let error = Tool::new(&table, false).err().unwrap();
        assert!(error.contains("--allow-processes") && error.contains("no-such-program"), "{error}");
        let row = Map::new();
        let error = Tool::new(&table, true).unwrap().reply(&[first(&row)]).unwrap_err();
        assert!(error.contains("cannot start no-such-program"), "{error}");
    }
}
