//! Answers with a structure: JSON of a schema, a regular expression, a grammar. Of each step the tokens are known that may follow;
//! the others are left out. `llguidance` compiles and follows the grammars; the mask of the next token is made while the step runs.

use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fathom_base::Structure;
use fathom_text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::error::Error;

/// Longest time that compiling a grammar may take; what it does is also limited in steps, so it ends.
const COMPILE: Duration = Duration::from_secs(5);
/// Longest grammar, in bytes.
const MOST_BYTES: usize = 1 << 20;

/// Compiles structures for one tokenizer, whose tokens are looked at once.
#[derive(Default)]
pub struct Structures {
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
}

impl Structures {
    /// A structure, ready to be followed. `vocab`: rows of the model's logits.
    ///
    /// # Errors
    /// A schema, expression or grammar that is none, or is too large.
    pub fn compile(
        &self,
        tokenizer: &Tokenizer,
        vocab: usize,
        structure: &Structure,
    ) -> Result<Structured, Error> {
        let (grammar, bytes) = grammar(structure)?;
        if bytes > MOST_BYTES {
            return Err(refused(format!("it has {bytes} bytes; {MOST_BYTES} are the most")));
        }
        let factory = self.factory.get_or_init(|| factory(tokenizer, vocab)).clone().map_err(refused)?;
        let started = Instant::now();
        let matcher = Matcher::new(factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(refused(first_line(&error)));
        }
        if started.elapsed() > COMPILE {
            return Err(refused(format!("compiling it took longer than {} s", COMPILE.as_secs())));
        }
        Ok(Structured { state: State::Ready(Box::new(matcher)) })
    }
}

/// The library's messages go on with the grammar itself.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_string()
}

fn refused(message: String) -> Error {
    Error::Structure(message)
}

/// The grammar of a structure, and its length in bytes.
fn grammar(structure: &Structure) -> Result<(TopLevelGrammar, usize), Error> {
    Ok(match structure {
        Structure::JsonObject => {
            (TopLevelGrammar::from_json_schema(serde_json::json!({"type": "object"})), 0)
        }
        Structure::JsonSchema(schema) => {
            let value = serde_json::from_str(schema)
                .map_err(|error| refused(format!("the schema is not JSON: {error}")))?;
            (TopLevelGrammar::from_json_schema(value), schema.len())
        }
        Structure::Regex(regex) => (TopLevelGrammar::from_regex(regex), regex.len()),
        Structure::Choice(texts) if texts.is_empty() => {
            return Err(refused("there is no text to choose from".to_string()));
        }
        Structure::Choice(texts) => {
            let one = |text: &String| serde_json::to_string(text).unwrap_or_default();
            let lark = format!("start: {}", texts.iter().map(one).collect::<Vec<_>>().join(" | "));
            let bytes = lark.len();
            (TopLevelGrammar::from_lark(lark), bytes)
        }
        Structure::Grammar(lark) => (TopLevelGrammar::from_lark(lark.clone()), lark.len()),
    })
}

/// What the library has to know of the tokens.
fn factory(tokenizer: &Tokenizer, vocab: usize) -> Result<Arc<ParserFactory>, String> {
    let size = vocab.max(tokenizer.vocab_size());
    let is_special = |id: u32| tokenizer.is_special(id);
    // Special tokens are not text: the mark keeps their spelling from being matched.
    let word = |id: u32| match tokenizer.token_bytes(id) {
        bytes if is_special(id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat(),
        bytes => bytes,
    };
    let mut words: Vec<Vec<u8>> = (0..size as u32).map(word).collect();
    // A tokenizer without a token that ends a text has one here that no logit speaks of.
    let ends: Vec<u32> = match tokenizer.stops() {
        [] => {
            words.push(vec![TokTrie::SPECIAL_TOKEN_MARKER, b'E']);
            vec![size as u32]
        }
        stops => stops.to_vec(),
    };
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, ends[0]), &words).with_eos_tokens(&ends);
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&env).map_err(|error| error.to_string())?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(Arc::new(factory))
}

/// A structure that an answer has followed up to its last token.
pub struct Structured {
    state: State,
}

enum State {
    Ready(Box<Matcher>),
    /// The mask of the next token is being made on another thread.
    Making(JoinHandle<(Box<Matcher>, Result<SimpleVob, String>)>),
    Made(Box<Matcher>, SimpleVob),
    Failed(String),
}

impl Structured {
    /// The same for another answer, from the beginning on.
    pub fn again(&mut self) -> Structured {
        self.settle();
        let state = match &self.state {
            State::Ready(matcher) | State::Made(matcher, _) => State::Ready(Box::new(matcher.deep_clone())),
            State::Failed(error) => State::Failed(error.clone()),
            State::Making(_) => State::Failed("a mask is still being made".to_string()),
        };
        Structured { state }
    }

    /// Bits of the tokens that may follow.
    ///
    /// # Errors
    /// The grammar is too expensive, or nothing may follow.
    pub fn mask(&mut self) -> Result<&[u32], Error> {
        self.settle();
        if let State::Ready(matcher) = &mut self.state {
            let mask = matcher.compute_mask_or_eos().map_err(|error| error.to_string());
            self.state = match (std::mem::replace(&mut self.state, State::Failed(String::new())), mask) {
                (State::Ready(matcher), Ok(mask)) => State::Made(matcher, mask),
                (_, Err(error)) => State::Failed(error),
                (other, _) => other,
            };
        }
        match &self.state {
            State::Made(_, mask) => Ok(mask.as_slice()),
            State::Failed(error) => Err(refused(first_line(error))),
            State::Ready(_) | State::Making(_) => Err(Error::NoToken),
        }
    }

    /// Goes on by a token of the answer; true if the structure is complete. The next mask is started.
    ///
    /// # Errors
    /// The token may not follow.
    pub fn take(&mut self, id: u32) -> Result<bool, Error> {
        self.settle();
        let state = std::mem::replace(&mut self.state, State::Failed("a token was refused".to_string()));
        let mut matcher = match state {
            State::Ready(matcher) | State::Made(matcher, _) => matcher,
            State::Failed(error) => return Err(refused(first_line(&error))),
            State::Making(_) => return Err(Error::NoToken),
        };
        matcher.consume_token(id).map_err(|error| refused(first_line(&error.to_string())))?;
        if matcher.is_stopped() {
            self.state = State::Ready(matcher);
            return Ok(true);
        }
        self.state = State::Making(thread::spawn(move || {
            let mask = matcher.compute_mask_or_eos().map_err(|error| error.to_string());
            (matcher, mask)
        }));
        Ok(false)
    }

    /// Waits for the mask that is being made.
    fn settle(&mut self) {
        if !matches!(self.state, State::Making(_)) {
            return;
        }
        let state = std::mem::replace(&mut self.state, State::Failed(String::new()));
        let State::Making(making) = state else { return };
        self.state = match making.join() {
            Ok((matcher, Ok(mask))) => State::Made(matcher, mask),
            Ok((_, Err(error))) => State::Failed(error),
            Err(_) => State::Failed("the grammar's parser failed".to_string()),
        };
    }
}
