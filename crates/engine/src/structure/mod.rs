//! Structured answers: JSON of a schema, a regular expression, a grammar. In each step the tokens that may follow are
//! known, and the others are excluded. `llguidance` compiles and follows the grammars; the mask of the next token is
//! computed during the step.
//!
//! A small text can describe a grammar that takes hours and all memory to compile. The library limits the steps of most
//! of its work; [`Structures`] limits those that it does not count, and a server first compiles each structure in a
//! separate process ([`probe`]), which is killed if it takes too long.

pub mod probe;
mod turns;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use fathom_base::Structure;
use fathom_text::Tokenizer;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::error::Error;
use probe::{Asked, Probe};
use serde::Serialize;
use serde_json::{Value, json};
use turns::Turns;

/// Longest grammar, in bytes.
const MOST_BYTES: usize = 1 << 20;
/// Stack of the compiling thread: the library recurses once per rule in a chain of rules.
const STACK: usize = 16 << 20;
/// Additional stack per byte of the grammar; a rule has at least six bytes.
const STACK_OF_A_BYTE: usize = 1 << 10;
/// Number of compiled structures that are cached.
const KEPT: usize = 8;

/// Compiles structures for one tokenizer, whose tokens are processed once.
#[derive(Default)]
pub struct Structures {
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    probe: Option<Probe>,
    turns: Turns,
    /// Recently compiled structures, by hash.
    kept: Mutex<VecDeque<([u8; 32], Structured)>>,
}

impl Structures {
    /// Compiles each structure first with a separate process of this program ([`probe::answer`]).
    pub fn probing(program: Option<PathBuf>) -> Structures {
        Structures { probe: program.map(Probe::new), ..Structures::default() }
    }

    /// Compiles a structure. `vocab` is the number of logits.
    ///
    /// # Errors
    /// An invalid schema, expression or grammar, or one that is too large, takes too long, or that no answer satisfies.
    pub fn compile(
        &self,
        tokenizer: &Tokenizer,
        vocab: usize,
        structure: &Structure,
    ) -> Result<Structured, Error> {
        self.compile_while(tokenizer, vocab, structure, &|| true)
    }

    /// Compiles a structure while `wanted` holds.
    ///
    /// # Errors
    /// Those of [`Structures::compile`]; too many others are being compiled; it is no longer wanted.
    pub fn compile_while(
        &self,
        tokenizer: &Tokenizer,
        vocab: usize,
        structure: &Structure,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Structured, Error> {
        let (grammar, bytes) = grammar(structure)?;
        if bytes > MOST_BYTES {
            return Err(refused(format!("it has {bytes} bytes; {MOST_BYTES} are the most")));
        }
        let key = *blake3::hash(&as_json(structure)?).as_bytes();
        if let Some(structured) = self.kept(key) {
            return Ok(structured);
        }
        let _turn = self.turns.take(wanted)?;
        // Several requests may have waited for the same structure.
        if let Some(structured) = self.kept(key) {
            return Ok(structured);
        }
        let size = vocab.max(tokenizer.vocab_size());
        if let Some(probe) = &self.probe {
            let special = (0..size as u32).filter(|id| tokenizer.is_special(*id));
            let special = special.map(|id| (id, tokenizer.token_bytes(id))).collect();
            let stops = tokenizer.stops().to_vec();
            probe.ask(&as_json(&Asked { structure: structure.clone(), size, special, stops })?, wanted)?;
        }
        let factory = || factory(size, |id| word(tokenizer, id), tokenizer.stops());
        let factory = self.factory.get_or_init(factory).clone().map_err(refused)?;
        let state = with_stack(bytes, || first_mask(compiled(&factory, grammar)?))?;
        let mut structured = Structured { state };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front((key, structured.again()));
        Ok(structured)
    }

    /// A cached structure.
    fn kept(&self, key: [u8; 32]) -> Option<Structured> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(of, _)| *of == key)?;
        let mut found = kept.remove(at)?;
        let structured = found.1.again();
        kept.push_front(found);
        Some(structured)
    }
}

fn as_json(value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| refused(error.to_string()))
}

/// A parser of a grammar. Counts its own steps where the library has no limit: at the first transitions of the lexer.
fn compiled(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let init = GrammarInit::Serialized(grammar);
    let read = AssertUnwindSafe(|| {
        let (grammar, lexemes) =
            init.to_internal(Some(factory.tok_env().clone()), factory.limits().clone())?;
        let mut all = lexemes.clone();
        all.add_extra_lexemes(&factory.extra_lexemes());
        within(&all, factory.limits().clone())?;
        Ok((grammar, lexemes))
    });
    let (grammar, lexemes) = catch_unwind(read).map_err(|error| error.to_string())?;
    let parser = factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexemes));
    let matcher = Matcher::new(parser);
    matcher.get_error().map_or(Ok(matcher), Err)
}

/// Checks the lexer's first transitions against the limit.
///
/// # Errors
/// The lexer's first transitions take more steps than the limit.
fn within(lexemes: &LexerSpec, mut limits: ParserLimits) -> Result<(), std::io::Error> {
    let refuse = |error: &dyn std::fmt::Display| {
        std::io::Error::other(format!("it takes too long to compile: {error}; say it more simply"))
    };
    let mut lexer = lexemes.to_regex_vec(&mut limits).map_err(|error| refuse(&error))?;
    lexer.set_fuel(limits.initial_lexer_fuel);
    let start = lexer.initial_state(&lexemes.all_lexemes());
    for byte in 0..=u8::MAX {
        lexer.transition(start, byte);
        if let Some(error) = lexer.get_error() {
            return Err(refuse(&error));
        }
    }
    Ok(())
}

/// The state before the first token. This detects structures that no answer satisfies, or whose first mask takes too
/// long.
fn first_mask(mut matcher: Matcher) -> Result<State, String> {
    let mask = matcher.compute_mask_or_eos();
    let mask =
        mask.map_err(|error| format!("no answer meets it, or it takes too long to follow: {error}"))?;
    Ok(State::Made(Box::new(matcher), mask))
}

/// Compiles a grammar of `bytes` bytes on a thread with enough stack for its rules.
fn with_stack<T: Send>(bytes: usize, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, Error> {
    let stack = STACK + bytes * STACK_OF_A_BYTE;
    let done = thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(stack).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("no thread can be started for it: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("the library that compiles it failed".to_string()))
    });
    done.map_err(|error| refused(first_line(&error)))
}

/// The first line of a message: the library appends the grammar to it.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_string()
}

fn refused(message: String) -> Error {
    Error::Structure(message)
}

/// The grammar of a structure, and its length in bytes.
fn grammar(structure: &Structure) -> Result<(TopLevelGrammar, usize), Error> {
    Ok(match structure {
        Structure::JsonObject => (TopLevelGrammar::from_json_schema(spaced(json!({"type": "object"}))), 0),
        Structure::JsonSchema(schema) => {
            let value = serde_json::from_str(schema)
                .map_err(|error| refused(format!("the schema is not JSON: {error}")))?;
            (TopLevelGrammar::from_json_schema(spaced(value)), schema.len())
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

/// White space between two tokens of JSON unless a schema specifies it: a space, or a line end and an indent. A model
/// that writes endless white space never answers.
const SPACE: &str = r"\x20|\x0D?\x0A[\x20\x09]{0,16}";

/// Adds the allowed white space to a schema.
fn spaced(schema: Value) -> Value {
    let mut schema = if schema == true { json!({}) } else { schema };
    let Some(members) = schema.as_object_mut() else { return schema };
    let options = members.entry("x-guidance").or_insert_with(|| json!({}));
    if let Some(options) = options.as_object_mut()
        && !["whitespace_pattern", "whitespace_flexible"].iter().any(|key| options.contains_key(*key))
    {
        options.insert("whitespace_pattern".into(), SPACE.into());
    }
    schema
}

/// A token in the library's form. Special tokens are not text: the marker prevents matches with their spelling.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    match tokenizer.token_bytes(id) {
        bytes if tokenizer.is_special(id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat(),
        bytes => bytes,
    }
}

/// The library's view of a vocabulary of `size` tokens.
fn factory(size: usize, word: impl Fn(u32) -> Vec<u8>, stops: &[u32]) -> Result<Arc<ParserFactory>, String> {
    let mut words: Vec<Vec<u8>> = (0..size as u32).map(word).collect();
    // For a tokenizer without an end token, one outside the logits is added.
    let ends: Vec<u32> = match stops {
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

/// A structure, with the state after the answer's last token.
pub struct Structured {
    state: State,
}

enum State {
    Ready(Box<Matcher>),
    /// The next mask is being computed on another thread.
    Making(JoinHandle<(Box<Matcher>, Result<SimpleVob, String>)>),
    Made(Box<Matcher>, SimpleVob),
    Failed(String),
}

impl Structured {
    /// The initial state, for another answer.
    pub fn again(&mut self) -> Structured {
        self.settle();
        let state = match &self.state {
            State::Ready(matcher) => State::Ready(Box::new(matcher.deep_clone())),
            State::Made(matcher, mask) => State::Made(Box::new(matcher.deep_clone()), mask.clone()),
            State::Failed(error) => State::Failed(error.clone()),
            State::Making(_) => State::Failed("a mask is still being made".to_string()),
        };
        Structured { state }
    }

    /// Bit mask of the tokens that may follow.
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

    /// Advances by a token of the answer; true if the structure is complete. Starts to compute the next mask.
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

    /// Waits for the mask in progress.
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
