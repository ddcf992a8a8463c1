//! Structured answers: JSON of a schema, a regular expression, a grammar. In each step the tokens that may follow are
//! known, and the others are excluded. `llguidance` compiles and follows the grammars; the mask of the next token is
//! computed during the step.
//!
//! A small text can describe a grammar that takes hours and all memory to compile. The library limits the steps of most
//! of its work; [`Structures`] limits those that it does not count, and a server first compiles each structure in a
//! separate process ([`probe`]), which is killed if it takes too long.

mod compile;
pub mod probe;
mod turns;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use fathom_base::Structure;
use fathom_text::Tokenizer;
use llguidance::toktrie::{SimpleVob, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::error::Error;
use compile::{compiled, factory, first_line, grammar, refused, with_stack};
use probe::{Probe, ProbeRequest};
use serde::Serialize;
use turns::Turns;

/// Longest grammar, in bytes.
const MOST_BYTES: usize = 1 << 20;
/// Number of compiled structures that are cached.
const KEPT: usize = 8;

/// Compiles structures for one tokenizer, whose tokens are processed once.
#[derive(Default)]
pub struct Structures {
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    probe: Option<Probe>,
    turns: Turns,
    /// Recently compiled structures, by hash.
    kept: Mutex<VecDeque<([u8; 32], Constraint)>>,
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
    ) -> Result<Constraint, Error> {
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
    ) -> Result<Constraint, Error> {
        let (grammar, bytes) = grammar(structure)?;
        if bytes > MOST_BYTES {
            return Err(refused(format!("it has {bytes} bytes; {MOST_BYTES} are the most")));
        }
        let key = *blake3::hash(&as_json(structure)?).as_bytes();
        if let Some(constraint) = self.kept(key) {
            return Ok(constraint);
        }
        let _turn = self.turns.take(wanted)?;
        // Several requests may have waited for the same structure.
        if let Some(constraint) = self.kept(key) {
            return Ok(constraint);
        }
        let size = vocab.max(tokenizer.vocab_size());
        if let Some(probe) = &self.probe {
            let special = (0..size as u32).filter(|id| tokenizer.is_special(*id));
            let special = special.map(|id| (id, tokenizer.token_bytes(id))).collect();
            let stops = tokenizer.stops().to_vec();
            probe.ask(
                &as_json(&ProbeRequest { structure: structure.clone(), size, special, stops })?,
                wanted,
            )?;
        }
        let factory = || factory(size, |id| word(tokenizer, id), tokenizer.stops());
        let factory = self.factory.get_or_init(factory).clone().map_err(refused)?;
        let state = with_stack(bytes, || first_mask(compiled(&factory, grammar)?))?;
        let mut constraint = Constraint { state };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front((key, constraint.again()));
        Ok(constraint)
    }

    /// A cached structure.
    fn kept(&self, key: [u8; 32]) -> Option<Constraint> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(of, _)| *of == key)?;
        let mut found = kept.remove(at)?;
        let constraint = found.1.again();
        kept.push_front(found);
        Some(constraint)
    }
}

fn as_json(value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| refused(error.to_string()))
}

/// The state before the first token. This detects structures that no answer satisfies, or whose first mask takes too
/// long.
fn first_mask(mut matcher: Matcher) -> Result<State, String> {
    let mask = matcher.compute_mask_or_eos();
    let mask =
        mask.map_err(|error| format!("no answer meets it, or it takes too long to follow: {error}"))?;
    Ok(State::Made(Box::new(matcher), mask))
}

/// A token in the library's form. Special tokens are not text: the marker prevents matches with their spelling.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    match tokenizer.token_bytes(id) {
        bytes if tokenizer.is_special(id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat(),
        bytes => bytes,
    }
}

/// A structure, with the state after the answer's last token.
pub struct Constraint {
    state: State,
}

enum State {
    Ready(Box<Matcher>),
    /// The next mask is being computed on another thread.
    Making(JoinHandle<(Box<Matcher>, Result<SimpleVob, String>)>),
    Made(Box<Matcher>, SimpleVob),
    Failed(String),
}

impl Constraint {
    /// The initial state, for another answer.
    pub fn again(&mut self) -> Constraint {
        self.settle();
        let state = match &self.state {
            State::Ready(matcher) => State::Ready(Box::new(matcher.deep_clone())),
            State::Made(matcher, mask) => State::Made(Box::new(matcher.deep_clone()), mask.clone()),
            State::Failed(error) => State::Failed(error.clone()),
            State::Making(_) => State::Failed("a mask is still being made".to_string()),
        };
        Constraint { state }
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
