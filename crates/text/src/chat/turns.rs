//! The answers of a conversation that are learned.

/// Selection of the turns that are targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turns {
    /// All turns of the model.
    #[default]
    Assistant,
    /// Only the last turn of the model.
    Last,
    /// Everything, whatever the role.
    All,
}
