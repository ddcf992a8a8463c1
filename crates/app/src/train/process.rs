//! A reward that a process gives: one JSON object a line each way, as many answers as questions, in their order.
//!
//! ```text
//! to it    {"prompt": "..", "answer": "..", "row": {..}, "tokens": 9, "ended": true}
//! from it  {"reward": 0.5}        or null, where it says nothing
//! ```

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fathom_train::policy::reward::{Answered, Reward};
use fathom_train::policy::rules::RewardTable;
use serde_json::{Value, json};

/// A process that is started when it is first asked.
pub struct Process {
    command: Vec<String>,
    timeout: Duration,
    running: RefCell<Option<Running>>,
}

struct Running {
    child: Child,
    to: ChildStdin,
    from: Receiver<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// The process of a table.
    ///
    /// # Errors
    /// Processes are not allowed, or the table names none.
    pub fn boxed(table: &RewardTable, allowed: bool) -> fathom_train::Result<Box<dyn Reward>> {
        let refuse = |message: String| fathom_train::Error::Recipe { key: "rl.reward".into(), message };
        let RewardTable { name, command, timeout_s, .. } = table;
        if command.is_empty() {
            return Err(refuse(format!("reward `{name}`: needs a `command`, the program and its arguments")));
        }
        if !allowed {
            return Err(refuse(format!(
                "reward `{name}` starts a process ({}), and nothing does unless it is allowed; look at what it is, then give \
                 --allow-processes",
                command.join(" ")
            )));
        }
        let timeout = Duration::try_from_secs_f64(*timeout_s);
        let timeout = timeout.map_err(|error| refuse(format!("reward `{name}`: timeout_s: {error}")))?;
        Ok(Box::new(Process { command: command.clone(), timeout, running: RefCell::default() }))
    }

    fn start(&self) -> Result<Running, String> {
        let [program, arguments @ ..] = &self.command[..] else { return Err("has no command".into()) };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        let (Some(to), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("cannot talk to {program}"));
        };
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Ok(Running { child, to, from })
    }

    /// Asks, and hears as many lines within the time.
    fn ask(&self, running: &mut Running, questions: &[String]) -> Result<Vec<String>, String> {
        let Running { child, to, from } = running;
        let until = Instant::now() + self.timeout;
        let late = || format!("{} did not answer {} questions in time", self.command[0], questions.len());
        std::thread::scope(|scope| {
            // What it does not read yet must not keep it from being heard.
            let writing = scope.spawn(|| questions.iter().try_for_each(|line| to.write_all(line.as_bytes())));
            let heard: Result<Vec<String>, String> = questions
                .iter()
                .map(|_| {
                    let left = until.saturating_duration_since(Instant::now());
                    from.recv_timeout(left).map_err(|_| late())
                })
                .collect();
            if heard.is_err() {
                // Whoever still writes to it is let go.
                let _ = child.kill();
            }
            let _ = writing.join();
            heard
        })
    }
}

/// What a line says.
fn number(line: &str) -> Result<Option<f64>, String> {
    let said: Value = serde_json::from_str(line).map_err(|_| format!("answered what is no JSON: {line}"))?;
    match said.get("reward") {
        Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        _ => Err(format!("answered without a number `reward`: {line}")),
    }
}

impl Reward for Process {
    fn score(&self, answers: &[Answered<'_>]) -> Result<Vec<Option<f64>>, String> {
        let question = |it: &Answered<'_>| {
            let Answered { row, prompt, text, tokens, ended } = *it;
            let said =
                json!({"prompt": prompt, "answer": text, "row": row, "tokens": tokens, "ended": ended});
            format!("{said}\n")
        };
        let questions: Vec<String> = answers.iter().map(question).collect();
        let mut slot = self.running.borrow_mut();
        let mut running = match slot.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let lines = self.ask(&mut running, &questions)?;
        let numbers = lines.iter().map(|line| number(line)).collect::<Result<_, _>>()?;
        *slot = Some(running);
        Ok(numbers)
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
        let of = |tokens| Answered { row: &row, prompt: "", text: "x", tokens, ended: true };
        let counts = "while read line; do n=$((n+1)); echo \"{\\\"reward\\\": $n}\"; done";
        let process = Process::boxed(&table(counts), true).unwrap();
        assert_eq!(process.score(&[of(1), of(2)]).unwrap(), [Some(1.0), Some(2.0)]);
        assert_eq!(process.score(&[of(3)]).unwrap(), [Some(3.0)], "it goes on");
        let error = Process::boxed(&table(counts), false).err().unwrap().to_string();
        assert!(error.contains("--allow-processes") && error.contains("while read"), "{error}");
        let says = |script: &str| Process::boxed(&table(script), true).unwrap().score(&[of(1)]);
        assert_eq!(says("echo '{\"reward\": null}'; cat > /dev/null").unwrap(), [None]);
        assert!(
            says("echo '{\"reward\": \"good\"}'; cat > /dev/null").unwrap_err().contains("without a number")
        );
        assert!(says("echo hello; cat > /dev/null").unwrap_err().contains("no JSON"));
        assert!(says("exit 0").unwrap_err().contains("did not answer"));
        let slow = RewardTable { timeout_s: 0.1, ..table("sleep 60") };
        assert!(Process::boxed(&slow, true).unwrap().score(&[of(1)]).unwrap_err().contains("in time"));
        assert!(Process::boxed(&RewardTable::default(), true).is_err());
    }
}
