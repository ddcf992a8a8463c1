//! What measurements of a model find.

/// The figures.
#[derive(Default)]
pub struct Figures {
    /// Loss by position, by the same documents in every bucket where there are long ones.
    pub position: Option<fathom_eval::ByPosition>,
    /// What the long context is worth.
    pub context: Option<fathom_eval::Worth>,
    /// Bits per byte.
    pub bits: Option<fathom_eval::Bits>,
    /// Held-out lessons.
    pub answers: Option<fathom_base::metrics::events::EvalAnswers>,
    /// Needles.
    pub needles: Option<fathom_eval::Needles>,
}
