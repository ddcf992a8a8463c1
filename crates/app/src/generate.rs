//! Continues a prompt.

use fathom_base::{Flow, Generate, GenerateRequest, Generation, Prompt, Sampling, human};
use fathom_engine::{Engine, Limits};
use fathom_text::Tokenizer;

use crate::error::{Result, caught, refuse};
use crate::models::Ready;

/// Tokens of an answer, where the context has room for them and nothing is said.
const MAX_TOKENS: usize = 256;
/// Bytes of a prompt that are counted at once: encoding takes a hundred times as much memory.
const COUNTED_BYTES: usize = 1 << 20;
/// Tokens more than the whole has, at most, where a text is cut.
const CUT_TOKENS: usize = 16;

/// What is asked of a model.
#[derive(Clone, Debug)]
pub struct Request {
    /// The text to continue.
    pub prompt: String,
    /// How to choose tokens; the number of them is below.
    pub sampling: Sampling,
    /// Maximum number of new tokens; none for 256, or what fits into the context.
    pub max_tokens: Option<usize>,
    /// Maximum number of tokens of prompt and answer together; none for the model's context.
    pub context_tokens: Option<usize>,
}

/// Continues a prompt; `stream` takes the text as it comes, and may stop it.
///
/// # Errors
/// A prompt that does not fit, settings out of range, no memory.
pub fn generate(
    model: &Ready,
    request: &Request,
    stream: &mut dyn FnMut(&str) -> Flow,
) -> Result<Generation> {
    let Ready { tokenizer, device, loaded, .. } = model;
    let (spec, prompt) = (&loaded.model.spec, &request.prompt);
    let context_tokens = request.context_tokens.unwrap_or(spec.max_positions);
    let limits = Limits { context_tokens, ..Limits::default() };
    caught(|| {
        let mut engine = Engine::new(device, &loaded.model, &loaded.params, tokenizer, limits);
        let room = context_tokens.min(spec.learned_positions.unwrap_or(usize::MAX));
        refuse_endless(tokenizer, prompt, room)?;
        let left = room.saturating_sub(tokenizer.encode_prompt(prompt)?.len().max(1));
        // A prompt that leaves no room is refused by what makes the answer.
        let max_tokens = request.max_tokens.unwrap_or(MAX_TOKENS.min(left.max(1)));
        let sampling = Sampling { max_tokens, ..request.sampling.clone() };
        Ok(engine.generate(&GenerateRequest::new(Prompt::Text(prompt.clone()), sampling), stream)?)
    })
}

/// Refuses a long prompt as soon as its beginning fills the context, before all of it is encoded.
fn refuse_endless(tokenizer: &Tokenizer, prompt: &str, room: usize) -> Result<()> {
    if prompt.len() <= COUNTED_BYTES {
        return Ok(());
    }
    let (mut tokens, mut rest) = (0, prompt);
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(rest.floor_char_boundary(COUNTED_BYTES));
        tokens += tokenizer.encode_special(piece)?.len().saturating_sub(CUT_TOKENS);
        rest = tail;
        if tokens > room {
            refuse!(
                "the prompt has {} and fills the context of {} tokens {} before its end; shorten it, or raise --context",
                human::bytes(prompt.len() as u64),
                human::grouped(room as u64),
                human::bytes(rest.len() as u64)
            );
        }
    }
    Ok(())
}
