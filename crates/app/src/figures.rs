//! Results of a model's measurements.

use serde::Serialize;

/// Results of the measurements that were made.
#[derive(Clone, Default, Serialize)]
pub struct Figures {
    /// Loss by position; every bucket uses the same documents if there are long ones.
    pub position: Option<fathom_eval::ByPosition>,
    /// Gain from the long context.
    pub context: Option<fathom_eval::Worth>,
    /// Bits per byte.
    pub bits: Option<fathom_eval::Bits>,
    /// Held-out lessons.
    pub answers: Option<fathom_base::metrics::events::EvalAnswers>,
    /// Needles.
    pub needles: Option<fathom_eval::Needles>,
    /// RULER's tasks.
    pub ruler: Option<fathom_eval::lengths::Scores>,
}
