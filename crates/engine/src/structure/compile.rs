//! Compilation of structures, within the library's limits and some of our own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;

use fathom_base::Structure;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::error::Error;

/// Stack of the compiling thread: the library recurses once per rule in a chain of rules.
const STACK: usize = 16 << 20;
/// Additional stack per byte of the grammar; a rule has at least six bytes.
const STACK_OF_A_BYTE: usize = 1 << 10;
/// A parser of a grammar. Counts its own steps where the library has no limit: at the first transitions of the lexer.
pub(super) fn compiled(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
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

/// Compiles a grammar of `bytes` bytes on a thread with enough stack for its rules.
pub(super) fn with_stack<T: Send>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, Error> {
    let stack = STACK + bytes * STACK_OF_A_BYTE;
    let done = thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(stack).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("no thread can be started for it: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("the library that compiles it failed".to_string()))
    });
    done.map_err(|error| refused(first_line(&error)))
}

/// The first line of a message: the library appends the grammar to it.
pub(super) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_string()
}

pub(super) fn refused(message: String) -> Error {
    Error::Structure(message)
}

/// The grammar of a structure, and its length in bytes.
pub(super) fn grammar(structure: &Structure) -> Result<(TopLevelGrammar, usize), Error> {
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

/// The library's view of a vocabulary of `size` tokens.
pub(super) fn factory(
    size: usize,
    word: impl Fn(u32) -> Vec<u8>,
    stops: &[u32],
) -> Result<Arc<ParserFactory>, String> {
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
