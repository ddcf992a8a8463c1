//! Limits and options of a server, as keys of a recipe.

use std::path::PathBuf;

use fathom_base::{choice, recipe};

choice! {
    /// Format of tool calls in an answer's text.
    pub enum ToolFormat {
        /// By what the text begins with: any of the others.
        Auto = "auto",
        /// `<tool_call>{"name": .., "arguments": ..}</tool_call>` (Hermes, Qwen).
        Hermes = "hermes",
        /// `{"name": .., "parameters": ..}` (Llama 3).
        Llama3 = "llama3",
        /// `[TOOL_CALLS][{"name": .., "arguments": ..}]` (Mistral).
        Mistral = "mistral",
        /// Not at all: they stay text.
        None = "none",
    }
}

recipe! {
    /// A server's recipe.
    pub struct Recipe {
        /// The server.
        pub serve: Settings,
    }
    /// The server.
    pub struct Settings {
        /// Sequences of a model that are answered at once.
        pub sequences: u64 = 16,
        /// Tokens that a model reads in a step: of answers one each, and of prompts as many as are left.
        pub chunk_tokens: u64 = 512,
        /// Tokens that are guessed to follow each answer in a step, at most; 0 for none. Changes no answer.
        pub draft_tokens: u64 = 8,
        /// The folder of a small model with the vocabulary of the first one, which guesses for it (`--draft`).
        pub draft: Option<PathBuf>,
        /// Tokens of prompt and answer together; none for the model's own context.
        pub context_tokens: Option<u64>,
        /// Requests that may be open at once, those that wait among them; more are answered with 429.
        pub max_requests: u64 = 256,
        /// Tokens that the open requests of a model may ask for, prompts and answers; none for four times what its pages hold.
        pub max_tokens: Option<u64>,
        /// Seconds to the first token that are still accepted: a request that would wait longer is answered with 429.
        pub max_first_token_s: f64 = 60.0,
        /// Tokens of a chat's answer where the request does not say, if the context has room for them.
        pub answer_tokens: u64 = 1024,
        /// Seconds that a request may take; it ends with what it has then.
        pub request_s: f64 = 3600.0,
        /// Seconds that open requests have to end when the server is asked to stop.
        pub drain_s: f64 = 30.0,
        /// Seconds without a token after which a stream gets a comment, so that nothing between takes it for dead.
        pub keep_alive_s: f64 = 15.0,
        /// Connections that may be open at once; more wait to be accepted.
        pub max_connections: u64 = 1024,
        /// Seconds in which a request's head has to arrive; an idle connection is closed then, too.
        pub head_s: f64 = 30.0,
        /// Seconds in which a request's body has to arrive.
        pub body_s: f64 = 60.0,
        /// Seconds that a client may take nothing of its answer; its connection is closed then.
        pub stall_s: f64 = 60.0,
        /// Largest body of a request, in bytes. Compressed ones are refused.
        pub body_bytes: u64 = 16777216,
        /// Most prompts or texts of a request.
        pub max_texts: u64 = 256,
        /// Most answers to a prompt (`n`).
        pub max_answers: u64 = 16,
        /// Most alternatives of a token (`logprobs`, `top_logprobs`).
        pub max_logprobs: u64 = 20,
        /// Most log-probabilities that the answers of a request list: of each token of its prompts and answers, its own and its alternatives.
        pub max_listed_logprobs: u64 = 524288,
        /// Most stop texts and stop ids of a request.
        pub max_stops: u64 = 64,
        /// Most entries of `logit_bias`.
        pub max_bias: u64 = 1024,
        /// Largest schema, expression or grammar, in bytes.
        pub schema_bytes: u64 = 65536,
        /// Deepest nesting of a schema.
        pub schema_depth: u64 = 32,
        /// Most tools of a request.
        pub max_tools: u64 = 128,
        /// Names besides the loopback's by which the server may be called (`Host`), where no key is asked for.
        pub hosts: Vec<String>,
        /// Pages of these origins may call the server (`https://chat.example.org`).
        pub origins: Vec<String>,
        /// The folder that adapters are loaded from while the server runs; without one none is.
        pub adapters: Option<PathBuf>,
        /// Bytes that are kept free for adapters that are loaded while the server runs, where a folder of them is named.
        pub adapter_bytes: u64 = 268435456,
        /// Most bytes of the folder where beginnings of prompts are kept (`--prefix-store`).
        pub prefix_bytes: u64 = 17179869184,
        /// Most bytes of a file next to them for keys and values of sequences that are longer than the pages in memory, over all ranks; 0 refuses
        /// such sequences.
        pub page_file_bytes: u64 = 0,
        /// Folder of an index (`fathom index`), from whose documents chats are answered with citations (`--knowledge`).
        pub knowledge: Option<PathBuf>,
        /// Maximum number of passages of its documents in a prompt.
        pub knowledge_passages: u64 = 5,
        /// Folder of a reranker for these passages.
        pub reranker: Option<PathBuf>,
        /// Format of tool calls in an answer's text.
        pub tools: ToolFormat,
        /// The address of a collector of traces (OTLP over HTTP), such as `http://127.0.0.1:4318`; without one none are sent.
        pub otlp: Option<String>,
    }
}
