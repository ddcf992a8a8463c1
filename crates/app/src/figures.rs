//! What measurements of a model find.

/// The figures.
pub struct Figures {
    /// Loss by position, by the same documents in every bucket where there are long ones.
    pub position: Option<fathom_eval::ByPosition>,
    /// Bits per byte.
    pub bits: Option<fathom_eval::Bits>,
    /// Held-out lessons.
    pub answers: Option<fathom_base::metrics::events::EvalAnswers>,
    /// Needles.
    pub needles: Option<fathom_eval::Needles>,
}
