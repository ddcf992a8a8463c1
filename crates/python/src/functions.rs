//! Functions of Python that take part in a run or a curation. Each has a thread of Python's own, which is asked through a
//! queue: no thread of Fathom ever holds the interpreter's lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fathom_app::train::{Functions, MakeEnvironment, MakeReward};
use fathom_train::policy::environment::{Environment, Reply, Turn};
use fathom_train::policy::reward::{Numbers, Reward, RewardInput};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use serde_json::{Value, json};

use crate::edge::PendingResult;

/// Longest wait for an answer before looking whether the function's thread has ended.
const LOOK: Duration = Duration::from_millis(200);

/// A question, or the answer to one.
pub enum Message {
    /// Text, mostly JSON.
    Text(String),
    /// Bytes, mostly Arrow's.
    Bytes(Vec<u8>),
    /// A number for each item; none for those without one.
    Numbers(Vec<Option<f64>>),
}

/// An answer, or the reason why there is none.
type Answer = Result<Message, String>;

#[derive(Default)]
struct State {
    asked: VecDeque<(u64, Message)>,
    waiting: BTreeMap<u64, Arc<PendingResult<Answer>>>,
    next: u64,
    closed: bool,
}

/// Questions to one function.
#[derive(Default)]
pub struct Questions {
    state: Mutex<State>,
    added: Condvar,
}

impl Questions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the function, and waits for its answer.
    ///
    /// # Errors
    /// A message: the function raised an exception, or its thread has ended.
    pub fn ask(&self, question: Message) -> Answer {
        let pending = PendingResult::new();
        {
            let mut state = self.state();
            let id = state.next;
            state.next += 1;
            state.asked.push_back((id, question));
            state.waiting.insert(id, pending.clone());
            self.added.notify_one();
        }
        loop {
            if let Some(answer) = pending.take(LOOK) {
                return answer;
            }
            if self.state().closed {
                return Err("the program that has the function is ending".into());
            }
        }
    }

    fn answer(&self, id: u64, answer: Answer) {
        if let Some(pending) = self.state().waiting.remove(&id) {
            pending.put(answer);
        }
    }
}

/// The function's end of its questions.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Calls(pub Arc<Questions>);

#[pymethods]
impl Calls {
    #[new]
    fn new() -> Calls {
        Calls(Arc::default())
    }

    /// The next question with its number, after at most `seconds`.
    fn next<'py>(&self, py: Python<'py>, seconds: f64) -> Option<(u64, Bound<'py, PyAny>)> {
        let most = Duration::from_secs_f64(seconds);
        let asked = py.detach(|| {
            let waited = self
                .0
                .added
                .wait_timeout_while(self.0.state(), most, |state| state.asked.is_empty() && !state.closed);
            waited.unwrap_or_else(PoisonError::into_inner).0.asked.pop_front()
        });
        asked.map(|(id, question)| match question {
            Message::Text(text) => (id, PyString::new(py, &text).into_any()),
            Message::Bytes(bytes) => (id, PyBytes::new(py, &bytes).into_any()),
            Message::Numbers(_) => (id, py.None().into_bound(py)),
        })
    }

    /// Answers with a number for each item.
    fn numbers(&self, id: u64, numbers: Vec<Option<f64>>) {
        self.0.answer(id, Ok(Message::Numbers(numbers)));
    }

    /// Answers with text.
    fn text(&self, id: u64, text: String) {
        self.0.answer(id, Ok(Message::Text(text)));
    }

    /// Answers with bytes.
    fn bytes(&self, id: u64, bytes: Vec<u8>) {
        self.0.answer(id, Ok(Message::Bytes(bytes)));
    }

    /// Says why there is no answer.
    fn fail(&self, id: u64, why: String) {
        self.0.answer(id, Err(why));
    }

    /// Ends all waiting for answers.
    fn close(&self) {
        self.0.state().closed = true;
        self.0.added.notify_all();
    }

    /// Whether the questions have ended.
    #[getter]
    fn is_closed(&self) -> bool {
        self.0.state().closed
    }
}

/// The functions of a run: rewards by name, and an environment.
pub fn functions(rewards: Vec<(String, Arc<Questions>)>, environment: Option<Arc<Questions>>) -> Functions {
    let reward = |(name, questions): (String, Arc<Questions>)| -> (String, MakeReward) {
        (name, Arc::new(move || Box::new(FunctionReward(questions.clone()))))
    };
    let environment = environment.map(|questions| -> MakeEnvironment {
        Arc::new(move || Box::new(FunctionEnvironment(questions.clone())))
    });
    Functions { rewards: rewards.into_iter().map(reward).collect(), environment }
}

struct FunctionReward(Arc<Questions>);

impl Reward for FunctionReward {
    fn score(&self, answers: &[RewardInput<'_>]) -> Numbers {
        let names: BTreeSet<&String> = answers.iter().flat_map(|of| of.row.keys()).collect();
        let column = |name: &&String| {
            let values: Vec<&Value> =
                answers.iter().map(|of| of.row.get(*name).unwrap_or(&Value::Null)).collect();
            ((*name).clone(), json!(values))
        };
        let columns: serde_json::Map<String, Value> = names.iter().map(column).collect();
        let texts = |of: fn(&RewardInput<'_>) -> Value| -> Vec<Value> { answers.iter().map(of).collect() };
        let question = json!({
            "prompts": texts(|of| of.prompt.into()),
            "answers": texts(|of| of.text.into()),
            "messages": texts(|of| of.messages.into()),
            "tokens": texts(|of| of.tokens.into()),
            "ended": texts(|of| of.ended.into()),
            "columns": columns,
        });
        match self.0.ask(Message::Text(question.to_string()))? {
            Message::Numbers(numbers) => Ok(numbers),
            _ => Err("answered no numbers".into()),
        }
    }
}

struct FunctionEnvironment(Arc<Questions>);

impl Environment for FunctionEnvironment {
    fn reply(&self, turns: &[Turn<'_>]) -> Result<Vec<Result<Reply, String>>, String> {
        let turn = |it: &Turn<'_>| {
            json!({
                "row": it.row, "prompt": it.prompt, "messages": it.messages, "answer": it.text, "turn": it.turn,
                "episode": it.episode, "tokens": it.tokens, "ended": it.ended,
            })
        };
        let question = Value::Array(turns.iter().map(turn).collect());
        let Message::Text(text) = self.0.ask(Message::Text(question.to_string()))? else {
            return Err("answered no text".into());
        };
        let replies: Vec<Value> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if replies.len() != turns.len() {
            return Err(format!("gave {} replies to {} answers", replies.len(), turns.len()));
        }
        let reply = |of: &Value| match of["error"].as_str() {
            Some(why) => Err(why.to_string()),
            None => {
                Ok(Reply { text: of["text"].as_str().map(str::to_string), reward: of["reward"].as_f64() })
            }
        };
        Ok(replies.iter().map(reply).collect())
    }
}
