//! Processes that exchange lines: one JSON object per question and per answer, in order; and the reward that a process
//! gives:
//!
//! ```text
//! to it    {"prompt": "..", "answer": "..", "row": {..}, "tokens": 9, "ended": true, "question": 4}
//! from it  {"reward": 0.5, "question": 4}        or null, where it says nothing
//! ```
//!
//! An answer may include the number of its `question`, counted from 0 since the process started; another question's
//! number is an error. A line before a question or after the last answer is an error too, so that answers and questions
//! cannot get out of step.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fathom_train::policy::apart::Apart;
use fathom_train::policy::reward::{Reward, RewardInput};
use fathom_train::policy::rules::RewardTable;
use serde_json::{Value, json};

/// A process that is started on first use, and restarted after it was lost.
pub struct Lines {
    command: Vec<String>,
    timeout: Duration,
    running: RefCell<Option<LineProcess>>,
}

/// Failure to get lines.
#[derive(Debug)]
pub enum Trouble {
    /// The process cannot be started.
    Start(String),
    /// The process ended or took too long, and was killed.
    Lost(String),
}

impl Trouble {
    /// Returns the message.
    pub fn words(self) -> String {
        match self {
            Trouble::Start(why) | Trouble::Lost(why) => why,
        }
    }
}

struct LineProcess {
    child: Child,
    to: ChildStdin,
    from: Receiver<String>,
    /// Number of questions sent.
    asked: u64,
}

impl LineProcess {
    /// Checks that there is no line that no question asked for.
    fn is_quiet(&self) -> Result<(), String> {
        match self.from.try_recv() {
            Ok(line) => Err(format!(
                "printed a line that no question asked for, so its answers may be those of other questions; print one line for each, and anything \
                 else to its standard error: {line}"
            )),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        end(&mut self.child);
        let _ = self.child.wait();
    }
}

/// Kills a process and its process group, with the shell's `kill`, which every shell has.
fn end(child: &mut Child) {
    let group = format!("kill -9 -{} 2>/dev/null", child.id());
    let _ = Command::new("sh").args(["-c", &group]).status();
    let _ = child.kill();
}

impl Lines {
    /// Prepares the process of a command; errors call it `what`.
    ///
    /// # Errors
    /// A message: processes are not allowed, no command, an invalid timeout.
    pub fn new(command: &[String], timeout_s: f64, (what, allowed): (&str, bool)) -> Result<Lines, String> {
        if command.is_empty() {
            return Err(format!("{what} needs a `command`, the program and its arguments"));
        }
        if !allowed {
            return Err(format!(
                "{what} starts a process ({}), and nothing does unless it is allowed; look at what it is, then give \
                 --allow-processes",
                command.join(" ")
            ));
        }
        let timeout = Duration::try_from_secs_f64(timeout_s);
        let timeout = timeout.map_err(|error| format!("{what}: timeout_s: {error}"))?;
        Ok(Lines { command: command.to_vec(), timeout, running: RefCell::default() })
    }

    fn start(&self) -> Result<LineProcess, String> {
        let [program, arguments @ ..] = &self.command[..] else { return Err("has no command".into()) };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        let (Some(to), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("cannot talk to {program}"));
        };
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Ok(LineProcess { child, to, from, asked: 0 })
    }

    /// Sends numbered questions and returns as many lines, within the timeout. A process that does not give them, or
    /// gives others, is killed.
    ///
    /// # Errors
    /// The process cannot be started, ended, took too long, printed a line too many, or answered another question.
    pub fn ask(&self, questions: Vec<Value>) -> Result<Vec<String>, Trouble> {
        let mut slot = self.running.borrow_mut();
        let mut running = match slot.take() {
            Some(running) => running,
            None => self.start().map_err(Trouble::Start)?,
        };
        let first = running.asked;
        running.asked += questions.len() as u64;
        let numbered = |(number, mut question): (u64, Value)| {
            question["question"] = number.into();
            format!("{question}\n")
        };
        let questions: Vec<String> = (first..).zip(questions).map(numbered).collect();
        running.is_quiet().map_err(Trouble::Lost)?;
        let lines = self.hear(&mut running, &questions).map_err(Trouble::Lost)?;
        (first..).zip(&lines).try_for_each(|(number, line)| answers(number, line)).map_err(Trouble::Lost)?;
        running.is_quiet().map_err(Trouble::Lost)?;
        *slot = Some(running);
        Ok(lines)
    }

    fn hear(&self, running: &mut LineProcess, questions: &[String]) -> Result<Vec<String>, String> {
        let LineProcess { child, to, from, .. } = running;
        let until = Instant::now() + self.timeout;
        let late = || format!("{} did not answer {} questions in time", self.command[0], questions.len());
        std::thread::scope(|scope| {
            // Writes in a separate thread, so that lines can be read before the process has read all questions.
            let writing = scope.spawn(|| questions.iter().try_for_each(|line| to.write_all(line.as_bytes())));
            let heard: Result<Vec<String>, String> = questions
                .iter()
                .map(|_| {
                    let left = until.saturating_duration_since(Instant::now());
                    from.recv_timeout(left).map_err(|_| late())
                })
                .collect();
            if heard.is_err() {
                // This also releases the writing thread.
                end(child);
            }
            let _ = writing.join();
            heard
        })
    }
}

/// Checks that a line names no other question.
fn answers(number: u64, line: &str) -> Result<(), String> {
    let said: Option<Value> = serde_json::from_str(line).ok();
    match said.as_ref().and_then(|said| said.get("question")) {
        Some(named) if named.as_u64() != Some(number) => {
            Err(format!("answered question {named} where question {number} was next: {line}"))
        }
        _ => Ok(()),
    }
}

/// A reward that a process gives.
pub struct Process(Lines);

impl Process {
    /// Prepares the process of a reward's table.
    ///
    /// # Errors
    /// Processes are not allowed, or the table names none.
    pub fn boxed(table: &RewardTable, allowed: bool) -> fathom_train::Result<Box<dyn Reward>> {
        let RewardTable { name, command, timeout_s, .. } = table;
        let what = format!("reward `{name}`");
        let lines = Lines::new(command, *timeout_s, (&what, allowed));
        let refuse = |message| fathom_train::Error::Recipe { key: "rl.reward".into(), message };
        Ok(Box::new(Apart::new(Process(lines.map_err(refuse)?))))
    }
}

/// Parses the reward in a line.
fn number(line: &str) -> Result<Option<f64>, String> {
    let said: Value = serde_json::from_str(line).map_err(|_| format!("answered what is no JSON: {line}"))?;
    match said.get("reward") {
        Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        _ => Err(format!("answered without a number `reward`: {line}")),
    }
}

impl Reward for Process {
    fn score(&self, answers: &[RewardInput<'_>]) -> Result<Vec<Option<f64>>, String> {
        let question = |it: &RewardInput<'_>| {
            let RewardInput { row, prompt, text, messages, tokens, ended, .. } = *it;
            let mut said =
                json!({"prompt": prompt, "answer": text, "row": row, "tokens": tokens, "ended": ended});
            // All messages of an episode with several turns.
            if messages.len() > 1 {
                said["messages"] = messages.into();
            }
            said
        };
        let lines = self.0.ask(answers.iter().map(question).collect()).map_err(Trouble::words)?;
        lines.iter().map(|line| number(line)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn table(script: &str) -> RewardTable {
        let command = ["sh", "-c", script].map(String::from).to_vec();
        RewardTable { name: "p".into(), command, timeout_s: 5.0, ..RewardTable::default() }
    }

    #[test]
    fn a_process_answers_in_order_and_is_refused_without_leave() {
        let row = Map::new();
        let counts = "while read line; do n=$((n+1)); echo \"{\\\"reward\\\": $n}\"; done";
        let process = Process::boxed(&table(counts), true).unwrap();
        assert_eq!(process.score(&[of(&row), of(&row)]).unwrap(), [Some(1.0), Some(2.0)]);
        assert_eq!(process.score(&[of(&row)]).unwrap(), [Some(3.0)], "it goes on");
        let error = Process::boxed(&table(counts), false).err().unwrap().to_string();
        assert!(error.contains("--allow-processes") && error.contains("while read"), "{error}");
        let says = |script: &str| Process::boxed(&table(script), true).unwrap().score(&[of(&row)]);
        assert_eq!(says("read -r line; echo '{\"reward\": null}'; cat > /dev/null").unwrap(), [None]);
        assert!(
            says("read -r line; echo '{\"reward\": \"good\"}'; cat > /dev/null")
                .unwrap_err()
                .contains("without a number")
        );
        assert!(says("read -r line; echo hello; cat > /dev/null").unwrap_err().contains("no JSON"));
        assert!(says("exit 0").unwrap_err().contains("did not answer"));
        let slow = RewardTable { timeout_s: 0.1, ..table("sleep 60") };
        assert!(Process::boxed(&slow, true).unwrap().score(&[of(&row)]).unwrap_err().contains("in time"));
        assert!(Process::boxed(&RewardTable::default(), true).is_err());
    }

    fn of(row: &Map<String, Value>) -> RewardInput<'_> {
        RewardInput { row, prompt: "", text: "x", messages: &[], earned: None, tokens: 1, ended: true }
    }

    #[test]
    fn a_line_too_many_is_an_error_and_not_the_next_answer() {
        let row = Map::new();
        let scripts = [
            "while read -r line; do echo '{\"reward\": 9}'; echo '{\"reward\": 0}'; done",
            "echo loading; while read -r line; do echo '{\"reward\": 0}'; done",
            "read -r line; echo '{\"reward\": 0}'; echo; while read -r line; do echo '{\"reward\": 0}'; done",
        ];
        for script in scripts {
            let process = Process::boxed(&table(script), true).unwrap();
            // The line may come after a question; the next question then detects it.
            let error = (0..10_000).find_map(|_| process.score(&[of(&row), of(&row)]).err()).unwrap();
            let found = ["no question asked for", "no JSON", "without a number"];
            assert!(found.iter().any(|it| error.contains(it)), "{script}: {error}");
        }
    }

    #[test]
    fn an_answer_that_names_another_question_is_an_error() {
        let row = Map::new();
        let says = |number: &str, asks: usize| {
            let script = format!(
                "n=0; while read -r line; do echo \"{{\\\"reward\\\": $n, \\\"question\\\": {number}}}\"; n=$((n+1)); done"
            );
            let process = Process::boxed(&table(&script), true).unwrap();
            process.score(&vec![of(&row); asks]).and_then(|_| process.score(&vec![of(&row); asks]))
        };
        assert_eq!(says("$n", 2).unwrap(), [Some(2.0), Some(3.0)], "counted since it started");
        assert!(says("$((n/2))", 1).unwrap_err().contains("answered question 0 where question 1 was next"));
        assert!(says("$((n+1))", 3).unwrap_err().contains("answered question 1 where question 0 was next"));
    }

    #[test]
    fn what_a_process_that_is_late_has_started_ends_with_it() {
        let (row, folder) = (Map::new(), tempfile::tempdir().unwrap());
        let file = folder.path().join("pid");
        // The process holds the pipe open without reading, so that writing the questions would block.
        let script = format!("exec 3<&0; sleep 40 <&3 & echo $! > '{}'; wait", file.display());
        let slow = RewardTable { timeout_s: 0.5, ..table(&script) };
        let long = "x".repeat(1 << 20);
        let error = Process::boxed(&slow, true).unwrap().score(&[RewardInput { text: &long, ..of(&row) }]);
        assert!(error.unwrap_err().contains("in time"));
        let pid = std::fs::read_to_string(file).unwrap();
        let command = std::fs::read_to_string(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
        assert!(!command.contains("sleep"), "{command}");
    }
}
