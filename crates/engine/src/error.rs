//! Errors of requests.

/// Errors of a request; the engine stays usable.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
#[non_exhaustive]
pub enum Error {
    /// The prompt leaves no room.
    #[error(
        "the prompt has {prompt} tokens and {new} are to be generated, but the context holds {room}; generate fewer (--max-tokens), shorten the prompt, or raise the limit (--context; of a server serve.context_tokens, with memory or disk for it)"
    )]
    TooLong { prompt: usize, new: usize, room: usize },
    /// There is nothing to continue.
    #[error("the prompt is empty and the tokenizer has no begin-of-text token to start from")]
    Empty,
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    Vocabulary { id: u32, vocab: usize },
    /// A setting out of range.
    #[error("sampling.{key}: {message}")]
    Sampling { key: &'static str, message: String },
    /// Hidden states without a direction.
    #[error(
        "a text of {tokens} tokens has no vector: the hidden states of the model are not finite, or add up to nothing; check its weights"
    )]
    NoDirection { tokens: usize },
    /// Logits or losses that are not finite.
    #[error(
        "the model gives no numbers ({what} is not finite): its weights hold NaN or infinity, or values that its type cannot compute with; check where they come from"
    )]
    NotFinite { what: &'static str },
    /// No token is allowed next.
    #[error(
        "no token is allowed here: the structure that was asked for cannot be met by the vocabulary, or every token is left out by logit_bias"
    )]
    NoToken,
    /// A structure that cannot be enforced.
    #[error("the structure that was asked for: {0}")]
    Structure(String),
    /// Too many other structures are being compiled.
    #[error(
        "{at_once} structures are being compiled, which is the most, and others wait for them; this one has waited for {waited_s:.0} s"
    )]
    Compiling { at_once: usize, waited_s: f64 },
    /// The client has left.
    #[error("the request is no longer wanted")]
    Unwanted,
    /// More pages are needed than there are.
    #[error(
        "{tokens} tokens of prompt and answers need more pages than there are (room for {room} tokens); generate fewer, shorten the prompt, or give the engine more memory (--memory), fewer bits of keys and values (--kv int8), or pages on disk (--prefix-store DIR serve.page_file_bytes=N)"
    )]
    NoPages { tokens: usize, room: usize },
    /// Prefixes cannot be stored in this folder.
    #[error("{}: {why}; name another folder for beginnings of prompts (--prefix-store)", folder.display())]
    Store { folder: std::path::PathBuf, why: String },
    /// There is no adapter of this name.
    #[error("there is no adapter called `{0}`")]
    NoAdapter(String),
    /// The name is taken by another adapter, or by a model.
    #[error("there is a model or an adapter called `{0}` already; unload it first, or take another name")]
    AdapterTwice(String),
    /// Something that this model does not support.
    #[error("{0}")]
    Unsupported(String),
    /// More tokens than an encoder has positions for.
    #[error("max_tokens is {max_tokens}, and the encoder has positions for {room} tokens; lower it")]
    Positions { max_tokens: usize, room: usize },
    /// A rank with a part of the model failed.
    #[error("a rank failed, and the others have parts of the model alone: {0}")]
    Rank(#[from] fathom_tensor::mesh::LinkError),
    /// A request failed on its way.
    #[error(transparent)]
    Failed(fathom_base::Error),
    /// Error of a model's folder.
    #[error(transparent)]
    Model(#[from] fathom_model::Error),
    /// Error of the tokenizer.
    #[error(transparent)]
    Text(#[from] fathom_text::Error),
}

impl From<Error> for fathom_base::Error {
    fn from(error: Error) -> fathom_base::Error {
        let what = error.to_string();
        match error {
            Error::Compiling { waited_s, .. } => {
                fathom_base::Error::Busy { what, retry_after_s: waited_s.max(1.0) }
            }
            Error::Structure(_) | Error::NoToken => fathom_base::Error::Unmet { what },
            Error::NoAdapter(_) => fathom_base::Error::Missing { what },
            error => fathom_base::Error::product(error),
        }
    }
}
