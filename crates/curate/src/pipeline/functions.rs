//! Functions of the program around a curation, which take part as stages.

/// Column of flags in a function's answer: true keeps the document.
pub const KEEP: &str = "fathom_keep";

/// Functions by name. What they answer for a document must depend on that document alone.
pub trait Functions: Send + Sync {
    /// Returns whether there is a function of this name.
    fn has(&self, name: &str) -> bool;

    /// Asks a function. Batch and answer are Arrow's IPC streams of one batch with as many rows; the answer may have other
    /// texts, columns in addition, and the flags [`KEEP`].
    ///
    /// # Errors
    /// A message of the function.
    fn call(&self, name: &str, batch: Vec<u8>) -> Result<Vec<u8>, String>;
}
