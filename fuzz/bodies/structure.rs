//! Schemas, expressions and grammars of requests: compiled, and followed for some tokens. The first byte says which it is, and which of
//! the tokens that may follow do.

use std::sync::OnceLock;

use fathom_base::Structure;
use fathom_engine::{Constraint, Structures};
use fathom_text::Tokenizer;

/// Tokens that are followed.
const TOKENS: usize = 12;

fn tokenizer() -> Option<&'static (Tokenizer, Structures)> {
    static MADE: OnceLock<Option<(Tokenizer, Structures)>> = OnceLock::new();
    let make = || {
        let text = "{\"name\": [1, 2.5, true, null], \"a b\": \"c\"}".to_string();
        Some((Tokenizer::train_bpe(std::iter::once(text), 280, &["<end>"]).ok()?, Structures::default()))
    };
    MADE.get_or_init(make).as_ref()
}

/// Compiles the bytes, and follows what they allow.
pub fn run(data: &[u8]) {
    let (Some((kind, text)), Some((tokenizer, structures))) = (data.split_first(), tokenizer()) else {
        return;
    };
    let text = String::from_utf8_lossy(text).into_owned();
    let structure = match kind % 5 {
        0 => Structure::JsonSchema(text),
        1 => Structure::Regex(text),
        2 => Structure::Grammar(text),
        3 => Structure::Choice(text.split('\n').map(str::to_string).collect()),
        _ => Structure::JsonObject,
    };
    let Ok(mut structured) = structures.compile(tokenizer, tokenizer.vocab_size(), &structure) else {
        return;
    };
    follow(&mut structured, usize::from(*kind));
}

fn follow(structured: &mut Constraint, seed: usize) {
    for step in 0..TOKENS {
        let Ok(mask) = structured.mask() else { return };
        let allowed: Vec<u32> =
            (0..32 * mask.len() as u32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
        assert!(!allowed.is_empty(), "a mask without tokens");
        let id = allowed[(seed * 31 + step * 7) % allowed.len()];
        // What the mask allows may follow.
        match structured.take(id) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => panic!("token {id} was allowed, and refused: {error}"),
        }
    }
}
