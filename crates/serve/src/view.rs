//! Contents of a server of one page, such as a board over many runs.

use serde_json::Value;

/// Something that can be looked at in a browser.
pub trait View: Send + Sync {
    /// The page. It loads nothing from elsewhere; `{nonce}` in it becomes the nonce that permits its script and style.
    fn page(&self) -> &str;

    /// Answers what the page asks, as JSON text.
    ///
    /// # Errors
    /// A question that has no answer, in words.
    fn answer(&self, question: &Value) -> Result<String, String>;
}
