//! Keys of metadata.

/// Key of the chat template.
pub(super) const TEMPLATE: &str = "tokenizer.chat_template";

/// Fathom's own key for the position of an inserted space that llama.cpp cannot express (`Metaspace` of a
/// `tokenizer.json`).
pub(super) const PREPEND: &str = "fathom.tokenizer.prepend_scheme";
